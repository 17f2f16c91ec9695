package rest

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

// broken is a service whose every answer goes wrong in one way.
type broken func(context.Context) error

func (b broken) Overview(ctx context.Context, _ tenants.Scope) (fleet.Overview, error) {
	return fleet.Overview{}, b(ctx)
}

func (b broken) SetModules(ctx context.Context, _ tenants.Scope, _ string, _ []string) ([]fleet.ModuleOff, error) {
	return nil, b(ctx)
}

func (w *world) with(b broken, timeout time.Duration) *Server {
	cfg := w.cfg
	cfg.Fleet, cfg.Own, cfg.Timeout = b, nil, timeout
	return New(cfg)
}

const overviewAt = "/t/acme/api/v1/overview"

func TestPanicIsAnsweredAndLogged(t *testing.T) {
	w := newWorld(t)
	s := w.with(func(context.Context) error { panic("secret detail") }, 0)
	r := doOn(s, "GET", overviewAt, w.read, "")
	p := r.problem(t)
	if r.StatusCode != 500 || p.Reason != "internal" || strings.Contains(string(r.body), "secret detail") || r.Header.Get(auth.ReferenceHeader) != p.ReferenceID {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	if log := w.log.String(); !strings.Contains(log, "secret detail") || !strings.Contains(log, p.ReferenceID) {
		t.Error("the log does not lead from the reference to the panic")
	}
}

func TestInternalErrorsStayInside(t *testing.T) {
	w := newWorld(t)
	s := w.with(func(context.Context) error { return errors.New("secret detail") }, 0)
	r := doOn(s, "GET", overviewAt, w.read, "")
	if r.StatusCode != 500 || strings.Contains(string(r.body), "secret detail") {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
	line, err := w.log.find(r.Header.Get(auth.ReferenceHeader))
	if err != nil || line["level"] != "ERROR" || !strings.Contains(line["err"].(string), "secret detail") || line["principal"] == "" {
		t.Errorf("%v %v", line, err)
	}
}

func TestSlowServiceMeetsTheDeadline(t *testing.T) {
	w := newWorld(t)
	s := w.with(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 20*time.Millisecond)
	r := doOn(s, "GET", overviewAt, w.read, "")
	if p := r.problem(t); r.StatusCode != 504 || p.Kind != "DEADLINE_EXCEEDED" || len(p.Next) == 0 {
		t.Errorf("%d %s", r.StatusCode, r.body)
	}
}

func TestCallerThatLeavesIsNoFailureOfTheServer(t *testing.T) {
	w := newWorld(t)
	ctx, leave := context.WithCancel(context.Background())
	s := w.with(func(ctx context.Context) error { leave(); <-ctx.Done(); return ctx.Err() }, 0)
	r := httptest.NewRequest("GET", overviewAt, nil).WithContext(ctx)
	r.Header.Set("Authorization", "Bearer "+w.read)
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, r)
	if rec.Code != statusClientClosed {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestETagOfCapabilities(t *testing.T) {
	w := newWorld(t)
	at := "/t/acme/api/v1/nodes/db-1/capabilities"
	first := w.do("GET", at, w.read, "")
	tag := first.Header.Get("ETag")
	if first.StatusCode != 200 || tag == "" {
		t.Fatalf("%d %v", first.StatusCode, first.Header)
	}
	if r := w.do("GET", at, w.read, "", header{"If-None-Match", tag}); r.StatusCode != 304 || len(r.body) != 0 || r.Header.Get("ETag") != tag {
		t.Errorf("with the tag: %d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", at, "", "", header{"If-None-Match", tag}); r.StatusCode != 401 {
		t.Errorf("a tag is no credential: %d", r.StatusCode)
	}
	if r := w.do("PUT", "/t/acme/api/v1/nodes/db-1/modules", w.admin, `{"off":["storage"]}`); r.StatusCode != 200 {
		t.Fatalf("%d %s", r.StatusCode, r.body)
	}
	if r := w.do("GET", at, w.read, "", header{"If-None-Match", tag}); r.StatusCode != 200 {
		t.Errorf("after a change: %d", r.StatusCode)
	}
}

// TestLogHoldsNoInput: paths and queries are a caller's words.
func TestLogHoldsNoInput(t *testing.T) {
	w := newWorld(t)
	w.do("GET", "/t/acme/api/v1/nodes?search=needle7", w.read, "")
	w.do("GET", "/needle7/t/acme", w.read, "")
	w.do("NEEDLE7", "/healthz", w.read, "")
	if strings.Contains(strings.ToLower(w.log.String()), "needle7") {
		t.Error("the log repeats what a caller wrote")
	}
}

func TestManagement(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := New(Config{Log: quiet(), Own: reg})
	doOn(s, "GET", "/healthz", "", "")
	doOn(s, "BREW", "/healthz", "", "")
	m := Management(reg)
	r := doOn(m, "GET", "/metrics", "", "")
	for _, want := range []string{`telltale_http_requests_total{method="GET",route="/healthz",status="200"} 1`, `telltale_http_requests_total{method="other"`, "telltale_http_request_seconds_bucket"} {
		if !strings.Contains(string(r.body), want) {
			t.Errorf("no %s in %s", want, r.body)
		}
	}
	if r := doOn(m, "GET", "/debug/pprof/goroutine?debug=1", "", ""); r.StatusCode != http.StatusOK {
		t.Errorf("pprof: %d", r.StatusCode)
	}
	for _, path := range []string{"/metrics", "/debug/pprof/"} {
		if r := doOn(s, "GET", path, "", ""); r.StatusCode != http.StatusNotFound {
			t.Errorf("%s is on the public listener: %d", path, r.StatusCode)
		}
	}
}
