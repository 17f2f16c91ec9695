package rest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
)

// call is what a tenant's handler gets to see of a request.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	scope tenants.Scope
	query *params
}

// handler does one operation. It returns the value to show, or an error; it
// writes nothing itself. It must call query.done before it calls a service.
type handler func(*call) (any, error)

// answer adapts a handler that stands behind a Gate.
func (s *Server) answer(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { s.run(w, r, h, false) }
}

// tagged is answer with an ETag over the answer's bytes, for answers that
// change rarely: a client that has it is told so without the body.
func (s *Server) tagged(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { s.run(w, r, h, true) }
}

func (s *Server) run(w http.ResponseWriter, r *http.Request, h handler, tag bool) {
	scope, _ := auth.ScopeFrom(r.Context()) // without a Gate the zero scope, which every service refuses
	v, err := h(&call{w: w, r: r, scope: scope, query: parseParams(r.URL.RawQuery)})
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if tag {
		s.writeTagged(w, r, v)
		return
	}
	s.write(w, r, http.StatusOK, v)
}

// plain adapts a handler without tenant, credential and parameters.
func (s *Server) plain(h func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		if err := parseParams(r.URL.RawQuery).done(); err != nil {
			s.fail(w, r, err)
			return
		}
		s.write(w, r, http.StatusOK, h())
	}
}

// write sends v as JSON. The whole answer is made before its first byte goes
// out, so a value that cannot be shown is a 500 and never half a document.
func (s *Server) write(w http.ResponseWriter, r *http.Request, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	send(w, status, append(b, '\n'))
}

func (s *Server) writeTagged(w http.ResponseWriter, r *http.Request, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if !matches(w, r, b) {
		send(w, http.StatusOK, append(b, '\n'))
	}
}

func send(w http.ResponseWriter, status int, b []byte) {
	h := w.Header()
	if h.Get("Content-Type") == "" {
		h.Set("Content-Type", "application/json")
	}
	h.Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may be gone; nobody is left to tell
}

// matches sets the ETag of b, and answers 304 when the client has it.
func matches(w http.ResponseWriter, r *http.Request, b []byte) bool {
	sum := sha256.Sum256(b)
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
	w.Header().Set("ETag", tag)
	for have := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if have = strings.TrimPrefix(strings.TrimSpace(have), "W/"); have == tag || have == "*" {
			w.WriteHeader(http.StatusNotModified)
			return true
		}
	}
	return false
}
