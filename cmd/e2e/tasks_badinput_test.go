package e2e_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// badAsk is one wrong question, and what every surface must answer.
type badAsk struct {
	name, kind string
	args       map[string]any
	field      string
	word       string // of the error's kind
	reason     string
	status     int    // over REST; 200: the node looked, and the task FAILED
	mcpReason  string // where MCP knows the arguments by itself
}

// badInput asks wrongly over the command line, MCP and REST: each refusal has
// its own reason and says what to do.
func badInput(t *testing.T, s *stack, acme, globex tenant, host node) {
	gone := gonePid(t)
	modules(t, acme, host, "network")
	defer modules(t, acme, host)
	away := offlineNode(t, s, acme)
	in := func(n string, more map[string]any) map[string]any {
		out := map[string]any{"node": n}
		maps.Copy(out, more)
		return out
	}
	const invalid, badRequest = "INVALID_ARGUMENT", http.StatusBadRequest
	asks := []badAsk{
		{"no target", "monitor_process_io", in(host.Node, nil), "pid", invalid, "no_target", badRequest, ""},
		{"unknown device", "trace_slow_io", in(host.Node, map[string]any{"device": "nope9"}), "device", "NOT_FOUND", "unknown_device", http.StatusOK, ""},
		{"unknown device, monitored", "monitor_device_io", in(host.Node, map[string]any{"device": "nope9"}), "device", "NOT_FOUND", "unknown_device", http.StatusOK, ""},
		{"gone pid", "monitor_process_io", in(host.Node, map[string]any{"pid": gone}), "pid", "NOT_FOUND", "pid_gone", http.StatusOK, ""},
		{"gone pid, profiled", "profile_on_cpu", in(host.Node, map[string]any{"pid": gone}), "pid", "NOT_FOUND", "pid_gone", http.StatusOK, ""},
		{"duration 0", "trace_slow_io", in(host.Node, map[string]any{"duration_s": 0}), "duration_s", invalid, "out_of_bounds", badRequest, ""},
		{"duration -1", "trace_slow_io", in(host.Node, map[string]any{"duration_s": -1}), "duration_s", invalid, "out_of_bounds", badRequest, ""},
		{"duration 10^6", "trace_slow_io", in(host.Node, map[string]any{"duration_s": 1_000_000}), "duration_s", invalid, "out_of_bounds", badRequest, ""},
		{"events 10^9", "trace_slow_io", in(host.Node, map[string]any{"max_events": 1_000_000_000}), "max_events", invalid, "out_of_bounds", badRequest, ""},
		{"half a second", "trace_slow_io", in(host.Node, map[string]any{"duration_s": 0.5}), "duration_s", invalid, "malformed", badRequest, ""},
		{"unknown argument", "trace_slow_io", in(host.Node, map[string]any{"disk": "vda"}), "disk", invalid, "unknown_argument", badRequest, "invalid_argument"},
		{"feature off", "trace_tcp_retransmits", in(host.Node, nil), "", "FAILED_PRECONDITION", "feature_off", http.StatusPreconditionFailed, ""},
		{"node offline", "trace_slow_io", in(away.Name, nil), "", "UNAVAILABLE", "node_offline", http.StatusServiceUnavailable, ""},
		{"node of another tenant", "trace_slow_io", in(nodes(t, globex)[0].Node, nil), "", "NOT_FOUND", "", http.StatusNotFound, ""},
		{"no such node", "trace_slow_io", in("nobody", nil), "", "NOT_FOUND", "", http.StatusNotFound, ""},
		{"no node", "trace_slow_io", map[string]any{}, "node", invalid, "", badRequest, ""},
	}
	for _, ask := range asks {
		t.Run(ask.name, func(t *testing.T) { ask.everywhere(t, acme) })
	}
	// The interface is looked up by the agent, which must have the module on.
	modules(t, acme, host)
	poll(t, 40*time.Second, "the network module", func() bool {
		return tool(t, acme, "diagnose", "monitor_tcp_connections", in(host.Node, map[string]any{"duration_s": 1})).word("status") == "COMPLETED"
	})
	t.Run("unknown interface", func(t *testing.T) {
		badAsk{"", "monitor_interface_traffic", in(host.Node, map[string]any{"interface": "nope9"}), "interface", "NOT_FOUND", "unknown_interface", http.StatusOK, ""}.everywhere(t, acme)
	})
	t.Run("unknown tool and kind", func(t *testing.T) {
		if text, code := cli(t, acme, "trace_everything", in(host.Node, nil)); code != 1 || !strings.Contains(text, "trace_everything") {
			t.Errorf("exit %d: %s", code, text)
		}
		p := refusedOverREST(t, acme, "trace_everything", in(host.Node, nil))
		if p.Status != badRequest || p.Reason != "unknown_task" || p.Field != "kind" || len(p.Next) == 0 {
			t.Errorf("%+v", p)
		}
	})
	t.Run("scope", func(t *testing.T) {
		if a := tool(t, acme, "read", "trace_slow_io", in(host.Node, nil)); a.status != http.StatusForbidden && !a.isError {
			t.Errorf("a read token started a task: %d %s", a.status, a.text)
		}
		var p problem
		rest(t, acme, "read", http.MethodPost, "/tasks", map[string]any{"kind": "trace_slow_io", "node": host.Node}, &p)
		if p.Status != http.StatusForbidden || p.Kind != "PERMISSION_DENIED" {
			t.Errorf("a read token over REST: %+v", p)
		}
	})
	t.Run("tickets", func(t *testing.T) { badTickets(t, acme, globex, host) })
}

