package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
)

// The tests of this file hold the handler to what is easy to lose: each is a
// trap that a client or an SDK was seen to fall into.

// TestCapabilitiesAreExact: what is registered is advertised and nothing else,
// and the initialize era is offered nothing that it cannot be given.
func TestCapabilitiesAreExact(t *testing.T) {
	b := newBackend()
	everything := start(t, stub{}, func(c *Config) {
		withEverything(b)(c)
		c.Services.Running = &fakeRunning{fleets: map[string][]string{}, b: b}
	})
	for _, c := range []struct{ version, bearer, want string }{
		{"2024-11-05", "diagnose", `{"completions":{},"prompts":{},"resources":{},"tools":{}}`},
		{lastLegacy, "diagnose", `{"completions":{},"prompts":{},"resources":{},"tools":{}}`},
		{lastLegacy, "payloads", `{}`},
		{modernVersion, "diagnose", `{"extensions":{"io.modelcontextprotocol/tasks":{}},"completions":{},"prompts":{},"resources":{"subscribe":true},"tools":{"listChanged":true}}`},
		{modernVersion, "payloads", `{}`},
	} {
		s := connect(t, everything.URL+"/t/acme/mcp", c.bearer, c.version)
		raw, err := json.Marshal(s.InitializeResult().Capabilities)
		if err != nil || string(raw) != c.want {
			t.Errorf("%s %s: capabilities %s (%v), want %s", c.version, c.bearer, raw, err, c.want)
		}
	}
}

// TestNothingIsPublic: every cacheable answer is private to its caller, and
// nothing leads to one that is not.
func TestNothingIsPublic(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(2)}, withEverything(newBackend()))
	private := 0
	for _, c := range [][2]string{
		{"tools/list", ""}, {"resources/list", ""}, {"resources/templates/list", ""}, {"prompts/list", ""}, {"resources/read", `"uri":"telltale://health"`}, {"resources/read", `"uri":"telltale://events/recent"`},
		{"prompts/get", `"name":"system_triage"`}, {"server/discover", ""}, {"tools/call", `"name":"list_nodes"`}, {"tools/call", `"name":"search","arguments":{"query":"db1"}`},
		{"completion/complete", `"ref":{"type":"ref/resource","uri":"telltale://nodes/{node}"},"argument":{"name":"node","value":"n"}`},
	} {
		body, header := modernMeta(c[0], c[1])
		for _, member := range []string{"name", "uri"} {
			if v := between(c[1], `"`+member+`":"`, `"`); v != "" && c[0] != "completion/complete" {
				header = append(header, "Mcp-Name", v)
				break
			}
		}
		r := w.post(t, "read", "", body, header...)
		if code, msg := rpcError(t, r); r.status != 200 || code != 0 {
			t.Errorf("%s %s: %d %s", c[0], c[1], r.status, msg)
		}
		if scope := between(r.body, `"cacheScope":"`, `"`); scope == "private" {
			private++
		} else if scope != "" {
			t.Errorf("%s: cacheScope %q", c[0], scope)
		}
		if strings.HasSuffix(c[0], "/list") || c[0] == "resources/read" {
			if !strings.Contains(r.body, `"cacheScope":"private"`) {
				t.Errorf("%s says nothing of caching: %s", c[0], r.body)
			}
		}
	}
	if private < 6 {
		t.Errorf("only %d answers are marked", private)
	}
}

