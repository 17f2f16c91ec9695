package mcp

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// maxTitle is the longest title of a promoted finding.
const maxTitle = 200

// diagnosePromote is the tool that keeps a finding beyond its ticket.
func diagnosePromote(s Services) []Tool {
	if s.Tasks == nil || s.Events == nil {
		return nil
	}
	title := Arg{Name: "title", Kind: argString, Required: true}
	return []Tool{{
		Name: promote, Title: "Promote evidence", Set: diagnoseSet, Scope: tenants.Diagnose, Writes: true,
		Description: "Keeps a finding of an ended task as an event (origin=task), which outlives the ticket. Use it when a row is the cause.",
		Args: []Arg{ticketArg, nodeArgBare(),
			{Name: "row", Kind: argInt, Min: 0, Max: inspector.MaxResultRows, Words: "as the result numbers it"},
			{Name: "labels", Kind: argLabels, Words: "or the row or function with these"},
			title,
			{Name: "severity", Kind: argString, Enum: severities(), Default: string(inspector.Warning)},
		},
		Output: promoteAnswer{},
		Run:    func(ctx context.Context, c Call) (Answer, error) { return promoteFinding(ctx, s, c) },
	}}
}

func nodeArgBare() Arg { return Arg{Name: nodeArg.Name, Kind: argString} }

func severities() []string {
	return []string{string(inspector.Info), string(inspector.Warning), string(inspector.Critical)}
}

type promoteAnswer struct {
	events.Event
	Was  string `json:"previous_title,omitempty"` // when the finding was kept before, under this one
	Next []Next `json:"next,omitempty"`
}

func promoteFinding(ctx context.Context, s Services, c Call) (Answer, error) {
	id, err := tasks.ParseID(c.Args.str(ticketArg.Name))
	if err != nil {
		return Answer{}, err
	}
	title := strings.TrimSpace(c.Args.str("title"))
	if title == "" || len(title) > maxTitle || inspector.CleanText(title) != title {
		return Answer{}, fault.Bad("title", "want 1 to %d bytes of plain text", maxTitle).Do("say the finding in a few words")
	}
	t, err := s.Tasks.Get(ctx, c.Scope, id)
	if err != nil {
		return Answer{}, err
	}
	run, err := runOf(t, c.Args.str(nodeArg.Name))
	if err != nil {
		return Answer{}, err
	}
	f := events.Finding{Task: t.Ticket, Node: run.Node, Kind: t.Kind, Title: title, Severity: inspector.Severity(c.Args.str("severity")), At: foundAt(t, run)}
	row, sent := c.Args["row"].(int)
	labels := c.Args.labels("labels")
	switch {
	case sent && len(labels) > 0:
		return Answer{}, fault.Bad("labels", "row and labels exclude each other").Do("send one of them")
	case sent && row >= len(run.Result.Rows):
		return Answer{}, &fault.Error{Kind: fault.Invalid, Reason: "no_such_row", Field: "row", Msg: "the result of this node has " + counted(len(run.Result.Rows), "row") + ", numbered from 0", Next: "call check_task_result with format detailed to see them"}
	case sent:
		f.Labels, f.Count = run.Result.Rows[row].Labels, run.Result.Rows[row].Count
	case len(labels) > 0:
		if err := findLabels(&f, run.Result, labels); err != nil {
			return Answer{}, err
		}
	default:
		return Answer{}, &fault.Error{Kind: fault.Invalid, Reason: "no_finding", Field: "row", Msg: "say which finding: row, or labels", Next: "call check_task_result to see the rows"}
	}
	for _, sample := range run.Result.Samples {
		if len(f.Samples) < inspector.MaxEventSamples && carries(sample.Labels, f.Labels) {
			f.Samples = append(f.Samples, inspector.EventSample{At: sample.At, Labels: sample.Labels, Values: sample.Values})
		}
	}
	got, err := s.Events.Promote(ctx, c.Scope, f)
	if err != nil {
		return Answer{}, err
	}
	body := promoteAnswer{Event: got.Event, Was: got.Was, Next: []Next{{"list_events", map[string]any{"origin": string(events.FromTask), "node": got.Node}, "shows it among the promoted findings"}}}
	var p page
	p.line("kept as event %s (%s) of %s, origin=%s: %s", got.ID, got.Severity, inspector.CleanText(got.Name), got.Origin, inspector.CleanText(got.Title))
	if got.Was != "" {
		p.line("it was kept before; the new title takes the place of: %s", inspector.CleanText(got.Was))
	}
	p.line("%s; count %d; from ticket %s", facts(got.Scope), got.Cumulative, got.Task)
	p.next(body.Next)
	return Answer{Body: body, Text: p.String(), Task: &t}, nil
}

