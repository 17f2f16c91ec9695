package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"
)

// modern is the first protocol version whose requests carry their own version.
const modern = "2026-07-28"

const metaVersion = "io.modelcontextprotocol/protocolVersion"

// listenMark begins the flight key of a request that never ends by itself.
const listenMark = '~'

// message is what the bridge reads of a line; it is forwarded as it came.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

type lineError struct {
	code int
	text string
}

func readMessage(raw []byte) (message, *lineError) {
	var m message
	if raw[0] == '[' {
		return m, &lineError{codeInvalid, "batches are not accepted; send one message a line"}
	}
	if !utf8.Valid(raw) || !json.Valid(raw) {
		return m, &lineError{codeParse, "the line is not JSON"}
	}
	if err := json.Unmarshal(raw, &m); err != nil || raw[0] != '{' {
		return m, &lineError{codeInvalid, "the line is not a JSON-RPC message"}
	}
	if string(m.ID) == "null" {
		m.ID = nil
	}
	return m, nil
}

func (m message) call() bool { return m.Method != "" && m.ID != nil }

// bounded gives the request the time that it may take.
func (m message) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	switch m.Method {
	case "initialize":
		return context.WithTimeout(ctx, startTime)
	case "subscriptions/listen":
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, answerTime)
}

// key names the request among those in flight.
func (m message) key() string {
	if m.Method == "subscriptions/listen" {
		return string(listenMark) + string(m.ID)
	}
	return " " + string(m.ID)
}

// cancels is the id of the request that a cancellation names.
func (m message) cancels() string {
	var p struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(m.Params, &p) != nil {
		return ""
	}
	return string(p.ID)
}

// params are the members that decide the headers.
func (m message) params() (version, name string) {
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
		Name string                     `json:"name"`
		URI  string                     `json:"uri"`
	}
	if json.Unmarshal(m.Params, &p) != nil {
		return "", ""
	}
	if json.Unmarshal(p.Meta[metaVersion], &version) != nil {
		version = ""
	}
	switch m.Method {
	case "tools/call", "prompts/get":
		name = p.Name
	case "resources/read":
		name = p.URI
	}
	return version, name
}

// forward sends one message and writes what the server answers.
func (p *proxy) forward(ctx context.Context, m message, raw []byte) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.ep.url, bytes.NewReader(raw))
	if err != nil {
		p.fail(m.ID, codeInvalid, "the request cannot be sent", nil)
		return
	}
	p.headers(req.Header, m)
	res, err := p.ep.send(req, p.base)
	if err != nil {
		p.away(ctx, m, err)
		return
	}
	defer res.Body.Close()
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		kind = ""
	}
	switch {
	case res.StatusCode == http.StatusAccepted && !m.call():
		return
	case res.StatusCode == http.StatusOK && kind == "text/event-stream":
		p.stream(ctx, m, res.Body)
	case kind == "application/json":
		p.object(ctx, m, res)
	default:
		p.refused(m, refusalOf(p.ep, res))
	}
}

// headers follow the era of the message: its own version when it carries one,
// else the negotiated one.
func (p *proxy) headers(h http.Header, m message) {
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, text/event-stream")
	own, name := m.params()
	if own == "" {
		p.mu.Lock()
		own = p.version
		p.mu.Unlock()
	}
	if own != "" && m.Method != "initialize" {
		h.Set("MCP-Protocol-Version", own)
	}
	if own >= modern && m.Method != "" {
		h.Set("Mcp-Method", m.Method)
		if name != "" {
			h.Set("Mcp-Name", name)
		}
	}
}

