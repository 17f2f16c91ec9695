package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// reader reads one server-sent stream over a real connection.
type reader struct {
	t     *testing.T
	lines *bufio.Scanner
}

func (w *world) listen(t *testing.T, path, token string) *reader {
	t.Helper()
	cfg := w.cfg
	cfg.Own, cfg.StreamLife = nil, time.Minute
	srv := httptest.NewServer(New(cfg))
	t.Cleanup(srv.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", srv.URL+"/t/acme/api/v1"+path, nil)
	w.must(err)
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	w.must(err)
	t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %d %v", path, res.StatusCode, res.Header)
	}
	return &reader{t, bufio.NewScanner(res.Body)}
}

// next returns the next message; "" when the stream is over.
func (r *reader) next() (event, data string) {
	for r.lines.Scan() {
		switch line := r.lines.Text(); {
		case strings.HasPrefix(line, "event: "):
			event = line[7:]
		case strings.HasPrefix(line, "data: "):
			return event, line[6:]
		}
	}
	return "", ""
}

// TestEventStream shows a caller what it may see, at once, and nothing else.
func TestEventStream(t *testing.T) {
	w := newWorld(t)
	acme := w.find("acme")
	r := w.listen(t, "/events/stream", w.restricted)
	for _, n := range []struct {
		node   tenants.NodeID
		device string
	}{{w.web, "hidden"}, {w.db, "sdb"}} { // the reader may see db alone
		labels := map[string]string{"device": n.device}
		at := time.Now()
		w.must(w.events.Record(context.Background(), nodeScope(acme, n.node), inspector.EventReport{Kind: "slow_io", Fingerprint: inspector.FingerprintOf("slow_io", labels),
			Begun: at, Last: at, Severity: inspector.Critical, State: inspector.EventOpen, Labels: labels, SampleCount: 1}, 0))
	}
	for {
		name, data := r.next()
		if name == "reload" {
			continue
		}
		var e events.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil || name != "event" {
			t.Fatalf("%s %s: %v", name, data, err)
		}
		if e.Node != w.db.String() {
			t.Fatalf("the stream shows another node: %+v", e)
		}
		if e.Scope["device"] == "sdb" {
			return
		}
	}
}

// TestTaskStream follows a task to its end.
func TestTaskStream(t *testing.T) {
	w := newWorld(t)
	task, err := w.tasks.Do(context.Background(), auth.Local(w.find("acme"), "test", tenants.Diagnose),
		tasks.Request{Kind: "trace_opens", Node: w.db.String(), Args: map[string]any{"duration_s": 20}}, tasks.DoOptions{})
	w.must(err)
	r := w.listen(t, "/tasks/"+task.Ticket+"/stream", w.read)
	if name, data := r.next(); name != "task" || !strings.Contains(data, `"status":"RUNNING"`) {
		t.Fatalf("%s %s", name, data)
	}
	if res := w.do("DELETE", "/t/acme/api/v1/tasks/"+task.Ticket, w.admin, ""); res.StatusCode != 200 {
		t.Fatalf("cancel: %d %s", res.StatusCode, res.body)
	}
	last := ""
	for name, data := r.next(); name == "task"; name, data = r.next() {
		last = data
	}
	if !strings.Contains(last, `"status":"CANCELLED"`) {
		t.Errorf("the stream ended with %s", last)
	}
}

// TestRevocationEndsStreams within five seconds.
func TestRevocationEndsStreams(t *testing.T) {
	w := newWorld(t)
	r := w.listen(t, "/events/stream", w.read)
	began := time.Now()
	w.must(w.dir.SetSuspended(context.Background(), "acme", true))
	for name, _ := r.next(); name == "event" || name == "reload"; name, _ = r.next() {
	}
	if took := time.Since(began); took > tenants.RevocationDelay {
		t.Errorf("the stream lived %s longer than its tenant", took)
	}
}

