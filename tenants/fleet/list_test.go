package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func names(p Page) []string {
	out := []string{}
	for _, n := range p.Nodes {
		out = append(out, n.Name)
	}
	return out
}

func TestList(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	for i := range 7 {
		n := w.node(w.a, fmt.Sprintf("n%d", i), "env", []string{"prod", "test"}[i%2])
		if i < 3 {
			w.open(n, facts(fmt.Sprintf("m%d", i/2), "b"))
		}
	}
	w.node(w.a, "n_6") // an underscore is no wildcard
	w.node(w.b, "n0", "env", "prod")
	all, prod := reader(w.a, tenants.Selector{}), reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})
	for _, tt := range []struct {
		name  string
		scope tenants.Scope
		q     ListQuery
		want  []string
	}{
		{"all", all, ListQuery{}, []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n_6"}},
		{"selector", prod, ListQuery{}, []string{"n0", "n2", "n4", "n6"}},
		{"label", all, ListQuery{Labels: map[string]string{"env": "test"}}, []string{"n1", "n3", "n5"}},
		{"label against the selector", prod, ListQuery{Labels: map[string]string{"env": "test"}}, []string{}},
		{"status", all, ListQuery{Status: []Status{Online}}, []string{"n0", "n1", "n2"}},
		{"two statuses", prod, ListQuery{Status: []Status{Online, Never}}, []string{"n0", "n2", "n4", "n6"}},
		{"prefix", all, ListQuery{Search: "n_"}, []string{"n_6"}},
		{"other tenant", reader(w.b, tenants.Selector{}), ListQuery{}, []string{"n0"}},
	} {
		p, err := w.s.List(ctx, tt.scope, tt.q)
		if diff := cmp.Diff(tt.want, names(p)); err != nil || diff != "" {
			t.Errorf("%s: %v %s", tt.name, err, diff)
		}
	}
	var got []string
	q := ListQuery{Limit: 3}
	for {
		p, err := w.s.List(ctx, all, q)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, names(p)...)
		if (p.Truncated != nil) != (p.NextCursor != "") {
			t.Errorf("truncated %+v, cursor %q", p.Truncated, p.NextCursor)
		}
		if q.Cursor = p.NextCursor; q.Cursor == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n_6"}, got); diff != "" {
		t.Errorf("pages: %s", diff)
	}
	if p, err := w.s.List(ctx, all, ListQuery{Limit: 1e9}); err != nil || len(p.Notes) != 1 {
		t.Errorf("clamp: %v %v", p.Notes, err)
	}
	for _, bad := range []ListQuery{{Cursor: "!"}, {Cursor: "AAAA"}, {Status: []Status{"up"}}, {Search: "\x00"}, {Search: "\xff"},
		{Labels: map[string]string{"": "x"}}, {Labels: map[string]string{"k": "\x00"}}} {
		if _, err := w.s.List(ctx, all, bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestOverview(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	empty, err := w.s.Overview(ctx, reader(w.a, tenants.Selector{}))
	if err != nil || empty.Nodes != 0 || empty.FreshnessS != nil || empty.ByStatus[Online] != 0 || empty.Coverage.NotCovered == nil {
		t.Errorf("empty: %+v %v", empty, err)
	}
	w.crowd(w.a, 20)
	w.crowd(w.b, 5)
	away := w.node(w.a, "zz", "env", "prod")
	w.exec(`insert into quarantine select tenant_id, node_id, 'bad_layout', 2, $1, $1, '' from node where name in ('host-00001', 'host-00006')`, start)
	w.exec(`update node_head set vals = '{100,null}' where node_id = (select node_id from node where tenant_id = $1 and name = 'host-00003')`, [16]byte(w.a))
	w.advance(10 * time.Second)
	o, err := w.s.Overview(ctx, reader(w.a, tenants.Selector{}))
	if err != nil {
		t.Fatal(err)
	}
	if o.Nodes != 21 || o.ByStatus[Online] != 20 || o.ByStatus[Never] != 1 || *o.FreshnessS != 10 {
		t.Errorf("%d nodes, %v, freshness %v", o.Nodes, o.ByStatus, *o.FreshnessS)
	}
	want := tenants.Coverage{Asked: 21, Answered: 20, NotCovered: []tenants.NotCovered{{Node: away.Principal.ID, Name: "zz", Reason: "never"}}}
	if diff := cmp.Diff(want, o.Coverage); diff != "" {
		t.Errorf("coverage: %s", diff)
	}
	if len(o.Worst) != 2 || o.Worst[0].Metric != "network.active" || len(o.Worst[0].Nodes) != 3 || o.Worst[0].Nodes[0].Name != "host-00003" || o.Worst[0].Nodes[0].Value != 100 {
		t.Errorf("worst: %+v", o.Worst)
	}
	if len(o.Unhealthy) != 2 || o.Unhealthy[0].Nodes != 20 || o.Unhealthy[0].Example.Name == "" {
		t.Errorf("unhealthy: %+v", o.Unhealthy)
	}
	if diff := cmp.Diff([]QuarantineShare{{"bad_layout", 4, 2}}, o.Kept); diff != "" {
		t.Errorf("quarantined: %s", diff)
	}
	if len(o.ByVersion) != 3 || o.ByVersion[0].Nodes != 7 {
		t.Errorf("versions: %+v", o.ByVersion)
	}
	o, err = w.s.Overview(ctx, reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod", "zone": "1"}}))
	if err != nil || o.Nodes != 2 || o.Unhealthy[0].Nodes != 2 || o.Kept[0].Nodes != 1 || len(o.Worst[0].Nodes) != 2 || o.Worst[0].Nodes[0].Value > 50 {
		t.Errorf("selected: %+v %v", o, err)
	}
	// A revoked node leads nothing from that moment on.
	first := o.Worst[0].Nodes[0]
	w.exec(`update node set revoked_at = $1 where node_id = $2::uuid`, w.now(), first.Node)
	after, err := w.s.Overview(ctx, reader(w.a, tenants.Selector{}))
	if err != nil || len(after.Worst) == 0 {
		t.Fatalf("after a revocation: %+v %v", after, err)
	}
	for _, m := range after.Worst {
		for _, n := range m.Nodes {
			if n.Node == first.Node {
				t.Errorf("the revoked node %s is among the highest of %s", n.Name, m.Metric)
			}
		}
	}
	w.exec(`update node set revoked_at = null where node_id = $1::uuid`, first.Node)
	w.advance(10 * time.Minute)
	if o, _ := w.s.Overview(ctx, reader(w.a, tenants.Selector{})); len(o.Worst) != 0 || o.ByStatus[Offline] != 20 {
		t.Errorf("later: %v, worst %+v", o.ByStatus, o.Worst)
	}
}

// TestOverviewOfALargeFleet: it is answered again for two seconds, to those
// who see the same nodes and to nobody else.
func TestOverviewOfALargeFleet(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	w.crowd(w.a, 5000)
	w.crowd(w.b, 3000)
	get := func(s tenants.Scope) Overview {
		t.Helper()
		o, err := w.s.Overview(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	all := reader(w.a, tenants.Selector{})
	first := get(all)
	w.advance(time.Second)
	if o := get(all); !o.At.Equal(first.At) || o.Nodes != 5000 {
		t.Errorf("read again after a second: %v", o.At)
	}
	for name, tt := range map[string]struct {
		scope tenants.Scope
		want  int
	}{
		"other tenant":   {reader(w.b, tenants.Selector{}), 3000},
		"prod":           {reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}}), 2500},
		"zone":           {reader(w.a, tenants.Selector{Labels: map[string]string{"zone": "3"}}), 500},
		"one node":       {reader(w.a, tenants.Selector{IDs: []tenants.NodeID{tenants.NewNodeID()}}), 0},
		"labels, not id": {reader(w.a, tenants.Selector{Labels: map[string]string{"env": "test"}}), 2500},
	} {
		for range 2 {
			if o := get(tt.scope); o.Nodes != tt.want {
				t.Errorf("%s: %d nodes, want %d", name, o.Nodes, tt.want)
			}
		}
	}
	w.advance(time.Second)
	if o := get(all); o.At.Equal(first.At) {
		t.Error("not read again after two seconds")
	}
	if _, err := w.s.Overview(ctx, tenants.Scope{Tenant: w.a}); !fault.Is(err, fault.Denied) {
		t.Errorf("no scope: %v", err)
	}
}

// TestNothingForeign asks at random and checks that no answer holds a node
// outside of the scope.
func TestNothingForeign(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	type enrolled struct {
		tenant tenants.TenantID
		id     tenants.NodeID
		name   string
		labels map[string]string
	}
	var nodes []enrolled
	for i := range 30 {
		e := enrolled{tenant: []tenants.TenantID{w.a, w.b}[i%2], name: fmt.Sprintf("n%d", rng.IntN(12)),
			labels: map[string]string{"env": []string{"prod", "test"}[rng.IntN(2)], "zone": []string{"1", "2"}[rng.IntN(2)]}}
		n := w.node(e.tenant, e.name, "env", e.labels["env"], "zone", e.labels["zone"])
		e.id = mustID(n)
		nodes = append(nodes, e)
		w.exec(`update node set machine_id = 'shared' where node_id = $1`, [16]byte(e.id))
		w.open(n, facts("shared", fmt.Sprint(i)))
	}
	labels := func() map[string]string {
		l := map[string]string{}
		if rng.IntN(2) == 0 {
			l["env"] = []string{"prod", "test", "none"}[rng.IntN(3)]
		}
		if rng.IntN(3) == 0 {
			l["zone"] = []string{"1", "2"}[rng.IntN(2)]
		}
		return l
	}
	for range 150 {
		sel := tenants.Selector{Labels: labels()}
		if rng.IntN(3) == 0 {
			for range 1 + rng.IntN(5) {
				sel.IDs = append(sel.IDs, nodes[rng.IntN(len(nodes))].id)
			}
		}
		scope := admin([]tenants.TenantID{w.a, w.b}[rng.IntN(2)], sel)
		may := map[string]bool{}
		for _, e := range nodes {
			if e.tenant == scope.Tenant && sel.Matches(e.id, e.labels) {
				may[e.id.String()] = true
			}
		}
		q := ListQuery{Labels: labels(), Limit: 1 + rng.IntN(40)}
		p, err := w.s.List(ctx, scope, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range p.Nodes {
			if !may[n.Node] {
				t.Fatalf("list %+v of %+v shows %s", q, sel, n.Node)
			}
		}
		o, err := w.s.Overview(ctx, scope)
		if err != nil || o.Nodes != len(may) {
			t.Fatalf("overview of %+v: %d nodes, want %d, %v", sel, o.Nodes, len(may), err)
		}
		e := nodes[rng.IntN(len(nodes))]
		d, err := w.s.Get(ctx, scope, e.id.String())
		if may[e.id.String()] != (err == nil) || err != nil && !fault.Is(err, fault.NotFound) {
			t.Fatalf("get in %+v: %v, may %v", sel, err, may[e.id.String()])
		}
		if err == nil && slices.ContainsFunc(d.SameAs, func(r tenants.NodeRef) bool { return !may[r.Node] }) {
			t.Fatalf("same machine shows a node out of scope: %+v", d.SameAs)
		}
		if err == nil && d.SameMachine != (len(may) > 1) {
			t.Fatalf("same machine %v with %d nodes in scope", d.SameMachine, len(may))
		}
	}
}

// TestPrepare holds every statement to the migrated schema.
func TestPrepare(t *testing.T) {
	w := newWorld(t)
	sel := tenants.Selector{Labels: map[string]string{"a": "b", "c": "d"}, IDs: []tenants.NodeID{tenants.NewNodeID()}}
	_, args := w.s.times(reader(w.a, sel))
	scoped := func(head, tail string, args ...any) string {
		return newQuery(head, args...).in(sel).add(tail).sql.String()
	}
	only := func(head, column, tail string, args ...any) string {
		return newQuery(head, args...).only(column, sel).add(tail).sql.String()
	}
	for i, sql := range []string{
		sqlSessions, sqlCapabilities, sqlModulesOff, sqlKeptOff, sqlKeepSessions, sqlFormer, sqlLoseSessions,
		sqlNotCurrent, sqlOpenSession, sqlCloseSession, sqlPromote, sqlSeenMany, sqlMarkDuplicates, sqlPutCapabilities, sqlDropCapabilities,
		sqlSwitchOff, sqlSwitchBack, sqlOffModules, sqlSwitchedOff, sqlRivals, sqlAdmitSession, sqlQuarantineOne, sqlNames, sqlTurn,
		sqlRunning, sqlAddChanges, sqlLevelChanges, sqlTrimChanges, scoped(sqlChanges, sqlChangesTail, 1, 2, 3, 4, 5, 6),
		scoped(sqlRow+sqlNodes, "", args...), scoped(sqlByStatus, sqlByStatusTail, args...), scoped(sqlHeadsNamed, "", 1, 2, 3), scoped(sqlShares, sqlSharesTail, args...), scoped(sqlAway, sqlAwayTail, args...),
		scoped(sqlPage+sqlRow+sqlNodes+sqlPageSame, sqlPageTail, args...), scoped(sqlMeant+sqlMeantOthers, sqlMeantFrom+sqlRow+sqlNodes+sqlMeantHead, args...), only(sqlHeads, "h.node_id", "", 1, 2, 3),
		newQuery(sqlUnhealthy, 1).only("c.node_id", sel).add(sqlUnhealthyExample).in(sel).add(sqlUnhealthyTail).sql.String(), only(sqlKept, "q.node_id", sqlKeptTail, 1),
	} {
		if _, err := w.conn.Prepare(context.Background(), fmt.Sprintf("q%d", i), sql); err != nil {
			t.Errorf("%v in\n%s", err, sql)
		}
	}
}

// expire makes every overview old; that a fleet is large stays known.
func (c *overviews) expire() {
	for k, o := range c.m {
		o.At = time.Time{}
		c.m[k] = o
	}
}

func BenchmarkReads(b *testing.B) {
	w := newWorld(b)
	w.crowd(w.a, 10_000)
	w.crowd(w.b, 1_000)
	ctx := context.Background()
	all, prod := reader(w.a, tenants.Selector{}), reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})
	page, err := w.s.List(ctx, all, ListQuery{Limit: 200})
	if err != nil {
		b.Fatal(err)
	}
	for _, bm := range []struct {
		name string
		call func() error
	}{
		{"OverviewRead", func() error { w.s.overviews.expire(); return second(w.s.Overview(ctx, all)) }},
		{"OverviewReadSelected", func() error { w.s.overviews.expire(); return second(w.s.Overview(ctx, prod)) }},
		{"OverviewAgain", func() error { return second(w.s.Overview(ctx, all)) }},
		{"List", func() error { return second(w.s.List(ctx, all, ListQuery{Cursor: page.NextCursor})) }},
		{"List200Selected", func() error { return second(w.s.List(ctx, prod, ListQuery{Limit: 200})) }},
		{"ListStatus", func() error { return second(w.s.List(ctx, all, ListQuery{Status: []Status{Offline}})) }},
		{"Get", func() error { return second(w.s.Get(ctx, all, "host-05000")) }},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				t0 := time.Now()
				if err := bm.call(); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(t0))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "p95-ms")
		})
	}
}
