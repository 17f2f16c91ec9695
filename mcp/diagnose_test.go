package mcp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// targets gives each task a target where it needs one.
func targets(k inspector.TaskKind) string {
	if len(k.Targets) == 0 {
		return ""
	}
	for _, a := range k.Args {
		if a.Name == k.Targets[0] && a.Kind == inspector.IntArg {
			return fmt.Sprintf(`,%q:17`, a.Name)
		}
	}
	return fmt.Sprintf(`,%q:"x0"`, k.Targets[0])
}

// TestEveryTask calls each task in both eras: within the call, as a ticket and
// over several nodes. What comes back names the finding and only nodes that
// the caller sees.
func TestEveryTask(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	shape := outputSchema(taskAnswer{})
	for _, version := range []string{lastLegacy, modernVersion} {
		s := connect(t, w.URL+"/t/acme/mcp", "diagnose", version)
		limited := connect(t, w.URL+"/t/acme/mcp", "diagnose#web", version)
		for _, c := range b.reg.Components() {
			for _, k := range c.Tasks {
				t.Run(version+"/"+k.Name, func(t *testing.T) {
					res := call(t, s, k.Name, `{"node":"acme-db1"`+targets(k)+`}`)
					text, body := textOf(t, res), bodyOf(t, res.StructuredContent)
					conformsTo(t, k.Name, shape, res)
					finding := []string{"10.0.0.1:443>acme-db1:5000", strings.ToUpper(k.Counts[""]) + "  SHARE", "23.5 %", "process=curl", "rtt 12 ms", "42", "2 events lost"}
					if k.Name == "profile_on_cpu" {
						finding = []string{"main.spin0", "40.0 %", "500 of 1980 possible samples", "/usr/bin/acme-db1", "10.0 % of them in the kernel"}
					}
					for _, f := range finding {
						if !strings.Contains(text, f) {
							t.Errorf("the text lacks %q:\n%s", f, text)
						}
					}
					if body["status"] != "COMPLETED" || body["ticket_id"] == "" || strings.Contains(text, "globex") {
						t.Errorf("%s", text)
					}
					res = call(t, s, k.Name, `{"node":"acme-db1","duration_s":20`+targets(k)+`}`)
					if body := bodyOf(t, res.StructuredContent); body["status"] != accepted || body["conclude"] != false || !strings.Contains(textOf(t, res), "Do not conclude yet") || !strings.Contains(textOf(t, res), checkTask) {
						t.Errorf("a long one: %s", textOf(t, res))
					}
					conformsTo(t, k.Name, shape, res)
					res = call(t, s, k.Name, `{"selector":{"all":"1"},"format":"detailed","max_bytes":98304`+targets(k)+`}`)
					text = textOf(t, res)
					conformsTo(t, k.Name, shape, res)
					for _, f := range []string{"acme-db1", "acme-web1", "acme-web2", "3 of 4 nodes answered", "acme-old1: offline"} {
						if !strings.Contains(text, f) {
							t.Errorf("over nodes the text lacks %q:\n%s", f, text)
						}
					}
					res = call(t, limited, k.Name, `{"selector":{"all":"1"}`+targets(k)+`}`)
					if text := textOf(t, res); strings.Contains(text, "db1") || strings.Contains(text, "old1") || !strings.Contains(text, "2 of 2 nodes answered") {
						t.Errorf("a limited caller sees %s", text)
					}
					if res := call(t, limited, k.Name, `{"node":"acme-db1"`+targets(k)+`}`); !res.IsError || !strings.Contains(textOf(t, res), "NOT_FOUND") {
						t.Errorf("a node outside: %s", textOf(t, res))
					}
					if res := call(t, s, k.Name, `{"node":"globex-db1"`+targets(k)+`}`); !res.IsError || !strings.Contains(textOf(t, res), "NOT_FOUND") {
						t.Errorf("a foreign node: %s", textOf(t, res))
					}
				})
			}
		}
	}
}

