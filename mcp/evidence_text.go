package mcp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// text says the finding first, then what it rests on.
func (a taskAnswer) text() string {
	var p page
	p.line("%s on %s is %s%s", a.Task, a.where(), a.Status, a.span())
	switch {
	case !a.Conclude:
		p.line("ticket_id: %s; %.0f %% done. Do not conclude yet: call check_task_result", a.Ticket, *a.Progress*100)
	default:
		p.line("ticket_id: %s (kept until %s)", a.Ticket, stamp(a.ExpiresAt))
	}
	a.findings(&p)
	measures(&p, "totals: ", a.Totals)
	a.samples(&p)
	a.losses(&p)
	a.nodes(&p)
	p.truncated(a.Truncated)
	p.notes(a.Notes)
	p.next(a.Next)
	return p.String()
}

// maxNodeLines bounds the nodes that the text tells of one by one; the
// structured form has all of them.
const maxNodeLines = 20

// nodes says how many answered and why the others did not.
func (a taskAnswer) nodes(p *page) {
	p.line("coverage: %d of %s answered", a.Coverage.Answered, counted(a.Coverage.Asked, "node"))
	lines, more := 0, a.Coverage.More
	for _, n := range a.Nodes {
		if !n.told() {
			continue
		}
		if lines++; lines > maxNodeLines {
			more++
			continue
		}
		line := inspector.CleanText(n.Name) + ": " + n.Outcome
		if n.Reason != "" && n.Reason != n.Outcome {
			line += " (" + inspector.CleanText(n.Reason) + ")"
		}
		if n.Message != "" {
			line += ", " + inspector.CleanText(n.Message)
		}
		if n.Stopped != "" {
			line += "; stopped early for its budget of " + inspector.CleanText(n.Stopped)
		}
		if n.NextStep != "" {
			line += "; " + inspector.CleanText(n.NextStep)
		}
		p.line("%s", line)
	}
	if more > 0 {
		p.line("and %s more that did not answer", counted(more, "node"))
	}
}

// where names the node, or counts them.
func (a taskAnswer) where() string {
	if len(a.Nodes) == 1 {
		return inspector.CleanText(a.Nodes[0].Name)
	}
	return counted(len(a.Nodes), "node")
}

func (a taskAnswer) span() string {
	if a.Window == nil {
		return ""
	}
	return fmt.Sprintf(": %s to %s (%.1f s)", stamp(a.Window.From), a.Window.To.UTC().Format("15:04:05Z"), a.Window.To.Sub(a.Window.From).Seconds())
}

// findings names what stands out: the group and its share, or the function.
func (a taskAnswer) findings(p *page) {
	many := len(a.Nodes) > 1
	levels := []string{}
	for _, r := range a.Rows {
		if l := level(r.Labels); !slices.Contains(levels, l) {
			levels = append(levels, l)
		}
	}
	for _, l := range levels {
		rows := slices.DeleteFunc(slices.Clone(a.Rows), func(r evidenceRow) bool { return level(r.Labels) != l })
		if len(levels) > 1 {
			p.line("%s:", inspector.CleanText(orElse(l, "others")))
		}
		a.rows(p, rows, many)
	}
	if a.OtherCount > 0 {
		p.line("%d more in %s that the nodes did not list", a.OtherCount, counted(a.OtherRows, "group"))
	}
	for _, f := range a.Profiles {
		a.profile(p, f, many)
	}
	if len(a.Rows) == 0 && len(a.Profiles) == 0 && a.Conclude && a.Coverage.Answered > 0 {
		p.line("nothing matched in this span on %s; that is no proof that it does not happen at other times", counted(a.Coverage.Answered, "node that answered"))
	}
}

// rows writes the rows of one level. What all of them have in common is said
// once.
func (a taskAnswer) rows(p *page, rows []evidenceRow, many bool) {
	labels := []map[string]string{}
	for _, r := range rows {
		labels = append(labels, r.Labels)
	}
	shared := common(labels)
	if len(shared) > 0 {
		p.line("in each: %s", facts(shared))
	}
	unit := orElse(a.counts[rows[0].Labels[levelLabel]], orElse(a.counts[""], "count"))
	head := []string{strings.ToUpper(inspector.CleanText(unit)), "SHARE", "ROW", "WHAT"}
	if many {
		head = slices.Insert(head, 2, "NODE")
	}
	table := []string{}
	for _, r := range rows {
		cells := []string{number(float64(r.Count)), "", fmt.Sprint(r.Row), told(r.Labels, r.Values, shared)}
		if r.Share != nil {
			cells[1] = fmt.Sprintf("%.1f %%", *r.Share*100)
		}
		if r.Benign {
			cells[3] += " | benign"
		}
		if many {
			cells = slices.Insert(cells, 2, r.Name)
		}
		table = append(table, cells...)
	}
	p.tableWith(head, table, func(i int) {
		measures(p, "  ", buckets(rows[i].Values))
		if len(rows[i].Stack) > 0 {
			p.line("  at %s", stackText(rows[i].Stack))
		}
	})
}

