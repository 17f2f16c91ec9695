package mcp

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

// observeSet is the set of tools that only look.
const observeSet = "observe"

// Arguments that several tools share.
var (
	nodeArg   = Arg{Name: "node", Kind: argString, Words: "node id or unique name"}
	labelsArg = Arg{Name: "labels", Kind: argLabels, Words: "only nodes with all of these"}
	limitArg  = Arg{Name: "limit", Kind: argInt, Min: 1, Default: tenants.DefaultListRows, Words: "rows; more than 200 is clamped with a note"}
	cursorArg = Arg{Name: "cursor", Kind: argString, Words: "next_cursor of the answer before"}
)

// observeNodes are the tools about the nodes themselves.
func observeNodes(s Services) []Tool {
	statuses := []string{}
	for _, st := range fleet.Statuses() {
		statuses = append(statuses, string(st))
	}
	required := nodeArg
	required.Required = true
	return []Tool{
		{
			Name: "fleet_overview", Title: "Fleet overview", Set: observeSet, Scope: tenants.Read,
			Description: "State of all nodes now: counts by status, the busiest, signals that do not work fully and why. " +
				"Start here when no node is named. Then list_nodes or metrics_summary.",
			Output: overviewAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return fleetOverview(ctx, s.Fleet, c) },
		},
		{
			Name: "list_nodes", Title: "List nodes", Set: observeSet, Scope: tenants.Read,
			Description: "Nodes with status, labels, last sign of life, version, clock skew. " +
				"Use it to find a node, or which are offline or carry a label. Then get_node.",
			Args: []Arg{
				{Name: "status", Kind: argStrings, Enum: statuses},
				labelsArg,
				{Name: "search", Kind: argString, Words: "prefix of the name, or a whole id"},
				limitArg, cursorArg, maxBytes,
			},
			Output: pageAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return listNodes(ctx, s.Fleet, c) },
		},
		{
			Name: "get_node", Title: "Get node", Set: observeSet, Scope: tenants.Read,
			Description: "One node: status, headline values, what each signal can measure, its source, why it is degraded or off, lost data. " +
				"Use it when a node is silent or numbers are missing. Then metrics_summary.",
			Args:   []Arg{required, maxBytes},
			Output: nodeAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return getNode(ctx, s.Fleet, c) },
		},
	}
}

type overviewAnswer struct {
	fleet.Overview
	Next []Next `json:"next,omitempty"`
}

func fleetOverview(ctx context.Context, f Fleet, c Call) (Answer, error) {
	o, err := f.Overview(ctx, c.Scope)
	if err != nil {
		return Answer{}, err
	}
	body := overviewAnswer{Overview: o}
	silent := []string{}
	for _, st := range []fleet.Status{fleet.Offline, fleet.Stale, fleet.Quarantined, fleet.Duplicate} {
		if o.ByStatus[st] > 0 {
			silent = append(silent, string(st))
		}
	}
	if len(silent) > 0 {
		body.Next = append(body.Next, Next{"list_nodes", map[string]any{"status": silent}, "these nodes are not healthy"})
	}
	if len(o.Unhealthy) > 0 {
		body.Next = append(body.Next, Next{"get_node", map[string]any{"node": o.Unhealthy[0].Example.Node}, "shows why its signals do not work fully"})
	}
	return Answer{Body: body, Text: overviewText(body)}, nil
}

func overviewText(o overviewAnswer) string {
	var p page
	parts := []string{}
	for _, st := range fleet.Statuses() {
		if n := o.ByStatus[st]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, st))
		}
	}
	p.line("%s at %s: %s; newest sign of life %s", counted(o.Nodes, "node"), stamp(o.At), orNone(strings.Join(parts, ", ")), age(o.FreshnessS))
	p.coverage(o.Coverage)
	rows := make([]string, 0, 12*len(o.Worst))
	for _, w := range o.Worst {
		for _, n := range w.Nodes {
			rows = append(rows, w.Metric, quantity(n.Value, w.Unit, w.Stat == "rate_per_s"), n.Name, n.Node)
		}
	}
	p.table([]string{"METRIC", "HIGHEST", "NAME", "NODE"}, rows)
	rows = rows[:0]
	for _, u := range o.Unhealthy {
		rows = append(rows, u.Component+"/"+u.Signal, u.Level, strconv.Itoa(u.Nodes), u.Example.Name, u.Reason)
	}
	p.table([]string{"SIGNAL", "LEVEL", "NODES", "EXAMPLE", "REASON"}, rows)
	rows = rows[:0]
	for _, k := range o.Kept {
		rows = append(rows, k.Reason, fmt.Sprint(k.Count), strconv.Itoa(k.Nodes))
	}
	p.table([]string{"KEPT OUT", "WINDOWS", "NODES"}, rows)
	p.line("versions: %s; kernels: %s", shares(o.ByVersion), shares(o.ByKernel))
	p.next(o.Next)
	return p.String()
}

