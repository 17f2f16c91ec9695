package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestGate: four calls of one principal wait at once, the fifth is told so;
// others and tickets are not held up.
func TestGate(t *testing.T) {
	b := newBackend()
	b.hold = make(chan struct{})
	w := start(t, stub{}, withBackend(b))
	var wg sync.WaitGroup
	for range maxWaiting {
		wg.Go(func() { w.post(t, "diagnose", "", toolCall("trace_slow_io", `{"node":"acme-db1"}`)) })
	}
	eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.started == maxWaiting })
	r := w.post(t, "diagnose", "", toolCall("trace_slow_io", `{"node":"acme-db1"}`))
	if !strings.Contains(r.body, "RESOURCE_EXHAUSTED") || !strings.Contains(r.body, "too_many_calls") || !strings.Contains(r.body, "ticket") {
		t.Errorf("the fifth: %s", r.body)
	}
	if r := w.post(t, "diagnose", "", toolCall("list_events", `{}`)); !strings.Contains(r.body, "retransmit_burst") {
		t.Errorf("reading: %s", r.body)
	}
	if r := w.post(t, "diagnose@globex", "", toolCall("trace_slow_io", `{"node":"globex-db1","duration_s":9}`)); !strings.Contains(r.body, accepted) {
		t.Errorf("another principal: %s", r.body)
	}
	close(b.hold)
	wg.Wait()
	if r := w.post(t, "diagnose", "", toolCall("trace_slow_io", `{"node":"acme-db1"}`)); !strings.Contains(r.body, "COMPLETED") {
		t.Errorf("afterwards: %s", r.body)
	}
	if len(w.h.gate.waiting) != 0 {
		t.Errorf("the gate keeps %v", w.h.gate.waiting)
	}
}

// TestProgress: a client that gave a token is told, growing numbers only.
func TestProgress(t *testing.T) {
	b := newBackend()
	w := start(t, stub{}, withBackend(b))
	body := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"_meta":{"progressToken":"p1"},"name":"trace_slow_io","arguments":{"node":"acme-db1"}}}`
	r := w.post(t, "diagnose", "", body)
	if n := strings.Count(r.body, "notifications/progress"); n != 2 || !strings.Contains(r.body, `"progressToken":"p1"`) || !strings.Contains(r.body, `"progress":0.25`) || !strings.Contains(r.body, `"progress":0.75`) || !strings.Contains(r.body, "COMPLETED") {
		t.Errorf("%d messages in %s", n, r.body)
	}
	if r := w.post(t, "diagnose", "", toolCall("trace_slow_io", `{"node":"acme-db1"}`)); strings.Contains(r.body, "notifications/progress") {
		t.Errorf("without a token: %s", r.body)
	}
}

// TestAbandonedCalls: the end of a modern request cancels its task, a legacy
// one runs out.
func TestAbandonedCalls(t *testing.T) {
	for _, modern := range []bool{true, false} {
		t.Run(fmt.Sprintf("modern %t", modern), func(t *testing.T) {
			b := newBackend()
			b.hold = make(chan struct{})
			w := start(t, stub{}, withBackend(b))
			body, header := toolCall("trace_slow_io", `{"node":"acme-db1"}`), []string{}
			if modern {
				body, header = modernMeta("tools/call", `"name":"trace_slow_io","arguments":{"node":"acme-db1"}`)
				header = append(header, "Mcp-Name", "trace_slow_io")
			}
			ctx, leave := context.WithCancel(t.Context())
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/t/acme/mcp", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				for i := 0; i+1 < len(header); i += 2 {
					req.Header.Set(header[i], header[i+1])
				}
				req.Header.Set("Authorization", "Bearer diagnose")
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Accept", "application/json, text/event-stream")
				if res, err := http.DefaultClient.Do(req); err == nil {
					_ = res.Body.Close()
				}
			}()
			eventually(t, func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.started == 1 })
			leave()
			<-gone
			if modern {
				<-b.ended
				return
			}
			close(b.hold)
			eventually(t, func() bool { return strings.Contains(w.log.String(), `"outcome":"ok"`) })
			select {
			case id := <-b.ended:
				t.Errorf("the legacy call's task %s was cancelled", id)
			default:
			}
		})
	}
}
