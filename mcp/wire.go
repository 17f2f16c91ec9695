package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Bounds of a request besides its size: the depth of its JSON, the bytes of
// its id, and those of the name of what it asks for, which answers repeat.
const (
	maxNesting = 64
	maxID      = 256
	maxName    = 4096
)

// message is what the adapter knows of a request before the SDK reads it.
type message struct {
	ID     json.RawMessage // nil for a notification or a response
	Method string          // empty for a response
	Name   string          // the tool of tools/call, the URI of resources/read, the prompt of prompts/get, the task of tasks/*
	Modern bool            // the params carry per-request protocol metadata (2026-07-28)
	// Handles: the metadata declare the extension of task handles.
	Handles bool
	// TaskNews: subscriptions/listen asks for news of task handles.
	TaskNews bool
}

// call reports whether the message asks for an answer.
func (m message) call() bool { return m.Method != "" && m.ID != nil }

// wireError is a refusal that is decided before the SDK sees the request.
type wireError struct {
	Status  int
	Code    int64
	Message string
	Data    any
}

func refuse(code int64, msg string) *wireError {
	return &wireError{Status: http.StatusBadRequest, Code: code, Message: msg}
}

// readMessage checks one request body and says what it asks. It refuses what
// two JSON readers could understand differently (arrays of messages, keys that
// occur twice, broken UTF-8), so that the scope decided here is the scope of
// what the SDK runs.
func readMessage(body []byte) (message, *wireError) {
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
	if err := checkJSON(body); err != nil {
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
	return m, m.readParams(top["params"])
}

func (m *message) readParams(raw json.RawMessage) *wireError {
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

const metaPrefix = "io.modelcontextprotocol/"

func validID(raw json.RawMessage) bool {
	if len(raw) > maxID { // it is written into every answer
		return false
	}
	if raw[0] == '"' {
		return true
	}
	_, err := strconv.ParseInt(string(raw), 10, 64)
	return err == nil
}

// checkJSON walks the whole text: one value, no key twice, bounded depth.
func checkJSON(body []byte) *wireError {
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
			if len(open) == maxNesting {
				return refuse(jsonrpc.CodeInvalidRequest, "the request is nested deeper than "+strconv.Itoa(maxNesting)+" levels")
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

// write answers with a JSON-RPC error object. id may be nil.
func (e *wireError) write(w http.ResponseWriter, id json.RawMessage) {
	if id == nil {
		id = json.RawMessage("null")
	}
	type object struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
		Data    any    `json:"data,omitempty"`
	}
	body, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   object          `json:"error"`
	}{"2.0", id, object{e.Code, e.Message, e.Data}})
	if err != nil {
		http.Error(w, "cannot answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Del("Content-Length")
	w.WriteHeader(e.Status)
	_, _ = w.Write(append(body, '\n'))
}

// clip shortens s to at most n bytes on a rune boundary.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
