package metrics

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func (w *world) summary(scope tenants.Scope, q SummaryQuery) Summary {
	w.t.Helper()
	if q.Module == "" {
		q.Module = "network"
	}
	s, err := w.s.Summary(context.Background(), scope, q)
	if err != nil {
		w.t.Fatalf("summary %+v: %v", q, err)
	}
	return s
}

func metric(t *testing.T, s Summary, name string) MetricSummary {
	t.Helper()
	for _, m := range s.Metrics {
		if m.Metric == name {
			return m
		}
	}
	t.Fatalf("no %s in the summary", name)
	return MetricSummary{}
}

func n(v uint64) *uint64 { return &v }

func TestSummaryOfOneNode(t *testing.T) {
	w := newWorld(t)
	one := w.node(w.a, "n1")
	w.fill(one, 30, 2)
	w.fill(w.node(w.b, "n1"), 30, 1000)
	w.advance(3 * time.Second)
	s := w.summary(reader(w.a, tenants.Selector{}), SummaryQuery{Node: "n1"})
	if s.Received != 30 || s.Expected != 30 || *s.FreshnessS != 3 || s.Samples != 30 || s.Lost != 0 || s.LowerBound || s.Node.Node != one.Principal.ID {
		t.Errorf("%+v", s)
	}
	if diff := cmp.Diff(tenants.Coverage{Asked: 1, Answered: 1, NotCovered: []tenants.NotCovered{}}, s.Coverage); diff != "" {
		t.Errorf("coverage: %s", diff)
	}
	if diff := cmp.Diff(Stats{Last: ptr(2), Avg: ptr(2), Max: ptr(2), CoveredS: 300}, metric(t, s, "network.active").Stats); diff != "" {
		t.Errorf("gauge: %s", diff)
	}
	if diff := cmp.Diff(Stats{Sum: n(600), RatePerS: ptr(2), Max: ptr(2), CoveredS: 300}, metric(t, s, "network.opens").Stats); diff != "" {
		t.Errorf("delta: %s", diff)
	}
	if diff := cmp.Diff(Stats{Sum: n(60), Count: n(60), RatePerS: ptr(0.2), Mean: ptr(1), P50: n(3), P95: n(3), P99: n(3), CoveredS: 300}, metric(t, s, "network.rtt").Stats); diff != "" {
		t.Errorf("histogram: %s", diff)
	}
	drops := metric(t, s, "network.drops")
	if diff := cmp.Diff(Stats{Sum: n(180), RatePerS: ptr(0.6), Max: ptr(0.6), CoveredS: 300}, drops.Stats); diff != "" {
		t.Errorf("labelled, all: %s", diff)
	}
	if len(drops.Rows) != 2 || drops.Rows[0].Labels["reason"] != "b" || *drops.Rows[0].Sum != 120 || *drops.Rows[1].Sum != 60 || drops.Other != nil {
		t.Errorf("rows: %+v", drops.Rows)
	}
}