func conformsTo(t *testing.T, name string, schema []byte, res *sdk.CallToolResult) {
	t.Helper()
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	if res.IsError {
		t.Fatalf("%s: %s", name, textOf(t, res))
	}
	conforms(t, name, schema, raw)
}

// TestBadInput: each mistake has its own reason and a next step, and none is
// answered with a made-up success.
func TestBadInput(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	for _, version := range []string{lastLegacy, modernVersion} {
		s := connect(t, w.URL+"/t/acme/mcp", "diagnose", version)
		foreign := call(t, connect(t, w.URL+"/t/globex/mcp", "diagnose@globex", version), "trace_slow_io", `{"node":"globex-db1","duration_s":20}`)
		theirs := bodyOf(t, foreign.StructuredContent)["ticket_id"]
		running := bodyOf(t, call(t, s, "trace_slow_io", `{"node":"acme-db1","duration_s":20}`).StructuredContent)["ticket_id"]
		for name, c := range map[string]struct{ tool, args, kind, reason, argument, bound string }{
			"no node":               {"trace_slow_io", `{}`, "INVALID_ARGUMENT", "no_node", "node", "selector"},
			"empty selector":        {"trace_slow_io", `{"selector":{}}`, "INVALID_ARGUMENT", "no_node", "node", "at most 50"},
			"node and selector":     {"trace_slow_io", `{"node":"acme-db1","selector":{"role":"db"}}`, "INVALID_ARGUMENT", "node_and_selector", "selector", "exclude"},
			"no target":             {"monitor_device_io", `{"node":"acme-db1"}`, "INVALID_ARGUMENT", "no_target", "device", "device"},
			"unknown device":        {"monitor_device_io", `{"node":"acme-db1","device":"nosuch"}`, "NOT_FOUND", "unknown_device", "device", "no such"},
			"duration 0":            {"trace_slow_io", `{"node":"acme-db1","duration_s":0}`, "INVALID_ARGUMENT", "out_of_bounds", "duration_s", "1 to 300"},
			"duration -1":           {"trace_slow_io", `{"node":"acme-db1","duration_s":-1}`, "INVALID_ARGUMENT", "out_of_bounds", "duration_s", "1 to 300"},
			"duration 10^6":         {"trace_slow_io", `{"node":"acme-db1","duration_s":1000000}`, "INVALID_ARGUMENT", "out_of_bounds", "duration_s", "1 to 300"},
			"duration of text":      {"trace_slow_io", `{"node":"acme-db1","duration_s":"5"}`, "INVALID_ARGUMENT", "malformed", "duration_s", "1 to 300"},
			"duration of a list":    {"trace_slow_io", `{"node":"acme-db1","duration_s":[5]}`, "INVALID_ARGUMENT", "malformed", "duration_s", "1 to 300"},
			"events 10^9":           {"trace_slow_io", `{"node":"acme-db1","max_events":1e9}`, "INVALID_ARGUMENT", "out_of_bounds", "max_events", "1 to 10000"},
			"sample rate":           {"trace_slow_io", `{"node":"acme-db1","sample_rate":101}`, "INVALID_ARGUMENT", "out_of_bounds", "sample_rate", "1 to 100"},
			"operation":             {"trace_slow_io", `{"node":"acme-db1","operation":"erase"}`, "INVALID_ARGUMENT", "out_of_bounds", "operation", "one of"},
			"hidden characters":     {"trace_slow_io", `{"node":"acme-db1","device":"sd\u202ea"}`, "INVALID_ARGUMENT", "malformed", "device", "plain text"},
			"unknown argument":      {"trace_slow_io", `{"node":"acme-db1","colour":1}`, "INVALID_ARGUMENT", "invalid_argument", "colour", "no argument"},
			"node offline":          {"trace_slow_io", `{"node":"acme-old1"}`, "UNAVAILABLE", "node_offline", "", "offline"},
			"nobody selected":       {"trace_slow_io", `{"selector":{"role":"nobody"}}`, "NOT_FOUND", "no_nodes", "", "labels"},
			"no ticket":             {checkTask, `{"ticket_id":"x"}`, "INVALID_ARGUMENT", "invalid_argument", "ticket_id", "not a ticket"},
			"unknown ticket":        {checkTask, `{"ticket_id":"0195ffff-0000-7000-8000-000000000000"}`, "NOT_FOUND", "unknown_ticket", "", "ticket"},
			"foreign ticket":        {checkTask, fmt.Sprintf(`{"ticket_id":%q}`, theirs), "NOT_FOUND", "unknown_ticket", "", "ticket"},
			"cancel of a foreign":   {cancelTask, fmt.Sprintf(`{"ticket_id":%q}`, theirs), "NOT_FOUND", "unknown_ticket", "", "ticket"},
			"promote of a foreign":  {promote, fmt.Sprintf(`{"ticket_id":%q,"row":0,"title":"x"}`, theirs), "NOT_FOUND", "unknown_ticket", "", "ticket"},
			"promote while it runs": {promote, fmt.Sprintf(`{"ticket_id":%q,"row":0,"title":"x"}`, running), "FAILED_PRECONDITION", "task_running", "", "partial"},
			"no event":              {getEvent, `{"event_id":"x"}`, "INVALID_ARGUMENT", "invalid_argument", "event_id", "not an event"},
			"foreign event":         {getEvent, fmt.Sprintf(`{"event_id":%q}`, b.eventOf("globex-db1")), "NOT_FOUND", "unknown_event", "", "event"},
			"unknown kind":          {"list_events", `{"kinds":["fire"]}`, "INVALID_ARGUMENT", "invalid_argument", "kinds", "retransmit_burst"},
			"explain nothing":       {explain, `{}`, "INVALID_ARGUMENT", "one_subject", "node", "one"},
			"explain two":           {explain, `{"node":"acme-db1","ticket_id":"x"}`, "INVALID_ARGUMENT", "one_subject", "node", "one"},
			"explain a foreign":     {explain, `{"node":"globex-db1"}`, "NOT_FOUND", "unknown_node", "", "no node"},
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				res := call(t, s, c.tool, c.args)
				body := bodyOf(t, res.StructuredContent)
				argument, _ := body["argument"].(string)
				if !res.IsError || body["error"] != c.kind || body["reason"] != c.reason || argument != c.argument || !strings.Contains(textOf(t, res), c.bound) {
					t.Errorf("got %s\n%v", textOf(t, res), body)
				}
				if next, _ := body["next_step"].(string); next == "" && c.reason != "unknown_node" {
					t.Errorf("no next step: %v", body)
				}
			})
		}
		if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "trace_everything"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
			t.Errorf("unknown tool: %v", err)
		}
		for range 2 { // a second cancel changes nothing
			res := call(t, s, cancelTask, fmt.Sprintf(`{"ticket_id":%q}`, running))
			if body := bodyOf(t, res.StructuredContent); res.IsError || body["status"] != "CANCELLED" || body["ended"] != true {
				t.Errorf("cancel: %s", textOf(t, res))
			}
		}
	}
}

