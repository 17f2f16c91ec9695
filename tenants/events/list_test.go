package events

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func scopes(events []Event) (out []string) {
	for _, e := range events {
		for _, v := range e.Scope {
			out = append(out, v)
		}
	}
	return out
}

func TestListFilters(t *testing.T) {
	w := newWorld(t)
	w.record(w.n1, w.report("a", 4*time.Minute))
	r := w.reportOf("slow_io", map[string]string{"device": "b"}, 3*time.Minute)
	r.Severity, r.State = inspector.Critical, inspector.EventEnded
	w.record(w.n2, r)
	w.record(w.n1, w.reportOf("new_exec", map[string]string{"exe": "c"}, 2*time.Minute))
	w.record(w.n2, w.report("d", time.Minute))
	w.record(w.other, w.report("foreign", time.Minute))
	old := w.report("old", 30*time.Hour)
	old.Last = w.now()
	w.record(w.n1, old)
	all, lim := reader(w.a), limited(w.a)
	for name, c := range map[string]struct {
		scope tenants.Scope
		q     ListQuery
		want  []string
	}{
		"all":           {all, ListQuery{}, []string{"d", "c", "b", "a"}},
		"node":          {all, ListQuery{Node: "n1"}, []string{"c", "a"}},
		"labels":        {all, ListQuery{Labels: map[string]string{"env": "prod"}}, []string{"c", "a"}},
		"no such label": {all, ListQuery{Labels: map[string]string{"env": "x"}}, nil},
		"kinds":         {all, ListQuery{Kinds: []string{"slow_io", "new_exec", "slow_io"}}, []string{"c", "b"}},
		"severity":      {all, ListQuery{MinSeverity: inspector.Warning}, []string{"d", "b", "a"}},
		"critical":      {all, ListQuery{MinSeverity: inspector.Critical}, []string{"b"}},
		"both":          {all, ListQuery{MinSeverity: inspector.Critical, Kinds: []string{"drop_burst"}}, nil},
		"state":         {all, ListQuery{State: inspector.EventEnded}, []string{"b"}},
		"origin":        {all, ListQuery{Origin: FromTask}, nil},
		"window":        {all, ListQuery{From: start.Add(-210 * time.Second), To: start.Add(-90 * time.Second)}, []string{"c", "b"}},
		"long ago":      {all, ListQuery{From: start.Add(-48 * time.Hour), To: start.Add(-24 * time.Hour)}, []string{"old"}},
		"limited":       {lim, ListQuery{}, []string{"d", "b"}},
		"limited kinds": {lim, ListQuery{Kinds: []string{"drop_burst"}, Node: "n2"}, []string{"d"}},
		"limited label": {lim, ListQuery{Labels: map[string]string{"env": "prod"}}, nil},
		"second tenant": {reader(w.b), ListQuery{}, []string{"foreign"}},
	} {
		if diff := cmp.Diff(c.want, scopes(w.list(c.scope, c.q).Events)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if _, err := w.s.List(context.Background(), lim, ListQuery{Node: "n1"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a node outside the selector: %v", err)
	}
	for name, q := range map[string]ListQuery{
		"kinds": {Kinds: []string{"no"}}, "min_severity": {MinSeverity: "bad"}, "state": {State: "x"}, "origin": {Origin: "x"}, "cursor": {Cursor: "x"},
		"to": {To: start.Add(time.Hour)}, "from": {From: start, To: start.Add(-1)}, "labels": {Labels: map[string]string{"": "x"}},
	} {
		if _, err := w.s.List(context.Background(), all, q); !fault.Is(err, fault.Invalid) || fault.Of(err).Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.s.List(context.Background(), w.n1, ListQuery{}); !fault.Is(err, fault.Denied) {
		t.Errorf("without telltale:read: %v", err)
	}
}

func TestListPages(t *testing.T) {
	w := newWorld(t)
	for i := range 23 {
		node := w.n1
		if i%3 == 0 {
			node = w.n2
		}
		w.record(node, w.report(fmt.Sprint(i), time.Duration(i/2)*time.Minute)) // two of each time
	}
	w.record(w.other, w.report("foreign", 0))
	for name, q := range map[string]ListQuery{"all": {}, "node": {Node: "n1"}, "kind": {Kinds: []string{"drop_burst"}}, "state": {State: inspector.EventOpen}} {
		whole := scopes(w.list(reader(w.a), q).Events)
		var got []string
		page := q
		page.Limit = 4
		for pages := 0; ; pages++ {
			p := w.list(reader(w.a), page)
			got = append(got, scopes(p.Events)...)
			if p.Truncated == nil {
				break
			}
			page.Cursor = p.Truncated.NextCursor
			w.advance(time.Second) // the span stays that of the first page
			w.record(w.n1, w.report(fmt.Sprint("late", name, pages), 0))
		}
		if diff := cmp.Diff(whole, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		other := q
		other.MinSeverity, other.Cursor = inspector.Warning, page.Cursor
		if _, err := w.s.List(context.Background(), reader(w.a), other); fault.Of(err).Field != "cursor" {
			t.Errorf("%s: the cursor of another filter: %v", name, err)
		}
		if _, err := w.s.List(context.Background(), reader(w.b), ListQuery{Kinds: q.Kinds, State: q.State, Cursor: page.Cursor}); fault.Of(err).Field != "cursor" {
			t.Errorf("%s: the cursor of another tenant: %v", name, err)
		}
	}
	if p := w.list(reader(w.a), ListQuery{Limit: 1000}); len(p.Notes) != 1 {
		t.Errorf("clamped without a note: %+v", p.Notes)
	}
}

// A caller who names one hour before now names another moment with each page:
// the span stays that of the first.
func TestListPagesOfAMovingSpan(t *testing.T) {
	w := newWorld(t)
	for i := range 7 {
		w.record(w.n1, w.report(fmt.Sprint(i), time.Duration(i)*time.Minute))
	}
	ask := func(cursor string) Page {
		return w.list(reader(w.a), ListQuery{From: w.now().Add(-time.Hour), To: w.now().Add(-time.Second), Limit: 3, Cursor: cursor})
	}
	first := ask("")
	got, p := scopes(first.Events), first
	for p.Truncated != nil {
		w.advance(30 * time.Minute)
		p = ask(p.Truncated.NextCursor)
		got = append(got, scopes(p.Events)...)
		if p.Window != first.Window {
			t.Errorf("a page spans %+v, the first %+v", p.Window, first.Window)
		}
	}
	if diff := cmp.Diff([]string{"1", "2", "3", "4", "5", "6"}, got); diff != "" {
		t.Error(diff)
	}
}

// A filter that no index answers ends a page early rather than reading on.
func TestListEndsEarly(t *testing.T) {
	w := newWorld(t)
	w.record(w.n1, w.report("first", 3*time.Hour))
	w.flood(w.n1, maxScan+5, 2*time.Hour)
	w.exec(`update event set state = 'ended' where labels->>'interface' = 'first'`)
	p := w.list(reader(w.a), ListQuery{State: inspector.EventEnded})
	if len(p.Events) != 0 || p.Truncated == nil || p.Truncated.Returned != 0 {
		t.Fatalf("%d events, %+v", len(p.Events), p.Truncated)
	}
	p = w.list(reader(w.a), ListQuery{State: inspector.EventEnded, Cursor: p.Truncated.NextCursor})
	if diff := cmp.Diff([]string{"first"}, scopes(p.Events)); diff != "" || p.Truncated != nil {
		t.Errorf("%+v %s", p.Truncated, diff)
	}
}

// Where a limited principal's page ends among events that are not its own, the
// cursor names none of them, and what is its own comes exactly once, however
// many events bear one moment.
func TestCursorNamesNoForeignEvent(t *testing.T) {
	for name, span := range map[string]time.Duration{"over an hour": time.Hour, "in one moment": 0} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for range fewNodes + 1 {
				w.node(w.a, "more", "test")
			}
			w.flood(w.n1, 2*maxScan+5, span)
			w.exec(`update event set id = overlay(id::text placing left($1::text, 13) from 1)::uuid`, ID(idFor(w.now(), nil)).String())
			w.record(w.n2, w.report("first", span+time.Hour))
			w.record(w.n2, w.report("middle", span/2))
			w.record(w.other, w.report("other", span/2))
			var got []string
			q := ListQuery{}
			for pages := 0; ; pages++ {
				p := w.list(limited(w.a), q)
				got = append(got, scopes(p.Events)...)
				if p.Truncated == nil {
					break
				}
				q.Cursor = p.Truncated.NextCursor
				sum := filterSum(w.a, ListQuery{})
				c, err := readCursor(q.Cursor, sum)
				if err != nil || pages > 5 {
					t.Fatalf("page %d: %v", pages, err)
				}
				if n := w.count(`select count(*) from event where id = $1 and node_id <> $2`, uid(c.id), uid(idOf(w.n2))); n > 0 {
					t.Errorf("page %d ends at a foreign event", pages)
				}
			}
			if diff := cmp.Diff([]string{"middle", "first"}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A list says that reports were kept out of the nodes that it is about, and of
// no others.
func TestListTellsWhatWasKeptOut(t *testing.T) {
	w := newWorld(t)
	notes := func(scope tenants.Scope, q ListQuery) string {
		t.Helper()
		return strings.Join(w.list(scope, q).Notes, "; ")
	}
	if got := notes(reader(w.a), ListQuery{}); got != "" {
		t.Error(got)
	}
	w.exec(`insert into win_quarantine (tenant_id, node_id, reason, n, first_at, last_at, example) values ($1, $2, $3, 5, $4, $4, '')`,
		uid(w.a), uid(idOf(w.n1)), ReasonTooMany, w.now().Add(-time.Hour))
	for name, got := range map[string]string{"all": notes(reader(w.a), ListQuery{}), "the node": notes(reader(w.a), ListQuery{Node: "n1"})} {
		if got != "reports of nodes were kept out since 2026-02-28T12:30:00Z, so that events may be missing (too_many_events of 1); explain a node for more" {
			t.Errorf("%s: %q", name, got)
		}
	}
	for name, got := range map[string]string{"later": notes(reader(w.a), ListQuery{From: w.now().Add(-time.Minute)}), "another node": notes(reader(w.a), ListQuery{Node: "n2"}),
		"outside the selector": notes(limited(w.a), ListQuery{}), "another tenant": notes(reader(w.b), ListQuery{})} {
		if got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// flood puts n open events of a node into one span, by SQL alone.
func (w *world) flood(node tenants.Scope, n int, span time.Duration) {
	w.t.Helper()
	if err := w.s.maintain(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	w.exec(`insert into event select $1, $3::timestamptz - ($4::float8 * i / $5) * interval '1 second', overlay(gen_random_uuid()::text placing '7' from 15 for 1)::uuid, $2, case when i % 50 = 0 then 'slow_io' else 'new_exec' end,
		case when i % 50 = 0 then 1 else 0 end, 'open', 'probe', decode(md5(i::text), 'hex'), $3, $3, $3, null, 1, 0, 0, 0, '{}', '[]', '', null from generate_series(1, $5::int) i`,
		uid(node.Tenant), uid(idOf(node)), w.now(), span.Seconds(), n)
	w.exec(`analyze event`)
}

func TestCoverage(t *testing.T) {
	w := newWorld(t)
	gone := w.node(w.a, "gone", "prod")
	w.exec(`update node_session set closed_at = last_seen where node_id = $1`, uid(idOf(gone)))
	revoked := w.node(w.a, "revoked", "prod")
	w.exec(`update node set revoked_at = $2 where node_id = $1`, uid(idOf(revoked)), start)
	w.record(revoked, w.report("before", time.Minute))
	p := w.list(reader(w.a), ListQuery{})
	want := tenants.Coverage{Asked: 3, Answered: 2, NotCovered: []tenants.NotCovered{{Node: gone.Principal.ID, Name: "gone", Reason: "offline"}}}
	if diff := cmp.Diff(want, p.Coverage); diff != "" || len(p.Events) != 1 {
		t.Errorf("%d events %s", len(p.Events), diff)
	}
	if p := w.list(limited(w.a), ListQuery{}); p.Coverage.Asked != 1 || p.Coverage.Answered != 1 || len(p.Coverage.NotCovered) != 0 {
		t.Errorf("limited: %+v", p.Coverage)
	}
	if p := w.list(reader(w.a), ListQuery{Node: "revoked"}); p.Coverage.Answered != 0 || p.Coverage.NotCovered[0].Reason != "revoked" || len(p.Events) != 1 {
		t.Errorf("revoked: %+v", p.Coverage)
	}
	w.advance(time.Minute)
	if p := w.list(reader(w.a), ListQuery{}); p.Coverage.Answered != 0 || !slices.ContainsFunc(p.Coverage.NotCovered, func(n tenants.NotCovered) bool { return n.Reason == "stale" }) {
		t.Errorf("silent: %+v", p.Coverage)
	}
}

func TestGetIsScoped(t *testing.T) {
	w := newWorld(t)
	w.record(w.n1, w.report("a", time.Minute))
	w.record(w.n1, w.report("b", 3*time.Minute))
	w.record(w.n1, w.report("far", 10*time.Minute))
	w.record(w.n2, w.report("elsewhere", time.Minute))
	w.record(w.other, w.report("foreign", time.Minute))
	p := w.list(reader(w.a), ListQuery{Node: "n1"})
	d := w.get(reader(w.a), p.Events[0].ID)
	if diff := cmp.Diff([]string{"b"}, scopes(d.Nearby)); diff != "" {
		t.Errorf("nearby: %s", diff)
	}
	id, _ := ParseID(d.ID)
	for name, scope := range map[string]tenants.Scope{"another tenant": reader(w.b), "outside the selector": limited(w.a)} {
		if _, err := w.s.Get(context.Background(), scope, id); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !timeOf(id).Equal(d.First) {
		t.Errorf("the id's time is %v, the event's %v", timeOf(id), d.First)
	}
}

// An immediate event whose node never said that it ended is over after a
// while, in lists, in filters and by itself; a condition stays open.
func TestPassingEventsEnd(t *testing.T) {
	w := newWorld(t)
	w.record(w.n1, w.reportOf("slow_io", map[string]string{"device": "sda"}, time.Minute))
	w.record(w.n1, w.reportOf("drop_burst", map[string]string{"interface": "eth0"}, time.Minute))
	states := func(q ListQuery) string {
		out := ""
		for _, e := range w.list(reader(w.a), q).Events {
			out += e.Kind + "=" + string(e.State) + " "
			if got := w.get(reader(w.a), e.ID).State; got != e.State {
				t.Errorf("%s is %s by itself and %s in the list", e.Kind, got, e.State)
			}
		}
		return out
	}
	if got := states(ListQuery{State: inspector.EventOpen}); got != "drop_burst=open slow_io=open " && got != "slow_io=open drop_burst=open " {
		t.Error(got)
	}
	w.advance(inspector.OverAfter)
	if got := states(ListQuery{State: inspector.EventOpen}); got != "drop_burst=open " {
		t.Error(got)
	}
	if got := states(ListQuery{State: inspector.EventEnded}); got != "slow_io=ended " {
		t.Error(got)
	}
}