func TestTooManyStreams(t *testing.T) {
	s := newStreams()
	for i := range maxTenantStreams {
		if err := s.enter("t", fmt.Sprint("p", i/maxPrincipalStreams)); err != nil {
			t.Fatal(i, err)
		}
		if i == maxPrincipalStreams-1 && s.enter("t", "p0") == nil {
			t.Error("one principal opens streams without end")
		}
	}
	if s.enter("t", "another") == nil {
		t.Error("one tenant opens streams without end")
	}
	if err := s.enter("u", "q"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	s.leave("t", "p0")
	if err := s.enter("t", "p0"); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
}

func TestTaskRefusals(t *testing.T) {
	w := newWorld(t)
	for body, want := range map[string]struct {
		status        int
		reason, field string
	}{
		`{"node":"db-1"}`:                                                                  {400, "invalid_body", "kind"},
		`{"kind":"trace_opens"}`:                                                           {400, "invalid_body", "node"},
		`{"kind":"nonsense","node":"db-1"}`:                                                {400, "unknown_task", "kind"},
		`{"kind":"run_thing","node":"db-1"}`:                                               {403, "not_over_rest", ""},
		`{"kind":"trace_opens","node":"web-1"}`:                                            {404, "unknown_node", ""}, // outside the selector
		`{"kind":"trace_opens","node":"db-1","arguments":{"duration_s":0}}`:                {400, "out_of_bounds", "duration_s"},
		`{"kind":"trace_opens","node":"db-1","arguments":{"duration_s":-1}}`:               {400, "out_of_bounds", "duration_s"},
		`{"kind":"trace_opens","node":"db-1","arguments":{"duration_s":1000000}}`:          {400, "out_of_bounds", "duration_s"},
		`{"kind":"trace_opens","node":"db-1","arguments":{"max_events":1000000000}}`:       {400, "out_of_bounds", "max_events"},
		`{"kind":"trace_opens","node":"db-1","arguments":{"duration_s":1,"duration_s":1}}`: {400, "invalid_body", "duration_s"},
		`{"kind":"trace_opens","node":"db-1","labels":{"role":"db"}}`:                      {400, "invalid_body", "node"},
		`{"kind":"trace_opens","labels":{"role":"none"}}`:                                  {404, "no_nodes", ""},
		`{"kind":"trace_opens","node":"db-1","arguments":{"nonsense":1}}`:                  {400, "unknown_argument", "nonsense"},
	} {
		r := w.do("POST", "/t/acme/api/v1/tasks", w.restricted, body)
		if r.StatusCode != want.status {
			t.Errorf("%s: %d %s", body, r.StatusCode, r.body)
			continue
		}
		if p := r.problem(t); p.Reason != want.reason || want.field != "" && p.Field != want.field || len(p.Next) == 0 {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

func (w *world) find(slug string) tenants.Tenant {
	w.t.Helper()
	tn, err := w.dir.TenantBySlug(context.Background(), slug)
	w.must(err)
	return tn
}

// TestExportEndsWithItsCaller: an export may take minutes, and the one that it
// is made for may lose the right to it meanwhile.
func TestExportEndsWithItsCaller(t *testing.T) {
	allowed := true
	out := httptest.NewRecorder()
	e := &exportBody{w: out, slug: "acme", looked: time.Now(), allowed: func() bool { return allowed }}
	write := func(want error) {
		t.Helper()
		if _, err := e.Write([]byte("row\n")); err != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	write(nil)
	e.looked = time.Now().Add(-streamRecheck)
	write(nil)
	allowed = false
	write(nil) // looked at just now
	e.looked = time.Now().Add(-streamRecheck)
	write(errExportEnds)
	if out.Body.String() != "row\nrow\nrow\n" {
		t.Errorf("it wrote %q", out.Body)
	}
}

// TestStreamsFollowRevocations: what a stream adds to the memory of auth, three
// seconds, stays within the promise.
func TestStreamsFollowRevocations(t *testing.T) {
	if worst := 2*streamRecheck + 3*time.Second; worst > tenants.RevocationDelay {
		t.Errorf("a revocation ends a stream within %s, want %s", worst, tenants.RevocationDelay)
	}
}
