package mcp

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// Arguments of the tools that read a span of time.
var (
	fromArg   = Arg{Name: "from", Kind: argString, Words: `RFC 3339 time, or duration before now such as "15m"; default 5m`}
	toArg     = Arg{Name: "to", Kind: argString, Words: "the same; default now"}
	formatArg = Arg{Name: "format", Kind: argString, Enum: []string{"concise", "detailed"}, Default: "concise"}
)

// Rows of one metric by label set, and points of one series, by format.
const (
	conciseRows   = 3
	concisePoints = 30
	seriesRows    = 20
	defaultSpan   = 5 * time.Minute
	staleS        = 30 // age in seconds from which on no number is one of now
)

// observeMetrics are the tools about measured values.
func observeMetrics(s Services) []Tool {
	series := limitArg
	series.Default = seriesRows
	return []Tool{
		{
			Name: "metrics_summary", Title: "Metrics summary", Set: observeSet, Scope: tenants.Read,
			Description: "All metrics of one module (rates, totals, percentiles, greatest label sets) over a span, on one node or all. " +
				"Use it for \"how is the network/disk/CPU\". Then query_metrics.",
			Args: []Arg{
				{Name: "module", Kind: argString, Enum: s.modules(), Required: true},
				nodeArg, labelsArg, fromArg, toArg, formatArg, maxBytes,
			},
			Output: summaryAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return metricsSummary(ctx, s.Metrics, c) },
		},
		{
			Name: "query_metrics", Title: "Query metrics", Set: observeSet, Scope: tenants.Read,
			Description: "Series of named metrics: by node and label set, the top N, or by cohort of nodes (group = a node label). " +
				"Use it to see when something changed or which node is worst. metrics_summary lists the names.",
			Args: []Arg{
				{Name: "metrics", Kind: argStrings, Required: true, Words: `full names, e.g. "network.retransmit_segments"`},
				nodeArg,
				{Name: "node_labels", Kind: argLabels},
				{Name: "labels", Kind: argLabels, Words: `only series with these, e.g. {"device":"sda"}`},
				fromArg, toArg,
				{Name: "step_s", Kind: argInt, Min: 10, Words: "multiple of 10"},
				{Name: "top", Kind: argInt, Min: 1, Max: 100, Words: "only the N greatest series"},
				{Name: "by", Kind: argString, Enum: []string{"avg", "max", "last", "sum"}, Words: "default avg"},
				{Name: "group", Kind: argString, Words: "node label key"},
				series, cursorArg, formatArg, maxBytes,
			},
			Output: seriesAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return queryMetrics(ctx, s, c) },
		},
	}
}

type summaryAnswer struct {
	metrics.Summary
	Next []Next `json:"next,omitempty"`
}

func metricsSummary(ctx context.Context, m Metrics, c Call) (Answer, error) {
	from, to, err := c.window()
	if err != nil {
		return Answer{}, err
	}
	got, err := m.Summary(ctx, c.Scope, metrics.SummaryQuery{
		Module: c.Args.str("module"), Node: c.Args.str("node"), Labels: c.Args.labels("labels"), From: from, To: to,
	})
	if err != nil {
		return Answer{}, err
	}
	detailed := c.Args.str("format") == "detailed"
	rows := trimSummary(&got, detailed, c.rows)
	body := summaryAnswer{Summary: got}
	if c.fitted() {
		body.Notes = withNote(body.Notes, "rows by label set were cut to fit the answer's byte budget")
	}
	if name := hottest(got); name != "" {
		args := map[string]any{"metrics": []string{name}, "top": 5}
		if n := c.Args.str("node"); n != "" {
			args["node"] = n
		}
		body.Next = append(body.Next, Next{"query_metrics", args, "its course over time and the series that stand out"})
	}
	if len(got.Coverage.NotCovered) > 0 {
		n := got.Coverage.NotCovered[0]
		body.Next = append(body.Next, Next{"get_node", map[string]any{"node": n.Node}, "not covered: " + n.Reason})
	}
	return Answer{Body: body, Text: summaryText(body), Rows: rows}, nil
}

// window reads from and to; a start alone runs until now, an end alone covers
// the default span before it, neither leaves the choice to the service.
func (c Call) window() (from, to time.Time, err error) {
	if from, err = c.Args.when("from", c.Now); err != nil {
		return from, to, err
	}
	if to, err = c.Args.when("to", c.Now); err != nil {
		return from, to, err
	}
	switch {
	case from.IsZero() && to.IsZero():
		return from, to, nil
	case to.IsZero():
		to = c.Now
	case from.IsZero():
		from = to.Add(-defaultSpan)
	}
	if !from.Before(to) {
		err = fault.Bad("from", "the window is empty: it starts at or after its end").Do(`send an earlier from, for example "15m"`)
	}
	return from, to, err
}

// trimSummary drops what a concise answer leaves out (help, label rows beyond
// the first few, and rows of nothing under a metric of nothing) and, when
// budget is not zero, the label rows beyond it. It returns the rows left.
func trimSummary(s *metrics.Summary, detailed bool, budget int) int {
	total, hidden := 0, 0
	s.Metrics = slices.Clone(s.Metrics)
	for i := range s.Metrics {
		m := &s.Metrics[i]
		keep := len(m.Rows)
		if !detailed {
			m.Help = ""
			keep = min(keep, conciseRows)
			if nothing(m.Stats) {
				keep = 0
			}
		}
		if budget > 0 {
			keep = min(keep, max(0, budget-total))
		}
		hidden += len(m.Rows) - keep
		m.Rows = m.Rows[:keep]
		total += keep
	}
	if hidden > 0 {
		hint := "not shown: " + counted(hidden, "label row")
		if !detailed {
			hint += "; format=detailed shows up to 10 a metric"
		}
		s.Notes = withNote(s.Notes, hint)
	}
	return total
}

