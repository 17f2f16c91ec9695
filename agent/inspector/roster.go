package inspector

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Roster chooses which of many things of a kind (interfaces, devices, drop
// reasons) have series of their own; the others belong into an "other" row.
// It bounds their number and how often the choice changes, because every
// change makes a new layout. Not safe for concurrent use.
type Roster struct {
	Max int // names at most

	names   map[string]bool
	other   bool
	changes int // that may be made now
	since   time.Time
}

// A choice may change rosterBurst times at once and then once in rosterPause.
const (
	rosterBurst = 10
	rosterPause = 2 * time.Minute
)

// Candidate is one thing that is there. Names are unique in a call.
type Candidate struct {
	Name   string
	Weight uint64 // the heaviest are chosen
	// Fleeting says that it is gone again already: it is not worth a name
	// that it does not have yet.
	Fleeting bool
}

// Choose returns the names with series of their own, sorted, and whether there
// is an other row, which stays once it is there; fold asks for it. A name that
// was chosen before gives way only to one twice as heavy. While no change may
// be made the former choice stands: then a name may be gone from present, and
// its values are unknown, and a newcomer belongs into other.
func (r *Roster) Choose(now time.Time, present []Candidate, fold bool) (names []string, other bool) {
	first := r.names == nil
	r.refill(now, first)
	weight := func(c Candidate) uint64 {
		if r.names[c.Name] {
			return c.Weight + min(c.Weight, math.MaxUint64-c.Weight)
		}
		return c.Weight
	}
	order := slices.SortedFunc(slices.Values(present), func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), prefer(r.names[a.Name], r.names[b.Name]), cmp.Compare(a.Name, b.Name))
	})
	want := map[string]bool{}
	for _, c := range order {
		if len(want) < r.Max && (!c.Fleeting || r.names[c.Name]) {
			want[c.Name] = true
		}
	}
	wantOther := r.other || fold || len(want) < len(present)
	if first || wantOther != r.other || !maps.Equal(want, r.names) {
		if !first {
			r.changes--
		}
		if r.changes >= 0 {
			// The row has to be there when newcomers may find no other place.
			r.names, r.other = want, wantOther || r.changes <= 1
		}
		r.changes = max(r.changes, 0)
	}
	return slices.Sorted(maps.Keys(r.names)), r.other
}

func (r *Roster) refill(now time.Time, first bool) {
	if first {
		r.changes, r.since = rosterBurst, now
	}
	if now.Before(r.since) {
		r.since = now
	}
	if n := now.Sub(r.since) / rosterPause; n > 0 {
		r.changes = int(min(int64(rosterBurst), int64(r.changes)+int64(n)))
		r.since = r.since.Add(n * rosterPause)
	}
}

func prefer(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