// TestNoAnswerIsStored looks at the headers of every kind of answer.
func TestNoAnswerIsStored(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(1)}, withBackend(newBackend()))
	off := start(t, stub{}, func(c *Config) { c.Disabled = true })
	over := start(t, stub{}, func(c *Config) { c.Limits = &fakeLimits{left: map[string]int{}} })
	seen := map[int]bool{}
	check := func(name string, r reply) {
		t.Helper()
		seen[r.status] = true
		vary := strings.Join(r.header.Values("Vary"), ",")
		if !strings.Contains(r.header.Get("Cache-Control"), "no-store") || !strings.Contains(vary, "Authorization") || r.header.Get("X-Accel-Buffering") != "no" || r.header.Get("Telltale-Reference") == "" || r.header.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s: %d %v", name, r.status, r.header)
		}
	}
	for name, body := range map[string]string{"list": listCall, "call": toolCall("list_nodes", "{}"), "refusal": toolCall("get_node", "{}"), "step-up": toolCall("trace_slow_io", "{}"), "unknown": toolCall("x", "{}"),
		"notification": `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "batch": "[]", "broken": "{", "unknown method": `{"jsonrpc":"2.0","id":1,"method":"x/y"}`} {
		check(name, w.post(t, "read", "", body))
	}
	check("query", w.post(t, "read", "?toolsets=x", listCall))
	check("type", w.post(t, "read", "", listCall, "Content-Type", "text/plain"))
	check("accept", w.post(t, "read", "", listCall, "Accept", "text/html"))
	check("version", w.post(t, "read", "", listCall, versionHeader, "1999-01-01"))
	check("too large", w.post(t, "read", "", strings.Repeat(" ", tenants.MaxRequestBytes+1)))
	check("get", send(t, http.MethodGet, w.URL+"/t/acme/mcp", "read", ""))
	check("delete", send(t, http.MethodDelete, w.URL+"/t/acme/mcp", "read", ""))
	check("off", off.post(t, "read", "", listCall))
	check("over", over.post(t, "read", "", listCall))
	for _, status := range []int{200, 202, 400, 403, 404, 405, 413, 415, 429} {
		if !seen[status] {
			t.Errorf("no answer had status %d", status)
		}
	}
}

// TestScopeAgainAtTheTool: a call that reaches a tool past the checks before it
// finds the tool unknown.
func TestScopeAgainAtTheTool(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(1)}, withEverything(newBackend()))
	for _, tool := range w.h.tools {
		for _, granted := range []tenants.Scopes{0, tenants.Payloads} {
			for _, ctx := range []context.Context{t.Context(), context.WithValue(t.Context(), callerKey{}, caller{scope: tenants.Scope{Tenant: w.tenant, Granted: granted}})} {
				res, err := w.h.guard(tool)(ctx, &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{Name: tool.Name}})
				if wire, ok := errors.AsType[*jsonrpc.Error](err); res != nil || !ok || wire.Code != jsonrpc.CodeInvalidParams || !strings.Contains(wire.Message, "unknown tool") {
					t.Errorf("%s: %v %v", tool.Name, res, err)
				}
			}
		}
	}
}

// TestPlainErrorsAreInternal: an error that is none of the protocol's would
// leave with code 0; a panic would end the process.
func TestPlainErrorsAreInternal(t *testing.T) {
	w := start(t, stub{}, nil)
	for name, next := range map[string]sdk.MethodHandler{
		"error": func(context.Context, string, sdk.Request) (sdk.Result, error) {
			return nil, errors.New("dial unix /secret")
		},
		"panic": func(context.Context, string, sdk.Request) (sdk.Result, error) { panic("/secret") },
	} {
		res, err := w.h.recoverer(next)(context.WithValue(t.Context(), callerKey{}, caller{reference: "ref1"}), "x/y", nil)
		wire, ok := errors.AsType[*jsonrpc.Error](err)
		if res != nil || !ok || wire.Code != jsonrpc.CodeInternalError || strings.Contains(wire.Message+string(wire.Data), "secret") || !strings.Contains(wire.Message, "ref1") {
			t.Errorf("%s: %v %v", name, res, err)
		}
	}
	want := &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "as it is"}
	if _, err := w.h.recoverer(func(context.Context, string, sdk.Request) (sdk.Result, error) { return nil, want })(t.Context(), "x/y", nil); err != want {
		t.Errorf("%v", err)
	}
}

// TestPanicInEitherEra: a panic anywhere is -32603 with a reference, and the
// next request is answered.
func TestPanicInEitherEra(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(1)}, nil)
	w.withTool("panic_now", nil, func(context.Context, Call) (Answer, error) { panic("secret detail") })
	body, header := modernMeta("tools/call", `"name":"panic_now"`)
	for name, r := range map[string]reply{"legacy": w.post(t, "read", "", toolCall("panic_now", "{}")), "modern": w.post(t, "read", "", body, append(header, "Mcp-Name", "panic_now")...)} {
		if code, msg := rpcError(t, r); code != -32603 || !strings.Contains(msg, r.header.Get("Telltale-Reference")) || strings.Contains(r.body, "secret") {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	if r := w.post(t, "read", "", listCall); r.status != 200 {
		t.Errorf("afterwards: %d", r.status)
	}
}

// TestDefaultsOfStreams: comments come every 15 to 25 seconds, and neither the
// listener's write time-out nor its read time-out cuts a call.
func TestDefaultsOfStreams(t *testing.T) {
	w := start(t, stub{}, nil)
	if p := w.h.cfg.Pulse; p < 15*time.Second || p > 25*time.Second {
		t.Errorf("a comment every %s", p)
	}
	waits := make(chan struct{})
	w.withTool("wait_here", nil, func(ctx context.Context, _ Call) (Answer, error) {
		<-waits
		return Answer{Body: map[string]any{}, Text: "waited"}, nil
	})
	s := httptest.NewUnstartedServer(w.signIn(w.h))
	s.Config.ReadTimeout, s.Config.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond
	s.Start()
	t.Cleanup(s.Close)
	time.AfterFunc(200*time.Millisecond, func() { close(waits) })
	if r := send(t, http.MethodPost, s.URL+"/t/acme/mcp", "read", toolCall("wait_here", "{}")); r.status != 200 || !strings.Contains(r.body, "waited") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestBareLegacyRequests: in stateless mode a legacy request has no client
// capabilities and no initialization before it; nothing may stand on them.
func TestBareLegacyRequests(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(1)}, withEverything(newBackend()))
	for _, tool := range w.h.tools {
		for _, version := range []string{"", "2024-11-05", lastLegacy} {
			header := []string{}
			if version != "" {
				header = []string{versionHeader, version}
			}
			body := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"_meta":{"progressToken":1},"arguments":{}}}`, tool.Name)
			if r := w.post(t, everyScope, "", body, header...); r.status != 200 || strings.Contains(r.body, "-32603") || !strings.Contains(r.body, `"content"`) {
				t.Errorf("%s %s: %d %s", tool.Name, version, r.status, r.body)
			}
		}
	}
	for _, body := range []string{`"method":"ping"`, `"method":"prompts/list"`, `"method":"prompts/get","params":{"name":"system_triage"}`, `"method":"resources/list"`, `"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`,
		`"method":"initialize","params":{"protocolVersion":"2025-11-25"}`, `"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"system_triage"},"argument":{"name":"node","value":""}}`} {
		if r := w.post(t, "read", "", `{"jsonrpc":"2.0","id":7,`+body+`}`); r.status != 200 || strings.Contains(r.body, "-32603") {
			t.Errorf("%s: %d %s", body, r.status, r.body)
		}
	}
}

