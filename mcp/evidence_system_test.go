package mcp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/tenants"
)

// TestEvidenceFromRealServices goes the whole way on the real services: event,
// context, task, ticket, result, promotion, and what others see of it.
func TestEvidenceFromRealServices(t *testing.T) {
	s := newSystem(t)
	c := connect(t, s.url("acme"), s.token("acme", tenants.Diagnose, tenants.Selector{}), "")
	limited := connect(t, s.url("acme"), s.token("acme", tenants.Diagnose, tenants.Selector{Labels: map[string]string{"role": "db"}}), "")
	foreign := connect(t, s.url("globex"), s.token("globex", tenants.Diagnose, tenants.Selector{}), "")
	first, _ := bodyOf(t, call(t, c, "list_events", `{"node":"acme-node-0"}`).StructuredContent)["events"].([]any)
	if len(first) != 1 {
		t.Fatalf("events %v", first)
	}
	event := first[0].(map[string]any)["event_id"].(string)
	res := call(t, c, getEvent, fmt.Sprintf(`{"event_id":%q}`, event))
	for _, w := range []string{"acme-node-0-peer", "acme-node-0-comm", "Segments are sent again", "2 of 3 sightings were counted only", "context snapshot", "trace_tcp_retransmits"} {
		if !strings.Contains(textOf(t, res), w) {
			t.Errorf("the event lacks %q:\n%s", w, textOf(t, res))
		}
	}
	conformsTo(t, getEvent, outputSchema(eventAnswer{}), res)
	short := call(t, c, "trace_tcp_retransmits", `{"node":"acme-node-0","duration_s":1}`)
	if body := bodyOf(t, short.StructuredContent); body["status"] != "COMPLETED" || !strings.Contains(textOf(t, short), "acme-node-0-peer") || !strings.Contains(textOf(t, short), "31     73.8 %") {
		t.Errorf("short: %s", textOf(t, short))
	}
	conformsTo(t, "trace_tcp_retransmits", outputSchema(taskAnswer{}), short)
	fan := call(t, c, "trace_tcp_retransmits", `{"selector":{"role":"web"},"duration_s":1}`)
	if text := textOf(t, fan); !strings.Contains(text, "2 of 2 nodes answered") || !strings.Contains(text, "acme-node-0-peer") || !strings.Contains(text, "acme-node-1-peer") {
		t.Errorf("fan-out: %s", text)
	}
	long := call(t, c, "trace_tcp_retransmits", `{"node":"acme-node-0","duration_s":300}`)
	body := bodyOf(t, long.StructuredContent)
	if body["status"] != accepted || body["conclude"] != false {
		t.Fatalf("long: %s", textOf(t, long))
	}
	ticket := fmt.Sprintf(`{"ticket_id":%q}`, body["ticket_id"])
	eventually(t, func() bool { return strings.Contains(textOf(t, call(t, c, checkTask, ticket)), "acme-node-0-peer") })
	if text := textOf(t, call(t, c, checkTask, ticket)); !strings.Contains(text, "RUNNING") || !strings.Contains(text, "Do not conclude yet") || !strings.Contains(text, "50 % done") {
		t.Errorf("partial: %s", text)
	}
	for name, who := range map[string]*struct{ tool, args string }{"check": {checkTask, ticket}, "cancel": {cancelTask, ticket}, "event": {getEvent, fmt.Sprintf(`{"event_id":%q}`, event)},
		"promote": {promote, strings.Replace(ticket, "}", `,"row":0,"title":"x"}`, 1)}, "task": {"trace_tcp_retransmits", `{"node":"acme-node-0","duration_s":1}`}} {
		if text := textOf(t, call(t, foreign, who.tool, who.args)); !strings.HasPrefix(text, "NOT_FOUND") {
			t.Errorf("%s by the other tenant: %s", name, text)
		}
		if text := textOf(t, call(t, limited, who.tool, who.args)); !strings.HasPrefix(text, "NOT_FOUND") {
			t.Errorf("%s by a limited caller: %s", name, text)
		}
	}
	for range 2 {
		if res := call(t, c, cancelTask, ticket); res.IsError {
			t.Errorf("cancel: %s", textOf(t, res))
		}
	}
	done := bodyOf(t, short.StructuredContent)["ticket_id"]
	kept := call(t, c, promote, fmt.Sprintf(`{"ticket_id":%q,"row":0,"title":"it sends again","severity":"critical"}`, done))
	if body := bodyOf(t, kept.StructuredContent); kept.IsError || body["origin"] != "task" || body["ticket_id"] != done {
		t.Fatalf("promote: %s", textOf(t, kept))
	}
	// Once more with other words: the same event, and the answer says what it was.
	again := call(t, c, promote, fmt.Sprintf(`{"ticket_id":%q,"row":0,"title":"it sends again, from the spare"}`, done))
	if body := bodyOf(t, again.StructuredContent); body["event_id"] != bodyOf(t, kept.StructuredContent)["event_id"] || body["previous_title"] != "it sends again" || body["severity"] != "critical" ||
		!strings.Contains(textOf(t, again), "takes the place of: it sends again") {
		t.Errorf("promoted again: %s", textOf(t, again))
	}
	if text := textOf(t, call(t, c, "list_events", `{"origin":"task"}`)); !strings.Contains(text, "it sends again, from the spare") || !strings.Contains(text, "acme-node-0-peer") {
		t.Errorf("promoted: %s", text)
	}
	if text := textOf(t, call(t, limited, "list_events", `{"origin":"task"}`)); strings.Contains(text, "acme-node-0") {
		t.Errorf("a limited caller sees it: %s", text)
	}
	for name, q := range map[string]struct{ args, kind, reason string }{
		"duration 0":     {`{"node":"acme-node-0","duration_s":0}`, "INVALID_ARGUMENT", "out_of_bounds"},
		"unknown node":   {`{"node":"nobody"}`, "NOT_FOUND", "unknown_node"},
		"nobody":         {`{"selector":{"role":"nobody"}}`, "NOT_FOUND", "no_nodes"},
		"other tenant's": {`{"node":"globex-node-0"}`, "NOT_FOUND", "unknown_node"},
	} {
		if body := bodyOf(t, call(t, c, "trace_tcp_retransmits", q.args).StructuredContent); body["error"] != q.kind || body["reason"] != q.reason || body["next_step"] == "" {
			t.Errorf("%s: %v", name, body)
		}
	}
}

