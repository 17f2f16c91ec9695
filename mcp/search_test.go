package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
)

// convention checks what hosted research clients expect: one block of text
// that is the structured content.
func convention(t *testing.T, res *sdk.CallToolResult, into any) {
	t.Helper()
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var text, structured any
	if err := json.Unmarshal([]byte(textOf(t, res)), &text); err != nil || res.IsError {
		t.Fatalf("the text is no JSON: %s", textOf(t, res))
	}
	if err := json.Unmarshal(raw, &structured); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(structured, text); d != "" {
		t.Errorf("text and structured content differ: %s", d)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

// TestSearchAndFetch searches as people write, and fetches all that it finds.
func TestSearchAndFetch(t *testing.T) {
	s := newSystem(t)
	c := connect(t, s.url("acme"), s.token("acme", tenants.Diagnose, tenants.Selector{}), "")
	db := s.nodes["acme"][2]
	event, fetched := "", map[string]bool{}
	ticket, _ := bodyOf(t, call(t, c, "trace_tcp_retransmits", `{"node":"`+db.id+`","duration_s":2}`).StructuredContent)["ticket_id"].(string)
	for _, q := range []struct{ query, first string }{
		{"acme-node-2", "node:" + db.id}, {db.id, "node:" + db.id}, {"node:" + db.id, "node:" + db.id}, {"role=db", "node:" + db.id}, {"Where is ACME-NODE-2?", "node:" + db.id},
		{"retransmit_burst acme-node-2-peer", "event:"}, {"retransmit burst on acme-node-2", "event:"}, {ticket, "task:" + ticket}, {"task:" + ticket, "task:" + ticket},
		{"metrics_summary", "tool:metrics_summary"}, {"which connections send again", "tool:trace_tcp_retransmits"},
	} {
		var got searchAnswer
		convention(t, call(t, c, "search", fmt.Sprintf(`{"query":%q}`, q.query)), &got)
		if len(got.Results) == 0 || len(got.Results) > maxHits || !strings.HasPrefix(got.Results[0].ID, q.first) {
			t.Errorf("%q found %+v, want %s first", q.query, got.Results, q.first)
			continue
		}
		if q.first == "event:" {
			event = got.Results[0].ID
		}
		for _, h := range got.Results {
			if h.Title == "" || !strings.HasPrefix(h.URL, "https://telltale.example/t/acme/ui") {
				t.Errorf("%q: %+v", q.query, h)
			}
			if fetched[h.ID] {
				continue
			}
			fetched[h.ID] = true
			var d document
			convention(t, call(t, c, "fetch", fmt.Sprintf(`{"id":%q}`, h.ID)), &d)
			if d.ID != h.ID || d.Title == "" || d.Text == "" || d.URL != h.URL || d.Metadata["kind"] == "" {
				t.Errorf("%s: %+v, found as %+v", h.ID, d, h)
			}
		}
	}
	for id, words := range map[string][]string{
		"node:acme-node-2": {"acme-node-2 (" + db.id + ") is online", "\n", "network/tcp"}, event: {"retransmit_burst", "remote=acme-node-2-peer"}, "task:" + ticket: {"segments"}, "tool:list_nodes": {"Arguments: {"},
	} {
		var d document
		convention(t, call(t, c, "fetch", fmt.Sprintf(`{"id":%q}`, id)), &d)
		for _, w := range words {
			if !strings.Contains(d.Text, w) {
				t.Errorf("%s lacks %q: %s", id, w, d.Text)
			}
		}
	}
	var none searchAnswer
	convention(t, call(t, c, "search", `{"query":"zebra"}`), &none)
	if none.Results == nil || len(none.Results) != 0 {
		t.Errorf("found %+v", none)
	}
	for args, want := range map[string]string{`{"query":" the ? "}`: "INVALID_ARGUMENT", `{}`: "INVALID_ARGUMENT"} {
		if res := call(t, c, "search", args); !res.IsError || !strings.Contains(textOf(t, res), want) {
			t.Errorf("%s: %s", args, textOf(t, res))
		}
	}
	theirs := s.nodes["globex"][0]
	for _, id := range []string{"node:" + theirs.id, "node:" + theirs.name, "node:", "", "zebra:1", "event:x", "event:0195ffff-0000-7000-8000-000000000000", "task:0195ffff-0000-7000-8000-000000000000", "tool:list_tokens", "tool:no"} {
		res := call(t, c, "fetch", fmt.Sprintf(`{"id":%q}`, id))
		if text := textOf(t, res); !res.IsError || !strings.HasPrefix(text, "NOT_FOUND") && !strings.HasPrefix(text, "INVALID_ARGUMENT") || strings.Contains(text, "event_id") || strings.Contains(text, "ticket_id (") {
			t.Errorf("%q: %s", id, text)
		}
	}
}

// TestSearchEndsAtTheSelector: a limited caller finds nothing of other nodes,
// however it asks.
func TestSearchEndsAtTheSelector(t *testing.T) {
	s := newSystem(t)
	c := connect(t, s.url("acme"), s.token("acme", tenants.Read, tenants.Selector{Labels: map[string]string{"role": "db"}}), "")
	hidden := s.nodes["acme"][0]
	for _, q := range []string{hidden.name, hidden.id, "node:" + hidden.id, "role=web", hidden.name + "-peer", "retransmit_burst", "acme online", "owner=acme-owner"} {
		res := call(t, c, "search", fmt.Sprintf(`{"query":%q}`, q))
		if text := textOf(t, res); strings.Contains(text, hidden.id) || strings.Contains(text, hidden.name) {
			t.Errorf("%q found %s", q, text)
		}
	}
}

// TestSearchInALargeFleet: what lies beyond the first page is found by what
// equals a word.
func TestSearchInALargeFleet(t *testing.T) {
	s := newSystem(t)
	db := s.nodes["acme"][2]
	for i := range tenants.MaxListRows {
		s.enrol("acme", fmt.Sprintf("aaa-%03d", i), "batch")
	}
	c := connect(t, s.url("acme"), s.token("acme", tenants.Read, tenants.Selector{}), "")
	for _, q := range []string{"acme-node-2", db.id, "role=db", "role:db", "db"} {
		var got searchAnswer
		convention(t, call(t, c, "search", fmt.Sprintf(`{"query":%q}`, q)), &got)
		if len(got.Results) == 0 || got.Results[0].ID != "node:"+db.id {
			t.Errorf("%q found %+v", q, got.Results)
		}
	}
}