// everywhere asks over the three surfaces.
func (b badAsk) everywhere(t *testing.T, x tenant) {
	text, code := cli(t, x, b.kind, b.args)
	if code != 1 || !strings.Contains(text, b.word) || !strings.Contains(text, "Next: ") || b.field != "" && !strings.Contains(text, b.field) {
		t.Errorf("command line: exit %d, want %s of %q with a next step: %s", code, b.word, b.field, text)
	}
	a := tool(t, x, "diagnose", b.kind, b.args)
	reason := b.reason
	if b.mcpReason != "" {
		reason = b.mcpReason
	}
	if !a.isError || a.word("error") != b.word || reason != "" && a.word("reason") != reason || a.word("reason") == "" || a.word("next_step") == "" || b.field != "" && a.word("argument") != b.field {
		t.Errorf("MCP: want %s %s of %q with a next step: %s", b.word, reason, b.field, sprintJSON(a.body))
	}
	p := refusedOverREST(t, x, b.kind, b.args)
	if p.Status != b.status || p.Kind != b.word || b.reason != "" && p.Reason != b.reason || p.Reason == "unspecified" || len(p.Next) == 0 || b.field != "" && p.Field != b.field {
		t.Errorf("REST: want %d %s %s of %q with a next step: %+v", b.status, b.word, b.reason, b.field, p)
	}
}

// refusedOverREST starts a task that cannot be. What the node refused at the
// door is a task that FAILED, with the run's reason; both read alike here.
func refusedOverREST(t *testing.T, x tenant, kind string, args map[string]any) (p problem) {
	t.Helper()
	args = maps.Clone(args)
	body := map[string]any{"kind": kind, "arguments": args}
	if n, ok := args["node"]; ok {
		body["node"] = n
		delete(args, "node")
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	a := call(t, http.MethodPost, x.RESTURL+"/tasks", x.Tokens["diagnose"], string(raw), "Content-Type", "application/json")
	if a.status != http.StatusOK {
		if err := json.Unmarshal([]byte(a.body), &p); err != nil {
			t.Fatalf("%d %v: %s", a.status, err, a.body)
		}
		return p
	}
	var doc taskDoc
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil || doc.Status != "FAILED" || len(doc.Runs) != 1 || doc.Runs[0].Next == "" {
		t.Fatalf("a task that cannot be: %v: %s", err, a.body)
	}
	r := doc.Runs[0]
	return problem{Status: http.StatusOK, Kind: r.Error, Reason: r.Reason, Field: r.Arg, Detail: r.Message, Next: []string{r.Next}}
}

// badTickets asks for what is not there, and for what is another tenant's.
func badTickets(t *testing.T, acme, globex tenant, host node) {
	_, doc := startTask(t, acme, "trace_slow_io", host.Node, map[string]any{"duration_s": 60})
	if doc.Status != "ACCEPTED" {
		t.Fatalf("%s", sprintJSON(doc))
	}
	for name, ticket := range map[string]string{"foreign": doc.Ticket, "unknown": "01890000-0000-7000-8000-000000000000"} {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			var p problem
			if rest(t, globex, "diagnose", method, "/tasks/"+ticket, nil, &p); p.Status != http.StatusNotFound || p.Reason == "" || len(p.Next) == 0 {
				t.Errorf("%s of a %s ticket: %+v", method, name, p)
			}
		}
		for _, what := range []string{"check_task_result", "cancel_task", "promote_evidence", "explain"} {
			args := map[string]any{"ticket_id": ticket}
			if what == "promote_evidence" {
				args["row"], args["note"] = 1, "x"
			}
			a := tool(t, globex, "diagnose", what, args)
			if !a.isError || what != "promote_evidence" && (a.word("error") != "NOT_FOUND" || a.word("next_step") == "") {
				t.Errorf("%s of a %s ticket: %s", what, name, sprintJSON(a.body))
			}
		}
	}
	var p problem
	if rest(t, acme, "read", http.MethodGet, "/tasks/rubbish", nil, &p); p.Status != http.StatusBadRequest || p.Field != "ticket_id" || len(p.Next) == 0 {
		t.Errorf("a ticket that is none: %+v", p)
	}
	if got := getTask(t, acme, doc.Ticket); got.Status != "RUNNING" {
		t.Errorf("after all that the task is %s", got.Status)
	}
	for range 2 {
		var got taskDoc
		if status := rest(t, acme, "diagnose", http.MethodDelete, "/tasks/"+doc.Ticket, nil, &got); status != http.StatusOK || got.Status != "CANCELLED" {
			t.Errorf("cancel: %d %s", status, sprintJSON(got))
		}
	}
}

// offlineNode enrols a node in a tenant that then takes its leave.
func offlineNode(t *testing.T, s *stack, x tenant) node {
	t.Helper()
	out := &lockedBuffer{}
	cmd := exec.Command(filepath.Join(bin, "telltale-agent"), "simulate", "--n", "1", "--prefix", "away-", "--server", s.GRPCAddr, "--ca", s.CAFile, "--token", x.EnrolToken, "--dir", t.TempDir())
	cmd.Stdout, cmd.Stderr = out, out
	start(t, cmd)
	find := func(status string) (n node) {
		poll(t, 30*time.Second, fmt.Sprintf("the node away-0001 %s", status), func() bool {
			for _, n = range nodes(t, x) {
				if n.Name == "away-0001" && n.Status == status {
					return true
				}
			}
			return false
		})
		return n
	}
	find("online")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return find("offline")
}