func TestSummaryOfTheFleet(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	a1, a2 := w.node(w.a, "a1", "env", "prod"), w.node(w.a, "a2", "env", "test")
	never, live, off, gone := w.node(w.a, "never"), w.node(w.a, "live", "env", "prod"), w.node(w.a, "off"), w.node(w.a, "gone")
	w.fill(a1, 30, 1)
	w.fill(a2, 15, 3)
	w.fill(w.node(w.b, "b1", "env", "prod"), 30, 1000)
	for _, n := range []tenants.Scope{live, off, gone} {
		w.live(n)
	}
	w.exec(`update node_session set closed_at = last_seen where node_id = $1`, uid(idOf(gone)))
	w.exec(`insert into module_switch values ($1, $2, 'network', true, 'x', $3)`, uid(w.a), uid(idOf(off)), w.now())
	s := w.summary(reader(w.a, tenants.Selector{}), SummaryQuery{})
	got := map[string]string{}
	for _, n := range s.Coverage.NotCovered {
		got[n.Name] = n.Reason
	}
	if diff := cmp.Diff(map[string]string{"never": "never", "live": "no_data", "off": "off", "gone": "offline"}, got); diff != "" || s.Coverage.Asked != 6 || s.Coverage.Answered != 2 {
		t.Errorf("coverage %+v %s", s.Coverage, diff)
	}
	if s.Received != 45 || s.Expected != 60 {
		t.Errorf("received %d, expected %d", s.Received, s.Expected)
	}
	if diff := cmp.Diff(Stats{Sum: n(300 + 450), RatePerS: ptr(4), Max: ptr(3), CoveredS: 450}, metric(t, s, "network.opens").Stats); diff != "" {
		t.Errorf("delta over nodes: the rate is the total of the nodes' rates: %s", diff)
	}
	if g := metric(t, s, "network.active"); *g.Last != 2 || *g.Max != 3 || math.Abs(*g.Avg-75.0/45) > 1e-9 {
		t.Errorf("gauge over nodes: %v %v %v", *g.Last, *g.Avg, *g.Max)
	}
	prod := reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}})
	if s := w.summary(prod, SummaryQuery{}); s.Coverage.Asked != 2 || *metric(t, s, "network.opens").Sum != 300 {
		t.Errorf("restricted: %+v", s.Coverage)
	}
	if s := w.summary(prod, SummaryQuery{Labels: map[string]string{"env": "test"}}); s.Coverage.Asked != 0 || metric(t, s, "network.opens").Reason != "no_nodes" {
		t.Errorf("outside the selector: %+v", s.Coverage)
	}
	for _, ref := range []string{"a2", a2.Principal.ID, "b1", never.Principal.ID} {
		if _, err := w.s.Summary(ctx, prod, SummaryQuery{Module: "network", Node: ref}); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func TestSummaryUnknownIsNotZero(t *testing.T) {
	w := newWorld(t)
	quiet, node := w.node(w.a, "quiet"), w.node(w.a, "n1")
	w.live(quiet)
	w.exec(`insert into capability values ($1, $2, 'network', 'tcp', 'off', '', 'no BTF', $3)`, uid(w.a), uid(idOf(quiet)), start)
	s := w.summary(reader(w.a, tenants.Selector{}), SummaryQuery{Node: "quiet"})
	if s.FreshnessS != nil || s.Coverage.NotCovered[0].Reason != "off" {
		t.Errorf("%+v", s)
	}
	for _, m := range s.Metrics {
		if diff := cmp.Diff(Stats{}, m.Stats); diff != "" || m.Reason != "off" {
			t.Errorf("%s: %s, reason %q", m.Metric, diff, m.Reason)
		}
	}
	if m := metric(t, s, "network.opens"); m.Why != "no BTF" {
		t.Errorf("why: %q", m.Why)
	}
	// One value left out, one out of range, one measured zero, some loss.
	l := netLayout()
	w.layout(node, l)
	w.open(node)
	vals := netValues(5)
	vals[0], vals[1], vals[2], vals[3] = inspector.Value{}, delta(1<<63), delta(0), delta(1<<62)
	r := report(1, 1, l, w.now(), vals)
	r.Lost, r.Truncated = 9, 4
	r2 := report(1, 2, l, w.now().Add(-10*time.Second), vals)
	w.write(w.check(node, r), w.check(node, r2))
	s = w.summary(reader(w.a, tenants.Selector{}), SummaryQuery{Node: "n1"})
	if s.Lost != 9 || !s.LowerBound || s.Folded != 4 || s.Refused != 2 {
		t.Errorf("lost %d folded %d refused %d", s.Lost, s.Folded, s.Refused)
	}
	if m := metric(t, s, "network.active"); m.Last != nil || m.Reason != "no_data" {
		t.Errorf("a value that was left out: %+v", m)
	}
	drops := metric(t, s, "network.drops")
	if len(drops.Rows) != 1 || drops.Rows[0].Labels["reason"] != "b" || *drops.Rows[0].Sum != 0 || *drops.Sum != 0 {
		t.Errorf("a measured zero: %+v", drops)
	}
	if m := metric(t, s, "network.opens"); m.Sum != nil || m.SumStr != "9223372036854775808" {
		t.Errorf("a big number: %v %q", m.Sum, m.SumStr)
	}
}

func TestSummaryRanksLabelSets(t *testing.T) {
	w := newWorld(t)
	node := w.node(w.a, "n1")
	var ss []inspector.Series
	for i := range 26 {
		ss = append(ss, series("storage.reads", inspector.Delta, inspector.Count, "device", "sd"+string(rune('a'+i))))
	}
	ss = append(ss, series("storage.reads", inspector.Delta, inspector.Count, "device", "evil\u202e"), series("storage.later", inspector.Gauge, inspector.Ratio), series("storage.opens", inspector.Gauge, inspector.Count))
	l := inspector.NewLayout("storage", ss)
	vals := make([]inspector.Value, len(ss))
	for i, se := range l.Series {
		vals[i] = gauge(1)
		if se.Kind == inspector.Delta {
			vals[i] = delta(uint64(i))
		}
	}
	w.layout(node, l)
	w.open(node)
	w.write(w.check(node, report(1, 1, l, w.now(), vals)))
	s := w.summary(reader(w.a, tenants.Selector{}), SummaryQuery{Module: "storage"})
	m := metric(t, s, "storage.reads")
	if len(m.Rows) != maxRows || m.Rows[0].Labels["device"] != "sdz" || m.Other == nil {
		t.Fatalf("%+v", m)
	}
	total := *m.Other.Sum
	for _, r := range m.Rows {
		total += *r.Sum
	}
	if total != *m.Sum {
		t.Errorf("rows and other make %d, the whole is %d", total, *m.Sum)
	}
	if diff := cmp.Diff([]string{"storage.later", "storage.opens"}, s.Unregistered); diff != "" {
		t.Errorf("metrics of a newer agent: %s", diff)
	}
}

func TestSummaryRefusals(t *testing.T) {
	w := newWorld(t)
	w.node(w.a, "n1")
	all := reader(w.a, tenants.Selector{})
	ago := func(d time.Duration) time.Time { return w.now().Add(-d) }
	for _, tt := range []struct {
		name  string
		scope tenants.Scope
		q     SummaryQuery
		kind  fault.Kind
		field string
	}{
		{"no module", all, SummaryQuery{}, fault.Invalid, "module"},
		{"unknown module", all, SummaryQuery{Module: "nonsense"}, fault.Invalid, "module"},
		{"short", all, SummaryQuery{Module: "network", From: ago(9 * time.Second)}, fault.Invalid, "from"},
		{"backwards", all, SummaryQuery{Module: "network", From: ago(time.Hour), To: ago(2 * time.Hour)}, fault.Invalid, "from"},
		{"too old", all, SummaryQuery{Module: "network", From: ago(7 * time.Hour)}, fault.Invalid, "from"},
		{"future", all, SummaryQuery{Module: "network", To: ago(-time.Hour)}, fault.Invalid, "to"},
		{"long name", all, SummaryQuery{Module: "network", Node: strings.Repeat("x", 300)}, fault.Invalid, "node"},
		{"no such node", all, SummaryQuery{Module: "network", Node: "n2"}, fault.NotFound, ""},
		{"bad bytes", all, SummaryQuery{Module: "network", Node: "\xff"}, fault.NotFound, ""},
		{"no scope", tenants.Scope{Tenant: w.a}, SummaryQuery{Module: "network"}, fault.Denied, ""},
		{"nobody", tenants.Scope{}, SummaryQuery{Module: "network"}, fault.Unauthorized, ""},
	} {
		_, err := w.s.Summary(context.Background(), tt.scope, tt.q)
		if f := fault.Of(err); f == nil || f.Kind != tt.kind || f.Field != tt.field {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestLabelSetsAreBounded: beyond a bound label sets are no longer told apart,
// and nothing is lost from the sums.
func TestLabelSetsAreBounded(t *testing.T) {
	c, _ := testRegistry().Component("storage")
	sum := newSumming(c, start, start.Add(-time.Minute), start)
	for i := range 8 {
		tb := &table{component: "storage", barred: make([]bool, 1000), unknown: make([]bool, 1000)}
		vals := make([]inspector.Value, 1000)
		for k := range 1000 {
			tb.series = append(tb.series, series("storage.reads", inspector.Delta, inspector.Count, "device", fmt.Sprint(i, " ", k)))
			tb.kinds = append(tb.kinds, inspector.Delta)
			vals[k] = delta(1)
		}
		w := &window{ts: start, durMS: 10_000, vals: inspector.AppendValues(nil, tb.series, vals)}
		sum.visit(nil, w, tb)
		sum.done(&target{})
	}
	if held := len(sum.metrics["storage.reads"].rows); held > maxRowsHeld {
		t.Errorf("%d label sets are told apart", held)
	}
	sum.finish(&sum.out)
	m := sum.out.Metrics[0]
	if *m.Sum != 8000 || *m.Other.Sum != 8000-maxRows {
		t.Errorf("sum %d, other %d", *m.Sum, *m.Other.Sum)
	}
	rate := *m.Other.RatePerS
	for _, r := range m.Rows {
		rate += *r.RatePerS
	}
	if math.Abs(rate-*m.RatePerS) > 1e-6 || m.Other.CoveredS > m.CoveredS {
		t.Errorf("the rows make %v/s, the whole is %v/s; other covers %v s of %v s", rate, *m.RatePerS, m.Other.CoveredS, m.CoveredS)
	}
}

// TestLabelRowsAddUp: a label set that appears within the span, on one node or
// on another, has a rate that is its share of the whole.
func TestLabelRowsAddUp(t *testing.T) {
	w := newWorld(t)
	drops := func(reasons ...string) *inspector.Layout {
		var ss []inspector.Series
		for _, r := range reasons {
			ss = append(ss, series("network.drops", inspector.Delta, inspector.Count, "reason", r))
		}
		return inspector.NewLayout("network", ss)
	}
	early, late := drops("a"), drops("a", "b")
	n1, n2 := w.node(w.a, "n1"), w.node(w.a, "n2")
	w.fill(w.node(w.b, "n1"), 30, 1000)
	for _, node := range []tenants.Scope{n1, n2} {
		w.layout(node, early)
		w.layout(node, late)
		w.open(node)
	}
	at := func(back int) time.Time { return w.now().Add(-time.Duration(back) * tenants.WindowLength) }
	w.write(w.check(n1, report(1, 1, early, at(2), []inspector.Value{delta(10)})),
		w.check(n1, report(1, 2, early, at(1), []inspector.Value{delta(0)})),
		w.check(n1, report(1, 3, late, at(0), []inspector.Value{delta(2), delta(6)})),
		w.check(n2, report(1, 1, early, at(1), []inspector.Value{delta(4)})),
		w.check(n2, report(1, 2, early, at(0), []inspector.Value{delta(4)})))
	for _, tt := range []struct {
		node            string
		total           uint64
		rate, a, b      float64
		covered, ca, cb float64
	}{
		{"n1", 18, 0.6, 0.4, 0.2, 30, 30, 10},
		{"n2", 8, 0.4, 0.4, 0, 20, 20, 0},
		{"", 26, 1, 0.8, 0.2, 50, 50, 10},
	} {
		m := metric(t, w.summary(reader(w.a, tenants.Selector{}), SummaryQuery{Node: tt.node}), "network.drops")
		if *m.Sum != tt.total || math.Abs(*m.RatePerS-tt.rate) > 1e-9 || m.CoveredS != tt.covered {
			t.Errorf("%q: %d, %v/s over %v s", tt.node, *m.Sum, *m.RatePerS, m.CoveredS)
		}
		sum, rate := uint64(0), 0.0
		for _, r := range m.Rows {
			sum, rate = sum+*r.Sum, rate+*r.RatePerS
			want, covered := tt.a, tt.ca
			if r.Labels["reason"] == "b" {
				want, covered = tt.b, tt.cb
			}
			if math.Abs(*r.RatePerS-want) > 1e-9 || r.CoveredS != covered {
				t.Errorf("%q %v: %v/s over %v s", tt.node, r.Labels, *r.RatePerS, r.CoveredS)
			}
		}
		if sum != *m.Sum || math.Abs(rate-*m.RatePerS) > 1e-9 {
			t.Errorf("%q: the rows make %d and %v/s, the whole is %d and %v/s", tt.node, sum, rate, *m.Sum, *m.RatePerS)
		}
	}
}
