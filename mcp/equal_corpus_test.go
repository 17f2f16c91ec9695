package mcp

import (
	"fmt"
	"net/http"
	"strings"
)

// eras are the forms of one request in every version that is spoken.
func eras(q asked, method, params string) []asked {
	out := []asked{}
	for _, version := range []string{"", "2024-11-05", "2025-03-26", "2025-06-18", lastLegacy} {
		old := q
		old.body = fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s}}`, method, params)
		if version != "" {
			old.header = http.Header{versionHeader: {version}}
		}
		out = append(out, old)
	}
	return append(out, modernAsked(q, method, params, `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`))
}

func modernAsked(q asked, method, params, meta string) asked {
	if params != "" {
		params += ","
	}
	q.body = fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s"_meta":{%s}}}`, method, params, meta)
	q.header = http.Header{versionHeader: {modernVersion}, modernHeaderMark: {method}}
	if _, rest, ok := strings.Cut(params, `"name":"`); ok && method == "tools/call" {
		name, _, _ := strings.Cut(rest, `"`)
		q.header["Mcp-Name"] = []string{name}
	}
	return q
}

// goodAndBad are arguments for any tool.
var goodAndBad = []string{"", "null", "{}", `{"limit":1}`, `{"limit":"x"}`, `{"limit":1e1}`, `{"limit":-1}`, `{"limit":1.5}`, `{"limit":1000000}`, `{"node":"node-003"}`, `{"node":"acme-db1"}`, `{"node":"globex-db1"}`, `{"node":5}`,
	`{"node":"\u003cx\u2028"}`, `{"nope":1,"\u202e":2}`, `{"labels":{"role":"db"}}`, `{"labels":[]}`, `{"status":["online"]}`, `{"status":"offline"}`, `{"status":["no"]}`, `{"max_bytes":1024}`, `{"max_bytes":1}`, `{"limit":200,"max_bytes":2048}`,
	`{"module":"network"}`, `{"module":"gpu"}`, `{"module":"network","from":"1h","format":"detailed"}`, `{"metrics":["network.events"]}`, `{"metrics":"network.events","step_s":10}`, `{"query":"db1"}`, `{"query":""}`, `{"id":"node:acme-db1"}`,
	`{"id":"x"}`, `{"cursor":"zz"}`, `{"from":"yesterday"}`, `{"password":"hunter2"}`, `{"event_id":"0195c000-0000-7000-8000-000000000001"}`, `{"ticket_id":"x"}`, `{"question":"latency"}`, `{"a":{"a":{"a":[1,2,{"a":null}]}}}`, ` { "limit" : 2 } `,
	`[]`, `"x"`, `7`}

// oddHeaders changes one header, or two of a kind.
func oddHeaders() []http.Header {
	out := []http.Header{}
	for name, values := range map[string][]string{
		versionHeader:    {"", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "2026-07-29", "1999-01-01", "zzz", " 2025-11-25"},
		modernHeaderMark: {"", "tools/list", "tools/call", "TOOLS/LIST", "ping", " tools/list", "=?base64?dG9vbHMvbGlzdA==?="},
		"Mcp-Name":       {"", "list_nodes", "get_node", "say_lines", "LIST_NODES", "list_nodes ", "=?base64?bGlzdF9ub2Rlcw==?="},
		"Mcp-Param-Node": {"", "x"},
		"Mcp-Session-Id": {"", "of-another"},
		"Last-Event-Id":  {"", "1_2"},
		"Origin":         {"https://elsewhere.example"},
		"Content-Type":   {"", "application/json; charset=utf-8", "application/json;charset=utf-8", "application/json; charset=latin1", "Application/JSON", "application/json;", "application/json; x", "text/plain", "application/json, text/plain", " application/json "},
		"Accept":         {"", "*/*", "application/json", "text/event-stream", "text/event-stream,application/json", "application/*, text/*", "application/json;q=0.5, text/event-stream;q=1", "APPLICATION/JSON, TEXT/EVENT-STREAM", "text/html", "application/json text/event-stream", "application/json, text/event-stream, */*;q=0.1"},
	} {
		for _, v := range values {
			out = append(out, http.Header{name: {v}})
		}
		out = append(out, http.Header{name: nil}, http.Header{name: {values[0], values[len(values)-1]}}, http.Header{name: {values[len(values)-1], values[0]}})
	}
	return append(out, http.Header{"Accept": {"application/json", "text/event-stream"}}, http.Header{"Accept": {"text/html", "*/*"}})
}

