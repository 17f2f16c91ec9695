package mcp

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
)

// fakeLimits lets so many requests of each principal in.
type fakeLimits struct {
	mu   sync.Mutex
	left map[string]int
}

func (f *fakeLimits) Take(_ context.Context, s tenants.Scope) auth.Verdict {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := auth.Verdict{Which: auth.LimitPrincipal, Limit: 600, Reset: time.Minute}
	if v.OK = f.left[s.Principal.ID] > 0; v.OK {
		f.left[s.Principal.ID]--
		v.Remaining = f.left[s.Principal.ID]
	} else {
		v.RetryAfter = 2500 * time.Millisecond
	}
	return v
}

// TestRateLimits: over its limit a call of a tool is a result that a model can
// act on, everything else 429, and others are not touched.
func TestRateLimits(t *testing.T) {
	limits := &fakeLimits{left: map[string]int{"t1": 2, "t2": 1000}}
	w := start(t, stub{nodes: stubNodes(1)}, func(c *Config) { withBackend(newBackend())(c); c.Limits = limits })
	r := w.post(t, "read", "", toolCall("list_nodes", "{}"))
	if r.status != 200 || r.header.Get("RateLimit-Policy") != `"principal";q=600;w=60` || r.header.Get("RateLimit") != `"principal";r=1;t=60` || r.header.Get("Retry-After") != "" {
		t.Errorf("within: %d %v", r.status, r.header)
	}
	if r := w.post(t, "read", "", "{oops"); r.status != 400 { // what is malformed counts, too
		t.Errorf("malformed: %d", r.status)
	}
	r = w.post(t, "read", "", toolCall("list_nodes", "{}"))
	for _, word := range []string{`"isError":true`, "RESOURCE_EXHAUSTED rate_limited", "600 requests a minute", "wait 3 s"} {
		if r.status != 200 || !strings.Contains(r.body, word) {
			t.Errorf("a call lacks %q: %d %s", word, r.status, r.body)
		}
	}
	if r.header.Get("Retry-After") != "3" || strings.Contains(r.body, "node-000") {
		t.Errorf("a call: %v %s", r.header, r.body)
	}
	if log := w.log.String(); !strings.Contains(log, `"reason":"rate_limited"`) {
		t.Errorf("the refusal is not in the audit line: %s", log)
	}
	body, header := modernMeta("tools/call", `"name":"list_nodes"`)
	if r := w.post(t, "read", "", body, append(header, "Mcp-Name", "list_nodes")...); r.status != 200 || !strings.Contains(r.body, `"isError":true`) || !strings.Contains(r.body, `"resultType":"complete"`) {
		t.Errorf("a modern call: %d %s", r.status, r.body)
	}
	for name, body := range map[string]string{"list": listCall, "ping": `{"jsonrpc":"2.0","id":7,"method":"ping"}`, "notification": `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "broken": "{oops",
		"resource": `{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"telltale://health"}}`} {
		r := w.post(t, "read", "", body)
		code, msg := rpcError(t, r)
		if r.status != 429 || code != -32600 || r.header.Get("Retry-After") != "3" || !strings.Contains(msg, "600 requests a minute") || !strings.Contains(r.body, `"retry_after_s":3`) || !strings.Contains(r.header.Get("Cache-Control"), "no-store") {
			t.Errorf("%s: %d %v %s", name, r.status, r.header, r.body)
		}
	}
	if r := w.post(t, "read@globex", "", listCall); r.status != 200 {
		t.Errorf("another principal: %d", r.status)
	}
}

// TestGateOfTheTenant: many principals together hold as many calls as the
// tenant may, and another tenant is not touched.
func TestGateOfTheTenant(t *testing.T) {
	var g gate
	acme, globex := tenants.NewTenantID(), tenants.NewTenantID()
	scope := func(tenant tenants.TenantID, id string) tenants.Scope {
		return tenants.Scope{Tenant: tenant, Principal: tenants.Principal{Kind: tenants.OAuthPrincipal, ID: id}}
	}
	leaves := []func(){}
	for i := range maxTenantWaiting {
		leave, err := g.enter(scope(acme, string(rune('a'+i/maxWaiting))))
		if err != nil {
			t.Fatal(i, err)
		}
		leaves = append(leaves, leave)
	}
	if _, err := g.enter(scope(acme, "one more")); err == nil || !strings.Contains(err.Error(), "this tenant") {
		t.Errorf("beyond the tenant's: %v", err)
	}
	leave, err := g.enter(scope(globex, "a"))
	if err != nil {
		t.Errorf("another tenant: %v", err)
	}
	leave()
	for _, leave := range leaves {
		leave()
	}
	if len(g.waiting) != 0 {
		t.Errorf("the gate keeps %v", g.waiting)
	}
}
