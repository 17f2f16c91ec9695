package mcp

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// Bounds of the steps that an answer suggests. What a node suggests is data:
// only tools of the table, only their arguments, only short plain values.
const (
	maxSteps    = 5
	maxWhy      = 160
	maxStepText = 256
)

// steps are the calls that a task's findings suggest, the node filled in.
func (s Services) steps(t tasks.Task, c Call) []Next {
	if !t.Status.Terminal() {
		return []Next{{checkTask, map[string]any{ticketArg.Name: t.Ticket}, "the task goes on; ask again when its duration is over"}}
	}
	out := []Next{}
	add := func(n Next) {
		same := func(o Next) bool { return o.Tool == n.Tool && sameJSON(o.Arguments, n.Arguments) }
		if len(out) < maxSteps && !slices.ContainsFunc(out, same) {
			out = append(out, n)
		}
	}
	for _, r := range t.Runs {
		if r.Result == nil {
			continue
		}
		for _, step := range r.Result.Next {
			if n, ok := s.step(step, r.Node); ok {
				add(n)
			}
		}
	}
	if ev, _, _ := merge(t); c.Scope.Granted.Has(tenants.Diagnose) && s.Events != nil && t.Status == tasks.Completed {
		args := map[string]any{ticketArg.Name: t.Ticket, "title": t.Kind + " finding"}
		switch {
		case len(ev.Profiles) > 0 && topFunction(ev.Profiles[0]) != nil:
			top := *topFunction(ev.Profiles[0]) // the processes of a profile are rows, but the function is what was asked for
			args["node"], args["labels"], args["title"] = ev.Profiles[0].Node, functionLabels(top), fmt.Sprintf("%.0f %% of the CPU samples are in %s", top.Share*100, inspector.CleanText(top.Function))
			add(Next{promote, args, "keeps the function as an event, if it is the finding"})
		case len(ev.Rows) > 0 && !ev.Rows[0].Benign && ev.Rows[0].Count > 0:
			args["node"], args["row"] = ev.Rows[0].Node, ev.Rows[0].Row
			add(Next{promote, args, "keeps the first row as an event, if it is the finding"})
		}
	}
	if i := slices.IndexFunc(t.Runs, func(r tasks.Run) bool { return r.Status != tasks.Completed && r.Status != tasks.Cancelled }); i >= 0 {
		add(Next{"get_node", map[string]any{"node": t.Runs[i].Node}, fmt.Sprintf("did not answer: %s", outcome(t.Runs[i]))})
	} else if n := t.Coverage.NotCovered; len(n) > 0 {
		add(Next{"get_node", map[string]any{"node": n[0].Node}, "did not answer: " + n[0].Reason})
	}
	return out
}

// topFunction is the greatest function that has a name, or else the greatest.
func topFunction(p nodeProfile) *inspector.ProfileFrame {
	fits := slices.DeleteFunc(slices.Clone(p.Top), func(f inspector.ProfileFrame) bool {
		return len(f.Function) > maxTitle/2 || len(f.Module) > maxStepText
	})
	if len(fits) == 0 {
		return nil
	}
	named := slices.IndexFunc(fits, func(f inspector.ProfileFrame) bool { return !strings.HasPrefix(f.Function, "[") })
	return &fits[max(0, named)]
}

// step takes over what a node suggests, if it makes sense here.
func (s Services) step(n inspector.NextStep, node string) (Next, bool) {
	known := s.argsOf(n.Tool)
	if known == nil {
		return Next{}, false
	}
	args := map[string]any{}
	for _, k := range sortedKeys(n.Args) {
		if !slices.ContainsFunc(known, func(a Arg) bool { return a.Name == k }) || k == nodeArg.Name || k == selectorArg.Name {
			continue
		}
		switch v := n.Args[k].(type) {
		case string:
			if len(v) > maxStepText {
				return Next{}, false
			}
			args[k] = v
		case float64, bool, int, int64, uint64, []string:
			args[k] = v
		case []any:
			if len(v) > 20 || slices.ContainsFunc(v, func(x any) bool { w, ok := x.(string); return !ok || len(w) > maxStepText }) {
				return Next{}, false
			}
			args[k] = v
		default:
			return Next{}, false
		}
	}
	if slices.ContainsFunc(known, func(a Arg) bool { return a.Name == nodeArg.Name }) {
		args[nodeArg.Name] = node
	}
	step := Next{n.Tool, args, clip(n.Why, maxWhy)}
	return step, s.callable(step, known)
}

// callable reports whether the tool takes the arguments as they are: a step
// that would be refused helps nobody.
func (s Services) callable(n Next, known []Arg) bool {
	raw, err := json.Marshal(n.Arguments)
	if err != nil {
		return false
	}
	got, err := decodeArgs(n.Tool, known, raw)
	if err != nil {
		return false
	}
	k, ok := s.Registry.Task(n.Tool)
	if !ok {
		return true
	}
	args := map[string]any{}
	for _, a := range k.Args {
		if v, ok := got[a.Name]; ok {
			args[a.Name] = v
		}
	}
	_, err = k.Check(args)
	return err == nil
}

// argsOf lists the arguments of a tool that a node may suggest; nil: none.
func (s Services) argsOf(tool string) []Arg {
	switch k, ok := s.Registry.Task(tool); {
	case ok && k.Scope == inspector.ScopeDiagnose:
		return taskArgs(s.Registry, k)
	case tool == "metrics_summary" || tool == "query_metrics" || tool == "list_events":
		for _, t := range slices.Concat(observeMetrics(s), observeEvents(s)) {
			if t.Name == tool {
				return t.Args
			}
		}
	}
	return nil
}

func sameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}
