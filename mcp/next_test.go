package mcp

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// callable fails for each step of an answer that would be refused as it
// stands: by the tool's schema, or by the words of its task.
func callable(t *testing.T, name string, doc []byte) (steps []Next) {
	t.Helper()
	var answer struct {
		Next []Next `json:"next"`
	}
	if json.Unmarshal(doc, &answer) != nil {
		return nil
	}
	for _, n := range answer.Next {
		if why := refused(n); why != nil {
			t.Errorf("%s suggests %s %v, which is refused: %v", name, n.Tool, n.Arguments, why)
		}
	}
	return answer.Next
}

func refused(n Next) error {
	raw, err := json.Marshal(n.Arguments)
	if err != nil {
		return err
	}
	tools := allTools()
	i := slices.IndexFunc(tools, func(tool Tool) bool { return tool.Name == n.Tool })
	if i < 0 {
		return fmt.Errorf("there is no such tool")
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(schema(tools[i].Args), &s); err != nil {
		return err
	}
	r, err := s.Resolve(nil)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return err
	}
	if err := r.Validate(v); err != nil {
		return err
	}
	if !(Services{Registry: fullRegistry()}).callable(n, tools[i].Args) {
		return fmt.Errorf("the task does not take the arguments")
	}
	return nil
}

// TestStepsOfEveryEvent: whatever an event knows of its place, what is
// suggested next can be called.
func TestStepsOfEveryEvent(t *testing.T) {
	b := newBackend()
	s := Services{Registry: b.reg, Tasks: fakeTasks{b}, Events: fakeEvents{b}, Explain: fakeExplain{b}}
	whole := map[string]string{"device": "vda", "interface": "eth0", "reason": "NO_SOCKET", "pid": "17", "cgroup": "/a", "operation": "read", "port": "443", "remote": "10.0.0.1"}
	for _, c := range b.reg.Components() {
		for _, k := range c.Events {
			for _, granted := range []tenants.Scopes{tenants.Read, tenants.Read | tenants.Diagnose} {
				for _, scope := range []map[string]string{{}, whole} {
					d := events.Detail{Event: events.Event{ID: "e", Node: "n1", Kind: k.Name, Scope: scope, NextTool: k.Tool}}
					raw, err := json.Marshal(s.describeEvent(d, Call{Scope: tenants.Scope{Granted: granted}, Now: noon}, 0))
					if err != nil {
						t.Fatal(err)
					}
					if steps := callable(t, k.Name, raw); len(steps) < 2 {
						t.Errorf("%s suggests %v only", k.Name, steps)
					}
				}
			}
		}
	}
}

// TestStepsOfNodes: a node's suggestion passes whole, or not at all.
func TestStepsOfNodes(t *testing.T) {
	b := newBackend()
	s := Services{Registry: b.reg, Tasks: fakeTasks{b}, Events: fakeEvents{b}}
	run := tasks.Run{Node: "n1", Name: "one", Status: tasks.Completed, Result: &inspector.TaskResult{Next: []inspector.NextStep{
		{Tool: "query_metrics", Why: "lost its metrics"}, {Tool: "profile_on_cpu", Why: "has no target"}, {Tool: "metrics_summary", Args: map[string]any{"module": "gpu"}},
		{Tool: "query_metrics", Args: map[string]any{"metrics": []any{"host.cpu_busy_ratio"}}}, {Tool: "profile_on_cpu", Args: map[string]any{"pid": 17.0}},
	}}}
	got := s.steps(tasks.Task{Status: tasks.Completed, Runs: []tasks.Run{run}}, Call{})
	if len(got) != 2 || got[0].Tool != "query_metrics" || got[1].Tool != "profile_on_cpu" || refused(got[0]) != nil || refused(got[1]) != nil {
		t.Errorf("%+v", got)
	}
}

// TestNoTargetNamesOne: a task that needs a target says how to come by one.
func TestNoTargetNamesOne(t *testing.T) {
	w := start(t, stub{}, withBackend(newBackend()))
	s := connect(t, w.URL+"/t/acme/mcp", "diagnose", "")
	for tool, want := range map[string]string{
		"profile_on_cpu": `"cgroup":"/"`, "monitor_process_io": "trace_slow_io", "monitor_device_io": `metrics_summary {"module":"storage"}`, "monitor_interface_traffic": `metrics_summary {"module":"network"`,
	} {
		res := call(t, s, tool, `{"node":"acme-db1"}`)
		if text := textOf(t, res); !strings.Contains(text, "INVALID_ARGUMENT no_target (") || !strings.Contains(text, want) {
			t.Errorf("%s: %s", tool, text)
		}
	}
}

// TestPromoteByLabels: the labels of several rows are refused with their
// number; the whole labels of one row are that row.
func TestPromoteByLabels(t *testing.T) {
	b := newBackend()
	plain := b.result
	b.result = func(kind string, n fakeNode) *inspector.TaskResult {
		r := plain(kind, n)
		if r.Profile == nil {
			r.Rows = []inspector.ResultRow{{Labels: map[string]string{"device": "vda", "process": "dd"}, Count: 9}, {Labels: map[string]string{"device": "vda"}, Count: 5}, {Labels: map[string]string{"device": "vda", "process": "cp"}, Count: 1}}
		} else {
			r.Rows = []inspector.ResultRow{{Labels: map[string]string{"pid": "17"}, Count: 400}}
		}
		return r
	}
	w := start(t, stub{}, withBackend(b))
	s := connect(t, w.URL+"/t/acme/mcp", "diagnose", "")
	done := bodyOf(t, call(t, s, "trace_slow_io", `{"node":"acme-db1"}`).StructuredContent)["ticket_id"]
	for labels, want := range map[string]string{`{"process":"dd"}`: "count 9;", `{"device":"vda"}`: "count 5;", `{"process":"no"}`: "no_such_row (labels)"} {
		if text := textOf(t, call(t, s, promote, fmt.Sprintf(`{"ticket_id":%q,"title":"t","labels":%s}`, done, labels))); !strings.Contains(text, want) {
			t.Errorf("%s: %s", labels, text)
		}
	}
	f := events.Finding{}
	err := findLabels(&f, &inspector.TaskResult{Rows: []inspector.ResultRow{{Labels: map[string]string{"a": "1", "b": "1"}}, {Labels: map[string]string{"a": "1", "b": "2"}}, {Labels: map[string]string{"a": "2"}}}}, map[string]string{"a": "1"})
	if got := fault.Of(err); got == nil || got.Reason != "ambiguous_row" || !strings.HasPrefix(got.Msg, "2 rows") || f.Labels != nil {
		t.Errorf("%v", err)
	}
	body := bodyOf(t, call(t, s, "profile_on_cpu", `{"node":"acme-db1","cgroup":"/"}`).StructuredContent)
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	steps := callable(t, "profile_on_cpu", raw)
	i := slices.IndexFunc(steps, func(n Next) bool { return n.Tool == promote })
	if i < 0 {
		t.Fatalf("no step promotes: %+v", steps)
	}
	args, err := json.Marshal(steps[i].Arguments)
	if err != nil {
		t.Fatal(err)
	}
	if text := textOf(t, call(t, s, promote, string(args))); !strings.Contains(text, "function=main.spin0") || !strings.Contains(text, "40 % of the CPU samples are in main.spin0") {
		t.Errorf("promoted: %s", text)
	}
}
