package metrics

import (
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

type nodeKey struct {
	tenant tenants.TenantID
	node   tenants.NodeID
}

// nodeStates remembers which layouts each node uses now. It is this process's
// memory: a node's stream lives on one replica, and another one learns the
// same within one tick.
type nodeStates struct {
	mu sync.Mutex
	m  map[nodeKey]*nodeState
}

type nodeState struct {
	since time.Time // first window seen by this process
	last  time.Time // newest window
	uses  []use

	layoutsSince time.Time // start of the hour in which layouts are counted
	layouts      int       // new layouts since then
	layoutBytes  int       // of those
}

type use struct {
	layout    int64
	component string
	series    int
	end       time.Time
}

const (
	maxLayout      = 256 << 10 // bytes of one encoded layout
	maxLayouts     = 240       // new layouts of one node in an hour
	maxLayoutBytes = 16 << 20  // of those together
	maxNodeStates  = 100_000
	headLife       = time.Minute // silence of a component after which its headlines are unknown
)

func newNodeStates() *nodeStates { return &nodeStates{m: map[nodeKey]*nodeState{}} }

// use notes that the node uses a layout in a window of length dur that ends at
// end. total is
// the number of series over all its layouts in use: per component those of the
// newest tick. alive has a bit for each headline position that is not known to
// be silent.
func (n *nodeStates) use(k nodeKey, sh *shape, end time.Time, dur time.Duration, heads headlines) (total int, alive uint16) {
	// Windows of one tick end within half of their length.
	sameTick := min(dur, tenants.WindowLength) / 2
	n.mu.Lock()
	defer n.mu.Unlock()
	st := n.state(k)
	if st.since.IsZero() {
		st.since = end
	}
	if end.After(st.last) {
		st.last = end
	}
	kept, found := st.uses[:0], false
	for _, u := range st.uses {
		switch {
		case u.layout == sh.id:
			found = true
			if end.After(u.end) {
				u.end = end
			}
		case u.component == sh.component && u.end.Before(end.Add(-sameTick)):
			continue // replaced by a newer layout
		case u.end.Before(st.last.Add(-2 * headLife)):
			continue
		}
		kept = append(kept, u)
		total += u.series
	}
	st.uses = kept
	if !found {
		total += len(sh.kinds)
		if total <= tenants.MaxSeriesPerNode {
			st.uses = append(st.uses, use{sh.id, sh.component, len(sh.kinds), end})
		}
	}
	if st.last.Sub(st.since) < headLife {
		return total, 1<<len(heads.metrics) - 1
	}
	for pos, owner := range heads.owners {
		for _, u := range st.uses {
			if u.component == owner && u.end.After(st.last.Add(-headLife)) {
				alive |= 1 << pos
			}
		}
	}
	return total, alive
}

// state finds or begins a node's state; n.mu is held.
func (n *nodeStates) state(k nodeKey) *nodeState {
	st := n.m[k]
	if st == nil {
		for old := range n.m {
			if len(n.m) < maxNodeStates {
				break
			}
			delete(n.m, old)
		}
		st = &nodeState{}
		n.m[k] = st
	}
	return st
}

// mayAdd counts a new layout of a node; false when it makes them too fast to
// be kept.
func (n *nodeStates) mayAdd(k nodeKey, size int, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := n.state(k)
	if now.Sub(st.layoutsSince) >= time.Hour {
		st.layoutsSince, st.layouts, st.layoutBytes = now, 0, 0
	}
	if st.layouts >= maxLayouts || st.layoutBytes+size > maxLayoutBytes {
		return false
	}
	st.layouts, st.layoutBytes = st.layouts+1, st.layoutBytes+size
	return true
}
