package mcp

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
)

// observeEvents are the tools about anomalies.
func observeEvents(s Services) []Tool {
	if s.Events == nil {
		return nil
	}
	from := fromArg
	from.Words = `default 24h`
	return []Tool{
		{
			Name: "list_events", Title: "List events", Set: observeSet, Scope: tenants.Read,
			Description: "Anomalies that nodes found, and promoted findings, youngest first. " +
				"Use it for \"what went wrong\". Then get_event.",
			Args: []Arg{
				nodeArgBare(),
				{Name: labelsArg.Name, Kind: argLabels},
				{Name: "kinds", Kind: argStrings, Enum: s.eventKinds(), Words: `such as "slow_io"`},
				{Name: "min_severity", Kind: argString, Enum: severities()},
				{Name: "state", Kind: argString, Enum: []string{string(inspector.EventOpen), string(inspector.EventFlapping), string(inspector.EventEnded)}},
				{Name: "origin", Kind: argString, Enum: []string{string(events.FromProbe), string(events.FromTask)}},
				from, {Name: toArg.Name, Kind: argString}, {Name: limitArg.Name, Kind: argInt, Min: 1, Default: tenants.DefaultListRows}, {Name: cursorArg.Name, Kind: argString}, maxBytes,
			},
			Output: eventsAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return listEvents(ctx, s, c) },
		},
		{
			Name: getEvent, Title: "Get event", Set: observeSet, Scope: tenants.Read,
			Description: "One event whole: meaning, samples, metrics before, during and after (context snapshot), events near it. " +
				"Use it before concluding from an event.",
			Args:   []Arg{{Name: "event_id", Kind: argString, Required: true}, maxBytes},
			Output: eventAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return oneEvent(ctx, s, c) },
		},
	}
}

