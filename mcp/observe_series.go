package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

type seriesAnswer struct {
	metrics.Result
	Next []Next `json:"next,omitempty"`
}

func queryMetrics(ctx context.Context, s Services, c Call) (Answer, error) {
	q, note, err := seriesQuery(s, c)
	if err != nil {
		return Answer{}, err
	}
	got, err := s.Metrics.Query(ctx, c.Scope, q)
	if err != nil {
		return Answer{}, fault.Respell(err, map[string]string{"step": "step_s"})
	}
	body := seriesAnswer{Result: got}
	body.Notes = withNote(got.Notes, note)
	if c.fitted() {
		body.Notes = withNote(body.Notes, fmt.Sprintf("cut to %d series to fit the answer's byte budget", len(got.Series)))
	}
	if len(got.Series) > 0 && got.Series[0].Node != "" && q.Node == "" {
		module, _, _ := strings.Cut(got.Series[0].Metric, ".")
		body.Next = append(body.Next, Next{"metrics_summary", map[string]any{"module": module, "node": got.Series[0].Node}, "the whole module on the first node"})
	}
	return Answer{Body: body, Text: seriesText(body, c.Args.str("format") == "detailed"), Rows: len(got.Series)}, nil
}

func seriesQuery(s Services, c Call) (metrics.Query, string, error) {
	from, to, err := c.window()
	if err != nil {
		return metrics.Query{}, "", err
	}
	names := c.Args.strs("metrics")
	if len(names) == 0 || len(names) > 20 {
		return metrics.Query{}, "", fault.Bad("metrics", "names %d metrics, 1 to 20 are allowed", len(names)).Do("metrics_summary lists the names of a module")
	}
	step := time.Duration(c.Args.int("step_s", 0)) * time.Second
	if step%(tenants.WindowLength) != 0 {
		return metrics.Query{}, "", fault.Bad("step_s", "must be a multiple of 10").Do("send for example 10, 60 or 300")
	}
	if step == 0 && c.Args.str("format") != "detailed" {
		span := to.Sub(from)
		if span <= 0 {
			span = defaultSpan
		}
		step = (span/concisePoints + tenants.WindowLength - 1).Truncate(tenants.WindowLength)
		step = max(step, tenants.WindowLength)
	}
	rows, note := c.limit(seriesRows)
	q := metrics.Query{
		Metrics: names, Node: c.Args.str("node"), NodeLabels: c.Args.labels("node_labels"), Labels: c.Args.labels("labels"),
		From: from, To: to, Step: step, Top: c.Args.int("top", 0), By: metrics.By(c.Args.str("by")), Group: c.Args.str("group"),
		Limit: rows, Cursor: c.Args.str("cursor"),
	}
	if q.Top > 0 && c.fitted() {
		q.Top = min(q.Top, c.rows)
	}
	return q, note, nil
}

func seriesText(a seriesAnswer, detailed bool) string {
	var p page
	p.line("%s to %s, %d s a point, newest data %s", stamp(a.Window.From), stamp(a.Window.To), a.StepS, age(a.FreshnessS))
	p.coverage(a.Coverage)
	if a.Lost > 0 {
		p.line("%s lost%s", counted(a.Lost, "observation"), boundMark(a.LowerBound))
	}
	if len(a.Series) == 0 {
		p.line("no series: unknown is not zero; see coverage and get_node for the reason")
	}
	rows := []string{}
	for _, s := range a.Series {
		who := s.Name
		if s.Group != nil {
			who = fmt.Sprintf("%s=%s (%s)", s.Group.Key, orNone(s.Group.Value), counted(s.Group.Nodes, "node"))
		}
		low, high, last := ends(s.Points)
		rate := s.Stat == "rate_per_s"
		cell := func(v *float64) string {
			if v == nil {
				return ""
			}
			return quantity(*v, s.Unit, rate)
		}
		rows = append(rows, s.Metric, who, labelText(s.Labels), s.Stat, cell(low), cell(high), cell(last), sparkline(s.Points))
	}
	p.table([]string{"METRIC", "NODE", "LABELS", "STAT", "LOW", "HIGH", "LAST", "COURSE"}, rows)
	if detailed {
		for _, s := range a.Series {
			p.line("%s %s %s from %s: %s", s.Metric, inspector.CleanText(s.Name), inspector.CleanText(labelText(s.Labels)), stamp(s.Start), pointText(s.Points))
		}
	}
	p.truncated(a.Truncated)
	if a.Truncated == nil && a.NextCursor != "" {
		p.line("next_cursor: %s", a.NextCursor)
	}
	if a.SkewCorrected {
		p.line("note: some windows were rebased to the server's clock")
	}
	p.notes(a.Notes)
	p.next(a.Next)
	return p.String()
}

func ends(points []*float64) (low, high, last *float64) {
	for _, p := range points {
		if p == nil {
			continue
		}
		last = p
		if low == nil || *p < *low {
			low = p
		}
		if high == nil || *p > *high {
			high = p
		}
	}
	return low, high, last
}

func pointText(points []*float64) string {
	parts := make([]string, len(points))
	for i, p := range points {
		parts[i] = "?"
		if p != nil {
			parts[i] = number(*p)
		}
	}
	return strings.Join(parts, " ")
}
