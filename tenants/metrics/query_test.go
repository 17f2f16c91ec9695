package metrics

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func (w *world) query(scope tenants.Scope, q Query) Result {
	w.t.Helper()
	r, err := w.s.Query(context.Background(), scope, q)
	if err != nil {
		w.t.Fatalf("query %+v: %v", q, err)
	}
	return r
}

// shape reads a series as text: name, labels and its points, _ for unknown.
func shapeOf(s Series) string {
	out := s.Metric + " " + s.Name
	if s.Group != nil {
		out += s.Group.Key + "=" + s.Group.Value
	}
	for k, v := range s.Labels {
		out += " " + k + "=" + v
	}
	for _, p := range s.Points {
		if p == nil {
			out += " _"
		} else {
			out += fmt.Sprintf(" %.4g", *p)
		}
	}
	return out
}

func shapes(r Result) []string {
	out := []string{}
	for _, s := range r.Series {
		out = append(out, shapeOf(s))
	}
	return out
}

func TestQueryPoints(t *testing.T) {
	w := newWorld(t)
	node := w.node(w.a, "n1")
	w.fill(w.node(w.b, "n1"), 6, 99)
	l := netLayout()
	w.layout(node, l)
	w.open(node)
	var batch []Checked
	for i, v := range []uint64{1, 2, 0, 4, 5, 6} { // the third is a gap
		if v > 0 {
			batch = append(batch, w.check(node, report(1, uint64(i+1), l, w.now().Add(time.Duration(i-5)*tenants.WindowLength), netValues(v))))
		}
	}
	w.write(batch...)
	all := reader(w.a, tenants.Selector{})
	from := w.now().Add(-time.Minute)
	r := w.query(all, Query{Metrics: []string{"network.opens", "network.active"}, From: from})
	if diff := cmp.Diff([]string{"network.active n1 1 2 _ 4 5 6", "network.opens n1 1 2 _ 4 5 6"}, shapes(r)); diff != "" {
		t.Errorf("ten seconds: %s", diff)
	}
	if r.StepS != 10 || !r.Series[0].Start.Equal(from) || *r.FreshnessS != 0 || r.Coverage.Answered != 1 {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff(Stats{Last: ptr(6), Avg: ptr(3.6), Max: ptr(6), CoveredS: 50}, r.Series[0].Stats); diff != "" {
		t.Errorf("stats: %s", diff)
	}
	r = w.query(all, Query{Metrics: []string{"network.opens", "network.active", "network.rtt"}, From: from, Step: 30 * time.Second})
	if diff := cmp.Diff([]string{"network.active n1 1.5 5", "network.opens n1 1.5 5", "network.rtt n1 3 3"}, shapes(r)); diff != "" {
		t.Errorf("thirty seconds; rates are over covered time: %s", diff)
	}
	if *r.Series[0].PointsMax[0] != 2 || *r.Series[2].PointsCount[1] != 0.5 {
		t.Errorf("max %v, count %v", *r.Series[0].PointsMax[0], *r.Series[2].PointsCount[1])
	}
	r = w.query(all, Query{Metrics: []string{"network.drops"}, Labels: map[string]string{"reason": "b"}, From: from, Step: time.Minute})
	if diff := cmp.Diff([]string{"network.drops n1 reason=b 0.72"}, shapes(r)); diff != "" {
		t.Errorf("label: %s", diff)
	}
	r = w.query(all, Query{Metrics: []string{"network.drops"}, Labels: map[string]string{"reason": "none"}, From: from})
	if len(r.Series) != 0 || r.Series == nil || r.Coverage.NotCovered[0].Reason != "never" {
		t.Errorf("no series: %+v", r)
	}
	if r := w.query(all, Query{Metrics: []string{"network.opens"}, From: w.now().Add(-time.Hour)}); r.StepS != 30 || len(r.Series[0].Points) != 120 {
		t.Errorf("an hour: step %d, %d points", r.StepS, len(r.Series[0].Points))
	}
}

func TestQueryManyNodes(t *testing.T) {
	w := newWorld(t)
	var ids []string
	for i := range 7 {
		node := w.node(w.a, fmt.Sprintf("n%d", i), "zone", []string{"x", "y"}[i%2])
		w.fill(node, 6, uint64(i+1))
		ids = append(ids, node.Principal.ID)
	}
	w.fill(w.node(w.b, "n0", "zone", "x"), 6, 1000)
	w.node(w.a, "mute", "zone", "z")
	all, x := reader(w.a, tenants.Selector{}), reader(w.a, tenants.Selector{Labels: map[string]string{"zone": "x"}})
	from := w.now().Add(-time.Minute)
	base := Query{Metrics: []string{"network.opens", "network.drops"}, From: from, Step: time.Minute}

	seen := map[string]int{}
	q := base
	q.Limit = 4
	for pages := 0; ; pages++ {
		r := w.query(all, q)
		for _, s := range r.Series {
			seen[shapeOf(s)]++
		}
		if len(r.Series) > 4 || pages > 6 {
			t.Fatalf("page %d has %d series", pages, len(r.Series))
		}
		if q.Cursor = r.NextCursor; q.Cursor == "" {
			break
		}
	}
	if len(seen) != 21 {
		t.Errorf("%d series over all pages, want 21", len(seen))
	}
	for k, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", k, n)
		}
	}

	q = base
	q.Metrics, q.Top, q.By = []string{"network.opens"}, 3, ByMax
	r := w.query(all, q)
	if diff := cmp.Diff([]string{"network.opens n6 7", "network.opens n5 6", "network.opens n4 5"}, shapes(r)); diff != "" || *r.Truncated.Total != 7 || r.Coverage.Asked != 8 || r.Coverage.Answered != 7 {
		t.Errorf("top: %s, %+v", diff, r)
	}
	if diff := cmp.Diff([]string{"network.opens n6 7", "network.opens n4 5", "network.opens n2 3"}, shapes(w.query(x, q))); diff != "" {
		t.Errorf("top of a restricted principal: %s", diff)
	}

	q.By = ByLast // from the head rows
	r = w.query(all, q)
	if diff := cmp.Diff([]string{"network.opens n6 7", "network.opens n5 6", "network.opens n4 5"}, shapes(r)); diff != "" || *r.Truncated.Total != 7 ||
		r.Coverage.Asked != 8 || r.Coverage.Answered != 7 || len(r.Coverage.NotCovered) != 1 || r.Coverage.NotCovered[0].Reason != "never" || *r.FreshnessS != 0 {
		t.Errorf("top now: %s, %+v", diff, r)
	}
	if diff := cmp.Diff([]string{"network.opens n6 7", "network.opens n4 5", "network.opens n2 3"}, shapes(w.query(x, q))); diff != "" {
		t.Errorf("top now of a restricted principal: %s", diff)
	}
	q.NodeLabels = map[string]string{"zone": "y"}
	if r := w.query(x, q); len(r.Series) != 0 || r.Coverage.Asked != 0 {
		t.Errorf("top now outside the selector: %v", shapes(r))
	}

	q = base
	q.Group = "zone"
	q.Metrics = []string{"network.opens"}
	r = w.query(all, q)
	if diff := cmp.Diff([]string{"network.opens zone=x 4", "network.opens zone=y 4"}, shapes(r)); diff != "" {
		t.Errorf("cohorts are means per node: %s", diff)
	}
	if g := r.Series[0]; g.Group.Nodes != 4 || g.Node != "" || *g.Stats.Sum != 960 || *g.Stats.RatePerS != 4 {
		t.Errorf("cohort: %+v %+v", g.Group, g.Stats)
	}
	if r := w.query(x, q); len(r.Series) != 1 || r.Series[0].Group.Value != "x" {
		t.Errorf("cohorts of a restricted principal: %v", shapes(r))
	}
	q = base
	q.Node = ids[1]
	if _, err := w.s.Query(context.Background(), x, q); !fault.Is(err, fault.NotFound) {
		t.Errorf("outside the selector: %v", err)
	}
}

