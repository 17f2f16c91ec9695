package metrics

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TestRoundTrips holds each question to its number of round trips and
// statements, for a principal that sees all and for one that sees some.
func TestRoundTrips(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	for _, tenant := range []tenants.TenantID{w.a, w.b} {
		for name, env := range map[string]string{"n1": "prod", "n2": "prod", "n3": "test"} {
			n := w.node(tenant, name, "env", env)
			w.live(n)
			w.fill(n, 12, 3)
		}
	}
	ask := func(q Query) func(tenants.Scope) error {
		return func(s tenants.Scope) error { _, err := w.s.Query(ctx, s, q); return err }
	}
	for name, scope := range map[string]tenants.Scope{"all": reader(w.a, tenants.Selector{}), "some": reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})} {
		for _, q := range []struct {
			name              string
			ask               func(tenants.Scope) error
			trips, statements uint64
		}{
			{"summary of a node", func(s tenants.Scope) error {
				_, err := w.s.Summary(ctx, s, SummaryQuery{Module: "network", Node: "n1"})
				return err
			}, 1, 3},
			{"summary", func(s tenants.Scope) error {
				_, err := w.s.Summary(ctx, s, SummaryQuery{Module: "network"})
				return err
			}, 1, 3},
			{"series of a node", ask(Query{Metrics: []string{"network.opens"}, Node: "n1"}), 1, 2},
			{"series", ask(Query{Metrics: []string{"network.opens"}}), 1, 2},
			{"comparison", ask(Query{Metrics: []string{"network.opens"}, Group: "env"}), 1, 2},
			{"greatest", ask(Query{Metrics: []string{"network.opens"}, Top: 2}), 2, 3},
		} {
			if err := q.ask(scope); err != nil { // the nodes are learnt
				t.Fatal(err)
			}
			trips, statements := w.s.db.ReadCounts()
			if err := q.ask(scope); err != nil {
				t.Fatal(err)
			}
			trips2, statements2 := w.s.db.ReadCounts()
			if trips2-trips != q.trips || statements2-statements != q.statements {
				t.Errorf("%s, %s: %d round trips with %d statements, want %d with %d", name, q.name, trips2-trips, statements2-statements, q.trips, q.statements)
			}
		}
	}
}

// TestCompanyIsOnlyAGuess: the nodes of the last time are never an answer.
func TestCompanyIsOnlyAGuess(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n1, n2, other := w.node(w.a, "n1", "env", "prod"), w.node(w.a, "n2", "env", "test"), w.node(w.b, "n1", "env", "prod")
	for i, n := range []tenants.Scope{n1, n2, other} {
		w.live(n)
		w.fill(n, 6, uint64(10*(i+1)))
	}
	all, prod := reader(w.a, tenants.Selector{}), reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})
	last := func(scope tenants.Scope, node string) map[string]float64 {
		t.Helper()
		var got map[string]float64
		for range 2 { // with and without a memory
			got = map[string]float64{}
			r, err := w.s.Query(ctx, scope, Query{Metrics: []string{"network.active"}, Node: node})
			if err != nil {
				t.Fatal(err)
			}
			for _, se := range r.Series {
				got[se.Name] = *se.Stats.Last
			}
			if s, err := w.s.Summary(ctx, scope, SummaryQuery{Module: "network", Node: node}); err != nil || s.Coverage.Answered != len(got) {
				t.Errorf("summary of %q: %+v %v", node, s.Coverage, err)
			}
		}
		return got
	}
	is := func(what string, got, want map[string]float64) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	is("all", last(all, ""), map[string]float64{"n1": 10, "n2": 20})
	is("some", last(prod, ""), map[string]float64{"n1": 10})
	is("another tenant", last(reader(w.b, tenants.Selector{}), ""), map[string]float64{"n1": 30})
	is("a name", last(all, "n1"), map[string]float64{"n1": 10})
	w.exec(`update node set name = case name when 'n1' then 'n2' else 'n1' end where tenant_id = $1`, uid(w.a))
	is("a name of another node", last(all, "n1"), map[string]float64{"n1": 20})
	if _, err := w.s.Summary(ctx, prod, SummaryQuery{Module: "network", Node: "n1"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("a name leads out of the selector: %v", err)
	}
	w.exec(`update node_label set value = 'prod' where tenant_id = $1`, uid(w.a))
	is("more nodes in scope", last(prod, ""), map[string]float64{"n1": 20, "n2": 10})
	w.exec(`update node set revoked_at = $2 where node_id = $1`, uid(idOf(n1)), w.now())
	is("one is revoked", last(prod, ""), map[string]float64{"n1": 20})
}
