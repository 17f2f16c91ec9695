package main

import (
	"context"
	"testing"
	"time"
)

func TestCollectorsPace(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 4 << 20: 400, 32 << 20: 300, 96 << 20: 100, 1 << 30: 100} {
		if got := collectAt(live); got != want {
			t.Errorf("%d bytes live: %d %%, want %d", live, got, want)
		}
	}
	for _, given := range []int{100, 50} { // an operator's GOGC stays
		ctx, cancel := context.WithCancel(t.Context())
		set, ended := make(chan int, 10), make(chan error, 1)
		percent := given
		go func() {
			ended <- paceCollector(ctx, func(p int) (was int) { was, percent = percent, p; set <- p; return was })
		}()
		last := 0
		for range 2 {
			select {
			case last = <-set:
			case <-time.After(10 * time.Second):
				t.Fatal("nothing was set")
			}
		}
		if given == 50 && last != given || given == 100 && last <= given {
			t.Errorf("%d became %d", given, last)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
