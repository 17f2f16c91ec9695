package mcp

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// rendering is one of the answers that are asked for most.
type rendering struct {
	name string
	body any
	text func() string
}

func renderings(o overviewAnswer, l pageAnswer, n nodeAnswer, m summaryAnswer, e eventsAnswer) []rendering {
	return []rendering{
		{"list_nodes", l, func() string { return listText(l) }},
		{"fleet_overview", o, func() string { return overviewText(o) }},
		{"get_node", n, func() string { return nodeText(n) }},
		{"metrics_summary", m, func() string { return summaryText(m) }},
		{"list_events", e, func() string { return eventsText(e) }},
	}
}

// plainAnswers are what a healthy tenant of 20 nodes is told.
func plainAnswers() []rendering {
	ref := func(i int) tenants.NodeRef {
		return tenants.NodeRef{Node: fmt.Sprintf("01a22b78-a93e-769f-bf4e-4d00a0c6c%03d", i), Name: fmt.Sprintf("sim-%04d", i)}
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	all := tenants.Coverage{Asked: 20, Answered: 20, NotCovered: []tenants.NotCovered{}}
	var l pageAnswer
	for i := range 20 {
		l.Nodes = append(l.Nodes, fleet.Node{Node: ref(i).Node, Name: ref(i).Name, Status: fleet.Online, Labels: map[string]string{"environment": "prod", "role": "db"}, LastSeen: &at,
			FreshnessS: ptr(4.1 + float64(i)/100), AgentVersion: "1.4.2", Kernel: "6.12.41+deb13-amd64", OS: "Debian 13", Arch: "amd64", SkewMS: ptr(int64(i)), EnrolledAt: at})
	}
	o := overviewAnswer{Overview: fleet.Overview{At: at, Nodes: 20, ByStatus: map[fleet.Status]int{}, FreshnessS: ptr(3.07), Coverage: all,
		ByVersion: []fleet.Share{{Value: "1.4.2", Nodes: 20}}, ByKernel: []fleet.Share{{Value: "6.12.41+deb13-amd64", Nodes: 12}, {Value: "5.15.0-153-generic", Nodes: 8}}}}
	for _, st := range fleet.Statuses() {
		o.ByStatus[st] = 0
	}
	o.ByStatus[fleet.Online] = 20
	n := nodeAnswer{NodeDetail: fleet.NodeDetail{Node: l.Nodes[0], MachineID: "ff4ae39f6bb44fb81a3d1e601c115a0b", BootID: "dd1a8567d1b67dac", Epoch: 1, Seq: 1300, LastDataAt: &at, CertExpires: &at, CertDays: ptr(6.98),
		Loss: fleet.Loss{Agent: map[string]uint64{"queue_dropped": 0, "spool_dropped": 0}}, Sessions: []fleet.Session{{ID: ref(0).Node, Live: true, Replica: "r1", Remote: "192.0.2.7", MachineID: "ff4ae39f6bb44fb81a3d1e601c115a0b", BootID: "dd1a8567d1b67dac",
			AgentVersion: "1.4.2", ConnectedAt: at, LastSeen: at, SkewMS: ptr(int64(1))}}},
		Next: []Next{{"metrics_summary", map[string]any{"module": "host", "node": ref(0).Node}, "its latest numbers"}, {"metrics_summary", map[string]any{"module": "network", "node": ref(0).Node}, "its latest numbers"}}}
	m := summaryAnswer{Summary: metrics.Summary{Module: "network", Title: "Network", Node: ptr(ref(0)), Window: tenants.Window{From: at.Add(-5 * time.Minute), To: at}, FreshnessS: ptr(1.1),
		Coverage: tenants.Coverage{Asked: 1, Answered: 1, NotCovered: []tenants.NotCovered{}}, Received: 30, Expected: 30, Samples: 173493244, Notes: []string{"not shown: 2 label rows; format=detailed shows up to 10 a metric"}},
		Next: []Next{{"query_metrics", map[string]any{"metrics": []string{"network.drops"}, "node": "sim-0001", "top": 5}, "its course over time and the series that stand out"}}}
	level, unit := "full", []string{"bytes", "count", "ns", "ratio"}
	for i := range 27 {
		n.Capabilities = append(n.Capabilities, fleet.Capability{Component: "network", Signal: fmt.Sprintf("signal_%d", i), Level: level, Source: "bpf", Since: at})
		v := 1.2345678 * math.Pow(7, float64(i%9))
		stats := metrics.Stats{Sum: ptr(uint64(v * 300)), RatePerS: ptr(v), Max: ptr(v * 1.1), CoveredS: 300}
		metric := metrics.MetricSummary{Metric: fmt.Sprintf("network.metric_%d", i), Kind: "delta", Unit: unit[i%4], Stats: stats}
		if i < 16 {
			n.Headlines = append(n.Headlines, fleet.HeadlineValue{Metric: metric.Metric, Unit: metric.Unit, Stat: "rate_per_s", Value: v})
			o.Worst = append(o.Worst, fleet.Worst{Metric: metric.Metric, Unit: metric.Unit, Stat: "rate_per_s", Nodes: []fleet.NodeValue{{NodeRef: ref(1), Value: v}, {NodeRef: ref(2), Value: v / 2}, {NodeRef: ref(3), Value: v / 3}}})
		}
		switch i % 6 {
		case 0:
			metric.Kind, metric.Stats = "gauge", metrics.Stats{Last: ptr(v), Avg: ptr(v * 0.9), Max: ptr(v * 1.1), CoveredS: 300}
		case 1:
			metric.Kind, metric.Stats = "histogram", metrics.Stats{Count: ptr(uint64(159)), RatePerS: ptr(5.3), Mean: ptr(v), P50: ptr(uint64(v)), P95: ptr(uint64(4 * v)), P99: ptr(uint64(8 * v)), CoveredS: 300}
		case 2:
			metric.Rows = []metrics.LabelRow{{Labels: map[string]string{"interface": "eth0"}, Stats: stats}, {Labels: map[string]string{"interface": "lo", "reason": "NO_SOCKET"}, Stats: stats}}
		}
		m.Metrics = append(m.Metrics, metric)
	}
	e := eventsAnswer{Page: events.Page{Window: tenants.Window{From: at.Add(-24 * time.Hour), To: at}, Coverage: all}, Next: []Next{{getEvent, map[string]any{"event_id": ref(0).Node}, "its context snapshot and samples, before anything is concluded"}}}
	for i := range 20 {
		e.Events = append(e.Events, events.Event{ID: ref(i).Node, Node: ref(i).Node, Name: ref(i).Name, Kind: "slow_io", Title: "Slow I/O", Severity: inspector.Warning, State: inspector.EventEnded, Origin: events.FromProbe,
			Scope: map[string]string{"device": "sda", "operation": "write"}, First: at, Last: at, Samples: 5, Truncated: 3, Cumulative: 8, Fingerprint: "ab12cd34ef56ab12", Context: "complete", NextTool: "trace_slow_io"})
	}
	return renderings(o, l, n, m, e)
}

// hostile is text that nodes may send to mislead a reader or break a decoder.
var hostile = []string{"", "sda", "a b", "x\ny", "\r\t\b\f\x00\x1b[31m", "\x7f\u0085", "\u202eevil\u200b\ufeff", "\u2028\u2029", "<script>&'\"", `back\slash \u0041 \n`, "é×≤µ▁█ 日本 😀", "\xff\xfe bad", "\xed\xa0\x80", "\U000e0041", "\ufffd", "  ends ", "-"}

// filled gives every field of an answer some value: text is hostile, numbers
// are extreme, and what may be missing is missing half the time.
func filled(r *rand.Rand, v reflect.Value) {
	some := func() bool { return r.IntN(3) > 0 }
	numbers := []float64{0, 1, -1, 0.1, 1.0 / 3, 99999.5, 999999.4999, 1e6, 123456789.123, 1 << 53, 1e21, -2.5e-9, 1e-320, math.MaxFloat64, float64(r.Int64()), r.Float64(), 65535, 1536}
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile[r.IntN(len(hostile))])
		if some() && v.Type() == reflect.TypeFor[fleet.Status]() {
			v.SetString(string(fleet.Statuses()[r.IntN(7)]))
		}
	case reflect.Bool:
		v.SetBool(some())
	case reflect.Int, reflect.Int64:
		v.SetInt([]int64{0, 1, 2, -7, 1 << 40, 99, 1000}[r.IntN(7)])
	case reflect.Uint64:
		v.SetUint([]uint64{0, 1, 2, 1 << 63, 99, 1000}[r.IntN(6)])
	case reflect.Float64:
		v.SetFloat(numbers[r.IntN(len(numbers))])
	case reflect.Pointer:
		if some() {
			v.Set(reflect.New(v.Type().Elem()))
			filled(r, v.Elem())
		}
	case reflect.Slice:
		if some() {
			v.Set(reflect.MakeSlice(v.Type(), r.IntN(12), 12))
			for i := range v.Len() {
				filled(r, v.Index(i))
			}
		}
	case reflect.Map:
		if some() {
			v.Set(reflect.MakeMap(v.Type()))
			for range r.IntN(4) {
				k, x := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				filled(r, k)
				filled(r, x)
				v.SetMapIndex(k, x)
			}
		}
	case reflect.Interface:
		v.Set(reflect.ValueOf([]any{nil, "a", "x\n<\u202e", 5, 2.5, true, []string{"a", "b\n"}, []string(nil), map[string]any{"k": "v"}}[1+r.IntN(8)]))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			at := time.Unix(r.Int64N(4e9), []int64{0, 1000, 500_000_000, 123_456_789}[r.IntN(4)]).UTC()
			if some() {
				at = at.In(time.FixedZone("x", 3600*r.IntN(5)))
			}
			v.Set(reflect.ValueOf(at))
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				filled(r, v.Field(i))
			}
		}
	}
}

