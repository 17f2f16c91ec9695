package conformance_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestDefectEndsOneCall calls a tool that panics, in both eras: the caller gets
// an internal error with the reference under which the log has the cause, and
// the process goes on.
func TestDefectEndsOneCall(t *testing.T) {
	w := start(t)
	meta := `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	for _, era := range []struct{ version, meta string }{{"2025-11-25", ""}, {"2026-07-28", meta}} {
		tool := func(name string) (reference string, code int, data map[string]string, text string) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url(), strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+name+`","arguments":{}`+era.meta+`}}`))
			must(t, err)
			for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": era.version} {
				req.Header.Set(k, v)
			}
			if era.meta != "" {
				req.Header.Set("Mcp-Method", "tools/call")
				req.Header.Set("Mcp-Name", name)
			}
			res, err := http.DefaultClient.Do(req)
			must(t, err)
			defer res.Body.Close()
			raw, err := io.ReadAll(res.Body)
			must(t, err)
			text = string(raw)
			if _, event, ok := strings.Cut(text, "data: "); ok {
				text, _, _ = strings.Cut(event, "\n")
			}
			var msg struct {
				Error struct {
					Code int
					Data map[string]string
				}
			}
			must(t, json.Unmarshal([]byte(text), &msg))
			return res.Header.Get("Telltale-Reference"), msg.Error.Code, msg.Error.Data, text
		}
		ref, code, data, text := tool("test_panic")
		if code != -32603 || ref == "" || data["reference_id"] != ref || strings.Contains(text, "a defect of the fixture") {
			t.Errorf("%s: reference %q, %s", era.version, ref, text)
		}
		if _, _, _, text := tool("test_simple_text"); !strings.Contains(text, "simple text response") {
			t.Errorf("%s: the next call: %s", era.version, text)
		}
	}
}