// object handles an answer that is one JSON document.
func (p *proxy) object(ctx context.Context, m message, res *http.Response) {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errLong
	}
	if err != nil {
		p.away(ctx, m, &offlineError{p.ep.url, err})
		return
	}
	var answer map[string]json.RawMessage
	if json.Unmarshal(body, &answer) != nil || answer["jsonrpc"] == nil {
		res.Body = io.NopCloser(bytes.NewReader(body))
		p.refused(m, refusalOf(p.ep, res))
		return
	}
	if !m.call() {
		if e := answer["error"]; e != nil {
			fmt.Fprintf(p.errw, "telltale mcp: the server refused a notification: %s\n", e)
		}
		return
	}
	if !bytes.Equal(answer["id"], m.ID) { // refused before the id was read
		answer["id"] = m.ID
		if body, err = json.Marshal(answer); err != nil {
			p.fail(m.ID, codeAway, "the server's answer is not understood", nil)
			return
		}
	}
	p.learn(m, answer["result"])
	p.write(body)
}

// stream handles an answer that comes as events. Comments are dropped.
func (p *proxy) stream(ctx context.Context, m message, body io.Reader) {
	r := bufio.NewReader(body)
	var data []byte
	answered := false
	for {
		text, err := readEventLine(r, maxAnswer-len(data))
		text = bytes.TrimRight(text, "\r\n")
		switch {
		case len(text) == 0 && len(data) > 0:
			var answer struct {
				ID     json.RawMessage `json:"id"`
				Method string          `json:"method"`
				Result json.RawMessage `json:"result"`
			}
			if json.Unmarshal(data, &answer) == nil && answer.Method == "" && bytes.Equal(answer.ID, m.ID) {
				answered = true
				p.learn(m, answer.Result)
			}
			p.write(data)
			data = nil
		case bytes.HasPrefix(text, []byte("data:")):
			if len(data) > 0 {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(bytes.TrimPrefix(text, []byte("data:")), []byte(" "))...)
		}
		if err == nil {
			continue
		}
		if !answered && m.call() {
			if errors.Is(err, io.EOF) {
				err = errors.New("the connection ended before the answer")
			}
			p.away(ctx, m, &offlineError{p.ep.url, err})
		}
		return
	}
}

var errLong = fmt.Errorf("an answer is longer than %d bytes", maxAnswer)

// readEventLine reads one line of at most that many bytes.
func readEventLine(r *bufio.Reader, most int) ([]byte, error) {
	var l []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(l)+len(part) > most {
			return nil, errLong
		}
		l = append(l, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return l, err
		}
	}
}

// learn keeps the version that an initialize answer settles.
func (p *proxy) learn(m message, result json.RawMessage) {
	if m.Method != "initialize" {
		return
	}
	var r struct {
		Version string `json:"protocolVersion"`
	}
	if json.Unmarshal(result, &r) == nil && r.Version != "" {
		p.mu.Lock()
		p.version = r.Version
		p.mu.Unlock()
	}
}

// away answers a request that nobody answered: the server is away, or there is
// no credential to ask it with. A request that its client cancelled gets no
// answer.
func (p *proxy) away(ctx context.Context, m message, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	fmt.Fprintf(p.errw, "telltale mcp: %v\n", err)
	if !m.call() {
		return
	}
	var off *offlineError
	if errors.As(err, &off) {
		p.fail(m.ID, codeAway, "the Telltale server is away: "+err.Error(), map[string]string{"reason": "server_away", "url": p.ep.url})
		return
	}
	p.fail(m.ID, codeAway, err.Error(), map[string]string{"reason": "no_credential", "url": p.ep.url})
}

// refused answers a request that the server turned away as a whole.
func (p *proxy) refused(m message, s *statusError) {
	fmt.Fprintf(p.errw, "telltale mcp: %v\n", s)
	if !m.call() {
		return
	}
	data := map[string]any{"reason": "refused", "status": s.status}
	for name, v := range map[string]string{"reference_id": s.reference, "scope": s.scopes, "retry_after_s": s.retry} {
		if v != "" {
			data[name] = v
		}
	}
	p.fail(m.ID, codeAway, strings.TrimSpace(s.Error()), data)
}