func hostileAnswers(seed uint64) []rendering {
	r := rand.New(rand.NewPCG(seed, 1))
	var o overviewAnswer
	var l pageAnswer
	var n nodeAnswer
	var m summaryAnswer
	var e eventsAnswer
	for _, v := range []any{&o, &l, &n, &m, &e} {
		filled(r, reflect.ValueOf(v).Elem())
	}
	for i := range m.Metrics {
		m.Metrics[i].Kind = []string{"gauge", "delta", "histogram"}[r.IntN(3)]
		m.Metrics[i].Unit = []string{"bytes", "ns", "ratio", "seconds", "count"}[r.IntN(5)]
	}
	return renderings(o, l, n, m, e)
}

// The text of the answers that are asked for most, plain and hostile.
func TestTexts(t *testing.T) {
	var b bytes.Buffer
	for i, list := range [][]rendering{plainAnswers(), hostileAnswers(1), hostileAnswers(2)} {
		for _, r := range list {
			fmt.Fprintf(&b, "-- %s %d --\n%s\n", r.name, i, r.text())
		}
	}
	golden(t, "texts.txt", b.Bytes())
}

func BenchmarkRender(b *testing.B) {
	var e encoder
	for _, r := range plainAnswers() {
		b.Run(r.name+"/body", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.encode(r.body); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(r.name+"/text", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !strings.Contains(r.text(), "\n") {
					b.Fatal("no text")
				}
			}
		})
	}
}
