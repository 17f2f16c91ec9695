package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

func call(t *testing.T, s *sdk.ClientSession, tool, args string) *sdk.CallToolResult {
	t.Helper()
	res, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
	if err != nil {
		t.Fatalf("%s %s: %v", tool, args, err)
	}
	return res
}

// withTool adds one tool to a running handler; call it before any request.
func (w *world) withTool(name string, args []Arg, run func(context.Context, Call) (Answer, error)) {
	w.add(Tool{Name: name, Title: name, Description: "for tests", Set: observeSet, Scope: tenants.Read, Args: args, Secret: []string{"password"}, Run: run})
}

func (w *world) add(tool Tool) {
	w.h.tools, w.h.names = append(w.h.tools, tool), append(w.h.names, tool.Name)
}

func TestPanicEndsOneRequestOnly(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(1)}, nil)
	w.withTool("panic_now", nil, func(context.Context, Call) (Answer, error) { panic("secret detail") })
	r := w.post(t, "read", "", toolCall("panic_now", "{}"))
	code, msg := rpcError(t, r)
	ref := r.header.Get("Telltale-Reference")
	if code != -32603 || ref == "" || !strings.Contains(msg, ref) || strings.Contains(r.body, "secret detail") {
		t.Errorf("got %d %s (reference %q)", r.status, r.body, ref)
	}
	if log := w.log.String(); !strings.Contains(log, "secret detail") || !strings.Contains(log, `"outcome":"panic"`) || !strings.Contains(log, ref) {
		t.Errorf("log %s", log)
	}
	if r := w.post(t, "read", "", toolCall("list_nodes", "{}")); r.status != 200 || !strings.Contains(r.body, "node-000") {
		t.Errorf("the next request: %d %s", r.status, r.body)
	}
}

func TestErrorsAreToolResults(t *testing.T) {
	w := start(t, stub{}, nil)
	for name, err := range map[string]error{
		"INVALID_ARGUMENT":    fault.Bad("x", "too much").Do("less"),
		"NOT_FOUND":           fault.New(fault.NotFound, "r", "m"),
		"UNAVAILABLE":         fault.New(fault.Unavailable, "database_away", "the store is away").Because(errors.New("dial unix /secret/path")),
		"RESOURCE_EXHAUSTED":  fault.New(fault.Exhausted, "r", "m"),
		"FAILED_PRECONDITION": fault.New(fault.Precondition, "r", "m"),
		"DEADLINE_EXCEEDED":   context.DeadlineExceeded,
		"INTERNAL":            errors.New("dial unix /secret/path"),
	} {
		w.withTool("fail_"+strings.ToLower(name), nil, func(context.Context, Call) (Answer, error) { return Answer{}, err })
	}
	s := connect(t, w.URL+"/t/acme/mcp", "read", "")
	for _, k := range []string{"INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED", "INTERNAL"} {
		res := call(t, s, "fail_"+strings.ToLower(k), "{}")
		text := textOf(t, res)
		if !res.IsError || !strings.HasPrefix(text, k) || strings.Contains(text, "secret") {
			t.Errorf("%s: %t %s", k, res.IsError, text)
		}
		if k == "INTERNAL" && !strings.Contains(text, "Reference id: ") {
			t.Errorf("an internal error names its reference: %s", text)
		}
	}
}

func TestAuditLine(t *testing.T) {
	w := start(t, stub{}, nil)
	args := []Arg{{Name: "password", Kind: argString}, {Name: "query", Kind: argString}}
	w.withTool("note_this", args, func(context.Context, Call) (Answer, error) { return Answer{Body: map[string]any{}, Text: "ok"}, nil })
	w.post(t, "read", "", toolCall("note_this", `{"password":"hunter2","query":"`+strings.Repeat("q", 500)+`"}`))
	w.post(t, "read", "", toolCall("note_this", `{"hunter3":1}`))
	log := w.log.String()
	for _, want := range []string{`"msg":"tool call"`, w.tenant.String(), `"principal":"t1"`, `"tool":"note_this"`, `"outcome":"ok"`, `"outcome":"INVALID_ARGUMENT"`, `[redacted]`, `(1 unknown)`, `"reference":"`, `"duration":`, `"bytes":`} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit lines lack %s:\n%s", want, log)
		}
	}
	if strings.Contains(log, "hunter") || strings.Contains(log, strings.Repeat("q", 200)) {
		t.Errorf("the audit line holds a secret or a whole long value:\n%s", log)
	}
}

