package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

const listCall = `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`

func toolCall(name, args string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, name, args)
}

func modernMeta(method, params string) (body string, header []string) {
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	if params != "" {
		params += ","
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s%s}}`, method, params, meta), []string{versionHeader, modernVersion, "Mcp-Method", method}
}

func rpcError(t *testing.T, r reply) (code int, msg string) {
	t.Helper()
	var m struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(r.rpc()), &m); err != nil || m.Version != "2.0" || m.ID == nil {
		t.Fatalf("no JSON-RPC message (%v) in %d %q", err, r.status, r.body)
	}
	if m.Error == nil {
		return 0, ""
	}
	return m.Error.Code, m.Error.Message
}

func TestWhatIsRefusedBeforeTheTools(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(3)}, nil)
	deep := strings.Repeat(`{"a":`, 80) + "1" + strings.Repeat("}", 80)
	for name, c := range map[string]struct {
		body   string
		header []string
		status int
		code   int
		words  string
	}{
		"empty":                  {"", nil, 400, -32700, "empty"},
		"not JSON":               {"{oops", nil, 400, -32700, "not valid JSON"},
		"cut short":              {`{"jsonrpc":"2.0","id":1,`, nil, 400, -32700, "not valid JSON"},
		"text after it":          {listCall + "x", nil, 400, -32700, ""},
		"two messages":           {listCall + listCall, nil, 400, -32700, "follows"},
		"bad UTF-8":              {"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}", nil, 400, -32700, "UTF-8"},
		"batch":                  {"[" + listCall + "]", nil, 400, -32600, "batches"},
		"batch of the old era":   {" [" + listCall + "]", []string{versionHeader, "2025-03-26"}, 400, -32600, "batches"},
		"batch of the first era": {"[]", []string{versionHeader, "2024-11-05"}, 400, -32600, "batches"},
		"scalar":                 {"42", nil, 400, -32600, "object"},
		"key twice":              {`{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"ping"}`, nil, 400, -32600, "twice"},
		"key twice, escaped":     {`{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/list"}`, nil, 400, -32600, "twice"},
		"key twice inside":       {toolCall("list_nodes", `{"limit":1,"limit":2}`), nil, 400, -32600, "twice"},
		"too deep":               {deep, nil, 400, -32600, "deeper"},
		"no version":             {`{"id":1,"method":"ping"}`, nil, 400, -32600, "jsonrpc"},
		"other version":          {`{"jsonrpc":"1.0","id":1,"method":"ping"}`, nil, 400, -32600, "jsonrpc"},
		"no method":              {`{"jsonrpc":"2.0","id":1}`, nil, 400, -32600, "method"},
		"method no string":       {`{"jsonrpc":"2.0","id":1,"method":3}`, nil, 400, -32600, "method"},
		"id an object":           {`{"jsonrpc":"2.0","id":{},"method":"ping"}`, nil, 400, -32600, "id"},
		"id null":                {`{"jsonrpc":"2.0","id":null,"method":"ping"}`, nil, 400, -32600, "id"},
		"params a list":          {`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}`, nil, 200, -32602, "params"},
		"tool without a name":    {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, nil, 200, -32602, "name"},
		"arguments a list":       {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_nodes","arguments":[]}}`, nil, 200, -32602, "arguments"},
		"unknown tool":           {toolCall("no_such_tool", "{}"), nil, 200, -32602, "unknown tool"},
		"unknown method":         {`{"jsonrpc":"2.0","id":1,"method":"nodes/explode"}`, nil, 200, -32601, "nodes/explode"},
		"unsupported version":    {listCall, []string{versionHeader, "1999-01-01"}, 400, -32600, "nsupported"},
		"a later version":        {listCall, []string{versionHeader, "2026-07-29"}, 400, -32600, "nsupported"},
		"a version of letters":   {listCall, []string{versionHeader, "zzz"}, 400, -32600, "nsupported"},
		"subscribe":              {`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"telltale://health"}}`, nil, 200, -32601, "stateless"},
		"unsubscribe":            {`{"jsonrpc":"2.0","id":1,"method":"resources/unsubscribe","params":{"uri":"telltale://health"}}`, nil, 200, -32601, "stateless"},
		"log level":              {`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`, nil, 200, -32601, "stateless"},
		"content type":           {listCall, []string{"Content-Type", "text/plain"}, 415, -32600, "application/json"},
		"accept":                 {listCall, []string{"Accept", "text/html"}, 400, -32600, "Accept"},
		"resource elsewhere":     {`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}`, nil, 200, -32602, "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.post(t, "read", "", c.body, c.header...)
			code, msg := rpcError(t, r)
			if r.status != c.status || code != c.code || !strings.Contains(msg, c.words) {
				t.Errorf("got %d, code %d %q; want %d, code %d with %q", r.status, code, msg, c.status, c.code, c.words)
			}
			if cc := r.header.Get("Cache-Control"); !strings.Contains(cc, "no-store") {
				t.Errorf("Cache-Control %q", cc)
			}
		})
	}
}

func TestModernRefusals(t *testing.T) {
	w := start(t, stub{}, nil)
	body, header := modernMeta("nodes/explode", "")
	r := w.post(t, "read", "", body, header...)
	if code, _ := rpcError(t, r); r.status != 404 || code != -32601 {
		t.Errorf("unknown method: %d %s", r.status, r.body)
	}
	body, header = modernMeta("tools/call", `"name":"no_such_tool"`)
	r = w.post(t, "read", "", body, append(header, "Mcp-Name", "no_such_tool")...)
	if code, _ := rpcError(t, r); r.status != 400 || code != -32602 {
		t.Errorf("unknown tool: %d %s", r.status, r.body)
	}
	body, header = modernMeta("tools/call", `"name":"list_nodes"`)
	r = w.post(t, "read", "", body, append(header, "Mcp-Name", "get_node")...)
	if code, msg := rpcError(t, r); r.status != 400 || code == 0 {
		t.Errorf("header and body name different tools: %d %d %s", r.status, code, msg)
	}
	r = w.post(t, "read", "", listCall, versionHeader, "2099-01-01", "Mcp-Method", "tools/list")
	if w.h.MixedEra() != 0 || r.status != 400 {
		t.Errorf("a future version without metadata: %d %s, %d tolerated", r.status, r.body, w.h.MixedEra())
	}
}

func TestBodyCap(t *testing.T) {
	w := start(t, stub{}, nil)
	big := `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("a", tenants.MaxRequestBytes) + `"}}`
	r := w.post(t, "read", "", big)
	if code, _ := rpcError(t, r); r.status != http.StatusRequestEntityTooLarge || code != -32600 {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

// late is a body that does not arrive before the connection's deadline.
type late struct{}

func (late) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func TestLateBody(t *testing.T) {
	_, e := readBody(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/t/acme/mcp", late{}))
	if e == nil || e.Status != http.StatusRequestTimeout || !strings.Contains(e.Message, "in time") {
		t.Errorf("got %+v, want 408", e)
	}
}

func TestMethodsPathsAndHeaders(t *testing.T) {
	w := start(t, stub{}, nil)
	for _, method := range []string{http.MethodGet, http.MethodDelete, http.MethodPut} {
		r := send(t, method, w.URL+"/t/acme/mcp", "read", "")
		if r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != "POST" {
			t.Errorf("%s: %d, Allow %q", method, r.status, r.header.Get("Allow"))
		}
	}
	for _, path := range []string{"/t/acme/mcp", "/t/acme/mcp/"} {
		r := send(t, http.MethodPost, w.URL+path, "read", listCall, "Mcp-Session-Id", "of-another-replica")
		if r.status != 200 || !strings.Contains(r.body, "list_nodes") {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
		if r.header.Get("Mcp-Session-Id") != "" || r.header.Get("X-Accel-Buffering") != "no" || !strings.Contains(r.header.Get("Vary"), "Authorization") || r.header.Get("Cache-Control") != "no-store, no-transform" {
			t.Errorf("%s: headers %v", path, r.header)
		}
	}
	for _, note := range []string{"notifications/initialized", "notifications/of_the_future"} {
		if r := w.post(t, "read", "", `{"jsonrpc":"2.0","method":"`+note+`"}`); r.status != http.StatusAccepted || r.body != "" {
			t.Errorf("%s: %d %q", note, r.status, r.body)
		}
	}
	if r := w.post(t, "read", "", `{"jsonrpc":"2.0","id":4,"result":{}}`); r.status != http.StatusAccepted {
		t.Errorf("a response: %d %q", r.status, r.body)
	}
}

func TestWithoutAuthenticationInFrontNothingIsAnswered(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(1)}, nil)
	bare := httptest.NewRecorder()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/t/acme/mcp", strings.NewReader(listCall))
	if err != nil {
		t.Fatal(err)
	}
	w.h.ServeHTTP(bare, req)
	if bare.Code != http.StatusUnauthorized || strings.Contains(bare.Body.String(), "list_nodes") {
		t.Errorf("got %d %s", bare.Code, bare.Body)
	}
}

func TestSwitchedOff(t *testing.T) {
	off := start(t, stub{}, func(c *Config) { c.Disabled = true })
	r := off.post(t, "read", "", listCall)
	if _, msg := rpcError(t, r); r.status != 404 || !strings.Contains(msg, "switched off on this server") {
		t.Errorf("server: %d %s", r.status, r.body)
	}
	one := start(t, stub{}, func(c *Config) { c.Tenants = switches{"acme": {Slug: "acme", MCPDisabled: true}} })
	r = one.post(t, "read", "", listCall)
	if _, msg := rpcError(t, r); r.status != 403 || !strings.Contains(msg, "for this tenant") || r.header.Get("WWW-Authenticate") != "" {
		t.Errorf("tenant: %d %s", r.status, r.body)
	}
}

func TestMixedEra(t *testing.T) {
	w := start(t, stub{}, nil)
	r := w.post(t, "read", "", listCall, versionHeader, modernVersion)
	if r.status != 200 || !strings.Contains(r.body, "list_nodes") || w.h.MixedEra() != 1 {
		t.Errorf("tolerated: %d %s, counted %d", r.status, r.body, w.h.MixedEra())
	}
	if r = w.post(t, "read", "", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, versionHeader, modernVersion); r.status != http.StatusAccepted {
		t.Errorf("notification: %d %s", r.status, r.body)
	}
	strict := start(t, stub{}, func(c *Config) { c.StrictEras = true })
	if r = strict.post(t, "read", "", listCall, versionHeader, modernVersion); r.status != 400 {
		t.Errorf("strict: %d %s", r.status, r.body)
	}
}

func TestStepUp(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(1)}, nil)
	w.add(Tool{Name: "restart_it", Title: "Restart", Description: "for tests", Set: "act", Scope: tenants.Act, Writes: true,
		Run: func(context.Context, Call) (Answer, error) { return Answer{Body: map[string]any{}, Text: "done"}, nil }})
	r := w.post(t, "read", "", toolCall("restart_it", "{}"))
	if r.status != 403 || w.need != tenants.Act || !strings.Contains(r.header.Get("WWW-Authenticate"), "telltale:read telltale:act") {
		t.Errorf("only a scope is missing: %d %v need %s", r.status, r.header, w.need)
	}
	for name, query := range map[string]string{"read-only": "?readonly=1", "excluded": "?exclude=restart_it", "other set": "?toolsets=observe"} {
		r := w.post(t, "read", query, toolCall("restart_it", "{}"))
		if code, _ := rpcError(t, r); r.status != 200 || code != -32602 {
			t.Errorf("%s: a hidden tool is unknown, got %d %s", name, r.status, r.body)
		}
	}
	if r := w.post(t, "act", "", toolCall("restart_it", "{}")); r.status != 200 || !strings.Contains(r.body, "done") {
		t.Errorf("with the scope: %d %s", r.status, r.body)
	}
	if r := w.post(t, "payloads", "", toolCall("list_nodes", "{}")); r.status != 403 || w.need != tenants.Read {
		t.Errorf("payloads alone grants nothing: %d %s", r.status, r.body)
	}
	if r := w.post(t, "payloads", "", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"telltale://health"}}`); r.status != 403 {
		t.Errorf("resources need read: %d %s", r.status, r.body)
	}
	if r := w.post(t, "payloads", "", listCall); r.status != 200 || strings.Contains(r.body, "list_nodes") {
		t.Errorf("without read the list is empty: %d %s", r.status, r.body)
	}
}

func TestURLNarrows(t *testing.T) {
	w := start(t, stub{}, nil)
	for query, want := range map[string]string{
		"?toolsets=observe": "list_nodes", "?readonly=1": "list_nodes", "?exclude=get_node": "list_nodes", "?schemas=1": "outputSchema",
	} {
		if r := w.post(t, "read", query, listCall); r.status != 200 || !strings.Contains(r.body, want) {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}
	if r := w.post(t, "read", "?exclude=get_node", listCall); strings.Contains(r.body, `"name":"get_node"`) {
		t.Error("exclude has no effect")
	}
	if r := w.post(t, "read", "", listCall); strings.Contains(r.body, "outputSchema") {
		t.Error("output schemas are in the default list")
	}
	for _, query := range []string{"?toolsets=obserev", "?exclude=nothing", "?readonly=perhaps", "?schemas=x", "?toolsets=observe,"} {
		r := w.post(t, "read", query, listCall)
		if query == "?toolsets=observe," {
			if r.status != 200 {
				t.Errorf("%s: %d", query, r.status)
			}
			continue
		}
		if code, msg := rpcError(t, r); r.status != 400 || code != -32600 || !strings.Contains(msg, strings.TrimPrefix(strings.Split(query, "=")[0], "?")) {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}
}

// TestURLRefusesUnknownParameters: narrowing is for safety, and a mistyped one
// that is passed over would widen the list.
func TestURLRefusesUnknownParameters(t *testing.T) {
	w := start(t, stub{}, nil)
	for _, key := range []string{"read_only", "readOnly", "READONLY", "toolset", "tool_sets", "excludes", "schema", "x", ""} {
		r := w.post(t, "read", "?toolsets=observe&"+key+"=1", listCall)
		if code, msg := rpcError(t, r); r.status != 400 || code != -32600 || !strings.Contains(msg, strconv.Quote(key)) || !strings.Contains(msg, "toolsets, exclude, readonly, schemas") {
			t.Errorf("%s: %d %s", key, r.status, r.body)
		}
	}
	for _, query := range []string{"?access_token=x", "?readonly=1&token=x", "?"} { // tokens in query strings are ignored
		if r := w.post(t, "read", query, listCall); r.status != 200 {
			t.Errorf("%s: %d %s", query, r.status, r.body)
		}
	}
}

func TestAbandonedModernCallIsCancelled(t *testing.T) {
	started, ended := make(chan struct{}), make(chan error, 1)
	w := start(t, stub{}, nil)
	w.h.tools = append(w.h.tools, Tool{Name: "wait_here", Title: "Wait", Description: "for tests", Set: observeSet, Scope: tenants.Read,
		Run: func(ctx context.Context, _ Call) (Answer, error) {
			close(started)
			<-ctx.Done()
			ended <- ctx.Err()
			return Answer{}, ctx.Err()
		}})
	ctx, cancel := context.WithCancel(t.Context())
	body, header := modernMeta("tools/call", `"name":"wait_here"`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/t/acme/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Header.Set("Mcp-Name", "wait_here")
	req.Header.Set("Authorization", "Bearer read")
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	go func() {
		<-started
		cancel()
	}()
	if res, err := http.DefaultClient.Do(req); err == nil {
		_ = res.Body.Close()
	}
	select {
	case err := <-ended:
		if err != context.Canceled {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("the call was not cancelled")
	}
}