// nothing reports a count that is known to be zero.
func nothing(s metrics.Stats) bool {
	return s.Sum != nil && *s.Sum == 0 && (s.Count == nil || *s.Count == 0)
}

// hottest names the metric whose course is most worth a look: the first with
// activity and several label sets, else the first with activity, else the
// first with a value.
func hottest(s metrics.Summary) string {
	best, rank := "", 0
	for _, m := range s.Metrics {
		r := 0
		switch active := m.RatePerS != nil && *m.RatePerS > 0; {
		case active && len(m.Rows) > 1:
			r = 3
		case active:
			r = 2
		case m.RatePerS != nil || m.Avg != nil:
			r = 1
		}
		if r > rank {
			best, rank = m.Metric, r
		}
	}
	return best
}

func summaryText(a summaryAnswer) string {
	var p page
	on := ""
	if n := a.Summary.Node; n != nil {
		on = " on " + inspector.CleanText(n.Name)
	}
	p.line("%s%s, %s to %s", a.Module, on, stamp(a.Window.From), stamp(a.Window.To))
	switch of := ""; {
	case a.FreshnessS == nil:
		p.line("no data within that time")
	default:
		if a.Coverage.Answered > 1 {
			of = " of the node furthest behind"
		}
		if *a.FreshnessS > staleS {
			of += ": no number below is one of now"
		}
		p.line("newest data %s%s", age(a.FreshnessS), of)
	}
	p.coverage(a.Coverage)
	p.notes(a.Notes)
	p.line("windows: %d of %d received; %s, %d lost%s", a.Received, a.Expected, counted(a.Samples, "observation"), a.Lost, boundMark(a.LowerBound))
	rows, silent := make([]string, 0, 16*len(a.Metrics)), map[string][]string{}
	for _, m := range a.Metrics {
		if m.CoveredS == 0 {
			silent[orNone(m.Reason)] = append(silent[orNone(m.Reason)], m.Metric)
			continue
		}
		rows = appendStats(rows, m.Metric, m.Kind, m.Unit, m.Stats)
		for _, r := range m.Rows {
			rows = appendStats(rows, "  "+labelText(r.Labels)+coveredMark(m, r.Stats), m.Kind, m.Unit, r.Stats)
		}
		if m.Other != nil {
			rows = appendStats(rows, "  (other)", m.Kind, m.Unit, *m.Other)
		}
	}
	p.table([]string{"METRIC", "LAST/RATE", "MAX", "TOTAL", "MEAN", "P50", "P95", "P99"}, rows)
	for _, reason := range sortedKeys(silent) {
		p.line("unknown (%s): %s", reason, strings.Join(silent[reason], ", "))
	}
	if a.SkewCorrected {
		p.line("note: some windows were rebased to the server's clock")
	}
	if len(a.Unregistered) > 0 {
		p.line("also sent, but unknown to this server: %s", strings.Join(a.Unregistered, ", "))
	}
	p.next(a.Next)
	return p.String()
}

// coveredMark says of a label row for how much of its metric's time it was
// reported, where that is not all.
func coveredMark(m metrics.MetricSummary, row metrics.Stats) string {
	if row.CoveredS >= m.CoveredS*0.99 {
		return ""
	}
	return fmt.Sprintf(" (reported for %s of %s s)", number(row.CoveredS), number(m.CoveredS))
}

func boundMark(lower bool) string {
	if lower {
		return " (counts are at least)"
	}
	return ""
}

// appendStats writes a row: a name and the columns LAST/RATE, MAX, TOTAL, MEAN,
// P50, P95, P99.
func appendStats(rows []string, name, kind, unit string, s metrics.Stats) []string {
	cell := func(v *float64, rate bool) string {
		if v == nil {
			return ""
		}
		return quantity(*v, unit, rate)
	}
	whole := func(v *uint64, text string) string {
		if v == nil {
			return text
		}
		return quantity(float64(*v), unit, false)
	}
	bound := func(v *uint64, text string) string { // empty where there is no value: of nothing there is no percentile
		if text = whole(v, text); text != "" {
			text = "≤" + text
		}
		return text
	}
	switch kind {
	case "gauge":
		return append(rows, name, cell(s.Last, false), cell(s.Max, false), "", cell(s.Avg, false), "", "", "")
	case "delta":
		return append(rows, name, cell(s.RatePerS, true), cell(s.Max, true), whole(s.Sum, s.SumStr), "", "", "", "")
	}
	count := s.CountStr
	if s.Count != nil {
		count = strconv.FormatUint(*s.Count, 10)
	}
	rate := ""
	if s.RatePerS != nil {
		rate = number(*s.RatePerS) + "/s"
	}
	return append(rows, name, rate, "", count, cell(s.Mean, false), bound(s.P50, s.P50Str), bound(s.P95, s.P95Str), bound(s.P99, s.P99Str))
}