// runOf finds the run that the caller means; it must have a whole result.
func runOf(t tasks.Task, ref string) (tasks.Run, error) {
	if !t.Status.Terminal() {
		return tasks.Run{}, fault.New(fault.Precondition, "task_running", "the task goes on: what it found is partial").Do("call check_task_result until the status is final")
	}
	var found *tasks.Run
	for i := range t.Runs {
		r := &t.Runs[i]
		switch {
		case ref == "" && len(t.Runs) > 1:
			return tasks.Run{}, &fault.Error{Kind: fault.Invalid, Reason: "no_node", Field: nodeArg.Name, Msg: "the task ran on " + counted(len(t.Runs), "node") + ": say on which the finding is", Next: "send the node of the row"}
		case ref == "" || r.Node == ref || r.Name == ref:
			found = r
		}
	}
	if found == nil {
		return tasks.Run{}, fault.Newf(fault.NotFound, "unknown_node", "the task did not run on such a node").Do("take the node from the row")
	}
	if found.Result == nil {
		return tasks.Run{}, fault.New(fault.Precondition, "no_result", "the task found nothing on this node that could be promoted").Do("call check_task_result to see why")
	}
	return *found, nil
}

// foundAt is when the finding was made, by the server's clock where it is known.
func foundAt(t tasks.Task, r tasks.Run) time.Time {
	switch {
	case r.EndedAt != nil:
		return *r.EndedAt
	case t.EndedAt != nil:
		return *t.EndedAt
	}
	return r.Result.To
}

// functionLabels are what tells one function of a profile.
func functionLabels(top inspector.ProfileFrame) map[string]string {
	labels := map[string]string{"function": top.Function}
	if top.Module != "" {
		labels["module"] = top.Module
	}
	return labels
}

// findLabels takes the row or function that carries all labels, or else the
// sample. More than one is refused, unless the labels are all that one has:
// which of them is the finding is for the caller to say.
func findLabels(f *events.Finding, r *inspector.TaskResult, want map[string]string) error {
	type found struct {
		labels map[string]string
		count  uint64
	}
	var match []found
	add := func(labels map[string]string, count uint64) {
		if carries(labels, want) {
			match = append(match, found{labels, count})
		}
	}
	for _, row := range r.Rows {
		add(row.Labels, row.Count)
	}
	if r.Profile != nil {
		for _, top := range r.Profile.Top {
			add(functionLabels(top), top.Self)
		}
	}
	if len(match) == 0 {
		for _, s := range r.Samples {
			same := func(m found) bool { return maps.Equal(m.labels, s.Labels) }
			if i := slices.IndexFunc(match, same); i >= 0 {
				match[i].count++
			} else {
				add(s.Labels, 1)
			}
		}
	}
	if whole := slices.IndexFunc(match, func(m found) bool { return len(m.labels) == len(want) }); whole >= 0 {
		match = match[whole : whole+1]
	}
	switch len(match) {
	case 1:
		f.Labels, f.Count = match[0].labels, match[0].count
		return nil
	case 0:
	default:
		return &fault.Error{Kind: fault.Invalid, Reason: "ambiguous_row", Field: "labels", Msg: fmt.Sprintf("%d rows, functions or samples of this node carry these labels", len(match)), Next: "send row, or more labels of the row that you mean"}
	}
	return &fault.Error{Kind: fault.Invalid, Reason: "no_such_row", Field: "labels", Msg: "no row, function or sample of this node carries these labels", Next: "copy the labels of a row of check_task_result"}
}

func carries(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}
