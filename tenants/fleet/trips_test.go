package fleet

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TestRoundTrips holds each question to its number of round trips and
// statements, for a principal that sees all and for one that sees some.
func TestRoundTrips(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	n1 := w.node(w.a, "n1", "env", "prod")
	w.node(w.a, "n2", "env", "test")
	w.node(w.b, "n1", "env", "prod")
	w.crowd(w.a, 30)
	w.open(n1, facts("m", "b"))
	for name, scope := range map[string]tenants.Scope{"all": reader(w.a, tenants.Selector{}), "some": reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})} {
		for _, q := range []struct {
			name              string
			ask               func() error
			trips, statements uint64
		}{
			{"list", func() error { return second(w.s.List(ctx, scope, ListQuery{Limit: 20})) }, 1, 1},
			{"list by status", func() error { return second(w.s.List(ctx, scope, ListQuery{Status: []Status{Offline, Never}})) }, 1, 1},
			{"list by label", func() error { return second(w.s.List(ctx, scope, ListQuery{Labels: map[string]string{"zone": "1"}})) }, 1, 1},
			{"node by name", func() error { return second(w.s.Get(ctx, scope, "n1")) }, 1, 4},
			{"node by id", func() error { return second(w.s.Get(ctx, scope, n1.Principal.ID)) }, 1, 4},
			{"capabilities", func() error { return second(w.s.Capabilities(ctx, scope, "n1")) }, 1, 3},
			{"overview", func() error { return second(w.s.Overview(ctx, scope)) }, 1, 4},
		} {
			if err := q.ask(); err != nil { // a name is learnt
				t.Fatal(err)
			}
			trips, statements := w.s.db.ReadCounts()
			if err := q.ask(); err != nil {
				t.Fatal(err)
			}
			trips2, statements2 := w.s.db.ReadCounts()
			if trips2-trips != q.trips || statements2-statements != q.statements {
				t.Errorf("%s, %s: %d round trips with %d statements, want %d with %d", name, q.name, trips2-trips, statements2-statements, q.trips, q.statements)
			}
		}
	}
}

// TestWordsAreOnlyGuesses: what a name meant the last time is never an answer.
func TestWordsAreOnlyGuesses(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	caps := func(n tenants.Scope, signal string) {
		w.exec(`insert into capability values ($1, $2, 'network', $3, 'full', 'bpf', '', $4)`, [16]byte(n.Tenant), [16]byte(mustID(n)), signal, start)
	}
	prod, test, other := w.node(w.a, "web", "env", "prod"), w.node(w.a, "spare", "env", "test"), w.node(w.b, "web", "env", "prod")
	caps(prod, "of prod")
	caps(test, "of test")
	caps(other, "of globex")
	all, only := reader(w.a, tenants.Selector{}), reader(w.a, tenants.Selector{Labels: map[string]string{"env": "test"}})
	is := func(what string, scope tenants.Scope, ref string, want tenants.Scope, signal string) {
		t.Helper()
		for range 2 {
			d, err := w.s.Get(ctx, scope, ref)
			if err != nil || d.Node.Node != want.Principal.ID || len(d.Capabilities) != 1 || d.Capabilities[0].Signal != signal {
				t.Errorf("%s: %v %+v %v", what, d.Node, d.Capabilities, err)
			}
			c, err := w.s.Capabilities(ctx, scope, ref)
			if err != nil || c.Node != want.Principal.ID || len(c.Capabilities) != 1 || c.Capabilities[0].Signal != signal {
				t.Errorf("%s: %+v %v", what, c, err)
			}
		}
	}
	is("first", all, "web", prod, "of prod")
	is("another tenant", reader(w.b, tenants.Selector{}), "web", other, "of globex")
	if _, err := w.s.Get(ctx, only, "web"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a remembered name leads out of the selector: %v", err)
	}
	if _, err := w.s.Get(ctx, only, prod.Principal.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("an id leads out of the selector: %v", err)
	}
	if _, err := w.s.Get(ctx, all, other.Principal.ID); !fault.Is(err, fault.NotFound) {
		t.Errorf("an id leads out of the tenant: %v", err)
	}
	w.exec(`update node set name = 'web' where node_id = $1`, [16]byte(mustID(test)))
	is("one of two in its scope", only, "web", test, "of test")
	if _, err := w.s.Get(ctx, all, "web"); !fault.Is(err, fault.Invalid) {
		t.Errorf("two nodes of one name: %v", err)
	}
	w.exec(`update node set revoked_at = $2 where node_id = $1`, [16]byte(mustID(prod)), start)
	is("the other one is revoked", all, "web", test, "of test")
	is("another tenant, still", reader(w.b, tenants.Selector{}), "web", other, "of globex")
}

// TestEqualQuestionsAreReadOnce: many callers at one time are given their own
// tenant's and selector's nodes, from fewer readings than calls.
func TestEqualQuestionsAreReadOnce(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	w.node(w.a, "web", "env", "prod")
	w.node(w.a, "db", "env", "test")
	w.node(w.b, "web", "env", "prod")
	w.node(w.b, "mail", "env", "prod")
	prod := tenants.Selector{Labels: map[string]string{"env": "prod"}}
	callers := []struct {
		scope tenants.Scope
		want  string
	}{{reader(w.a, tenants.Selector{}), "[db web]"}, {reader(w.a, prod), "[web]"}, {reader(w.b, tenants.Selector{}), "[mail web]"}, {reader(w.b, prod), "[mail web]"}}
	const each = 25
	before, _ := w.s.db.ReadCounts()
	var all sync.WaitGroup
	for i := range each * len(callers) {
		c := callers[i%len(callers)]
		all.Go(func() {
			p, err := w.s.List(ctx, c.scope, ListQuery{})
			names := []string{}
			for _, n := range p.Nodes {
				names = append(names, n.Name)
			}
			if got := fmt.Sprint(names); got != c.want || err != nil {
				t.Errorf("list %s, want %s: %v", got, c.want, err)
			}
			if o, err := w.s.Overview(ctx, c.scope); err != nil || o.Nodes != len(names) {
				t.Errorf("overview of %d nodes, want %d: %v", o.Nodes, len(names), err)
			}
			if d, err := w.s.Get(ctx, c.scope, "web"); err != nil || d.Name != "web" {
				t.Errorf("get %v: %v", d.Node, err)
			}
			_, err = w.s.Get(ctx, c.scope, "db")
			if sees := c.scope.Tenant == w.a && c.scope.Nodes.All(); (err == nil) != sees || err != nil && !fault.Is(err, fault.NotFound) {
				t.Errorf("the node db of another selector or tenant: %v", err)
			}
		})
	}
	all.Wait()
	if after, _ := w.s.db.ReadCounts(); after-before >= 4*each*uint64(len(callers)) {
		t.Errorf("%d readings for %d calls", after-before, 4*each*len(callers))
	}
}