// oddBodies changes one part of a body.
func oddBodies(body string) []string {
	out := []string{"", " ", "null", "42", "[]", "[" + body + "]", body + "x", body + " \n\t", body + "\v", "\n " + body, body[:len(body)-1], body + body, strings.ReplaceAll(body, `"`, `'`)}
	for _, id := range []string{`null`, `0`, `-0`, `-5`, `1.0`, `1e2`, `123456789012345`, `1234567890123456`, `9007199254740993`, `-9223372036854775808`, `9223372036854775808`, `""`, `"a"`, `"<a>&"`, `"\u0061"`, `"\ud800"`, `"é\u2028"`, "\"\u2028\"", `"` + strings.Repeat("i", 254) + `"`,
		`"` + strings.Repeat("i", 255) + `"`, `true`, `{}`, `[1]`} {
		out = append(out, strings.Replace(body, `"id":7`, `"id":`+id, 1))
	}
	swap := func(old string, with ...string) {
		for _, s := range with {
			if got := strings.Replace(body, old, s, 1); got != body {
				out = append(out, got)
			}
		}
	}
	swap(`"id":7,`, ``, `"id":7,"extra":1,`, `"id":7,"result":{},`, `"id":7,"error":5,`, `"id":7,"ID":8,`, `"\u0069d":7,`, `"id":7,"id":7,`, ` "id" : 7 , `, `"Id":7,`)
	swap(`"jsonrpc":"2.0"`, `"jsonrpc":"2.1"`, `"jsonrpc":2.0`, `"jsonrpc":"2\u002e0"`, `"JSONRPC":"2.0"`, `"jsonrpc":"2.0","jsonrpc":"2.0"`)
	swap(`"method":"tools/`, `"method":"TOOLS/`, `"method":"\u0074ools/`, `"Method":"tools/`, `"method":"tools//`)
	swap(`"params":{`, `"params":{"cursor":"","`[:21], `"params":{"cursor":"x",`, `"params":{"cursor":null,`, `"params":{"Cursor":"x",`, `"params":{"other":{"a":1e400},`, `"params":{"requestState":"s",`, `"params":{"inputResponses":{},`, `"params":{"_META":{},`, `"params":{"task":{"ttl":1},`, `"Params":{`)
	if before, _, ok := strings.Cut(body, `"params":`); ok {
		for _, p := range []string{`"params":null}`, `"params":[]}`, `"params":{}}`, `"params":"x"}`, `"params":{"_meta":null}}`, `"params":{"_meta":[]}}`, `"params":{"_meta":{}}}`} {
			out = append(out, before+p)
		}
		out = append(out, strings.TrimSuffix(before, ",")+"}")
	}
	swap(`"name":"list_nodes"`, `"name":"LIST_NODES"`, `"name":"\u006cist_nodes"`, `"name":"list_nodes "`, `"name":""`, `"name":null`, `"name":5`, `"Name":"list_nodes"`, `"name":"no_such"`, `"name":"trace_slow_io"`, `"name":"list_tokens"`, `"name":"`+checkTask+`"`, `"name":"list_nodes","NAME":"x"`, `"n\u0061me":"list_nodes"`)
	swap(`"arguments":{"limit":3}`, `"arguments":{"limit":3,"limit":4}`, `"Arguments":{}`, `"arguments":{"\u006cimit":3}`, `"arguments":{"limit":3},"arguments":{}`, `"arguments":{"limit":`+strings.Repeat("[", 70)+strings.Repeat("]", 70)+`}`, `"arguments":{"limit":01}`, `"arguments":{"limit":3,}`, "\"arguments\":{\"node\":\"\xff\"}", "\"arguments\":{\"node\":\"a\nb\"}")
	return out
}

// oddMeta are metadata, whole and broken.
func oddMeta() []string {
	const version, able, client = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`, `"io.modelcontextprotocol/clientCapabilities":`, `"io.modelcontextprotocol/clientInfo":`
	out := []string{``, version, able + `{}`, able + `{},` + version, version + `,` + able + `null`, version + `,` + able + `[]`, `"io.modelcontextprotocol/protocolVersion":"2025-11-25",` + able + `{}`, `"io.modelcontextprotocol/protocolVersion":5,` + able + `{}`,
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28 ",` + able + `{}`, `"io.modelcontextprotocol/protocolVersion":"2026\u002d07-28",` + able + `{}`, `"io.modelcontextprotocol\/protocolVersion":"2026-07-28",` + able + `{}`, `"io.modelcontextprotocol/":1`, `"io.modelcontextprotocol/x":1`}
	for _, caps := range []string{`{"roots":{}}`, `{"roots":{"listChanged":true}}`, `{"roots":{"listChanged":1}}`, `{"roots":null}`, `{"roots":[]}`, `{"sampling":{}}`, `{"sampling":{"tools":{},"context":{}}}`, `{"sampling":{"tools":[]}}`, `{"sampling":5}`, `{"elicitation":{"form":{},"url":{}}}`, `{"elicitation":{"form":{"a":1}}}`,
		`{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, `{"extensions":{"a/b":{"c":[1,"x",true,null]}}}`, `{"extensions":{"a/b":1e999}}`, `{"extensions":{"a/b":1e5}}`, `{"extensions":{"a/b":12345678901234567890}}`, `{"extensions":{"a/b":"\ud800"}}`, `{"extensions":[]}`, `{"experimental":{"x":{}}}`, `{"experimental":"x"}`, `{"other":{}}`, `{ }`, `{"Roots":5}`} {
		out = append(out, version+`,`+able+caps)
	}
	for _, info := range []string{`{"name":"x","version":"1"}`, `{"name":"x","version":"1","title":"t","description":"d","websiteUrl":"u"}`, `{"name":"x","version":"1","icons":[{"src":"u"}]}`, `{"name":5}`, `{}`, `null`, `"x"`, `[]`, `{"name":"\u003c"}`, `{"name":null}`, `{"Name":5}`} {
		out = append(out, version+`,`+able+`{},`+client+info)
	}
	for _, more := range []string{`"progressToken":1`, `"progressToken":"p"`, `"progressToken":null`, `"progressToken":1.5`, `"progressToken":{}`, `"progressToken":1e999`, `"traceparent":"00-a-b-01"`, `"x/y":{"z":[1,2]}`, `"x":"\u0000"`, `"x":-1`, `"x":1e5`, `"io.modelcontextprotocol/logLevel":"debug"`, `"io.modelcontextprotocol/logLevel":5`, `"io.modelcontextprotocol/related-task":{"taskId":"x"}`, `"":1`, `"\u0061":1`} {
		out = append(out, more, version+`,`+able+`{},`+more)
	}
	return out
}