// TestBudget asks for more than fits: the answer is cut at a row, says so, and
// its cursor leads to the rest without a gap.
func TestBudget(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(180)}, nil)
	s := connect(t, w.URL+"/t/acme/mcp", "read", "")
	seen, cursor := 0, ""
	for range 40 {
		args := `{"limit":1000000000}`
		if cursor != "" {
			args = `{"limit":200,"cursor":"` + cursor + `"}`
		}
		res := call(t, s, "list_nodes", args)
		raw, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(raw) + len(textOf(t, res)); n > tenants.AnswerBytes {
			t.Fatalf("an answer of %d bytes", n)
		}
		var page struct {
			Nodes     []fleet.Node       `json:"nodes"`
			Next      string             `json:"next_cursor"`
			Truncated *tenants.Truncated `json:"truncated"`
			Notes     []string           `json:"notes"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			t.Fatal(err)
		}
		if want := stubNodes(180)[seen].Node; page.Nodes[0].Node != want {
			t.Fatalf("the page begins with %s, want %s", page.Nodes[0].Node, want)
		}
		if cursor == "" && !strings.Contains(strings.Join(page.Notes, " "), "clamped") {
			t.Errorf("no note of the clamped limit: %v", page.Notes)
		}
		seen += len(page.Nodes)
		if cursor = page.Next; cursor == "" {
			break
		}
		if page.Truncated == nil || !strings.Contains(textOf(t, res), cursor) {
			t.Error("a cut page says so in both forms")
		}
	}
	if seen != 180 {
		t.Errorf("saw %d of 180 nodes", seen)
	}
	big := call(t, s, "list_nodes", `{"limit":200,"max_bytes":98304}`)
	small := call(t, s, "list_nodes", `{"limit":200,"max_bytes":2048}`)
	if len(textOf(t, big)) <= len(textOf(t, small)) {
		t.Error("max_bytes has no effect")
	}
	if res := call(t, s, "list_nodes", `{"max_bytes":98305}`); !res.IsError || !strings.Contains(textOf(t, res), "at most 98304") {
		t.Errorf("beyond the maximum: %s", textOf(t, res))
	}
}

func TestOneRowLargerThanTheBudget(t *testing.T) {
	w := start(t, stub{}, nil)
	w.withTool("say_much", nil, func(context.Context, Call) (Answer, error) {
		return Answer{Body: map[string]any{"text": strings.Repeat("x", 125<<10)}, Text: "x", Rows: 1}, nil
	})
	s := connect(t, w.URL+"/t/acme/mcp", "read", "")
	if res := call(t, s, "say_much", "{}"); !res.IsError || !strings.Contains(textOf(t, res), "RESOURCE_EXHAUSTED") {
		t.Errorf("got %s", textOf(t, res))
	}
}

// TestTextFromNodesIsHarmless plants control, bidirectional and zero-width
// characters in everything that nodes write.
func TestTextFromNodesIsHarmless(t *testing.T) {
	evil := "a\u202eb\u200bc\nd\x1b[31me\u2028f\u0000g\\u0041"
	nodes := stubNodes(1)
	nodes[0].Name, nodes[0].Labels, nodes[0].Kernel = evil, map[string]string{"k\u200f": evil}, evil
	w := start(t, stub{nodes: nodes}, nil)
	s := connect(t, w.URL+"/t/acme/mcp", "read", "")
	for _, c := range [][2]string{{"list_nodes", "{}"}, {"get_node", `{"node":"` + nodes[0].Node + `"}`}, {"get_node", `{"node":"x\u202ey"}`}, {"list_nodes", `{"x\u202ey":1}`}, {"metrics_summary", `{"module":"network"}`}} {
		res := call(t, s, c[0], c[1])
		raw, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		walk(v, func(s string) {
			if strings.ContainsFunc(s, inspector.Hidden) {
				t.Errorf("%s: structured text %q", c[0], s)
			}
		})
		if text := strings.ReplaceAll(textOf(t, res), "\n", ""); strings.ContainsFunc(text, inspector.Hidden) {
			t.Errorf("%s: text %q", c[0], text)
		}
	}
}

func walk(v any, visit func(string)) {
	switch v := v.(type) {
	case string:
		visit(v)
	case []any:
		for _, x := range v {
			walk(x, visit)
		}
	case map[string]any:
		for k, x := range v {
			visit(k)
			walk(x, visit)
		}
	}
}

func TestCleanTextKeepsMeaning(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a\nb": `a\u000ab`, "\u202e": `\u202e`, `back\slash "q" \u0041`: `back\slash "q" \u0041`, "é<&>": "é<&>", "\x7f": `\u007f`, "\ufeff": `\ufeff`,
	} {
		var got string
		if err := json.Unmarshal(appendClean(nil, in), &got); err != nil || got != want {
			t.Errorf("%q became %q (%v), want %q", in, got, err, want)
		}
	}
}

func FuzzReadMessage(f *testing.F) {
	for _, s := range []string{listCall, toolCall("list_nodes", `{"limit":1}`), "[]", "{}", `{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{}}}`, "", "\xff", `{"a":{"a":[1,2,{"b":null}]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := readMessage(body)
		if err == nil && !json.Valid(body) {
			t.Errorf("accepted %q", body)
		}
		if err == nil && m.Method != "" && m.ID != nil && !json.Valid(m.ID) {
			t.Errorf("id %q", m.ID)
		}
	})
}

func FuzzArguments(f *testing.F) {
	reg := fullRegistry()
	tools := allTools()
	f.Add(9, []byte(`{"node":"x","pid":1e300,"duration_s":-0.5,"device":{"a":[]},"selector":{"a":"b"}}`))
	f.Add(2, []byte(`{"node":"x"}`))
	f.Add(4, []byte(`{"metrics":"a","step_s":1e300,"labels":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, i int, raw []byte) {
		tool := tools[(i%len(tools)+len(tools))%len(tools)]
		got, err := decodeArgs(tool.Name, tool.Args, raw)
		if err != nil && fault.Of(err).Kind != fault.Invalid {
			t.Errorf("%v", err)
		}
		if err != nil {
			return
		}
		_, _, _ = (Call{Args: got, Now: noon}).window()
		if kind, ok := reg.Task(tool.Name); ok {
			sent := map[string]any{}
			for _, a := range kind.Args {
				if v, ok := got[a.Name]; ok {
					sent[a.Name] = v
				}
			}
			if _, err := kind.Check(sent); err != nil && fault.Of(argFault(kind, err)).Next == "" {
				t.Errorf("no next step: %v", err)
			}
		}
	})
}

// eventually waits until what holds, within a bound.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("it never came true")
		}
	}
}
