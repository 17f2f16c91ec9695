package events

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// TestRoundTrips holds each question to its number of round trips and
// statements, for a principal that sees all and for one that sees some.
func TestRoundTrips(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	for _, n := range []tenants.Scope{w.n1, w.n2, w.other} {
		w.record(n, w.report("eth0", time.Minute))
	}
	var id ID
	for _, e := range w.list(limited(w.a), ListQuery{}).Events {
		var err error
		if id, err = ParseID(e.ID); err != nil {
			t.Fatal(err)
		}
	}
	node := w.list(limited(w.a), ListQuery{}).Events[0].Name
	list := func(q ListQuery) func(tenants.Scope) error {
		return func(s tenants.Scope) error { _, err := w.s.List(ctx, s, q); return err }
	}
	get := func(s tenants.Scope) error { _, err := w.s.Get(ctx, s, id); return err }
	for _, q := range []struct {
		name              string
		scope             tenants.Scope
		ask               func(tenants.Scope) error
		trips, statements uint64
	}{
		{"list", reader(w.a), list(ListQuery{}), 1, 3},
		{"list by severity", reader(w.a), list(ListQuery{MinSeverity: inspector.Warning}), 1, 3},
		{"list of some", limited(w.a), list(ListQuery{}), 1, 4},
		{"list by label", reader(w.a), list(ListQuery{Labels: map[string]string{"env": "test"}}), 1, 4},
		{"list of a node", reader(w.a), list(ListQuery{Node: node}), 2, 5},
		{"list of a node, by some", limited(w.a), list(ListQuery{Node: node}), 2, 5},
		{"event", reader(w.a), get, 1, 3},
		{"event of some", limited(w.a), get, 1, 3},
	} {
		if err := q.ask(q.scope); err != nil { // the nodes are learnt
			t.Fatal(err)
		}
		trips, statements := w.s.db.ReadCounts()
		if err := q.ask(q.scope); err != nil {
			t.Fatal(err)
		}
		trips2, statements2 := w.s.db.ReadCounts()
		if trips2-trips != q.trips || statements2-statements != q.statements {
			t.Errorf("%s: %d round trips with %d statements, want %d with %d", q.name, trips2-trips, statements2-statements, q.trips, q.statements)
		}
	}
}

// TestCrowdIsOnlyAGuess: the nodes of the last time are never an answer.
func TestCrowdIsOnlyAGuess(t *testing.T) {
	w := newWorld(t)
	for i, n := range []tenants.Scope{w.n1, w.n2, w.other} {
		w.record(n, w.report([]string{"eth1", "eth2", "eth3"}[i], time.Minute))
	}
	is := func(what string, scope tenants.Scope, want ...string) {
		t.Helper()
		for range 2 { // with and without a memory
			p := w.list(scope, ListQuery{Labels: map[string]string{}})
			got := []string{}
			for _, e := range p.Events {
				got = append(got, e.Scope["interface"])
			}
			if diff := cmp.Diff(append([]string{}, want...), got); diff != "" || p.Coverage.Asked != len(want) {
				t.Errorf("%s: %s, asked %d", what, diff, p.Coverage.Asked)
			}
		}
	}
	label := func(n tenants.Scope, env string) {
		w.exec(`update node_label set value = $3 where tenant_id = $1 and node_id = $2`, uid(n.Tenant), uid(idOf(n)), env)
	}
	label(w.n1, "prod")
	label(w.n2, "test")
	label(w.other, "test")
	is("one", limited(w.a), "eth2")
	is("another tenant", limited(w.b), "eth3")
	label(w.n1, "test")
	label(w.n2, "prod")
	is("the other one", limited(w.a), "eth1")
	label(w.n1, "prod")
	is("none", limited(w.a))
	label(w.n1, "test")
	is("one again", limited(w.a), "eth1")
	is("another tenant, still", limited(w.b), "eth3")
}