func shares(list []fleet.Share) string {
	parts := []string{}
	for _, s := range list {
		parts = append(parts, fmt.Sprintf("%s ×%d", orNone(s.Value), s.Nodes))
	}
	return orNone(strings.Join(parts, ", "))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

type pageAnswer struct {
	fleet.Page
	Next []Next `json:"next,omitempty"`
}

func listNodes(ctx context.Context, f Fleet, c Call) (Answer, error) {
	rows, note := c.limit(tenants.DefaultListRows)
	q := fleet.ListQuery{Labels: c.Args.labels("labels"), Search: c.Args.str("search"), Limit: rows, Cursor: c.Args.str("cursor")}
	for _, st := range c.Args.strs("status") {
		q.Status = append(q.Status, fleet.Status(st))
	}
	got, err := f.List(ctx, c.Scope, q)
	if err != nil {
		return Answer{}, err
	}
	body := pageAnswer{Page: got}
	body.Notes = withNote(got.Notes, note)
	if c.fitted() {
		body.Notes = withNote(body.Notes, fmt.Sprintf("the page was cut to %s to fit the answer's byte budget", counted(len(got.Nodes), "row")))
	}
	if i := slices.IndexFunc(got.Nodes, func(n fleet.Node) bool { return n.Status != fleet.Online }); i >= 0 {
		n := got.Nodes[i]
		body.Next = append(body.Next, Next{"get_node", map[string]any{"node": n.Node}, "it is " + string(n.Status)})
	}
	return Answer{Body: body, Text: listText(body), Rows: len(got.Nodes)}, nil
}

func withNote(notes []string, note string) []string {
	if note == "" || slices.Contains(notes, note) {
		return notes
	}
	return append(slices.Clone(notes), note)
}

func listText(a pageAnswer) string {
	var p page
	if len(a.Nodes) == 0 {
		p.line("no node matches")
	}
	rows := make([]string, 0, 7*len(a.Nodes))
	for _, n := range a.Nodes {
		skew := ""
		if n.SkewMS != nil {
			skew = strconv.FormatInt(*n.SkewMS, 10) + " ms"
		}
		rows = append(rows, n.Name, string(n.Status), age(n.FreshnessS), skew, n.AgentVersion, labelText(n.Labels), n.Node)
	}
	p.table([]string{"NAME", "STATUS", "LAST SEEN", "SKEW", "VERSION", "LABELS", "NODE"}, rows)
	p.truncated(a.Truncated)
	if a.Truncated == nil && a.NextCursor != "" {
		p.line("next_cursor: %s", a.NextCursor)
	}
	p.notes(a.Notes)
	p.next(a.Next)
	return p.String()
}

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
	a.Notes = append(a.Notes, fmt.Sprintf("cut to fit the answer's byte budget: %d of %s shown, those that do not work fully first; raise max_bytes to see all", len(a.Capabilities), counted(total, "signal")))
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
		p.line("certificate %s", daysText(*a.CertDays, "expires", "expired"))
	}
	reports := "none committed yet"
	if a.Seq > 0 {
		reports = fmt.Sprintf("number %d of epoch %d is the last that was committed", a.Seq, a.Epoch)
	}
	if a.LastDataAt != nil {
		reports += ", newest window ends " + stamp(*a.LastDataAt)
	}
	p.line("reports: %s", reports)
	for _, s := range a.SameAs {
		p.line("same machine as %s (%s)", inspector.CleanText(s.Name), s.Node)
	}
	rows := make([]string, 0, 4*len(a.Capabilities))
	for _, h := range a.Headlines {
		rows = append(rows, h.Metric, quantity(h.Value, h.Unit, h.Stat == "rate_per_s"))
	}
	p.table([]string{"HEADLINE", "LATEST"}, rows)
	rows = rows[:0]
	for _, c := range a.Capabilities {
		rows = append(rows, c.Component+"/"+c.Signal, c.Level, c.Source, c.Reason)
	}
	p.table([]string{"SIGNAL", "LEVEL", "SOURCE", "REASON"}, rows)
	for _, m := range a.ModulesOff {
		p.line("module %s is switched off from the server since %s", m.Module, stamp(m.At))
	}
	lossText(&p, a.Loss)
	rows = rows[:0]
	for _, q := range a.Quarantine {
		rows = append(rows, q.Reason, fmt.Sprint(q.Count), stamp(q.LastAt), q.Example)
	}
	p.table([]string{"KEPT OUT", "COUNT", "LAST", "EXAMPLE"}, rows)
	rows = rows[:0]
	for _, s := range a.Sessions {
		state := "live"
		if !s.Live {
			state = "closed: " + orNone(s.CloseReason)
		}
		rows = append(rows, state, s.Remote, stamp(s.ConnectedAt), stamp(s.LastSeen), s.BootID)
	}
	p.table([]string{"SESSION", "FROM", "CONNECTED", "LAST SEEN", "BOOT"}, rows)
	p.notes(a.Notes)
	p.next(a.Next)
	return p.String()
}

func lossText(p *page, l fleet.Loss) {
	parts := []string{counted(l.MissingSeq, "report") + " never arrived"}
	if l.PastRetention > 0 {
		parts = append(parts, fmt.Sprintf("%d came too late to be kept", l.PastRetention))
	}
	if l.RefusedPoints > 0 {
		parts = append(parts, counted(l.RefusedPoints, "value")+" out of range")
	}
	for _, k := range sortedKeys(l.Agent) {
		if l.Agent[k] > 0 {
			parts = append(parts, fmt.Sprintf("agent %s %d", inspector.CleanText(k), l.Agent[k]))
		}
	}
	p.line("loss: %s", strings.Join(parts, "; "))
}
