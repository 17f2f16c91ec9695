package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// diagnoseSet is the set of tools that start bounded work on nodes and handle
// what it found.
const diagnoseSet = "diagnose"

// Names of the tools that other words of this package speak of.
const (
	checkTask  = "check_task_result"
	cancelTask = "cancel_task"
	promote    = "promote_evidence"
	getEvent   = "get_event"
	explain    = "explain"
)

// taskWait is the deadline of a diagnose call: the longest duration that is
// answered in the call, the time in which a node must begin, and the grace
// after which the task itself says that it timed out. The service gives up a
// little earlier and says more.
const taskWait = tasks.ShortTask + tasks.StartWithin + tasks.RunGrace + tasks.DeadlineGrace + 5*time.Second

var (
	selectorArg = Arg{Name: "selector", Kind: argLabels, Words: "instead of node: all nodes with these labels, at most 50"}
	ticketArg   = Arg{Name: "ticket_id", Kind: argString, Required: true}
)

// diagnoseTasks makes one tool of each kind of task that a person may start.
func diagnoseTasks(s Services) []Tool {
	if s.Tasks == nil {
		return nil
	}
	out := []Tool{}
	for _, c := range s.Registry.Components() {
		for _, k := range c.Tasks {
			if k.Scope == inspector.ScopeDiagnose {
				out = append(out, Tool{
					Name: k.Name, Title: k.Title, Description: taskWords(k), Set: diagnoseSet, Component: c.Name, Scope: tenants.Diagnose, Gated: true,
					Args: taskArgs(s.Registry, k), Deadline: taskWait, Output: taskAnswer{},
					Run: func(ctx context.Context, c Call) (Answer, error) { return startTask(ctx, s, k, c) },
				})
			}
		}
	}
	return out
}

// taskWords is the description of a task: of its help, what it answers and
// when to use it. What comes next is in its answers, which know the finding;
// the whole help of fifty tools would cost more than a model's context is worth.
func taskWords(k inspector.TaskKind) string {
	sentences := strings.Split(strings.TrimSuffix(k.Help, "."), ". ")
	words := sentences[0] + "."
	for _, s := range sentences[1:] {
		if use, _, _ := strings.Cut(s, ";"); strings.HasPrefix(use, "Use ") {
			words += " " + use + "."
			break
		}
	}
	if len(k.Targets) > 0 {
		words += " Needs " + strings.Join(k.Targets, " or ") + "."
	}
	return words
}

// taskArgs are the arguments of a task as a tool shows them: its own words,
// the same bounds. An argument that several tasks share is explained by the
// instructions and needs no words in each of them.
func taskArgs(reg *inspector.Registry, k inspector.TaskKind) []Arg {
	out := []Arg{{Name: nodeArg.Name, Kind: argString}, {Name: selectorArg.Name, Kind: argLabels}}
	for _, a := range k.Args {
		arg := Arg{Name: a.Name, Kind: argString, Words: a.Help, Raw: true}
		switch a.Kind {
		case inspector.IntArg:
			arg.Kind, arg.Min, arg.Max = argInt, int(a.Min), int(a.Max)
			if a.Default != 0 {
				arg.Default = a.Default
			}
		case inspector.EnumArg:
			arg.Enum = a.Values
		}
		if shared(reg, a.Name) {
			arg.Words = ""
		}
		out = append(out, arg)
	}
	return append(out, formatArg, maxBytes)
}

func shared(reg *inspector.Registry, arg string) bool {
	n := 0
	for _, c := range reg.Components() {
		for _, k := range c.Tasks {
			if slices.ContainsFunc(k.Args, func(a inspector.Arg) bool { return a.Name == arg }) {
				n++
			}
		}
	}
	return n > 1
}

