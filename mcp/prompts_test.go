package mcp

import (
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestPrompts reads every prompt in both eras, with and without a node.
func TestPrompts(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(3)}, withBackend(newBackend()))
	for _, version := range []string{lastLegacy, modernVersion} {
		s := connect(t, w.URL+"/t/acme/mcp", "read", version)
		list, err := s.ListPrompts(t.Context(), nil)
		if err != nil || len(list.Prompts) != 5 {
			t.Fatalf("%v, %d prompts", err, len(list.Prompts))
		}
		for _, p := range list.Prompts {
			if p.Title == "" || p.Description == "" || len(p.Arguments) != 1 || p.Arguments[0].Name != "node" || p.Arguments[0].Required {
				t.Errorf("%s: %+v", p.Name, p)
			}
			for _, node := range []string{"", "db1", "x\u202e\n\"y\""} {
				args := map[string]string{}
				if node != "" {
					args["node"] = node
				}
				got, err := s.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: p.Name, Arguments: args})
				if err != nil || len(got.Messages) != 1 {
					t.Fatalf("%s: %v", p.Name, err)
				}
				text := got.Messages[0].Content.(*sdk.TextContent).Text
				if node == "db1" && !strings.Contains(text, `"db1"`) || node == "" && strings.Contains(text, "node \"") || strings.ContainsRune(text, '\u202e') || strings.Contains(text, "<no value>") || strings.Contains(text, "{{") {
					t.Errorf("%s with %q:\n%s", p.Name, node, text)
				}
				// What each of them must teach.
				for _, rule := range []string{"first", "snapshot", "nknown", "ticket"} {
					if !strings.Contains(text, rule) {
						t.Errorf("%s does not speak of %q", p.Name, rule)
					}
				}
				if n := len(strings.Fields(text)); n > 500 {
					t.Errorf("%s has %d words", p.Name, n)
				}
			}
		}
		if _, err := s.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "no_such_prompt"}); err == nil {
			t.Error("an unknown prompt can be read")
		}
		c, err := s.Complete(t.Context(), &sdk.CompleteParams{Ref: &sdk.CompleteReference{Type: "ref/prompt", Name: "system_triage"}, Argument: sdk.CompleteParamsArgument{Name: "node", Value: "node-"}})
		if err != nil || len(c.Completion.Values) != 3 {
			t.Errorf("completion: %v %+v", err, c)
		}
	}
	if r := w.post(t, "payloads", "", `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"system_triage"}}`); r.status != 403 {
		t.Errorf("without read: %d %s", r.status, r.body)
	}
}