// TestAnyReplicaAnswers: a conversation may end on another server than it
// began, in both eras: nothing is kept between two requests.
func TestAnyReplicaAnswers(t *testing.T) {
	b := newBackend()
	first, second := start(t, stub{nodes: stubNodes(3)}, withBackend(b)), start(t, stub{nodes: stubNodes(3)}, withBackend(b))
	own := b.slugs // both replicas serve the same tenants
	b.mu.Lock()
	own[first.tenant], own[first.other] = "acme", "globex"
	b.mu.Unlock()
	turn := 0
	balancer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		turn++
		[]*world{first, second}[turn%2].Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(balancer.Close)
	for _, version := range []string{lastLegacy, modernVersion} {
		s := connect(t, balancer.URL+"/t/acme/mcp", "diagnose", version)
		for range 4 {
			if res := call(t, s, "list_nodes", "{}"); res.IsError || !strings.Contains(textOf(t, res), "node-002") {
				t.Errorf("%s: %s", version, textOf(t, res))
			}
			if _, err := s.ListTools(t.Context(), nil); err != nil {
				t.Errorf("%s: %v", version, err)
			}
		}
	}
}

// TestListsAreTheSameEachTime: a list that changed its order would break the
// caches of prompts that clients keep.
func TestListsAreTheSameEachTime(t *testing.T) {
	a, b := start(t, stub{}, withEverything(newBackend())), start(t, stub{}, withEverything(newBackend()))
	want := string(toolList(t, a, everyScope, ""))
	if got := string(toolList(t, b, everyScope, "")); got != want {
		t.Error("two servers list the same tools in other words")
	}
	names := a.names(t, everyScope, "")
	if !slices.IsSorted(names) {
		t.Errorf("not sorted: %v", names)
	}
	if m := regexp.MustCompile(`"(?:oneOf|anyOf|\$ref)"|\["null"`).FindString(want); m != "" {
		t.Errorf("the list holds %s", m)
	}
}
