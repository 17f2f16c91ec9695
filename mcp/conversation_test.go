package mcp

import (
	"encoding/json"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/telltale-dev/telltale/tenants/tasks"
)

// TestConversation is the whole way from an event to a kept finding.
func TestConversation(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	s := connect(t, w.URL+"/t/acme/mcp", "diagnose", "")
	ar := &txtar.Archive{Comment: []byte("a conversation: event, context, task, ticket, result, promotion\n")}
	ask := func(tool string, args map[string]any) map[string]any {
		t.Helper()
		raw, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		res := call(t, s, tool, string(raw))
		ar.Files = append(ar.Files, txtar.File{Name: tool + " " + string(raw), Data: []byte(textOf(t, res) + "\n")})
		if res.IsError {
			t.Fatalf("%s %s: %s", tool, raw, textOf(t, res))
		}
		return bodyOf(t, res.StructuredContent)
	}
	// next follows the first suggestion of a tool.
	next := func(body map[string]any, tool string) map[string]any {
		t.Helper()
		list, _ := body["next"].([]any)
		for _, n := range list {
			if n := n.(map[string]any); n["tool"] == tool {
				return n["arguments"].(map[string]any)
			}
		}
		t.Fatalf("no step %s in %v", tool, list)
		return nil
	}
	list := ask("list_events", map[string]any{"node": "acme-db1"})
	event := ask(getEvent, next(list, getEvent))
	ask(explain, next(event, explain))
	args := next(event, "trace_tcp_retransmits")
	args["duration_s"] = 20
	started := ask("trace_tcp_retransmits", args)
	if started["status"] != accepted {
		t.Fatalf("%v", started)
	}
	check := next(started, checkTask)
	if running := ask(checkTask, check); running["status"] != "RUNNING" || running["conclude"] != false {
		t.Errorf("%v", running)
	}
	id, err := tasks.ParseID(started["ticket_id"].(string))
	if err != nil {
		t.Fatal(err)
	}
	b.end(id, tasks.Completed)
	result := ask(checkTask, check)
	keep := next(result, promote)
	keep["title"], keep["severity"] = "db1 sends again to one peer", "critical"
	kept := ask(promote, keep)
	shown := ask("list_events", next(kept, "list_events"))
	events, _ := shown["events"].([]any)
	if len(events) != 1 || events[0].(map[string]any)["origin"] != "task" || events[0].(map[string]any)["ticket_id"] != started["ticket_id"] {
		t.Errorf("%v", shown)
	}
	golden(t, "conversation.txtar", txtar.Format(ar))
}
