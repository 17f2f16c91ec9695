package inspector

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRosterBoundsNamesAndKeepsThem(t *testing.T) {
	r := &Roster{Max: 2}
	now := time.Unix(1_800_000_000, 0)
	want := func(what string, present []Candidate, names []string, other bool) {
		t.Helper()
		got, o := r.Choose(now, present, false)
		if d := cmp.Diff(names, got); d != "" || o != other {
			t.Errorf("%s: other %v, names (-want +got):\n%s", what, o, d)
		}
	}
	want("all fit", []Candidate{{Name: "b"}, {Name: "a"}}, []string{"a", "b"}, false)
	want("an equal newcomer", []Candidate{{Name: "Z"}, {Name: "a"}, {Name: "b"}}, []string{"a", "b"}, true)
	want("less than twice as heavy", []Candidate{{Name: "c", Weight: 19}, {Name: "a", Weight: 10}, {Name: "b", Weight: 11}}, []string{"a", "b"}, true)
	want("more than twice as heavy", []Candidate{{Name: "c", Weight: 21}, {Name: "a", Weight: 10}, {Name: "b", Weight: 11}}, []string{"b", "c"}, true)
	want("one is gone", []Candidate{{Name: "c", Weight: 1<<64 - 1}}, []string{"c"}, true)
	want("a fleeting one", []Candidate{{Name: "c"}, {Name: "d", Fleeting: true}}, []string{"c"}, true)
	want("one with a name goes", []Candidate{{Name: "c", Fleeting: true}}, []string{"c"}, true)
}

// However fast things come and go, the choice changes rarely, and what finds
// no name always finds the other row.
func TestRosterBoundsItsChanges(t *testing.T) {
	r := &Roster{Max: 8}
	now := time.Unix(1_800_000_000, 0)
	var last []string
	lastOther, changes := false, 0
	for i := range 360 { // one hour
		name := fmt.Sprint("veth", i)
		names, other := r.Choose(now, []Candidate{{Name: "eth0", Weight: 5}, {Name: name}}, false)
		if i > 0 && (other != lastOther || !cmp.Equal(names, last)) {
			changes++
		}
		named := false
		for _, n := range names {
			named = named || n == name
		}
		if !named && !other {
			t.Fatalf("%s has no row in window %d", name, i)
		}
		last, lastOther = names, other
		now = now.Add(10 * time.Second)
	}
	if changes > rosterBurst+30 {
		t.Errorf("%d changes in an hour", changes)
	}
	if changes < 20 {
		t.Errorf("only %d changes in an hour; newcomers never get a name", changes)
	}
}
