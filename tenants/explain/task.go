package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// noticed is how long after a run's end a change that ended it may be seen:
// both show when the node comes back.
const noticed = time.Minute

const maxRuns = 10 // runs of one task that a chain holds

// endings are the kinds of change that can end or forbid a run for a reason.
var endings = map[string][]string{
	inspector.ReasonAgentRestarted: {"agent_started", "agent_upgraded", "boot"},
	inspector.ReasonAgentStopping:  {"agent_started", "agent_upgraded", "boot"},
	"node_disconnected":            {"agent_started", "agent_upgraded", "boot"},
	inspector.ReasonFeatureOff:     {"module_off", "capability", "kernel"},
	inspector.ReasonNotAllowed:     {"config"},
	inspector.ReasonUnknownKind:    {"agent_upgraded"},
}

// task explains how a task went: its states with times and reasons.
func (s *Service) task(ctx context.Context, scope tenants.Scope, ticket string) (Explanation, error) {
	t, err := s.tasks.Task(ctx, scope, ticket)
	if err != nil {
		return Explanation{}, err
	}
	x := blank("task "+t.Kind+" "+t.Ticket, t.CreatedAt)
	end := s.now()
	if t.EndedAt != nil {
		end = *t.EndedAt
		x.At = end.UTC()
	}
	x.Window = tenants.Window{From: t.CreatedAt.Add(-aroundSpan).UTC(), To: earlier(end.Add(noticed), s.now())}
	x.Coverage = t.Coverage
	if x.Coverage.NotCovered == nil {
		x.Coverage.NotCovered = []tenants.NotCovered{}
	}
	x.looked(fmt.Sprintf("the task and its runs on %d nodes", len(t.Runs)))
	runs := slices.Clone(t.Runs)
	slices.SortStableFunc(runs, func(a, b Run) int { return badness(b) - badness(a) })
	x.states(t, end, runs)
	var nodes []string
	for _, r := range runs[:min(len(runs), maxRuns)] {
		nodes = append(nodes, r.Node)
	}
	if len(nodes) > 0 {
		changes, err := s.changes(ctx, scope, nodes, "those nodes", &x)
		if err != nil {
			return Explanation{}, err
		}
		x.looked(fmt.Sprintf("%d changes of those nodes", len(changes)))
		x.gather(changes, func(c Change) Around { return besideRuns(runs, c) })
	}
	x.cut(x.At)
	x.Verdict = taskVerdict(t, runs)
	for _, m := range x.Coverage.NotCovered {
		x.notLooked("what the task would have found on "+m.Name, m.Reason)
	}
	x.notLooked("events of the nodes", "a task is explained by its own states; ask for the node or for an event")
	x.Next = nextForTask(t, runs)
	return x, nil
}

// badness orders runs: those that went wrong first.
func badness(r Run) int {
	switch r.Status {
	case "COMPLETED":
		return 0
	case "CANCELLED":
		return 1
	case "CREATED", "DISPATCHED", "RUNNING":
		return 2
	}
	return 3
}

// states adds the ways of a task and its runs, the end first. A run that went
// wrong is why the task did; all else is how it went.
func (x *Explanation) states(t Task, end time.Time, runs []Run) {
	link := func(role string, at *time.Time, r Run, what, why string) {
		if at != nil {
			x.Chain = append(x.Chain, Link{Role: role, At: at.UTC(), Node: r.Node, Name: r.Name, What: what, Why: why, Confidence: Recorded})
		}
	}
	why := fmt.Sprintf("%s, deadline %s", ranOn(len(runs)), clock(t.Deadline))
	if asAsked(runs) {
		why = fmt.Sprintf("it ended as asked at %s on %s", clock(end), onNodes(len(runs)))
	}
	link("", &end, Run{}, "the task is "+t.Status, why)
	for i, r := range runs {
		if i == maxRuns {
			x.notLooked(fmt.Sprintf("the states of %d further runs", len(runs)-maxRuns), "those that went wrong are listed first")
			break
		}
		role, at := State, r.EndedAt
		if badness(r) == 3 {
			role = ""
		}
		if at == nil {
			at = &end
		}
		link(role, at, r, "the run is "+r.Status, reasonText(r))
		link(State, r.StartedAt, r, "the node began", "it accepted the task")
	}
	link(State, &t.CreatedAt, Run{}, "the task was created", "by "+word(t.By))
}

// asAsked reports whether every run ended with its result.
func asAsked(runs []Run) bool {
	return len(runs) > 0 && !slices.ContainsFunc(runs, func(r Run) bool { return r.Status != "COMPLETED" })
}

func onNodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

func ranOn(n int) string {
	if n == 0 {
		return "no runs"
	}
	return "runs on " + onNodes(n)
}

func reasonText(r Run) string {
	text := r.Reason
	if m := meaning(r.Reason); m != "" {
		text += ": " + m
	}
	if text == "" {
		switch badness(r) {
		case 0:
			text = "it ended as asked"
		case 1:
			text = "it was cancelled on request"
		case 2:
			text = "it has not ended"
		default:
			text = "no reason was given"
		}
	}
	if r.Message != "" {
		text += " (" + inspector.CleanText(r.Message) + ")"
	}
	return text
}

// besideRuns lists a change beside the runs of its node.
func besideRuns(runs []Run, c Change) Around {
	a := Around{At: c.At, Node: c.Node, Name: c.Name, What: c.what(), Why: "no shared scope"}
	for _, r := range runs {
		if r.Node != c.Node || !slices.Contains(endings[r.Reason], c.Kind) {
			continue
		}
		if r.EndedAt != nil && (c.At.After(r.EndedAt.Add(noticed)) || c.At.Before(r.EndedAt.Add(-causeWithin))) {
			a.Why = "not within " + span(causeWithin) + " of the run's end"
			continue
		}
		a.Related, a.Why = true, "the run ended with "+r.Reason
	}
	return a
}

func taskVerdict(t Task, runs []Run) string {
	counts := map[string]int{}
	var order []string
	for _, r := range runs {
		key := r.Status
		if r.Reason != "" {
			key += " (" + r.Reason + ")"
		}
		if counts[key]++; counts[key] == 1 {
			order = append(order, key)
		}
	}
	for i, key := range order {
		order[i] = fmt.Sprintf("%d %s", counts[key], key)
	}
	if asAsked(runs) && t.EndedAt != nil {
		return fmt.Sprintf("The task %s ended as asked at %s, on %s.", t.Kind, clock(*t.EndedAt), onNodes(len(runs)))
	}
	text := fmt.Sprintf("The task %s is %s", t.Kind, t.Status)
	if len(order) > 0 {
		text += ": of its runs " + strings.Join(order, ", ")
	}
	if len(runs) > 0 && badness(runs[0]) == 3 && runs[0].Reason != "" {
		if m := meaning(runs[0].Reason); m != "" {
			text += "; " + runs[0].Reason + " means that " + m
		}
	}
	return text + "."
}

func nextForTask(t Task, runs []Run) []inspector.NextStep {
	result := inspector.NextStep{Tool: "check_task_result", Args: map[string]any{"ticket_id": t.Ticket}, Why: "what it found"}
	if len(runs) > 0 && badness(runs[0]) == 3 {
		why := runs[0].Next
		if why == "" {
			why = "how the node is"
		}
		return []inspector.NextStep{{Tool: "explain", Args: map[string]any{"node": runs[0].Node}, Why: inspector.CleanText(why)}, result}
	}
	return []inspector.NextStep{result}
}