// startTask runs one task: an answer within the call, or a ticket.
func startTask(ctx context.Context, s Services, k inspector.TaskKind, c Call) (Answer, error) {
	req := tasks.Request{Kind: k.Name, Args: map[string]any{}, Node: c.Args.str(nodeArg.Name), Labels: c.Args.labels(selectorArg.Name)}
	switch {
	case req.Node == "" && len(req.Labels) == 0:
		return Answer{}, &fault.Error{Kind: fault.Invalid, Reason: "no_node", Field: nodeArg.Name, Msg: "say where: node for one machine, selector for all that carry its labels (at most 50)", Next: "call list_nodes for names and labels"}
	case req.Node != "" && len(req.Labels) > 0:
		return Answer{}, &fault.Error{Kind: fault.Invalid, Reason: "node_and_selector", Field: selectorArg.Name, Msg: "node and selector exclude each other", Next: "send one of them"}
	}
	for _, a := range k.Args {
		if v, ok := c.Args[a.Name]; ok {
			req.Args[a.Name] = v
		}
	}
	if _, err := k.Check(req.Args); err != nil {
		return Answer{}, argFault(k, err)
	}
	opts := tasks.DoOptions{CancelWhenAbandoned: c.Modern}
	if c.progress != nil { // looking for progress costs reads that nobody else needs
		opts.Progress = c.tell
	}
	t, err := s.Tasks.Do(ctx, c.Scope, req, opts)
	if err != nil {
		return Answer{}, fault.Respell(err, map[string]string{"labels": selectorArg.Name})
	}
	if f := failure(t); f != nil {
		return Answer{}, f
	}
	// A short task that goes on has lost its node for the moment: that is its
	// own state and no acceptance.
	begun := slices.ContainsFunc(t.Runs, func(r tasks.Run) bool { return r.Status == tasks.Running && r.Reason == "" })
	ans := answerTask(s, t, c, begun)
	ans.Started = !t.Status.Terminal()
	return ans, nil
}

// tell passes on how far a task is, with counts of what it found so far.
func (c Call) tell(t tasks.Task) {
	ended, rows, count := 0, 0, uint64(0)
	for _, r := range t.Runs {
		if r.Status.Terminal() {
			ended++
		}
		if r.Result != nil {
			rows += len(r.Result.Rows)
			for _, row := range r.Result.Rows {
				count += row.Count
			}
			if p := r.Result.Profile; p != nil {
				rows, count = rows+len(p.Top), count+p.Samples
			}
		}
	}
	c.progress(progressOf(t), 1, fmt.Sprintf("%s %s: %d of %s ended, so far %d in %s", t.Kind, t.Status, ended, counted(len(t.Runs), "node"), count, counted(rows, "group")))
}

// argFault says which argument of a task is wrong, its bound and what to do.
func argFault(k inspector.TaskKind, err error) error {
	var bad *inspector.ArgError
	if !errors.As(err, &bad) {
		return err
	}
	next := "send a value within the bound, or leave the argument out"
	switch bad.Reason {
	case "no_target":
		if next = k.Aim; next == "" {
			next = "choose a target from list_events or metrics_summary of the node: " + strings.Join(k.Targets, " or ")
		}
	case "malformed":
		next = "correct it or leave it out"
	case "unknown_argument":
		next = "leave it out"
	}
	return &fault.Error{Kind: fault.Invalid, Reason: bad.Reason, Field: bad.Arg, Msg: bad.Msg, Next: next}
}

// failure is the fault of a task on one node that ended without a result: what
// went wrong is the whole answer. Everything else is evidence or a ticket.
func failure(t tasks.Task) *fault.Error {
	if t.Fanout || len(t.Runs) != 1 || !t.Status.Terminal() || t.Status == tasks.Completed || t.Status == tasks.Cancelled || t.Runs[0].Result != nil {
		return nil
	}
	r := t.Runs[0]
	kind, ok := fault.ParseKind(r.ErrorKind)
	if !ok || kind == fault.Internal {
		kind = fault.Unavailable
		if t.Status == tasks.TimedOut || t.Status == tasks.Expired {
			kind = fault.Deadline
		}
	}
	f := &fault.Error{Kind: kind, Reason: r.Reason, Field: r.Arg, Msg: r.Message, Next: r.Next}
	if f.Reason == "" {
		f.Reason = strings.ToLower(string(t.Status))
	}
	if f.Msg == "" {
		f.Msg = fmt.Sprintf("the task is %s on %s", t.Status, r.Name)
	}
	if f.Next == "" {
		f.Next = "call get_node for " + r.Name + " to see how it is"
	}
	f.Msg += " (ticket_id " + t.Ticket + ")"
	return f
}

// answerTask makes the answer about a task and how to say less of it. started:
// it is the first answer of a ticket, which says ACCEPTED.
func answerTask(s Services, t tasks.Task, c Call, started bool) Answer {
	size := concise
	if c.Args.str(formatArg.Name) == "detailed" {
		size = detailed
	}
	var render func(shown) Answer
	render = func(size shown) Answer {
		body := describe(t, size, c.Now)
		if started && !t.Status.Terminal() {
			body.Status = accepted
		}
		body.Next = s.steps(t, c)
		if k, ok := s.Registry.Task(t.Kind); ok {
			body.counts = k.Counts
		}
		return Answer{Body: body, Text: body.text(), Rows: body.Evidence.size(), Task: &t,
			Fit: func(rows int) Answer { return render(body.Evidence.squeeze(size, rows)) }}
	}
	return render(size)
}
