package mcp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

type nodeAnswer struct {
	fleet.NodeDetail
	Notes []string `json:"notes,omitempty"`
	Next  []Next   `json:"next,omitempty"`
}

func getNode(ctx context.Context, f Fleet, c Call) (Answer, error) {
	d, err := f.Get(ctx, c.Scope, c.Args.str("node"))
	if err != nil {
		return Answer{}, err
	}
	body := nodeAnswer{NodeDetail: d}
	rows := len(d.Capabilities) + len(d.Sessions) + len(d.Quarantine)
	if c.fitted() {
		body.cut(c.rows)
	}
	for _, module := range onlineModules(d) {
		body.Next = append(body.Next, Next{"metrics_summary", map[string]any{"module": module, "node": d.Node.Node}, "its latest numbers"})
	}
	return Answer{Body: body, Text: nodeText(body), Rows: rows}, nil
}

// cut keeps the rows that explain a fault: signals that do not work fully come
// first, then the newest sessions.
func (a *nodeAnswer) cut(rows int) {
	caps := slices.Clone(a.Capabilities)
	slices.SortStableFunc(caps, func(x, y fleet.Capability) int { return severity(y.Level) - severity(x.Level) })
	total := len(caps)
	a.Capabilities = caps[:min(len(caps), max(1, rows/2))]
	a.Sessions = a.Sessions[:min(len(a.Sessions), 2)]
	a.Quarantine = a.Quarantine[:min(len(a.Quarantine), max(1, rows/4))]
	a.Notes = append(a.Notes, fmt.Sprintf("cut to fit the answer's byte budget: %d of %d signals shown, those that do not work fully first; raise max_bytes to see all", len(a.Capabilities), total))
}

func severity(level string) int {
	switch inspector.Level(level) {
	case inspector.Off:
		return 2
	case inspector.Degraded:
		return 1
	}
	return 0
}

// onlineModules names at most two modules worth a look next.
func onlineModules(d fleet.NodeDetail) []string {
	out := []string{}
	for _, c := range d.Capabilities {
		if c.Level != string(inspector.Off) && !slices.Contains(out, c.Component) && len(out) < 2 {
			out = append(out, c.Component)
		}
	}
	return out
}

func nodeText(a nodeAnswer) string {
	var p page
	n := a.Node
	p.line("%s (%s) is %s, last seen %s", inspector.CleanText(n.Name), n.Node, n.Status, age(n.FreshnessS))
	facts := []string{}
	for _, f := range [][2]string{{"labels", labelText(n.Labels)}, {"agent", n.AgentVersion}, {"os", strings.TrimSpace(n.OS + " " + n.Arch)}, {"kernel", n.Kernel}, {"machine", a.MachineID}, {"boot", a.BootID}} {
		if f[1] != "" {
			facts = append(facts, f[0]+" "+inspector.CleanText(f[1]))
		}
	}
	p.line("%s; enrolled %s", strings.Join(facts, "; "), stamp(n.EnrolledAt))
	if n.SkewMS != nil {
		mark := ""
		if n.SkewMarked {
			mark = ", times are rebased to the server's clock"
		}
		p.line("clock skew %d ms%s", *n.SkewMS, mark)
	}
	if a.CertDays != nil {
		p.line("certificate expires in %s days", number(round6(*a.CertDays)))
	}
	data := "no data yet"
	if a.LastDataAt != nil {
		data = "newest window ends " + stamp(*a.LastDataAt)
	}
	p.line("reports: epoch %d, sequence %d, %s", a.Epoch, a.Seq, data)
	for _, s := range a.SameAs {
		p.line("same machine as %s (%s)", inspector.CleanText(s.Name), s.Node)
	}
	rows := [][]string{}
	for _, h := range a.Headlines {
		rows = append(rows, []string{h.Metric, quantity(h.Value, h.Unit, h.Stat == "rate_per_s")})
	}
	p.table([]string{"HEADLINE", "LATEST"}, rows)
	rows = [][]string{}
	for _, c := range a.Capabilities {
		rows = append(rows, []string{c.Component + "/" + c.Signal, c.Level, c.Source, c.Reason})
	}
	p.table([]string{"SIGNAL", "LEVEL", "SOURCE", "REASON"}, rows)
	for _, m := range a.ModulesOff {
		p.line("module %s is switched off from the server since %s", m.Module, stamp(m.At))
	}
	lossText(&p, a.Loss)
	rows = [][]string{}
	for _, q := range a.Quarantine {
		rows = append(rows, []string{q.Reason, fmt.Sprint(q.Count), stamp(q.LastAt), q.Example})
	}
	p.table([]string{"KEPT OUT", "COUNT", "LAST", "EXAMPLE"}, rows)
	rows = [][]string{}
	for _, s := range a.Sessions {
		state := "live"
		if !s.Live {
			state = "closed: " + orNone(s.CloseReason)
		}
		rows = append(rows, []string{state, s.Remote, stamp(s.ConnectedAt), stamp(s.LastSeen), s.BootID})
	}
	p.table([]string{"SESSION", "FROM", "CONNECTED", "LAST SEEN", "BOOT"}, rows)
	p.notes(a.Notes)
	p.next(a.Next)
	return p.String()
}

func lossText(p *page, l fleet.Loss) {
	parts := []string{fmt.Sprintf("%d reports never arrived", l.MissingSeq)}
	if l.PastRetention > 0 {
		parts = append(parts, fmt.Sprintf("%d came too late to be kept", l.PastRetention))
	}
	if l.RefusedPoints > 0 {
		parts = append(parts, fmt.Sprintf("%d values were out of range", l.RefusedPoints))
	}
	for _, k := range sortedKeys(l.Agent) {
		if l.Agent[k] > 0 {
			parts = append(parts, fmt.Sprintf("agent %s %d", inspector.CleanText(k), l.Agent[k]))
		}
	}
	p.line("loss: %s", strings.Join(parts, "; "))
}
