package metrics

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TestTimeRules walks the rules about skew and age. A window that is kept out
// consumes its number and the stream goes on.
func TestTimeRules(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	node := w.node(w.a, "n1")
	w.fill(w.node(w.b, "n1"), 1, 1)
	l := netLayout()
	w.layout(node, l)
	w.open(node)
	for i, tt := range []struct {
		name   string
		end    time.Duration // by the agent's clock, against the server's now
		skew   time.Duration
		want   Status
		reason string
		stored time.Duration // end by the server's clock
	}{
		{"now", 0, 0, Stored, "", 0},
		{"two seconds of skew are ignored", -10 * time.Second, -2 * time.Second, Stored, "", -10 * time.Second},
		{"49 s behind is corrected", -69 * time.Second, -49 * time.Second, Stored, "", -20 * time.Second},
		{"an hour ahead is corrected", time.Hour - 30*time.Second, time.Hour, Stored, "", -30 * time.Second},
		{"more than an hour ahead is kept out", time.Hour, time.Hour + time.Second, Quarantined, ReasonSkew, 0},
		{"more than an hour behind is kept out", -2 * time.Hour, -2 * time.Hour, Quarantined, ReasonSkew, 0},
		{"one hour old after an outage", -time.Hour, 0, Stored, "", -time.Hour},
		{"23 hours old is accepted, but past retention", -23 * time.Hour, 0, Expired, "", 0},
		{"27 hours old", -27 * time.Hour, 0, Quarantined, ReasonTooOld, 0},
		{"2 hours in the future", 2 * time.Hour, 0, Quarantined, ReasonFuture, 0},
		{"a minute in the future", time.Minute, 0, Quarantined, ReasonFuture, 0},
		{"a moment in the future", time.Second, time.Second, Stored, "", time.Second},
	} {
		r := report(1, uint64(i+1), l, w.now().Add(tt.end), netValues(1))
		c, err := w.s.Check(ctx, node, r, tt.skew)
		if err != nil || c.Quarantine() != tt.reason {
			t.Fatalf("%s: %q %v", tt.name, c.Quarantine(), err)
		}
		if o := w.write(c)[0]; o.Status != tt.want || o.Reason != tt.reason || !o.Final() {
			t.Errorf("%s: %+v", tt.name, o)
		}
		if tt.want != Stored {
			continue
		}
		var ts time.Time
		var skew *int64
		if err := w.conn.QueryRow(ctx, `select ts, skew_ms from win where node_id = $1 and seq = $2`, uid(idOf(node)), i+1).Scan(&ts, &skew); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if !ts.Equal(w.now().Add(tt.stored)) {
			t.Errorf("%s: stored at %v", tt.name, ts.Sub(w.now()))
		}
		if marked := tt.skew.Abs() > 2*time.Second; marked != (skew != nil) || marked && *skew != tt.skew.Milliseconds() {
			t.Errorf("%s: mark %v", tt.name, skew)
		}
	}
	for reason, n := range map[string]int64{ReasonSkew: 2, ReasonTooOld: 1, ReasonFuture: 2} {
		if got := w.count(`select n from win_quarantine where node_id = $1 and reason = $2 and example <> ''`, uid(idOf(node)), reason); got != n {
			t.Errorf("%s: %d counted, want %d", reason, got, n)
		}
	}
	if got := w.count(`select seq from node_head where node_id = $1`, uid(idOf(node))); got != 12 {
		t.Errorf("the stream stands at %d", got)
	}
	if got := w.count(`select expired from node_head where node_id = $1`, uid(idOf(node))); got != 1 {
		t.Errorf("%d past retention", got)
	}
	s := w.summary(reader(w.a, tenants.Selector{}), SummaryQuery{Node: "n1", From: w.now().Add(-2 * time.Hour)})
	if !s.SkewCorrected || s.Received != 5 {
		t.Errorf("summary: corrected %v, %d windows", s.SkewCorrected, s.Received)
	}
}

