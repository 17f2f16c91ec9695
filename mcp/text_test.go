package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

func TestQuantities(t *testing.T) {
	for want, got := range map[string]string{
		"0 B":          quantity(0, "bytes", false),
		"1.5 KiB/s":    quantity(1536, "bytes", true),
		"1 GiB":        quantity(1<<30, "bytes", false),
		"65.53 µs":     quantity(65535, "ns", false),
		"2 s/s":        quantity(2e9, "ns", true),
		"99.85 %":      quantity(0.9985, "ratio", false),
		"1796000000 s": quantity(1.796e9, "seconds", false),
		"16291992":     quantity(16291991.6, "count", false),
		"0.1115/s":     quantity(0.11152, "count", true),
		"-1.5 KiB":     quantity(-1536, "bytes", false),
		"never":        age(nil),
		"1m12.5s ago":  age(ptr(72.51)),
		"▁·█":          sparkline([]*float64{ptr(1.0), nil, ptr(9.0)}),
		"▁▁":           sparkline([]*float64{ptr(3.0), ptr(3.0)}),
		"":             sparkline([]*float64{nil, nil}),

		"1 node": counted(1, "node"), "0 nodes": counted(uint64(0), "node"), "2 nodes": counted(2, "node"),
		"expires in 7.0 days": daysText(6.999, "expires", "expired"), "expires in 12.0 hours": daysText(0.5, "expires", "expired"),
		"expired 2.0 days ago": daysText(-2, "expires", "expired"),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for in, want := range map[float64]float64{0: 0, 1.23456789: 1.23457, 123456.789: 123457, 1234567.89: 1234568, 0.000123456789: 0.000123457, -2.5: -2.5, 1 << 53: 1 << 53} {
		if got := round6(in); got != want {
			t.Errorf("round6(%v) = %v, want %v", in, got, want)
		}
	}
}

func TestEncodingNeverWritesThrough(t *testing.T) {
	shared := 1.23456789
	in := metrics.Result{Series: []metrics.Series{{Points: []*float64{&shared, nil}}}}
	var out metrics.Result
	raw, err := new(encoder).encode(in)
	if err := errors.Join(err, json.Unmarshal(raw, &out)); err != nil || *out.Series[0].Points[0] != 1.23457 || out.Series[0].Points[1] != nil || shared != 1.23456789 || out.Coverage.NotCovered == nil || out.Notes != nil {
		t.Errorf("got %+v, shared %v", out, shared)
	}
	if in.Series[0].Labels != nil {
		t.Error("the service's own answer was changed")
	}
}

func TestConciseSummaryHidesNothingRows(t *testing.T) {
	rows := func(n int) []metrics.LabelRow { return make([]metrics.LabelRow, n) }
	s := metrics.Summary{Metrics: []metrics.MetricSummary{
		{Metric: "a.zero", Help: "h", Stats: metrics.Stats{Sum: ptr(uint64(0)), RatePerS: ptr(0.0)}, Rows: rows(5)},
		{Metric: "a.plain", Stats: metrics.Stats{Sum: ptr(uint64(5)), RatePerS: ptr(1.0)}},
		{Metric: "a.busy", Stats: metrics.Stats{Sum: ptr(uint64(9)), RatePerS: ptr(1.0)}, Rows: rows(5)},
	}}
	if got := hottest(s); got != "a.busy" {
		t.Errorf("hottest is %s", got)
	}
	if n := trimSummary(&s, false, 0); n != 3 || len(s.Metrics[0].Rows) != 0 || s.Metrics[0].Help != "" || !slices.Contains(s.Notes, "not shown: 7 label rows; format=detailed shows up to 10 a metric") {
		t.Errorf("%d rows left, notes %v", n, s.Notes)
	}
	if n := trimSummary(&s, true, 2); n != 2 {
		t.Errorf("%d rows left of a budget of 2", n)
	}
}

func TestRowsSayForHowLongTheyWereReported(t *testing.T) {
	m := metrics.MetricSummary{Metric: "a.drops", Kind: "delta", Unit: "count", Stats: metrics.Stats{Sum: ptr(uint64(6)), RatePerS: ptr(0.487), CoveredS: 12.3}}
	if got := coveredMark(m, metrics.Stats{CoveredS: 10}); got != " (reported for 10 of 12.3 s)" {
		t.Errorf("got %q", got)
	}
	if got := coveredMark(m, metrics.Stats{CoveredS: 12.3}); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestNodeText(t *testing.T) {
	d := fleet.NodeDetail{Node: fleet.Node{Node: "n1", Name: "db1", Status: fleet.Online, EnrolledAt: noon}, Epoch: 1, Seq: 23, CertDays: ptr(6.999), Loss: fleet.Loss{MissingSeq: 1, RefusedPoints: 1}}
	got := nodeText(nodeAnswer{NodeDetail: d})
	for _, want := range []string{"certificate expires in 7.0 days\n", "reports: number 23 of epoch 1 is the last that was committed\n", "1 report never arrived; 1 value out of range"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	d.Epoch, d.Seq = 0, 0
	if got := nodeText(nodeAnswer{NodeDetail: d}); !strings.Contains(got, "reports: none committed yet") {
		t.Errorf("%q", got)
	}
	if got := overviewText(overviewAnswer{Overview: fleet.Overview{Nodes: 1, Coverage: tenants.Coverage{Asked: 1, Answered: 1}}}); strings.Contains(got, "1 nodes") {
		t.Errorf("%q", got)
	}
}

// No value of a node reads as another fact.
func TestFactsAreQuoted(t *testing.T) {
	got := facts(map[string]string{"device": "sda", "process": `a" verdict="fine`, "a b": "c=d", "path": `C:\x`, "quoted": `\" x`})
	if want := `"a b"="c=d" device=sda path=C:\x process="a\" verdict=\"fine" quoted="\\\" x"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCoverageText(t *testing.T) {
	var p page
	c := tenants.Coverage{Asked: 100, Answered: 30, More: 20}
	for range 50 {
		c.Miss(tenants.NotCovered{Node: "n", Name: "x\u202e", Reason: "offline"})
	}
	p.coverage(c)
	if got := p.String(); got != "coverage: 30 of 100 nodes answered\nnot covered: x\\u202e (offline), x\\u202e (offline), x\\u202e (offline), x\\u202e (offline), x\\u202e (offline), x\\u202e (offline), x\\u202e (offline), x\\u202e (offline) and 62 more" {
		t.Errorf("got %s", got)
	}
}

// noted lists nothing and has something to say of it.
type noted struct{ Events }

func (noted) List(context.Context, tenants.Scope, events.ListQuery) (events.Page, error) {
	return events.Page{Notes: []string{"reports were kept out"}}, nil
}

func TestNotesOfListsAreTold(t *testing.T) {
	a, err := listEvents(t.Context(), Services{Events: noted{}}, Call{Args: values{"limit": 1000}, Now: noon})
	if err != nil || !strings.Contains(a.Text, "reports were kept out") || !strings.Contains(a.Text, "clamped") {
		t.Errorf("%v %s", err, a.Text)
	}
}
