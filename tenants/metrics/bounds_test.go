package metrics

import (
	"context"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TestCountersStop: a node that leaps through its numbers in one epoch after
// another hurts nobody, and its count of missing numbers stops.
func TestCountersStop(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	bad, good := w.node(w.a, "leaps"), w.node(w.b, "honest")
	w.open(good)
	for i := range 4 {
		p := w.open(bad) // without a saved position: a new epoch
		var batch []Checked
		for _, n := range []struct {
			node       tenants.Scope
			epoch, seq uint64
		}{{bad, p.Epoch, MaxSeq - 1}, {good, 1, uint64(i + 1)}} {
			c, err := w.s.Advance(n.node, n.epoch, n.seq)
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, c)
		}
		for _, o := range w.write(batch...) {
			if o.Status != Advanced {
				t.Errorf("round %d: %+v", i, o)
			}
		}
	}
	if got := w.count(`select missing from node_head where node_id = $1`, uid(idOf(bad))); got != 1<<53-1 {
		t.Errorf("missing %d", got)
	}
	w.exec(`update node_head set missing = 9223372036854775807, expired = 9223372036854775807, refused = 9223372036854775807 where node_id = $1`, uid(idOf(bad)))
	c, err := w.s.Advance(bad, 4, MaxSeq)
	if err != nil {
		t.Fatal(err)
	}
	if o := w.write(c)[0]; o.Status != Advanced {
		t.Errorf("with full counters: %+v", o)
	}
	for _, at := range []struct{ epoch, seq uint64 }{{1, MaxSeq + 1}, {MaxSeq + 1, 1}, {1, math.MaxInt64}, {0, 1}, {1, 0}} {
		if _, err := w.s.Advance(bad, at.epoch, at.seq); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", at, err)
		}
		if at.seq <= MaxSeq && at.epoch <= MaxSeq {
			continue
		}
		if _, err := w.s.OpenStream(ctx, bad, at.epoch, at.seq); !fault.Is(err, fault.Invalid) {
			t.Errorf("open %+v: %v", at, err)
		}
	}
	// An epoch from nowhere leaves room for those that follow.
	for range 3 {
		p, err := w.s.OpenStream(ctx, bad, MaxSeq, 1)
		if err != nil || p.Epoch <= 4 || p.Epoch > MaxSeq/2+10 {
			t.Errorf("%+v %v", p, err)
		}
	}
}

// TestExtremesStayNumbers: values at the edge of what a node may send give
// answers that JSON can hold, of the node and of all nodes together.
func TestExtremesStayNumbers(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	l := netLayout()
	w.fill(w.node(w.b, "n1"), 2, 5)
	const most = math.MaxInt64
	var last tenants.Scope
	for _, name := range []string{"n1", "n2"} {
		n := w.node(w.a, name)
		last = n
		w.layout(n, l)
		w.open(n)
		for i := range 3 {
			r := report(1, uint64(i+1), l, w.now().Add(time.Duration(i-2)*tenants.WindowLength),
				[]inspector.Value{gauge(inspector.MaxGauge), delta(most), delta(most), delta(most), hist(most, most, most, most)})
			r.Samples, r.Lost, r.Truncated = math.MaxUint64, math.MaxUint64, math.MaxUint64
			if i == 1 { // as a former version stored it
				c := w.check(n, r)
				c.vals = inspector.AppendValues(nil, l.Series, []inspector.Value{gauge(1.7e308), delta(1), delta(1), delta(1), hist(1, 1)})
				w.write(c)
				continue
			}
			w.write(w.check(n, r))
		}
		c := w.check(n, report(1, 4, l, w.now(), []inspector.Value{gauge(1.7e308), delta(1), delta(1), delta(1), hist(1, 1)}))
		if c.refused != 1 || c.Quarantine() != "" {
			t.Errorf("a gauge of 1.7e308: %d refused, %q", c.refused, c.Quarantine())
		}
		w.write(c)
	}
	all, one := reader(w.a, tenants.Selector{}), reader(w.a, tenants.Selector{IDs: []tenants.NodeID{idOf(last)}})
	for _, scope := range []tenants.Scope{all, one} {
		sum := w.summary(scope, SummaryQuery{Module: "network"})
		if _, err := json.Marshal(sum); err != nil {
			t.Errorf("summary: %v", err)
		}
		m := metric(t, sum, "network.rtt")
		if m.CountStr != "18446744073709551615" || m.SumStr != "18446744073709551615" || m.P50 == nil || m.P99 == nil || *m.P50 != 3 || *m.P99 != 7 {
			t.Errorf("rtt: %+v", m.Stats)
		}
		if g := metric(t, sum, "network.active"); g.Max == nil || *g.Max != inspector.MaxGauge || g.Avg == nil || *g.Avg > inspector.MaxGauge*(1+1e-9) {
			t.Errorf("active: %+v", g.Stats)
		}
		names := []string{"network.active", "network.drops", "network.opens", "network.rtt"}
		for _, q := range []Query{{Metrics: names}, {Metrics: names, Top: 3, By: ByMax}, {Metrics: names, Group: "env"}, {Metrics: names[2:], Top: 2, By: BySum}, {Metrics: names[:1], Top: 2, By: ByLast}} {
			res, err := w.s.Query(ctx, scope, q)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := json.Marshal(res); err != nil || len(res.Series) == 0 && q.By != ByLast {
				t.Errorf("query %+v: %d series, %v", q, len(res.Series), err)
			}
		}
	}
	if ptr(math.Inf(1)) != nil || ptr(math.NaN()) != nil || ptr(1) == nil {
		t.Error("a number that is not finite is answered")
	}
}