func TestCheckBadInput(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	node := w.node(w.a, "n1")
	l := netLayout()
	if _, err := w.s.Check(ctx, node, report(1, 1, l, w.now(), netValues(1)), 0); fault.Of(err) == nil || fault.Of(err).Reason != "unknown_layout" || !fault.Is(err, fault.Precondition) {
		t.Errorf("unknown layout: %v", err)
	}
	w.layout(w.node(w.b, "n1"), l)
	if _, err := w.s.Check(ctx, node, report(1, 1, l, w.now(), netValues(1)), 0); !fault.Is(err, fault.Precondition) {
		t.Errorf("another tenant's layout is known here: %v", err)
	}
	w.layout(node, l)
	if u, err := w.s.UnknownLayouts(ctx, node, []inspector.LayoutHash{l.Hash, {1}}); err != nil || len(u) != 1 || u[0] != (inspector.LayoutHash{1}) {
		t.Errorf("unknown layouts: %v %v", u, err)
	}
	fresh := w.service() // another replica finds the layout in the database
	if _, err := fresh.Check(ctx, node, report(1, 1, l, w.now(), netValues(1)), 0); err != nil {
		t.Errorf("on another replica: %v", err)
	}
	good := report(1, 1, l, w.now(), netValues(1))
	for _, tt := range []struct {
		name   string
		change func(*Report)
		reason string
	}{
		{"cut short", func(r *Report) { r.Packed = r.Packed[:len(r.Packed)-1] }, ReasonMalformed},
		{"empty", func(r *Report) { r.Packed = nil }, ReasonMalformed},
		{"oversized", func(r *Report) { r.Packed = make([]byte, maxPacked+1) }, ReasonMalformed},
		{"ends before it starts", func(r *Report) { r.Start, r.End = r.End, r.Start }, ReasonSpan},
		{"too long", func(r *Report) { r.Start = r.End.Add(-time.Hour) }, ReasonSpan},
		{"no times", func(r *Report) { r.Start, r.End = time.Time{}, time.Time{} }, ReasonSpan},
		{"year one", func(r *Report) { r.Start, r.End = time.Time{}, time.Time{}.Add(time.Second) }, ReasonTooOld},
		{"huge counts", func(r *Report) { r.Samples, r.Lost, r.Truncated = math.MaxUint64, math.MaxUint64, math.MaxUint64 }, ""},
	} {
		r := good
		tt.change(&r)
		if c, err := w.s.Check(ctx, node, r, 0); err != nil || c.Quarantine() != tt.reason {
			t.Errorf("%s: %q %v", tt.name, c.Quarantine(), err)
		}
	}
	for _, p := range [][2]uint64{{0, 1}, {1, 0}, {1 << 63, 1}, {1, 1 << 63}} {
		r := good
		r.Epoch, r.Seq = p[0], p[1]
		if _, err := w.s.Check(ctx, node, r, 0); !fault.Is(err, fault.Invalid) {
			t.Errorf("epoch and seq %v: %v", p, err)
		}
	}
	if _, err := w.s.Check(ctx, reader(w.a, tenants.Selector{}), good, 0); !fault.Is(err, fault.Denied) {
		t.Errorf("no node: %v", err)
	}
}

