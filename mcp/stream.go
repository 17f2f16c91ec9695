package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/telltale-dev/telltale/tenants"
)

// maxKnown is the size from which on a body is no longer trusted to be as long
// as it says, and is kept only as it comes.
const maxKnown = 16 << 10

// readBody reads at most the allowed size.
func readBody(w http.ResponseWriter, r *http.Request) (body []byte, e *wireError) {
	var err error
	if n := r.ContentLength; n > 0 && n <= maxKnown {
		body = make([]byte, n)
		_, err = io.ReadFull(r.Body, body) // net/http ends it there
	} else {
		in := http.MaxBytesReader(w, r.Body, tenants.MaxRequestBytes)
		if r.ContentLength > tenants.MaxRequestBytes { // read, so that the client hears the answer, but not kept
			_, _ = io.Copy(io.Discard, in)
		}
		body, err = io.ReadAll(in)
	}
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return body, nil
	case errors.As(err, &tooLarge):
		return nil, &wireError{Status: http.StatusRequestEntityTooLarge, Code: jsonrpc.CodeInvalidRequest,
			Message: "the request body exceeds " + strconv.Itoa(tenants.MaxRequestBytes) + " bytes"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &wireError{Status: http.StatusRequestTimeout, Code: jsonrpc.CodeInvalidRequest, Message: "the request body did not arrive in time"}
	}
	return nil, refuse(jsonrpc.CodeParseError, "the request body could not be read")
}

// carry hands a request to the SDK, as one of the given version. keep, if
// there is one, is shown each event of the answer.
func (h *Handler) carry(w http.ResponseWriter, r *http.Request, c caller, m message, body []byte, version string, keep func(event []byte)) {
	req := r.WithContext(context.WithValue(r.Context(), callerKey{}, c))
	if r.Header.Get(versionHeader) != version {
		req.Header = r.Header.Clone()
		req.Header.Set(versionHeader, version)
	}
	req.Body = io.NopCloser(bytes.NewReader(body))
	out := newStream(w, m, h.cfg.Pulse)
	out.keep = keep
	defer func() {
		if e := out.finish(); e != nil {
			h.turnAway(w, r, c.scope, m.ID, e)
		}
	}()
	h.stream.ServeHTTP(out, req)
}

// stream is the response writer the SDK gets. It keeps the headers private to
// the caller, turns the SDK's plain-text refusals into JSON-RPC errors, and
// writes a comment on event streams that have been silent for a while, because
// proxies cut idle connections. One lock orders the SDK's writes and the
// comments; the SDK writes each event with a single call.
type stream struct {
	w      http.ResponseWriter
	msg    message
	pulse  time.Duration
	header http.Header // the SDK's own; copied when it chooses a status, so that beat never reads it

	mu     sync.Mutex
	timer  *time.Timer
	status int          // sent or held back; 0 before the first write
	events bool         // an event stream has begun
	held   bool         // a plain-text refusal is being collected
	text   bytes.Buffer // that refusal
	framed bool         // a comment opened the stream before the SDK chose a status
	closed bool
	keep   func(event []byte) // is shown what is written on an event stream; nil: nobody
}

func newStream(w http.ResponseWriter, msg message, pulse time.Duration) *stream {
	s := &stream{w: w, msg: msg, pulse: pulse, header: w.Header().Clone()}
	s.mu.Lock() // the first beat waits until it can arm its timer again
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(pulse, s.beat)
	return s
}

// Header returns the header that the next WriteHeader sends.
func (s *stream) Header() http.Header { return s.header }

// Unwrap lets http.ResponseController reach deadlines; Flush is overridden.
func (s *stream) Unwrap() http.ResponseWriter { return s.w }

// WriteHeader sends the status unless it belongs to a plain-text refusal.
func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeHeader(status)
}

func (s *stream) writeHeader(status int) {
	if s.status != 0 {
		return
	}
	s.status = status
	kind := s.header.Get("Content-Type")
	if status >= 400 && strings.HasPrefix(kind, "text/plain") {
		s.held = true
		return
	}
	s.events = strings.HasPrefix(kind, "text/event-stream")
	maps.Copy(s.w.Header(), s.header)
	privateHeaders(s.w.Header())
	s.w.WriteHeader(status)
}

// privateHeaders overrides what the SDK sets: no answer may be stored by
// anyone, and none may be buffered on its way.
func privateHeaders(h http.Header) {
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	for _, v := range h["Vary"] {
		if strings.Contains(v, "Authorization") {
			return
		}
	}
	h.Add("Vary", "Authorization")
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, io.ErrClosedPipe
	}
	s.writeHeader(http.StatusOK)
	if s.held {
		return s.text.Write(p)
	}
	s.timer.Reset(s.pulse)
	if s.keep != nil && s.events && s.status == http.StatusOK {
		s.keep(p)
	}
	if s.framed && len(p) > 0 && p[0] == '{' {
		// The SDK wanted a bare JSON body with its own status, but the event
		// stream has begun: the same answer goes out as an event.
		if _, err := s.w.Write([]byte("event: message\ndata: " + string(bytes.TrimSpace(p)) + "\n\n")); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return s.w.Write(p)
}

// Flush sends what has been written.
func (s *stream) Flush() { _ = s.FlushError() }

// FlushError sends what has been written; http.ResponseController prefers it.
func (s *stream) FlushError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held || s.closed {
		return nil
	}
	return http.NewResponseController(s.w).Flush()
}

// beat writes one comment on an event stream and arms itself again.
func (s *stream) beat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed || s.held:
		return
	case s.status == 0 && s.msg.call():
		// The SDK answers every call with an event stream, and starts it with
		// the first event.
		s.status, s.framed, s.events = http.StatusOK, true, true
		s.w.Header().Set("Content-Type", "text/event-stream")
		privateHeaders(s.w.Header())
		s.w.WriteHeader(http.StatusOK)
	case !s.events:
		return
	}
	if _, err := s.w.Write([]byte(": alive\n\n")); err != nil {
		return // the request's context ends the stream
	}
	_ = http.NewResponseController(s.w).Flush()
	s.timer.Reset(s.pulse)
}

// finish ends the comments. It returns the refusal that was held back, as the
// JSON-RPC error to answer with; nil when there is nothing left to say.
func (s *stream) finish() *wireError {
	s.mu.Lock()
	s.closed = true
	s.timer.Stop()
	held := s.held
	s.mu.Unlock()
	if !held {
		return nil
	}
	privateHeaders(s.w.Header())
	if allow := s.header.Get("Allow"); allow != "" {
		s.w.Header().Set("Allow", allow)
	}
	text := strings.TrimSpace(s.text.String())
	switch {
	case !strings.Contains(text, "not handled"):
		return &wireError{Status: s.status, Code: jsonrpc.CodeInvalidRequest, Message: text}
	case !s.msg.call(): // an unknown notification concerns nobody
		s.w.WriteHeader(http.StatusAccepted)
		return nil
	}
	return &wireError{Status: http.StatusOK, Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + clip(s.msg.Method, 64)}
}