func (b *backend) eventOf(name string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.events {
		if e.Name == name {
			return e.ID
		}
	}
	return ""
}

// TestReadersStartNothing: scopes and ?readonly=1 decide, at the door and at
// the tool.
func TestReadersStartNothing(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	if r := w.post(t, "read", "", toolCall("trace_slow_io", `{"node":"acme-db1"}`)); r.status != http.StatusForbidden || w.need != tenants.Diagnose {
		t.Errorf("a reader: %d, step up for %s", r.status, w.need)
	}
	for _, tool := range []string{cancelTask, promote} {
		if r := w.post(t, "diagnose", "?readonly=1", toolCall(tool, `{}`)); !strings.Contains(r.body, "unknown tool") {
			t.Errorf("%s with readonly: %s", tool, r.body)
		}
	}
	if b.started != 0 {
		t.Errorf("%d tasks were started", b.started)
	}
}

// TestFailuresAreTold: a task that ended badly on its only node is an error
// with the node's own reason; over several nodes each has its own.
func TestFailuresAreTold(t *testing.T) {
	run := tasks.Run{Node: "n1", Name: "db1", Status: tasks.Failed, Reason: "pid_gone", ErrorKind: "NOT_FOUND", Message: "no such process", Arg: "pid", Next: "choose another pid"}
	task := tasks.Task{Ticket: "T", Kind: "profile_on_cpu", Status: tasks.Failed, Runs: []tasks.Run{run}}
	if f := failure(task); f == nil || f.Kind.String() != "NOT_FOUND" || f.Reason != "pid_gone" || f.Field != "pid" || f.Next != "choose another pid" || !strings.Contains(f.Msg, "ticket_id T") {
		t.Errorf("got %+v", f)
	}
	for state, kind := range map[tasks.State]string{tasks.TimedOut: "DEADLINE_EXCEEDED", tasks.Disconnected: "UNAVAILABLE", tasks.Expired: "DEADLINE_EXCEEDED"} {
		task.Status, task.Runs = state, []tasks.Run{{Name: "db1", Status: state}}
		if f := failure(task); f == nil || f.Kind.String() != kind || f.Next == "" || f.Msg == "" {
			t.Errorf("%s: %+v", state, f)
		}
	}
	task.Fanout, task.Status = true, tasks.Completed
	task.Runs = []tasks.Run{run, {Name: "a", Status: tasks.Completed}, {Name: "b", Status: tasks.Disconnected}, {Name: "c", Status: tasks.TimedOut}, {Name: "d", Status: tasks.Cancelled},
		{Name: "e", Status: tasks.Failed, Reason: inspector.ReasonFeatureOff}, {Name: "f", Status: tasks.Expired}, {Name: "g", Status: tasks.Running}, {Name: "h", Status: tasks.Failed, StartedAt: ptr(noon)}}
	task.Coverage.NotCovered = []tenants.NotCovered{{Node: "n1", Name: "db1", Reason: "pid_gone"}, {Node: "x", Name: "x", Reason: "stale"}, {Node: "y", Name: "y", Reason: "feature_off: no BTF"}}
	if failure(task) != nil {
		t.Error("a fan-out is always an answer")
	}
	got := []string{}
	for _, o := range outcomes(task) {
		got = append(got, o.Outcome)
	}
	if want := []string{"refused", "answered", "offline", "timed_out", "cancelled", "unsupported", "not_started", "running", "failed", "offline", "unsupported"}; !slices.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
}