// eventKinds lists the kinds that nodes report.
func (s Services) eventKinds() []string {
	out := []string{}
	for _, c := range s.Registry.Components() {
		for _, k := range c.Events {
			out = append(out, k.Name)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

type eventsAnswer struct {
	events.Page
	Notes []string `json:"notes,omitempty"`
	Next  []Next   `json:"next,omitempty"`
}

func listEvents(ctx context.Context, s Services, c Call) (Answer, error) {
	from, err := c.Args.when(fromArg.Name, c.Now)
	if err != nil {
		return Answer{}, err
	}
	to, err := c.Args.when(toArg.Name, c.Now)
	if err != nil {
		return Answer{}, err
	}
	rows, note := c.limit(tenants.DefaultListRows)
	page, err := s.Events.List(ctx, c.Scope, events.ListQuery{
		Node: c.Args.str(nodeArg.Name), Labels: c.Args.labels(labelsArg.Name), Kinds: c.Args.strs("kinds"), MinSeverity: inspector.Severity(c.Args.str("min_severity")),
		State: inspector.EventState(c.Args.str("state")), Origin: events.Origin(c.Args.str("origin")), From: from, To: to, Limit: rows, Cursor: c.Args.str(cursorArg.Name),
	})
	if err != nil {
		return Answer{}, err
	}
	body := eventsAnswer{Page: page, Notes: withNote(slices.Clone(page.Notes), note)}
	if c.fitted() {
		body.Notes = withNote(body.Notes, "the page was cut to "+counted(len(page.Events), "row")+" to fit the answer's byte budget")
	}
	if i := worst(page.Events); i >= 0 {
		body.Next = append(body.Next, Next{getEvent, map[string]any{"event_id": page.Events[i].ID}, "its context snapshot and samples, before anything is concluded"})
	}
	return Answer{Body: body, Text: eventsText(body), Rows: len(page.Events)}, nil
}

// worst is the youngest of the most severe events that are not over, or of all.
func worst(list []events.Event) int {
	best := -1
	rank := func(e events.Event) int {
		r := e.Severity.Rank()
		if e.State != inspector.EventEnded {
			r += 10
		}
		return r
	}
	for i, e := range list {
		if best < 0 || rank(e) > rank(list[best]) {
			best = i
		}
	}
	return best
}

func eventsText(a eventsAnswer) string {
	var p page
	p.line("%s first seen from %s to %s", counted(len(a.Events), "event"), stamp(a.Window.From), stamp(a.Window.To))
	if len(a.Events) == 0 {
		p.line("no event matches; on nodes that are not covered that is unknown, not absence")
	}
	rows := make([]string, 0, 8*len(a.Events))
	for _, e := range a.Events {
		rows = append(rows, stamp(e.Last), string(e.Severity), string(e.State), e.Kind, e.Name, counts(e), facts(e.Scope)+origin(e), e.ID)
	}
	p.table([]string{"LAST SEEN", "SEVERITY", "STATE", "KIND", "NAME", "COUNT", "SCOPE", "EVENT"}, rows)
	p.coverage(a.Coverage)
	p.truncated(a.Truncated)
	p.notes(a.Notes)
	p.next(a.Next)
	return p.String()
}

// counts says how many sightings an event stands for, and how many of them
// nobody looked at one by one.
func counts(e events.Event) string {
	b := strconv.AppendUint(make([]byte, 0, 48), e.Cumulative, 10)
	if e.Truncated > 0 {
		b = append(strconv.AppendUint(append(b, " ("...), e.Truncated, 10), " counted only)"...)
	}
	if e.Lost > 0 {
		b = append(strconv.AppendUint(append(b, " +"...), e.Lost, 10), " lost"...)
	}
	return string(b)
}

func origin(e events.Event) string {
	if e.Origin == events.FromTask {
		return " origin=task " + strconv.Quote(e.Title)
	}
	return ""
}

type eventAnswer struct {
	events.Detail
	Notes []string `json:"notes,omitempty"`
	Next  []Next   `json:"next,omitempty"`
}

func oneEvent(ctx context.Context, s Services, c Call) (Answer, error) {
	id, err := events.ParseID(c.Args.str("event_id"))
	if err != nil {
		return Answer{}, err
	}
	d, err := s.Events.Get(ctx, c.Scope, id)
	if err != nil {
		return Answer{}, err
	}
	var render func(rows int) Answer
	render = func(rows int) Answer {
		body := s.describeEvent(d, c, rows)
		return Answer{Body: body, Text: eventText(body), Rows: len(body.Evidence) + len(body.Nearby) + len(body.Contexts), Fit: render}
	}
	return render(0), nil
}

// describeEvent adds what the numbers do not say, and steps. rows above zero
// bounds the lists, which are cut in equal parts.
func (s Services) describeEvent(d events.Detail, c Call, rows int) eventAnswer {
	a := eventAnswer{Detail: d}
	if d.Truncated > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("%d of %d sightings were counted only: the samples are not the only ones", d.Truncated, d.Cumulative))
	}
	if d.Lost > 0 {
		a.Notes = append(a.Notes, counted(d.Lost, "sighting")+" known to be lost: counts are lower bounds")
	}
	if d.Corrected {
		a.Notes = append(a.Notes, "times were moved to the server's clock; take care when ordering them against events of other nodes")
	}
	for _, x := range d.Contexts {
		if x.Status == "pending" {
			a.Notes = append(a.Notes, "a context snapshot is pending: its part after the event is not there yet, look again in a minute")
			break
		}
	}
	if part := max(1, rows/3); rows > 0 && max(len(a.Evidence), len(a.Nearby), len(a.Contexts)) > part {
		a.Evidence = a.Evidence[:min(len(a.Evidence), part)]
		a.Nearby = a.Nearby[:min(len(a.Nearby), part)]
		a.Contexts = a.Contexts[max(0, len(a.Contexts)-part):] // the youngest are last
		a.Notes = append(a.Notes, "samples, snapshots and nearby events were cut to fit the answer's byte budget; raise max_bytes to see all")
	}
	if n, ok := s.deeper(d, c); ok {
		a.Next = append(a.Next, n)
	}
	if s.Explain != nil {
		a.Next = append(a.Next, Next{explain, map[string]any{"event_id": d.ID}, "its cause chain, and what changed around it"})
	}
	if d.Task != "" && s.Tasks != nil {
		a.Next = append(a.Next, Next{checkTask, map[string]any{ticketArg.Name: d.Task}, "the task's whole result, while its ticket lives"})
	}
	return a
}

// deeper is the call that looks further into an event: the tool that its kind
// names, with the target that the event knows, or else the numbers around it.
func (s Services) deeper(d events.Detail, c Call) (Next, bool) {
	args := map[string]any{nodeArg.Name: d.Node}
	if k, ok := s.Registry.Task(d.NextTool); ok && s.Tasks != nil && c.Scope.Granted.Has(tenants.Diagnose) {
		for _, arg := range k.Args {
			if v := d.Scope[arg.Name]; v != "" && arg.Kind == inspector.TextArg {
				args[arg.Name] = v
			}
		}
		if n := (Next{k.Name, args, "looks at it in detail while it goes on"}); s.callable(n, taskArgs(s.Registry, k)) {
			return n, true
		}
		args = map[string]any{nodeArg.Name: d.Node}
	}
	k, ok := s.Registry.Event(d.Kind)
	switch {
	case d.NextTool == "get_node":
		return Next{d.NextTool, args, "the state of the node"}, true
	case d.NextTool == "list_events":
		return Next{d.NextTool, args, "what else the node reported"}, true
	case !ok:
		return Next{}, false
	case d.NextTool == "query_metrics" && len(k.Related) > 0:
		args["metrics"] = k.Related
		return Next{d.NextTool, args, "the numbers around it over time"}, true
	}
	args["module"] = k.Component
	return Next{"metrics_summary", args, "the numbers around it"}, true
}

func eventText(a eventAnswer) string {
	var p page
	p.line("%s: %s on %s (%s) is %s, severity %s, origin=%s", a.Kind, inspector.CleanText(a.Title), inspector.CleanText(a.Name), a.Node, a.State, a.Severity, a.Origin)
	p.line("scope: %s", facts(a.Scope))
	p.line("first seen %s, last %s; %s seen, %d looked at one by one; %s in 24 h before", stamp(a.First), stamp(a.Last), counts(a.Event), a.Samples, counted(uint64(max(0, a.Recurrence)), "spell"))
	p.line("meaning: %s", a.Help)
	for _, s := range a.Evidence {
		line := "sample " + s.At.UTC().Format("15:04:05.000Z") + ": " + facts(s.Labels)
		if v := valueText(s.Values); v != "" {
			line += " | " + v
		}
		p.line("%s", line)
	}
	for _, x := range a.Contexts {
		snapshotText(&p, x)
	}
	if len(a.Contexts) == 0 {
		p.line("no context snapshot (%s): what the metrics were then is unknown", orNone(a.Context))
	}
	rows := []string{}
	for _, e := range a.Nearby {
		rows = append(rows, stamp(e.First), string(e.Severity), e.Kind, counts(e), facts(e.Scope), e.ID)
	}
	p.table([]string{"NEARBY", "SEVERITY", "KIND", "COUNT", "SCOPE", "EVENT"}, rows)
	p.notes(a.Notes)
	p.next(a.Next)
	return p.String()
}

// snapshotText shows before, during and after side by side. What is missing is
// said to be pending or unknown, never zero.
func snapshotText(p *page, x events.Context) {
	why := ""
	if x.Reason != "" {
		why = " (" + inspector.CleanText(x.Reason) + ")"
	}
	p.line("context snapshot (%s) at %s is %s%s", x.Why, stamp(x.At), x.Status, why)
	parts := [][]events.ContextValue{x.Before, x.During, x.After}
	names := []string{}
	for _, part := range parts {
		for _, v := range part {
			if !slices.Contains(names, v.Metric) {
				names = append(names, v.Metric)
			}
		}
	}
	rows := []string{}
	for _, n := range names {
		rows = append(rows, n)
		for i, part := range parts {
			cell := "unknown"
			if i == 2 && x.Status == "pending" {
				cell = "pending"
			}
			if j := slices.IndexFunc(part, func(v events.ContextValue) bool { return v.Metric == n }); j >= 0 {
				cell = contextCell(part[j])
			}
			rows = append(rows, cell)
		}
	}
	p.table([]string{"METRIC", "BEFORE", "DURING", "AFTER"}, rows)
}

func contextCell(v events.ContextValue) string {
	parts := []string{}
	add := func(n *float64, rate bool, suffix string) {
		if n != nil {
			parts = append(parts, quantity(*n, string(v.Unit), rate)+suffix)
		}
	}
	add(v.Rate, true, "")
	add(v.Avg, false, "")
	add(v.Max, false, " max")
	add(v.P99, false, " p99")
	if len(parts) == 0 {
		return "unknown"
	}
	return strings.Join(parts, ", ")
}
