package mcp

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

// observeSet is the set of tools that only look.
const observeSet = "observe"

// Arguments that several tools share.
var (
	nodeArg   = Arg{Name: "node", Kind: argString, Words: "node id or unique name"}
	labelsArg = Arg{Name: "labels", Kind: argLabels, Words: "only nodes that carry all of these labels"}
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
			Description: "State of all nodes at this moment: how many by status, the busiest nodes by headline metric, signals that do not work fully and why, data that was kept out. " +
				"Start here when the question names no node. Then list_nodes for the nodes behind a number, or metrics_summary for a module.",
			Output: overviewAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return fleetOverview(ctx, s.Fleet, c) },
		},
		{
			Name: "list_nodes", Title: "List nodes", Set: observeSet, Scope: tenants.Read,
			Description: "Nodes with status, labels, last sign of life, version and clock skew, by name, in pages. " +
				"Use it to find a node's id or name, or which nodes are offline or carry a label. Then get_node for one of them.",
			Args: []Arg{
				{Name: "status", Kind: argStrings, Enum: statuses, Words: "any of these statuses"},
				labelsArg,
				{Name: "search", Kind: argString, Words: "prefix of the name, or a whole id"},
				limitArg, cursorArg, maxBytes,
			},
			Output: pageAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return listNodes(ctx, s.Fleet, c) },
		},
		{
			Name: "get_node", Title: "Get node", Set: observeSet, Scope: tenants.Read,
			Description: "Everything known about one node: status and sessions, clock skew, latest headline values, what each signal can measure and from which source (bpf or proc) with the reason when it is degraded or off, lost and quarantined data, certificate expiry. " +
				"Use it when a node is named, silent or its numbers are missing. Then metrics_summary with the same node.",
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
	p.line("%d nodes at %s: %s; newest sign of life %s", o.Nodes, stamp(o.At), orNone(strings.Join(parts, ", ")), age(o.FreshnessS))
	p.coverage(o.Coverage)
	rows := [][]string{}
	for _, w := range o.Worst {
		for _, n := range w.Nodes {
			rows = append(rows, []string{w.Metric, quantity(n.Value, w.Unit, w.Stat == "rate_per_s"), n.Name, n.Node})
		}
	}
	p.table([]string{"METRIC", "HIGHEST", "NAME", "NODE"}, rows)
	rows = [][]string{}
	for _, u := range o.Unhealthy {
		rows = append(rows, []string{u.Component + "/" + u.Signal, u.Level, strconv.Itoa(u.Nodes), u.Example.Name, u.Reason})
	}
	p.table([]string{"SIGNAL", "LEVEL", "NODES", "EXAMPLE", "REASON"}, rows)
	rows = [][]string{}
	for _, k := range o.Kept {
		rows = append(rows, []string{k.Reason, fmt.Sprint(k.Count), strconv.Itoa(k.Nodes)})
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
		body.Notes = withNote(body.Notes, fmt.Sprintf("the page was cut to %d rows to fit the answer's byte budget", len(got.Nodes)))
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
	rows := [][]string{}
	for _, n := range a.Nodes {
		skew := ""
		if n.SkewMS != nil {
			skew = fmt.Sprintf("%d ms", *n.SkewMS)
		}
		rows = append(rows, []string{n.Name, string(n.Status), age(n.FreshnessS), skew, n.AgentVersion, labelText(n.Labels), n.Node})
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
