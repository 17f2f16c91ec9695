package mcp

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Bad input of every sort is counted, and the next good call is answered.
func TestBadInputIsCounted(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(1)}, nil)
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"`, // cut
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`,    // a batch
		toolCall("no_such_tool", "{}"),
		toolCall("list_nodes", `{"colour":"red"}`),
		toolCall("list_nodes", `{"limit":1000000000}`), // clamped with a note
		`{"jsonrpc":"2.0","id":1,"method":"no/such"}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"telltale://nodes/none"}}`,
	} {
		w.post(t, "read", "", body)
	}
	if r := w.post(t, "read", "", toolCall("list_nodes", "{}")); r.status != http.StatusOK {
		t.Errorf("a good call: %d %s", r.status, r.body)
	}
	got := w.h.Counts()
	if d := cmp.Diff(map[string]uint64{"ok": 2, "invalid_argument": 1, "not_found": 1}, got.Calls); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]uint64{"parse_error": 1, "invalid_request": 1, "invalid_params": 2, "method_not_found": 1}, got.Refused); d != "" {
		t.Errorf("refused (-want +got):\n%s", d)
	}
}
