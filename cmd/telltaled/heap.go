package main

import (
	"context"
	"runtime/metrics"
	"time"
)

// heapRoom is how much garbage may always gather before a collection. A small
// server would collect many times a second under load, which costs a sixth of
// its processor time; a large one gathers as much garbage as it has live. More
// room pays little: at 2,100 calls a second, with 10 MiB live, the collector
// takes 4 % of the server's samples, and 1 % with twice the garbage. GOMEMLIMIT
// stands above all this: near it the runtime collects whatever the percentage.
const heapRoom = 96 << 20

const heapLook = time.Second

// gogcGiven reports whether the operator has set GOGC, be it to its usual 100.
func gogcGiven(getenv func(string) (string, bool)) bool {
	v, _ := getenv("GOGC")
	return v != ""
}

// paceCollector keeps heapRoom until ctx ends, unless the operator's own GOGC
// is given. set changes its percentage and returns the former one.
func paceCollector(ctx context.Context, given bool, set func(percent int) int) error {
	if given {
		<-ctx.Done()
		return nil
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(heapLook)
	defer tick.Stop()
	was := 100
	for {
		metrics.Read(live)
		if p := collectAt(live[0].Value.Uint64()); p*10 < was*9 || p*10 > was*11 {
			was = p
			set(p) // costs a moment's stop of everything
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// collectAt is by how many per cent the heap may grow beyond what is live. The
// most bounds what a heap that suddenly grows gathers before the next look.
func collectAt(live uint64) int {
	const usual, most = 100, 400
	return int(min(max(usual, heapRoom*100/max(live, 1)), most))
}
