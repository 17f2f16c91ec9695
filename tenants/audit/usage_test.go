package audit

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// A write that waits for its row has two of them and is one call; folded
// refusals count in full, another tenant's and those of yesterday not at all.
func TestLastDay(t *testing.T) {
	w := newWorld(t)
	w.s.Note(entry(w.admin, "list_nodes"))
	w.flush(w.s)
	w.advance(day + time.Second)
	for range 2 {
		w.s.Note(entry(w.admin, "list_nodes"))
	}
	started := entry(w.admin, "set_modules")
	started.Outcome = Started
	if err := w.s.Write(t.Context(), started); err != nil {
		t.Fatal(err)
	}
	started.Outcome = OK
	w.s.Note(started)
	refused := entry(w.admin, "get_node")
	refused.Outcome, refused.Reason = Refused, "rate_limited"
	for range 4 {
		w.s.Note(refused)
	}
	w.s.Note(entry(w.other, "list_nodes"))
	w.flush(w.s)
	for _, c := range []struct {
		scope tenants.Scope
		want  Day
	}{{w.admin, Day{Calls: 7, Refused: 4}}, {w.other, Day{Calls: 1}}} {
		got, err := w.s.LastDay(t.Context(), c.scope)
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%v %s", err, d)
		}
	}
	reader := w.admin
	reader.Granted = tenants.Read
	if _, err := w.s.LastDay(t.Context(), reader); !fault.Is(err, fault.Denied) {
		t.Errorf("without admin: %v", err)
	}
}
