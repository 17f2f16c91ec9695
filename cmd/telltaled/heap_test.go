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
	given := func(v string, ok bool) bool { return gogcGiven(func(string) (string, bool) { return v, ok }) }
	if given("", false) || given("", true) || !given("100", true) || !given("off", true) {
		t.Error("what the operator gave is not told")
	}
	for _, given := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		set, ended := make(chan int, 10), make(chan error, 1)
		go func() { ended <- paceCollector(ctx, given, func(p int) int { set <- p; return 100 }) }()
		if !given {
			select {
			case p := <-set:
				if p <= 100 || p > 400 {
					t.Errorf("a small heap is collected at %d %%", p)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("nothing was set")
			}
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if given && len(set) > 0 {
			t.Errorf("the operator's percentage became %d", <-set)
		}
	}
}
