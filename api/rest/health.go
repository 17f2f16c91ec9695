package rest

import (
	"context"
	_ "embed"
	"net/http"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// Check is one condition of readiness. Ask returns nil when it holds; of a
// fault the caller sees the safe message, of any other error only its absence.
type Check struct {
	Name string
	Ask  func(context.Context) error
}

// Version is what /version shows.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Go      string `json:"go"`
	API     string `json:"api"` // always "v1"; set by the server
}

type liveness struct {
	Status string `json:"status"`
}

func (s *Server) health() any { return liveness{"ok"} }

func (s *Server) version() any {
	v := s.cfg.Version
	v.API = "v1"
	return v
}

type checkResult struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

type readyAnswer struct {
	Status string        `json:"status"`
	Checks []checkResult `json:"checks"`
}

// Times of readiness: nobody is authenticated here, so the checks run at most
// once in readyFor however many ask.
const (
	readyFor     = time.Second
	checkTimeout = 2 * time.Second
)

// readiness remembers the last answer for a moment.
type readiness struct {
	checks []Check
	now    func() time.Time

	mu   sync.Mutex
	at   time.Time
	last readyAnswer
}

func newReadiness(checks []Check, now func() time.Time) *readiness {
	return &readiness{checks: checks, now: now}
}

func (r *readiness) ask(ctx context.Context) readyAnswer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.now(); r.at.IsZero() || now.Sub(r.at) >= readyFor || now.Before(r.at) {
		// A caller that leaves must not make the others see a failure.
		r.last, r.at = r.run(context.WithoutCancel(ctx)), now
	}
	return r.last
}

func (r *readiness) run(ctx context.Context) readyAnswer {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	out := readyAnswer{Status: "ready", Checks: []checkResult{}}
	for _, c := range r.checks {
		res := checkResult{Name: c.Name, OK: true}
		if err := c.Ask(ctx); err != nil {
			out.Status, res.OK, res.Detail = "not_ready", false, fault.Of(err).Msg
		}
		out.Checks = append(out.Checks, res)
	}
	return out
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if err := parseParams(r.URL.RawQuery).done(); err != nil {
		s.fail(w, r, err)
		return
	}
	a, status := s.ready.ask(r.Context()), http.StatusOK
	if a.Status != "ready" {
		status = http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "2")
	}
	s.write(w, r, status, a)
}

// openapi is the API's description (OpenAPI 3.1, YAML).
//
//go:embed openapi.yaml
var openapi []byte

func (s *Server) document(w http.ResponseWriter, r *http.Request) {
	if err := parseParams(r.URL.RawQuery).done(); err != nil {
		s.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Type", "application/yaml")
	if !matches(w, r, openapi) {
		send(w, http.StatusOK, openapi)
	}
}