func TestPutLayoutRefuses(t *testing.T) {
	w := newWorld(t)
	node := w.node(w.a, "n1")
	big := string(make([]byte, 400<<10))
	for name, b := range map[string][]byte{
		"nothing":       nil,
		"garbage":       []byte("\x01\xff\xff\xff\xff"),
		"long label":    inspector.NewLayout("network", []inspector.Series{series("network.drops", inspector.Delta, inspector.Count, "reason", big)}).AppendBinary(nil),
		"bad bytes":     inspector.NewLayout("network", []inspector.Series{series("network.drops", inspector.Delta, inspector.Count, "reason", "\xfftest")}).AppendBinary(nil),
		"unknown kind":  inspector.NewLayout("network", []inspector.Series{series("network.drops", 9, inspector.Count)}).AppendBinary(nil),
		"bad component": inspector.NewLayout("Net\nwork", nil).AppendBinary(nil),
	} {
		if _, err := w.s.PutLayout(context.Background(), node, b); fault.Of(err) == nil || fault.Of(err).Reason != "bad_layout" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLayoutsOfOneNodeAreBounded(t *testing.T) {
	w := newWorld(t)
	node := w.node(w.a, "n1")
	put := func(i int) error {
		l := inspector.NewLayout("network", []inspector.Series{series("network.drops", inspector.Delta, inspector.Count, "reason", fmt.Sprint(i))})
		_, err := w.s.PutLayout(context.Background(), node, l.AppendBinary(nil))
		return err
	}
	for i := range maxLayouts {
		if err := put(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(-1); !fault.Is(err, fault.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
	if err := put(1); err != nil {
		t.Errorf("a known one: %v", err)
	}
	w.advance(time.Hour)
	if err := put(-1); err != nil {
		t.Errorf("an hour later: %v", err)
	}
}

// TestRegistryRules: what a newer agent calls by a new name is kept, what
// contradicts the registry is refused point by point, and neither stops the rest.
func TestRegistryRules(t *testing.T) {
	w := newWorld(t)
	node := w.node(w.a, "n1")
	l := inspector.NewLayout("network", []inspector.Series{
		series("network.active", inspector.Delta, inspector.Count), // is a gauge
		series("network.drops", inspector.Delta, inspector.Bytes),  // counts
		series("network.newer", inspector.Gauge, inspector.Ratio),
		series("network.opens", inspector.Delta, inspector.Count),
		series("storage.reads", inspector.Delta, inspector.Count), // not of this component
	})
	w.layout(node, l)
	w.open(node)
	c := w.check(node, report(1, 1, l, w.now(), []inspector.Value{delta(1), delta(2), gauge(0.5), delta(1 << 63), delta(5)}))
	w.write(c)
	if got := w.count(`select refused from node_head where node_id = $1`, uid(idOf(node))); got != 4 {
		t.Errorf("%d points refused, want 3 of the registry and 1 out of range", got)
	}
	if g := w.s.Gauges(); g.RefusedPoints != 4 || g.Written != 1 {
		t.Errorf("gauges %+v", g)
	}
	all := reader(w.a, tenants.Selector{})
	s := w.summary(all, SummaryQuery{})
	if s.Refused != 4 || metric(t, s, "network.active").Sum != nil || len(s.Unregistered) != 1 {
		t.Errorf("%+v", s)
	}
	r := w.query(all, Query{Metrics: []string{"network.newer"}})
	if len(r.Series) != 1 || !r.Series[0].Unregistered || *r.Series[0].Stats.Last != 0.5 {
		t.Errorf("a newer metric: %+v", r.Series)
	}
}

func TestSeriesLimit(t *testing.T) {
	w := newWorld(t)
	node := w.node(w.a, "n1")
	big := func(component string, n, salt int) *inspector.Layout {
		var ss []inspector.Series
		for i := range n {
			ss = append(ss, series(component+".x", inspector.Delta, inspector.Count, "i", fmt.Sprint(salt, " ", i)))
		}
		l := inspector.NewLayout(component, ss)
		w.layout(node, l)
		return l
	}
	check := func(l *inspector.Layout, seq uint64, end time.Time) string {
		return w.check(node, report(1, seq, l, end, make([]inspector.Value, len(l.Series)))).Quarantine()
	}
	tick := w.now().Add(-time.Minute)
	if r := check(big("network", 600, 1), 1, tick); r != "" {
		t.Errorf("600 series: %s", r)
	}
	if r := check(big("storage", 401, 1), 2, tick); r != ReasonSeries {
		t.Errorf("1,001 series over two layouts: %q", r)
	}
	if r := check(big("storage", 400, 2), 3, tick); r != "" {
		t.Errorf("1,000 series: %s", r)
	}
	tick = tick.Add(tenants.WindowLength)
	if r := check(big("network", 600, 2), 4, tick); r != "" {
		t.Errorf("a layout that replaces another counts once: %s", r)
	}
}

// TestSeriesOfShortWindows: layouts that follow each other every second, as
// interfaces come and go, replace each other like those of longer windows.
func TestSeriesOfShortWindows(t *testing.T) {
	w := newWorld(t)
	for _, dur := range []time.Duration{time.Second, tenants.WindowLength} {
		for _, tn := range []tenants.TenantID{w.a, w.b} {
			node := w.node(tn, dur.String())
			for i := range 8 {
				var ss []inspector.Series
				for j := range 600 {
					ss = append(ss, series("network.x", inspector.Delta, inspector.Count, "i", fmt.Sprint(i, " ", j)))
				}
				l := inspector.NewLayout("network", ss)
				w.layout(node, l)
				r := report(1, uint64(i+1), l, w.now().Add(time.Duration(i-8)*dur), make([]inspector.Value, len(ss)))
				r.Start = r.End.Add(-dur)
				if got := w.check(node, r).Quarantine(); got != "" {
					t.Errorf("windows of %v, number %d: %s", dur, i, got)
				}
			}
		}
	}
}