// told is a row's or a sample's own facts and numbers.
func told(labels map[string]string, values map[string]float64, shared map[string]string) string {
	own := map[string]string{}
	for k, v := range labels {
		if _, ok := shared[k]; !ok && k != levelLabel {
			own[k] = v
		}
	}
	parts := []string{}
	if len(own) > 0 || len(shared) == 0 {
		parts = append(parts, facts(own))
	}
	if v := valueText(values); v != "" {
		parts = append(parts, v)
	}
	return strings.Join(parts, " | ")
}

// common are the labels that several groups all have, such as the long path of
// one control group; of one group it is none.
func common(groups []map[string]string) map[string]string {
	if len(groups) < 2 {
		return nil
	}
	out := map[string]string{}
	for k, v := range groups[0] {
		if k != levelLabel && !slices.ContainsFunc(groups, func(g map[string]string) bool { w, ok := g[k]; return !ok || w != v }) {
			out[k] = v
		}
	}
	return out
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func (a taskAnswer) profile(p *page, f nodeProfile, many bool) {
	where := ""
	if many {
		where = inspector.CleanText(f.Name) + ": "
	}
	if f.Samples == 0 {
		p.line("%s0 of %s possible samples (%d Hz × %s × %s s) hit the target: it was on no CPU when one was taken, and used little or none", where, number(f.Possible), f.Hz, counted(f.CPUs, "CPU"), number(f.Seconds))
		return
	}
	p.line("%s%d of %s possible samples (%d Hz × %s × %s s) hit the target, %.1f %% of them in the kernel", where, f.Samples, number(f.Possible), f.Hz, counted(f.CPUs, "CPU"), number(f.Seconds), 100*float64(f.Kernel)/float64(f.Samples))
	rows := []string{}
	for _, t := range f.Top {
		rows = append(rows, fmt.Sprintf("%.1f %%", t.Share*100), fmt.Sprint(t.Self), fmt.Sprint(t.Total), t.Function, t.Module)
	}
	p.table([]string{"SHARE", "SELF", "TOTAL", "FUNCTION", "MODULE"}, rows)
	if f.Unnamed > 0 {
		p.line("%s without a name", counted(f.Unnamed, "sample"))
	}
	for _, s := range f.Folded {
		p.line("%d %s", s.Count, inspector.CleanText(s.Stack))
	}
	if len(f.Folded) > 0 && f.LeftOut > 0 {
		p.line("%s in stacks that are not shown", counted(f.LeftOut, "sample"))
	}
}

func (a taskAnswer) samples(p *page) {
	labels := []map[string]string{}
	for _, s := range a.Samples {
		labels = append(labels, s.Labels)
	}
	shared := common(labels)
	if len(shared) > 0 {
		p.line("in each sample: %s", facts(shared))
	}
	for _, s := range a.Samples {
		line := "sample " + s.At.UTC().Format("15:04:05.000Z")
		if len(a.Nodes) > 1 {
			line += " on " + inspector.CleanText(s.Name)
		}
		p.line("%s: %s", line, told(s.Labels, s.Values, shared))
		if len(s.Stack) > 0 {
			p.line("  at %s", stackText(s.Stack))
		}
	}
}

func (a taskAnswer) losses(p *page) {
	parts := []string{}
	if a.Lost > 0 {
		parts = append(parts, counted(a.Lost, "event")+" lost, so counts are lower bounds")
	}
	if a.Unsampled > 0 {
		parts = append(parts, counted(a.Unsampled, "event")+" counted and not shown one by one: the samples are not all there is")
	}
	if a.SampleRate > 1 {
		parts = append(parts, fmt.Sprintf("1 in %d was looked at one by one", a.SampleRate))
	}
	if a.Unknown > 0 {
		parts = append(parts, counted(a.Unknown, "event")+" could not be attributed")
	}
	if len(parts) > 0 {
		p.line("limits: %s", strings.Join(parts, "; "))
	}
}

// facts writes labels: text of nodes, one line.
func facts(labels map[string]string) string {
	if len(labels) == 0 {
		return "(no labels)"
	}
	b := make([]byte, 0, 64)
	for i, k := range sortedKeys(labels) {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(append(append(b, fact(k)...), '='), fact(labels[k])...)
	}
	return string(b)
}

// fact quotes text that could be read as more than one fact, so that no value
// ends its own quotation.
func fact(v string) string {
	v = inspector.CleanText(v)
	if v == "" || !strings.ContainsAny(v, " |=\"") {
		return v
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v) + `"`
}

func stackText(stack []string) string {
	clean := make([]string, len(stack))
	for i, f := range stack {
		clean[i] = inspector.CleanText(f)
	}
	return strings.Join(clean, " < ")
}
