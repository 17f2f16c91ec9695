package mcp

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// TestEveryTaskIsEqual calls every tool that starts a task, both ways. Who
// wants to hear of progress or of a handle, and the initialize era, has the SDK.
func TestEveryTaskIsEqual(t *testing.T) {
	t.Parallel()
	w, l := bothWays(t, nil)
	b := w.h.cfg.Services.Tasks.(fakeTasks).backend
	first := func(q asked, sdkOnly bool) heard { // each time the first task of its kind
		b.mu.Lock()
		b.serial = 1000
		b.mu.Unlock()
		return ask(t, w, l, q, sdkOnly)
	}
	arguments := append([]string{`{"node":"acme-db1","pid":7}`, `{"node":"acme-db1","device":"sda"}`, `{"node":"acme-db1","duration_s":8,"pid":1,"format":"detailed"}`, `{"node":"acme-db1","duration_s":30}`,
		`{"selector":{"all":"x"}}`, `{"selector":{"role":"db"},"pid":1}`, `{"node":"acme-db1","selector":{"a":"b"}}`, `{"node":"acme-db1","device":"nosuch"}`, `{"node":"acme-db1","max_bytes":1024}`, `{"node":"acme-db1","duration_s":0}`}, goodAndBad...)
	tools, asks := 0, 0
	for i := range w.h.tools {
		tool := &w.h.tools[i]
		if !tool.Gated {
			continue
		}
		tools++
		for _, bearer := range []string{"admin", "diagnose@globex", "diagnose#db", "read", "diagnose#late"} {
			for n, args := range arguments {
				if bearer != "admin" && n%5 != 0 {
					continue
				}
				params := `"name":"` + tool.Name + `"`
				if args != "" {
					params += `,"arguments":` + args
				}
				list := eras(asked{bearer: bearer}, "tools/call", params)
				for _, meta := range []string{`"progressToken":"p"`, `"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"}`} {
					list = append(list, modernAsked(asked{bearer: bearer}, "tools/call", params, `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},`+meta))
				}
				list = append(list, modernAsked(asked{bearer: bearer}, "tools/call", params,
					`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"`+handleExtension+`":{}}}`))
				for k, q := range list[len(list)-5:] { // the last of the initialize era, a bare one, progress, a name, handles
					beside := w.h.beside.Load()
					got := first(q, false)
					direct := w.h.beside.Load() > beside
					want := first(q, true)
					if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
						t.Fatalf("%s %v\n%.2000s\ndiffers from the SDK's answer:\n%.4000s", q.bearer, q.header, q.body, d)
					}
					if direct && k != 1 && k != 3 {
						t.Fatalf("answered beside the SDK: %s", q.body)
					}
					if direct {
						asks++
					}
				}
			}
		}
	}
	if tools < 5 || asks < 30*tools {
		t.Errorf("%d calls of %d tools were answered beside the SDK: this test shows little", asks, tools)
	}
}

// TestQuietTasksGetComments: a call that waits shows a sign of life whoever
// answers it, ends with its client, and hears when the server stops.
func TestQuietTasksGetComments(t *testing.T) {
	for _, sdkOnly := range []bool{false, true} {
		b := newBackend()
		b.hold = make(chan struct{})
		w := start(t, stub{}, func(c *Config) {
			withBackend(b)(c)
			c.Pulse = 20 * time.Millisecond
		})
		w.h.sdkOnly = sdkOnly
		list := eras(asked{}, "tools/call", `"name":"trace_slow_io","arguments":{"node":"acme-db1"}`)
		q, heard := list[len(list)-1], func() { close(b.hold) }
		call := func(ctx context.Context) (*patient, <-chan struct{}) {
			req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/t/acme/mcp", strings.NewReader(q.body))
			req.Header = q.header.Clone()
			req.Header["Authorization"], req.Header["Content-Type"], req.Header["Accept"] = []string{"Bearer diagnose"}, []string{"application/json"}, []string{"application/json, text/event-stream"}
			rec, done := &patient{ResponseRecorder: httptest.NewRecorder(), heard: heard}, make(chan struct{})
			go func() {
				defer close(done)
				w.signIn(w.h).ServeHTTP(rec, req)
			}()
			return rec, done
		}
		before := w.h.beside.Load()
		rec, done := call(t.Context())
		<-done
		body := rec.Body.String()
		if n := strings.Count(body, ": alive\n\n"); n < 2 || !strings.Contains(body, "COMPLETED") || !strings.HasSuffix(body, eventEnd) || rec.Header().Get("Content-Length") != "" {
			t.Errorf("SDK alone %t: %d comments in %v %s", sdkOnly, n, rec.Header(), body)
		}
		if got := w.h.beside.Load() > before; got == sdkOnly {
			t.Errorf("beside the SDK: %t", got)
		}

		b.mu.Lock()
		b.hold = make(chan struct{})
		b.mu.Unlock()
		heard = func() {}
		for _, cause := range []error{context.Canceled, fault.ErrStopping} {
			ctx, leave := context.WithCancelCause(t.Context())
			b.mu.Lock()
			b.started = 0
			b.mu.Unlock()
			_, done = call(ctx)
			started := func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.started == 1 }
			eventually(t, started)
			leave(cause)
			<-done
			<-b.ended
		}
	}
}

// patient is a reader that says when it has heard two signs of life.
type patient struct {
	*httptest.ResponseRecorder
	comments int
	heard    func()
}

func (p *patient) Write(b []byte) (int, error) {
	if strings.HasPrefix(string(b), ": alive") {
		if p.comments++; p.comments == 2 {
			p.heard()
		}
	}
	return p.ResponseRecorder.Write(b)
}