// TestMerge ranks rows over nodes and keeps what each of them said.
func TestMerge(t *testing.T) {
	b := newBackend()
	task := tasks.Task{Status: tasks.Completed}
	for _, n := range b.nodes[:2] {
		task.Runs = append(task.Runs, tasks.Run{Node: n.id, Name: n.name, Status: tasks.Completed, Result: evidenceOf("trace_tcp_retransmits", n)})
	}
	task.Runs[1].Result.Rows[0].Count = 60
	task.Runs[1].Result.To = noon.Add(9 * 1e9)
	ev, span, notes := merge(task)
	if ev.Totals["segments"] != 84 || ev.Lost != 4 || ev.OtherCount != 10 || ev.Unsampled != 14 || len(notes) != 1 || span.To != noon.Add(9*1e9) || span.From != noon {
		t.Errorf("%+v %v %v", ev, span, notes)
	}
	order := []string{}
	for _, r := range ev.Rows {
		order = append(order, fmt.Sprintf("%s %d %t", r.Name, r.Row, r.Benign))
	}
	if want := []string{"acme-web1 0 false", "acme-db1 0 false", "acme-db1 1 false", "acme-web1 1 false", "acme-db1 2 true", "acme-web1 2 true"}; !slices.Equal(order, want) {
		t.Errorf("order %v", order)
	}
	cut := ev.cut(shown{rows: 2, samples: 1, frames: 1})
	if cut == nil || cut.Returned != 2 || *cut.Total != 12 || len(ev.Rows) != 2 || len(ev.Rows[0].Stack) != 2 || ev.Rows[0].Stack[1] != "… 2 more" || !strings.Contains(cut.Hint, "1 of 2 samples") {
		t.Errorf("cut %+v, rows %+v", cut, ev.Rows)
	}
}

