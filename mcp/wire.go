package mcp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Bounds of a request besides its size: the depth of its JSON, the bytes of
// its id, and those of the name of what it asks for, which answers repeat.
const (
	maxDepth = 64
	maxID    = 256
	maxName  = 4096
)

// message is what the adapter knows of a request before the SDK reads it.
type message struct {
	ID     json.RawMessage // nil for a notification or a response
	Method string          // empty for a response
	Name   string          // the tool of tools/call, the URI of resources/read, the prompt of prompts/get, the task of tasks/*
	Modern bool            // the params carry per-request protocol metadata (2026-07-28)
	// Handles: the metadata declare the extension of task handles.
	Handles bool
	// Progress: the metadata have a token for news of how far the call is.
	Progress bool
	// TaskNews: subscriptions/listen asks for news of task handles.
	TaskNews bool
	// Plain: nothing in it is out of the ordinary, so that it may be answered
	// beside the SDK. Version is what its metadata say then.
	Plain   bool
	Version string
	// Arguments are those of tools/call, as they came.
	Arguments json.RawMessage
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
// what the SDK runs. What it returns points into body.
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
	s := scan{body: body, keys: make([][]byte, 0, manyKeys), top: make(members, 0, 4), params: make(members, 0, 3), meta: make(members, 0, 4)}
	if err := s.message(); err != nil {
		return m, err
	}
	if trimmed[0] != '{' && trimmed[0] != 'n' {
		return m, refuse(jsonrpc.CodeInvalidRequest, "a JSON-RPC message is an object")
	}
	if string(s.top.get("jsonrpc")) != `"2.0"` {
		return m, refuse(jsonrpc.CodeInvalidRequest, `the member "jsonrpc" must be "2.0"`)
	}
	if raw := s.top.get("id"); raw != nil {
		if !validID(raw) {
			return m, refuse(jsonrpc.CodeInvalidRequest, `the member "id" must be a string or a whole number of at most `+strconv.Itoa(maxID)+` bytes`)
		}
		m.ID = raw
	}
	raw := s.top.get("method")
	if raw == nil {
		if s.top.get("result") == nil && s.top.get("error") == nil {
			return m, refuse(jsonrpc.CodeInvalidRequest, `the member "method" is missing`)
		}
		m.ID = nil // a response answers nothing of ours and is only accepted
		return m, nil
	}
	if !readString(raw, &m.Method) || m.Method == "" {
		return m, refuse(jsonrpc.CodeInvalidRequest, `the member "method" must be a string`)
	}
	if err := m.readParams(&s); err != nil {
		return m, err
	}
	m.Plain = m.plain(&s)
	return m, nil
}

func (m *message) readParams(s *scan) *wireError {
	raw := s.top.get("params")
	if raw == nil || string(raw) == "null" {
		return nil
	}
	if raw[0] != '{' {
		return refuse(jsonrpc.CodeInvalidParams, `"params" must be an object`)
	}
	if meta := s.params.get("_meta"); meta != nil {
		if meta[0] != '{' && meta[0] != 'n' {
			return refuse(jsonrpc.CodeInvalidParams, `"params._meta" must be an object`)
		}
		for i := range s.meta {
			k := s.meta[i].key
			m.Modern = m.Modern || len(k) > len(metaPrefix) && string(k[:len(metaPrefix)]) == metaPrefix
		}
		m.Handles = declaresHandles(s.meta.get(capabilitiesKey))
		m.Progress = s.meta.get("progressToken") != nil
	}
	m.TaskNews = m.Method == listenMethod && asksTaskNews(s.params.get("notifications"))
	member := named(m.Method)
	if member == "" {
		return nil
	}
	if !readString(s.params.get(member), &m.Name) || m.Name == "" || len(m.Name) > maxName {
		return refuse(jsonrpc.CodeInvalidParams, m.Method+` needs the string "params.`+member+`", of at most `+strconv.Itoa(maxName)+` bytes`)
	}
	if m.Method != "tools/call" {
		return nil
	}
	m.Arguments = s.params.get("arguments")
	if args := m.Arguments; args != nil && string(args) != "null" && args[0] != '{' {
		return refuse(jsonrpc.CodeInvalidParams, `"params.arguments" must be an object`)
	}
	return nil
}

// named is the member of a method's params that names what it asks for.
func named(method string) string {
	switch method {
	case "tools/call", "prompts/get":
		return "name"
	case "resources/read":
		return "uri"
	case tasksGet, tasksUpdate, tasksCancel:
		return "taskId"
	}
	return ""
}

// readString reads a string of valid JSON, or null as the empty one.
func readString(raw json.RawMessage, to *string) bool {
	if word, ok := simple(raw); ok {
		*to = string(word)
		return true
	}
	return json.Unmarshal(raw, to) == nil
}

// simple is the text of a string that is written without a backslash.
func simple(raw json.RawMessage) ([]byte, bool) {
	if len(raw) < 2 || raw[0] != '"' || bytes.IndexByte(raw, '\\') >= 0 {
		return nil, false
	}
	return raw[1 : len(raw)-1], true
}

// The metadata of a request that mean something to the protocol.
const (
	metaPrefix      = "io.modelcontextprotocol/"
	versionKey      = sdk.MetaKeyProtocolVersion
	clientKey       = sdk.MetaKeyClientInfo
	capabilitiesKey = sdk.MetaKeyClientCapabilities
	logLevelKey     = metaPrefix + "logLevel" // clients still send it
)

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