// TestNothingForeignInEvidence is the property for events and tasks: whatever
// ids a caller learnt, no byte speaks of a node that it may not see.
func TestNothingForeignInEvidence(t *testing.T) {
	s := newSystem(t)
	type owner struct{ event, ticket, kept string }
	owned := map[string]owner{}
	for slug := range s.tenants {
		c := connect(t, s.url(slug), s.token(slug, tenants.Diagnose, tenants.Selector{}), "")
		for _, n := range s.nodes[slug] {
			list, _ := bodyOf(t, call(t, c, "list_events", fmt.Sprintf(`{"node":%q}`, n.name)).StructuredContent)["events"].([]any)
			ticket, _ := bodyOf(t, call(t, c, "trace_tcp_retransmits", fmt.Sprintf(`{"node":%q,"duration_s":1}`, n.name)).StructuredContent)["ticket_id"].(string)
			kept, _ := bodyOf(t, call(t, c, promote, fmt.Sprintf(`{"ticket_id":%q,"row":0,"title":"t"}`, ticket)).StructuredContent)["event_id"].(string)
			owned[n.name] = owner{list[0].(map[string]any)["event_id"].(string), ticket, kept}
			if kept == "" {
				t.Fatal("nothing was kept")
			}
		}
	}
	seen := 0
	for slug := range s.tenants {
		for _, sel := range []tenants.Selector{{}, {Labels: map[string]string{"role": "db"}}, {IDs: []tenants.NodeID{s.nodes[slug][1].scope.Nodes.IDs[0]}}} {
			secret := s.token(slug, tenants.Diagnose, sel)
			for name, o := range owned {
				for _, body := range []string{
					toolCall(getEvent, fmt.Sprintf(`{"event_id":%q}`, o.event)), toolCall(getEvent, fmt.Sprintf(`{"event_id":%q}`, o.kept)), toolCall(checkTask, fmt.Sprintf(`{"ticket_id":%q,"format":"detailed"}`, o.ticket)),
					toolCall(cancelTask, fmt.Sprintf(`{"ticket_id":%q}`, o.ticket)), toolCall("list_events", `{}`), toolCall("list_events", `{"origin":"task"}`), toolCall("list_events", `{"labels":{"role":"db"}}`),
					toolCall("trace_tcp_retransmits", `{"selector":{"role":"web"},"duration_s":1}`),
					read(recentURI), read(eventPrefix + o.event + eventSuffix), read(ticketPrefix + o.ticket),
				} {
					r := send(t, http.MethodPost, s.url(slug), secret, body)
					for _, n := range append(append([]planted{}, s.nodes["acme"]...), s.nodes["globex"]...) {
						mine := n.scope.Slug == slug && sel.Matches(n.scope.Nodes.IDs[0], map[string]string{"role": n.role})
						for _, w := range n.words[:4] {
							if !mine && strings.Contains(r.body, w) {
								t.Fatalf("%s with %v saw %q of %s (asked about %s): %s\n%s", slug, sel, w, n.name, name, body, r.body)
							}
							if mine && strings.Contains(r.body, w) {
								seen++
							}
						}
					}
				}
			}
		}
	}
	if seen < 100 {
		t.Errorf("callers saw only %d words of their own: the property proves nothing", seen)
	}
}

func read(uri string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":%q}}`, uri)
}
