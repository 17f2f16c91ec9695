package mcp

import (
	"context"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// How many calls may wait for nodes at once, of one principal and of a whole
// tenant on this replica. A ticket does not wait, so it never blocks a caller.
const (
	maxWaiting       = 4
	maxTenantWaiting = 64
)

// gate counts the calls that wait for nodes, by principal and by tenant. The
// zero value is ready; safe for concurrent use.
type gate struct {
	mu      sync.Mutex
	waiting map[principalKey]int
}

// principalKey tells callers apart: the id of a principal is unique within its
// kind and tenant only. Without kind and id it is the whole tenant.
type principalKey struct {
	tenant tenants.TenantID
	kind   tenants.PrincipalKind
	id     string
}

func keyOf(s tenants.Scope) principalKey {
	return principalKey{s.Tenant, s.Principal.Kind, s.Principal.ID}
}

// enter lets one more call in, or says why not. leave must be called once.
func (g *gate) enter(s tenants.Scope) (leave func(), err error) {
	own, whole := keyOf(s), principalKey{tenant: s.Tenant}
	if !g.take(own, maxWaiting) {
		return nil, fault.Newf(fault.Exhausted, "too_many_calls", "%d diagnose calls of this principal are waiting already, no more are let in at once", maxWaiting).
			Do("wait until one has answered, or ask with duration_s above 8: that gives a ticket and waits for nobody")
	}
	if !g.take(whole, maxTenantWaiting) {
		g.give(own)
		return nil, fault.Newf(fault.Exhausted, "too_many_calls", "%d diagnose calls of this tenant are waiting already, no more are let in at once", maxTenantWaiting).
			Do("wait until some have answered, or ask with duration_s above 8: that gives a ticket and waits for nobody")
	}
	return func() {
		g.give(own)
		g.give(whole)
	}, nil
}

func (g *gate) take(k principalKey, limit int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting == nil {
		g.waiting = map[principalKey]int{}
	}
	if g.waiting[k] >= limit {
		return false
	}
	g.waiting[k]++
	return true
}

func (g *gate) give(k principalKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting[k]--; g.waiting[k] <= 0 {
		delete(g.waiting, k)
	}
}

// progressWait bounds one progress message; a client that does not read loses
// messages, never its answer.
const progressWait = 2 * time.Second

// teller makes what tells the client of one call how far it is; that is nil
// unless the client gave a token. It does nothing after done, and what it tells
// only ever grows.
func (h *Handler) teller(req *sdk.CallToolRequest) teller {
	return func(ctx context.Context) (tell func(done, total float64, message string), done func()) {
		token := req.Params.GetProgressToken()
		if token == nil || req.Session == nil {
			return nil, func() {}
		}
		var mu sync.Mutex
		last, over := -1.0, false
		tell = func(now, total float64, message string) {
			mu.Lock()
			defer mu.Unlock()
			if over || now <= last {
				return
			}
			last = now
			ctx, cancel := context.WithTimeout(ctx, progressWait)
			defer cancel()
			if err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: now, Total: total, Message: inspector.CleanLines(message)}); err != nil {
				h.log.DebugContext(ctx, "progress was not told", "error", err)
			}
		}
		return tell, func() {
			mu.Lock()
			defer mu.Unlock()
			over = true
		}
	}
}
