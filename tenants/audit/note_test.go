package audit

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestNoteAndList(t *testing.T) {
	w := newWorld(t)
	for _, action := range []string{"list_nodes", "get_node", "audit_recent"} {
		w.s.Note(entry(w.admin, action))
		w.advance(time.Second)
	}
	w.s2.Note(entry(w.other, "list_events"))
	w.s2.Note(entry(w.limited, "explain"))
	w.flush(w.s, w.s2)

	if diff := cmp.Diff([]string{"explain", "audit_recent", "get_node", "list_nodes"}, actions(w.list(w.admin, Query{}))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"list_events"}, actions(w.list(w.other, Query{}))); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"explain"}, actions(w.list(w.limited, Query{}))); diff != "" {
		t.Errorf("a limited administrator: %s", diff)
	}
	if got := actions(w.list(w.limited, Query{Principal: w.admin.Principal.ID})); len(got) != 0 {
		t.Errorf("a limited administrator reads another's: %v", got)
	}
	reader := w.admin
	reader.Granted = tenants.Read
	if _, err := w.s.List(t.Context(), reader, Query{}); !fault.Is(err, fault.Denied) {
		t.Errorf("without admin: %v", err)
	}

	got := w.list(w.admin, Query{Action: "get_node"}).Entries
	if len(got) != 1 {
		t.Fatal(got)
	}
	want := Row{ID: got[0].ID, At: start.Add(time.Second), Principal: Caller{tenants.OAuthPrincipal, w.admin.Principal.ID, "dana", "cli"}, Surface: "mcp", Action: "get_node",
		Arguments: `{node="n1"}`, Outcome: OK, Bytes: 1234, DurationMS: 12, Reference: "abcdefghij0123456789", From: "192.0.2.7", Count: 1}
	if diff := cmp.Diff(want, got[0]); diff != "" {
		t.Error(diff)
	}

	for name, c := range map[string]struct {
		q    Query
		want []string
	}{
		"principal": {Query{Principal: w.limited.Principal.ID}, []string{"explain"}},
		"outcome":   {Query{Outcome: Failed}, []string{}},
		"since":     {Query{Since: start.Add(2 * time.Second)}, []string{"explain", "audit_recent"}},
		"until":     {Query{Until: start.Add(time.Second)}, []string{"list_nodes"}},
		"reference": {Query{Reference: "abcdefghij0123456789", Action: "explain"}, []string{"explain"}},
		"unknown":   {Query{Reference: "zzzz"}, []string{}},
	} {
		if diff := cmp.Diff(c.want, actions(w.list(w.admin, c.q))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	for name, q := range map[string]Query{
		"outcome": {Outcome: "fine"}, "cursor": {Cursor: "AAAA"}, "since": {Since: start, Until: start},
	} {
		if _, err := w.s.List(t.Context(), w.admin, q); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Pages join without a gap and without a row twice, also where many rows bear
// one time; a cursor serves its own list alone.
func TestPages(t *testing.T) {
	w := newWorld(t)
	for i := range 25 {
		w.s.Note(entry(w.admin, "list_nodes"))
		w.s2.Note(entry(w.other, "list_nodes"))
		if i%10 == 9 {
			w.advance(time.Second)
		}
	}
	w.flush(w.s, w.s2)
	seen := map[string]bool{}
	q := Query{Limit: 7}
	for {
		p := w.list(w.admin, q)
		for _, r := range p.Entries {
			if seen[r.ID] {
				t.Errorf("%s twice", r.ID)
			}
			seen[r.ID] = true
		}
		if p.Truncated == nil {
			break
		}
		q.Cursor = p.Truncated.NextCursor
		if _, err := w.s.List(t.Context(), w.other, q); !fault.Is(err, fault.Invalid) {
			t.Errorf("another tenant's cursor: %v", err)
		}
	}
	if len(seen) != 25 {
		t.Errorf("%d rows, want 25", len(seen))
	}
	q.Action = "get_node"
	if _, err := w.s.List(t.Context(), w.admin, q); !fault.Is(err, fault.Invalid) {
		t.Errorf("another filter's cursor: %v", err)
	}
}

func TestFolding(t *testing.T) {
	w := newWorld(t)
	refused := func(s tenants.Scope, action, reason string) Entry {
		e := entry(s, action)
		e.Outcome, e.Reason = Refused, reason
		return e
	}
	counts := func() (out []int) {
		for _, r := range w.list(w.admin, Query{Action: "run_job"}).Entries {
			out = append(out, r.Count)
		}
		slices.Sort(out)
		return out
	}
	for range 3 {
		w.s.Note(refused(w.admin, "run_job", "insufficient_scope"))
	}
	w.s.Note(refused(w.admin, "run_job", "too_many_calls"))
	w.s.Note(refused(w.limited, "run_job", "insufficient_scope"))
	w.s.Note(refused(w.other, "run_job", "insufficient_scope"))
	w.flush(w.s)
	if got := w.count(`select count(*) from audit`); got != 4 {
		t.Errorf("%d rows at once, want 4", got)
	}
	for range 50 {
		w.advance(time.Second)
		w.s.Note(refused(w.admin, "run_job", "insufficient_scope"))
		w.flush(w.s)
	}
	if got := w.count(`select count(*) from audit`); got != 4 {
		t.Errorf("%d rows within the minute, want 4", got)
	}
	w.advance(10 * time.Second)
	w.flush(w.s)
	if diff := cmp.Diff([]int{1, 1, 3, 50}, counts()); diff != "" {
		t.Errorf("after the minute: %s", diff)
	}
	if got := w.count(`select sum(count) from audit where principal_id = $1 and reason = 'insufficient_scope'`, w.admin.Principal.ID); got != 53 {
		t.Errorf("%d refusals, want 53", got)
	}
	w.advance(2 * time.Minute)
	w.flush(w.s)
	w.s.Note(refused(w.admin, "run_job", "insufficient_scope"))
	w.flush(w.s)
	if got := w.count(`select count(*) from audit`); got != 6 {
		t.Errorf("%d rows in the next minute, want 6", got)
	}
}

func TestFullQueue(t *testing.T) {
	w := newWorld(t)
	w.s.queue.init(10)
	for range 13 {
		w.s.Note(entry(w.admin, "list_nodes"))
	}
	w.s.Note(entry(w.other, "list_nodes"))
	w.flush(w.s)
	if got := w.s.Stats(); got.Dropped != 4 || got.Written != 12 || got.Waiting != 0 {
		t.Errorf("%+v", got)
	}
	for scope, want := range map[*tenants.Scope]int{&w.admin: 3, &w.other: 1} {
		got := w.list(*scope, Query{Action: lostAction}).Entries
		if len(got) != 1 || got[0].Count != want || got[0].Reason != "entries_lost" || got[0].Outcome != Failed {
			t.Errorf("want %d lost, got %+v", want, got)
		}
	}
	w.seal(w.s)
	if v := w.verify(w.a); v.Broken != nil || v.Gaps != 3 || v.Lost != 3 {
		t.Errorf("%+v", v)
	}
}

func TestWrite(t *testing.T) {
	w := newWorld(t)
	e := entry(w.admin, "POST tokens")
	e.Outcome = Started
	if err := w.s.Write(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if got := w.list(w.admin, Query{Outcome: Started}).Entries; len(got) != 1 {
		t.Errorf("not there at once: %v", got)
	}
	e.Principal = tenants.Principal{}
	if err := w.s.Write(t.Context(), e); err == nil {
		t.Error("an act of nobody")
	}
}

func TestOddEntries(t *testing.T) {
	w := newWorld(t)
	e := entry(w.admin, "a\x00b\xff\u202e")
	e.Outcome, e.ID, e.Bytes, e.Duration, e.Count = "whatever", "no id", -3, -time.Second, -1
	e.At = time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("x", 3600)) // another partition
	w.s.Note(e)
	e.Tenant = tenants.TenantID{}
	w.s.Note(e)
	w.flush(w.s)
	if got := w.s.Stats(); got.Written != 1 || got.Homeless != 1 || got.Dropped != 0 {
		t.Errorf("%+v", got)
	}
	w.seal(w.s)
	if v := w.verify(w.a); v.Broken != nil || v.Rows != 1 {
		t.Errorf("%+v", v)
	}
}
