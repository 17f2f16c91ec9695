package tasks

import (
	"maps"
	"sync"
	"time"
)

// Stats are this replica's own counters since its start.
type Stats struct {
	Channels int // open task channels
	Held     int // active runs on them
	Watched  int // tasks that callers wait for

	Started uint64           // tasks stored
	Refused uint64           // requests that became no task
	Ended   map[State]uint64 // runs that this replica ended, by state
	Late    uint64           // words of nodes on runs that had ended

	// From a task's creation to its request's way to the node, runs that this
	// replica sent. Dispatches counts those within each of DispatchBounds, and
	// the slower ones last; it is not cumulative.
	Dispatched    uint64
	DispatchTotal time.Duration
	Dispatches    []uint64
}

// DispatchBounds are the upper bounds of Stats.Dispatches.
func DispatchBounds() []time.Duration {
	const ms = time.Millisecond
	return []time.Duration{ms, 2 * ms, 5 * ms, 10 * ms, 20 * ms, 50 * ms, 100 * ms, 500 * ms, 2 * time.Second}
}

type counters struct {
	mu                            sync.Mutex
	started, refused, late, count uint64
	total                         time.Duration
	buckets                       [10]uint64
	ended                         map[State]uint64
}

func (c *counters) add(n *uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*n++
}

func (c *counters) end(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended[s]++
}

func (c *counters) dispatch(took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	c.total += took
	i := 0
	for _, bound := range DispatchBounds() {
		if took <= bound {
			break
		}
		i++
	}
	c.buckets[i]++
}

// Stats reads the counters; it is cheap.
func (s *Service) Stats() Stats {
	out := Stats{Watched: len(s.watches.keys())}
	for _, c := range s.open() {
		out.Channels++
		out.Held += c.held()
	}
	c := &s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	out.Started, out.Refused, out.Late, out.Ended = c.started, c.refused, c.late, maps.Clone(c.ended)
	out.Dispatched, out.DispatchTotal, out.Dispatches = c.count, c.total, append([]uint64(nil), c.buckets[:]...)
	return out
}
