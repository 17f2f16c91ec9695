package explain

import (
	"strconv"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// nextFor suggests the tool that goes deeper, with the target that the event
// names.
func (s *Service) nextFor(e Event) []inspector.NextStep {
	k, ok := s.reg.Event(e.Kind)
	args := map[string]any{"node": e.Node}
	if !ok {
		return []inspector.NextStep{{Tool: "get_event", Args: map[string]any{"event_id": e.ID}, Why: "the finding whole"}}
	}
	summary := inspector.NextStep{Tool: "metrics_summary", Args: map[string]any{"node": e.Node, "module": k.Component}, Why: "what the module measures there now"}
	t, isTask := s.reg.Task(k.Tool)
	switch {
	case !isTask && k.Tool == "query_metrics" && len(k.Related) > 0:
		args["metrics"] = k.Related
		return []inspector.NextStep{{Tool: k.Tool, Args: args, Why: "the related metrics over time"}, summary}
	case !isTask && k.Tool == "list_events":
		return []inspector.NextStep{{Tool: k.Tool, Args: args, Why: "what else the node reported"}, summary}
	case !isTask:
		return []inspector.NextStep{summary}
	}
	seen := places(e)
	for _, a := range t.Args {
		v := e.Scope[a.Name]
		if more := seen[a.Name]; v == "" && len(more) > 0 {
			v = more[0]
		}
		if n, err := strconv.ParseInt(v, 10, 64); a.Kind == inspector.IntArg && err == nil {
			args[a.Name] = n
		} else if a.Kind != inspector.IntArg && v != "" {
			args[a.Name] = v
		}
	}
	if _, err := t.Check(without(args, "node")); err != nil { // no target is known
		return []inspector.NextStep{summary}
	}
	return []inspector.NextStep{{Tool: t.Name, Args: args, Why: "evidence from the kernel while it lasts"}, summary}
}

func without(args map[string]any, name string) map[string]any {
	out := map[string]any{}
	for k, v := range args {
		if k != name {
			out[k] = v
		}
	}
	return out
}