func TestQueryRefusals(t *testing.T) {
	w := newWorld(t)
	w.fill(w.node(w.a, "n1"), 2, 1)
	all := reader(w.a, tenants.Selector{})
	m := []string{"network.opens"}
	many := make([]string, MaxMetrics+1)
	for i := range many {
		many[i] = "network.opens"
	}
	for _, tt := range []struct {
		name  string
		q     Query
		field string
	}{
		{"no metric", Query{}, "metrics"},
		{"too many", Query{Metrics: many}, "metrics"},
		{"no name", Query{Metrics: []string{"%"}}, "metrics"},
		{"nobody knows it", Query{Metrics: []string{"network.nonsense"}}, "metrics"},
		{"step below ten seconds", Query{Metrics: m, Step: 5 * time.Second}, "step"},
		{"step no multiple", Query{Metrics: m, Step: 15 * time.Second}, "step"},
		{"negative step", Query{Metrics: m, Step: -10 * time.Second}, "step"},
		{"too many points", Query{Metrics: m, From: w.now().Add(-6 * time.Hour), Step: 10 * time.Second}, "step"},
		{"negative top", Query{Metrics: m, Top: -1}, "top"},
		{"large top", Query{Metrics: m, Top: 101}, "top"},
		{"top with group", Query{Metrics: m, Top: 1, Group: "env"}, "top"},
		{"by without top", Query{Metrics: m, By: ByMax}, "by"},
		{"unknown by", Query{Metrics: m, Top: 1, By: "best"}, "by"},
		{"sum of a level", Query{Metrics: []string{"network.active"}, Top: 1, By: BySum}, "by"},
		{"cursor", Query{Metrics: m, Cursor: "%"}, "cursor"},
		{"empty cursor object", Query{Metrics: m, Cursor: "e30"}, "cursor"},
		{"label", Query{Metrics: m, Labels: map[string]string{"": "x"}}, "labels"},
		{"zero byte", Query{Metrics: m, Group: "\x00"}, "group"},
		{"node label", Query{Metrics: m, NodeLabels: map[string]string{"k": "\xff"}}, "node_labels"},
	} {
		_, err := w.s.Query(context.Background(), all, tt.q)
		if f := fault.Of(err); f == nil || f.Kind != fault.Invalid || f.Field != tt.field {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if r := w.query(all, Query{Metrics: m, Limit: 1e9}); len(r.Notes) != 1 {
		t.Errorf("clamp: %v", r.Notes)
	}
	if _, err := w.s.Query(context.Background(), tenants.Scope{Tenant: w.a}, Query{Metrics: m}); !fault.Is(err, fault.Denied) {
		t.Errorf("no scope: %v", err)
	}
}

// TestNothingForeign asks at random and checks that no answer names or counts
// a node outside of the scope: each node's number gives it away.
func TestNothingForeign(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 3))
	t.Logf("seed %d", seed)
	type enrolled struct {
		scope  tenants.Scope
		labels map[string]string
		opens  uint64
	}
	var nodes []enrolled
	for i := range 12 {
		e := enrolled{labels: map[string]string{"env": []string{"prod", "test"}[rng.IntN(2)], "zone": []string{"1", "2"}[rng.IntN(2)]}, opens: 10 << (2 * i)}
		e.scope = w.node([]tenants.TenantID{w.a, w.b}[i%2], fmt.Sprintf("n%d", rng.IntN(5)), "env", e.labels["env"], "zone", e.labels["zone"])
		w.fill(e.scope, 1, 1<<(2*i))
		nodes = append(nodes, e)
	}
	labels := func() map[string]string {
		l := map[string]string{}
		if rng.IntN(2) == 0 {
			l["env"] = []string{"prod", "test"}[rng.IntN(2)]
		}
		if rng.IntN(3) == 0 {
			l["zone"] = []string{"1", "2"}[rng.IntN(2)]
		}
		return l
	}
	for range 150 {
		sel := tenants.Selector{Labels: labels()}
		if rng.IntN(3) == 0 {
			for range 1 + rng.IntN(4) {
				sel.IDs = append(sel.IDs, idOf(nodes[rng.IntN(len(nodes))].scope))
			}
		}
		scope := reader([]tenants.TenantID{w.a, w.b}[rng.IntN(2)], sel)
		extra := labels()
		may, sum := map[string]bool{}, uint64(0)
		for _, e := range nodes {
			if e.scope.Tenant == scope.Tenant && sel.Matches(idOf(e.scope), e.labels) && (tenants.Selector{Labels: extra}).Matches(idOf(e.scope), e.labels) {
				may[e.scope.Principal.ID] = true
				sum += e.opens
			}
		}
		s, err := w.s.Summary(ctx, scope, SummaryQuery{Module: "network", Labels: extra})
		if err != nil {
			t.Fatal(err)
		}
		if m := metric(t, s, "network.opens"); s.Coverage.Asked != len(may) || (m.Sum == nil) != (sum == 0) || m.Sum != nil && *m.Sum != sum {
			t.Fatalf("summary in %+v with %v: %v, want %d of %d nodes", sel, extra, m.Sum, sum, len(may))
		}
		q := Query{Metrics: []string{"network.opens"}, NodeLabels: extra}
		switch rng.IntN(3) {
		case 0:
			q.Top, q.By = 1+rng.IntN(5), []By{ByAvg, ByLast, BySum}[rng.IntN(3)]
		case 1:
			q.Group = "env"
		}
		r, err := w.s.Query(ctx, scope, q)
		if err != nil {
			t.Fatal(err)
		}
		got := uint64(0)
		for _, se := range r.Series {
			if se.Node != "" && !may[se.Node] {
				t.Fatalf("%+v in %+v shows %s", q, sel, se.Node)
			}
			got += *se.Stats.Sum
		}
		if got > sum || q.Top == 0 && got != sum {
			t.Fatalf("%+v in %+v sums to %d, want %d", q, sel, got, sum)
		}
		e := nodes[rng.IntN(len(nodes))]
		_, err = w.s.Query(ctx, scope, Query{Metrics: []string{"network.opens"}, Node: e.scope.Principal.ID})
		if in := e.scope.Tenant == scope.Tenant && sel.Matches(idOf(e.scope), e.labels); in != (err == nil) || err != nil && !fault.Is(err, fault.NotFound) {
			t.Fatalf("one node: in reach %v, %v", in, err)
		}
	}
}

func FuzzWalk(f *testing.F) {
	kinds := []inspector.Kind{inspector.Gauge, inspector.Delta, inspector.Histogram, inspector.Delta, inspector.Histogram, inspector.Gauge, inspector.Delta, inspector.Delta, inspector.Histogram}
	ss := make([]inspector.Series, len(kinds))
	for i, k := range kinds {
		ss[i].Kind = k
	}
	f.Add(inspector.AppendValues(nil, ss, []inspector.Value{gauge(1), delta(2), hist(3, 1, 2), {}, hist(0), gauge(-1), delta(0), delta(1 << 63), hist(5, 0, 1<<63)}))
	f.Add([]byte{1, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		want, refused, err := inspector.DecodeValues(b, ss)
		got := make([]inspector.Value, len(ss))
		r, e := walk(b, kinds, func(i int, v *inspector.Value) {
			got[i] = *v
			got[i].Hist = append([]uint64{}, v.Hist...)
			if v.Hist == nil {
				got[i].Hist = nil
			}
		})
		if (err == nil) != (e == nil) {
			t.Fatalf("walk: %v, DecodeValues: %v", e, err)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" || r != refused {
			t.Fatalf("refused %d and %d, %s", r, refused, diff)
		}
	})
}
