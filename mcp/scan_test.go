package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants/audit"
)

// sameMessage holds the one walk over a body against encoding/json.
func sameMessage(t *testing.T, body string) {
	t.Helper()
	got, gotErr := readMessage([]byte(body))
	want, wantErr := decodedMessage([]byte(body))
	got.Plain, got.Version, got.Arguments = false, "", nil
	if d := cmp.Diff(wantErr, gotErr); d != "" {
		t.Errorf("%.300q: %s", body, d)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%.300q: %s", body, d)
	}
}

func TestScanReadsLikeTheDecoder(t *testing.T) {
	var many strings.Builder
	for i := range 40 {
		many.WriteString(`,"k` + strconv.Itoa(i) + `":` + strconv.Itoa(i))
	}
	for _, body := range []string{"", " ", "null", "nul", "nulll", "true", "42", "-", "01", "1x", "[", "[]", "{", "{}", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{"a" 1}`, `{"a"::1}`, `{"a":1 "b":2}`, `{a:1}`, `{"a":[1,]}`, `{"a":[,1]}`, `{"a":[1 2]}`, `{"a":[1}`, `{"a":{]}`,
		`{"a":tru}`, `{"a":truex}`, `{"a":1.}`, `{"a":.1}`, `{"a":1e}`, `{"a":1e+}`, `{"a":-}`, `{"a":-0.0e-0}`, `{"a":+1}`, `{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\u123g"}`, "{\"a\":\"\x01\"}", "{\"a\":\"\x7f\"}", `{"a":1}x`, "{\"a\":1}\v", "{\"a\":1}\u00a0", "{\"a\":1}\u00a0x", "\u00a0{}", "\ufeff{}", `{"\u0061":1,"a":2}`, `{"\ud800":1,"\ud801":2}`, `{"":1,"":2}`,
		`{"x":{` + many.String()[1:] + `}}`, `{"x":{` + many.String()[1:] + `,"k39":0}}`, `{"x":{` + many.String()[1:] + `,"k3":0}}`, `{"x":{` + many.String()[1:] + `,"\u006b3":0}}`, `{"x":{"a":{"a":1},"b":[{"a":1},{"a":1}],"a":0}}`,
		strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64), strings.Repeat(`{"a":`, 65) + "1", strings.Repeat(`[`, 65), `{"a":` + strings.Repeat(`[`, 63) + strings.Repeat(`]`, 63) + `}`} {
		sameMessage(t, body)
	}
	for _, base := range []string{listCall, toolCall("list_nodes", `{"limit":3}`), `{"jsonrpc":"2.0","id":"x","method":"resources/read","params":{"uri":"telltale://health"}}`, `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"taskIds":["x"]}}}`, `{"jsonrpc":"2.0","id":4,"result":{}}`, `{"jsonrpc":"2.0","id":4,"error":null}`, `{"jsonrpc":"2.0","id":4,"method":null}`} {
		for _, body := range oddBodies(base) {
			sameMessage(t, body)
		}
	}
	for _, meta := range oddMeta() {
		sameMessage(t, modernAsked(asked{}, "tools/call", `"name":"x"`, meta).body)
	}
}

// TestRedactReadsLikeTheDecoder holds the log's form of arguments against maps.
func TestRedactReadsLikeTheDecoder(t *testing.T) {
	tools := append(allTools(), Tool{Name: "x", Args: []Arg{{Name: "password"}, {Name: "limit"}, {Name: "a"}, {Name: "node"}}, Secret: []string{"password", "a"}})
	for _, tool := range tools {
		for _, args := range append(goodAndBad, `{"\u006cimit":3,"node":"`+strings.Repeat("é", 90)+`","password":"x","z":1}`, "{\"labels\" : {\n \"a\":\t\"b\"} , \"limit\":1 }", `{"z":1,"node":"tt_op_secret token=abc password=hunter2"}`) {
			if got, want := redact(tool, json.RawMessage(args)), mappedRedact(tool, json.RawMessage(args)); got != want {
				t.Errorf("%s %s: %s, want %s", tool.Name, args, got, want)
			}
		}
	}
}

func mappedRedact(t Tool, raw json.RawMessage) string {
	var sent map[string]json.RawMessage
	if len(raw) == 0 || json.Unmarshal(raw, &sent) != nil {
		return "{}"
	}
	parts := []string{}
	unknown := 0
	for _, name := range sortedKeys(sent) {
		switch {
		case !slices.ContainsFunc(t.Args, func(a Arg) bool { return a.Name == name }):
			unknown++
		case slices.Contains(t.Secret, name):
			parts = append(parts, name+`="[redacted]"`)
		default:
			parts = append(parts, name+"="+inspector.CleanText(clip(audit.Scrub(string(sent[name])), 80)))
		}
	}
	if unknown > 0 {
		parts = append(parts, fmt.Sprintf("(%d unknown)", unknown))
	}
	return "{" + strings.Join(parts, " ") + "}"
}

func FuzzScan(f *testing.F) {
	for _, base := range []string{listCall, toolCall("list_nodes", `{"limit":3}`)} {
		for _, body := range oddBodies(base) {
			f.Add(body)
		}
	}
	for _, meta := range oddMeta() {
		f.Add(modernAsked(asked{}, "tools/call", `"name":"x"`, meta).body)
	}
	f.Fuzz(sameMessage)
}

// decodedMessage is readMessage by the decoder of the standard library, token
// by token and map by map.
func decodedMessage(body []byte) (message, *wireError) {
	var m message
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	switch {
	case len(trimmed) == 0:
		return m, refuse(jsonrpc.CodeParseError, "the request body is empty; send one JSON-RPC message")
	case !utf8.Valid(body):
		return m, refuse(jsonrpc.CodeParseError, "the request body is not valid UTF-8")
	case trimmed[0] == '[':
		return m, refuse(jsonrpc.CodeInvalidRequest, "batches are not accepted; send one JSON-RPC message a request")
	}
	if err := tokenCheck(body); err != nil {
		return m, err
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil {
		return m, refuse(jsonrpc.CodeInvalidRequest, "a JSON-RPC message is an object")
	}
	if string(top["jsonrpc"]) != `"2.0"` {
		return m, refuse(jsonrpc.CodeInvalidRequest, `the member "jsonrpc" must be "2.0"`)
	}
	if raw, ok := top["id"]; ok {
		if !validID(raw) {
			return m, refuse(jsonrpc.CodeInvalidRequest, `the member "id" must be a string or a whole number of at most `+strconv.Itoa(maxID)+` bytes`)
		}
		m.ID = raw
	}
	raw, ok := top["method"]
	if !ok {
		if top["result"] == nil && top["error"] == nil {
			return m, refuse(jsonrpc.CodeInvalidRequest, `the member "method" is missing`)
		}
		m.ID = nil // a response answers nothing of ours and is only accepted
		return m, nil
	}
	if json.Unmarshal(raw, &m.Method) != nil || m.Method == "" {
		return m, refuse(jsonrpc.CodeInvalidRequest, `the member "method" must be a string`)
	}
	return m, decodedParams(&m, top["params"])
}

func decodedParams(m *message, raw json.RawMessage) *wireError {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var params map[string]json.RawMessage
	if json.Unmarshal(raw, &params) != nil {
		return refuse(jsonrpc.CodeInvalidParams, `"params" must be an object`)
	}
	if meta, ok := params["_meta"]; ok {
		var words map[string]json.RawMessage
		if json.Unmarshal(meta, &words) != nil {
			return refuse(jsonrpc.CodeInvalidParams, `"params._meta" must be an object`)
		}
		for k := range words {
			m.Modern = m.Modern || len(k) > len(metaPrefix) && k[:len(metaPrefix)] == metaPrefix
		}
		m.Handles = declaresHandles(words[metaPrefix+"clientCapabilities"])
		m.Progress = words["progressToken"] != nil
	}
	m.TaskNews = m.Method == listenMethod && asksTaskNews(params["notifications"])
	member := map[string]string{"tools/call": "name", "resources/read": "uri", "prompts/get": "name", tasksGet: "taskId", tasksUpdate: "taskId", tasksCancel: "taskId"}[m.Method]
	if member == "" {
		return nil
	}
	if json.Unmarshal(params[member], &m.Name) != nil || m.Name == "" || len(m.Name) > maxName {
		return refuse(jsonrpc.CodeInvalidParams, m.Method+` needs the string "params.`+member+`", of at most `+strconv.Itoa(maxName)+` bytes`)
	}
	if args, ok := params["arguments"]; ok && m.Method == "tools/call" && string(args) != "null" && args[0] != '{' {
		return refuse(jsonrpc.CodeInvalidParams, `"params.arguments" must be an object`)
	}
	return nil
}

// tokenCheck walks the whole text: one value, no key twice, bounded depth.
func tokenCheck(body []byte) *wireError {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	type level struct {
		keys map[string]bool // nil for an array
		key  bool            // the next token of an object is a key
	}
	var open []level
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) && len(open) == 0 {
			return nil
		}
		if err != nil {
			return refuse(jsonrpc.CodeParseError, "the request body is not valid JSON")
		}
		if d, ok := tok.(json.Delim); ok && (d == '}' || d == ']') {
			open = open[:len(open)-1]
		} else if n := len(open); n > 0 && open[n-1].key {
			k := tok.(string)
			if open[n-1].keys[k] {
				return refuse(jsonrpc.CodeInvalidRequest, "a key occurs twice in one object: "+strconv.QuoteToASCII(clip(k, 64)))
			}
			open[n-1].keys[k] = true
			open[n-1].key = false
			continue
		} else if ok {
			if len(open) == maxDepth {
				return refuse(jsonrpc.CodeInvalidRequest, "the request is nested deeper than "+strconv.Itoa(maxDepth)+" levels")
			}
			if d == '{' {
				open = append(open, level{keys: map[string]bool{}, key: true})
			} else {
				open = append(open, level{})
			}
			continue
		}
		// A value ended: its object expects a key again, and the text must end
		// after the outermost one.
		if n := len(open); n > 0 {
			open[n-1].key = open[n-1].keys != nil
		} else if rest := body[dec.InputOffset():]; len(bytes.TrimSpace(rest)) > 0 {
			return refuse(jsonrpc.CodeParseError, "text follows the JSON-RPC message")
		}
	}
}