// TestFoldedStacksAreCutByRank: stacks are told in detail only, the greatest
// first, and what is left out is counted.
func TestFoldedStacksAreCutByRank(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	s := connect(t, w.URL+"/t/acme/mcp", "diagnose", "")
	total := uint64(1)
	for _, f := range evidenceOf("profile_on_cpu", b.nodes[0]).Profile.Folded {
		total += f.Count
	}
	for _, c := range []struct {
		args string
		some bool
	}{{`"format":"concise"`, false}, {`"format":"detailed","max_bytes":98304`, true}, {`"format":"detailed","max_bytes":6000`, true}} {
		res := call(t, s, "profile_on_cpu", `{"node":"acme-db1","pid":7,`+c.args+`}`)
		var body struct {
			Profiles []inspector.Profile `json:"profiles"`
		}
		raw, err := json.Marshal(res.StructuredContent)
		if err != nil || json.Unmarshal(raw, &body) != nil || len(body.Profiles) != 1 {
			t.Fatalf("%v %s", err, raw)
		}
		p := body.Profiles[0]
		sum := p.LeftOut
		for i, f := range p.Folded {
			sum += f.Count
			if i > 0 && f.Count > p.Folded[i-1].Count {
				t.Error("the greatest come first")
			}
		}
		if sum != total || (len(p.Folded) > 0) != c.some {
			t.Errorf("%s: %d of %d samples are accounted for, %d stacks", c.args, sum, total, len(p.Folded))
		}
	}
	if b.started != 3 {
		t.Errorf("an answer that is too large must not start the task again: %d starts", b.started)
	}
}

// TestNextIsOurs: a node may suggest only tools of the table, only their own
// arguments, and never another node.
func TestNextIsOurs(t *testing.T) {
	b := newBackend()
	b.result = func(kind string, n fakeNode) *inspector.TaskResult {
		r := evidenceOf(kind, n)
		r.Next = []inspector.NextStep{
			{Tool: "cancel_task", Args: map[string]any{"ticket_id": "x"}, Why: "no"},
			{Tool: "query_metrics", Args: map[string]any{"metrics": []any{"storage.latency_ns"}, "node": "elsewhere", "evil": 1.0, "labels": map[string]any{"a": 1}}, Why: "no: an object"},
			{Tool: "monitor_device_io", Args: map[string]any{"device": "vda", "selector": map[string]any{"all": "1"}}, Why: strings.Repeat("why ", 200)},
		}
		return r
	}
	w := start(t, stub{}, withBackend(b))
	res := call(t, connect(t, w.URL+"/t/acme/mcp", "diagnose", ""), "trace_slow_io", `{"node":"acme-db1"}`)
	var body struct{ Next []Next }
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil || json.Unmarshal(raw, &body) != nil {
		t.Fatal(err)
	}
	if len(body.Next) != 2 || body.Next[0].Tool != "monitor_device_io" || body.Next[0].Arguments["node"] != b.nodes[0].id || body.Next[0].Arguments["device"] != "vda" || len(body.Next[0].Arguments) != 2 || len(body.Next[0].Why) > maxWhy+4 || body.Next[1].Tool != promote {
		t.Errorf("next %+v", body.Next)
	}
}
