package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// quotaBites gives a tenant a small quota and uses one caller's up. Everybody
// else goes on.
func quotaBites(t *testing.T, x, other tenant) {
	const policy = `{"principal_rate":8,"tenant_rate":6000}`
	if a := call(t, http.MethodPut, x.RESTURL+"/quotas", x.Tokens["admin"], policy, "Content-Type", "application/json"); a.status != http.StatusOK {
		t.Fatalf("PUT quotas: %d %s", a.status, a.body)
	}
	defer func() {
		if a := call(t, http.MethodPut, x.RESTURL+"/quotas", x.Tokens["admin"], `{"principal_rate":600,"tenant_rate":6000}`, "Content-Type", "application/json"); a.status != http.StatusOK {
			t.Errorf("a wide quota again: %d %s", a.status, a.body)
		}
	}()
	token, list := x.Tokens["act"], `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	var over answer
	poll(t, 10*time.Second, "refusal of the caller over its quota", func() bool {
		over = call(t, http.MethodGet, x.RESTURL+"/overview", token, "")
		if h := over.header; over.status == http.StatusOK && (h.Get("RateLimit") == "" || h.Get("RateLimit-Policy") == "") {
			t.Errorf("no word of the quota: %v", h)
		}
		return over.status != http.StatusOK
	})
	limited := func(what string, a answer) {
		t.Helper()
		h := a.header
		if h.Get("RateLimit-Policy") != `"principal";q=8;w=60` || !strings.HasPrefix(h.Get("RateLimit"), `"principal";r=0;t=`) || h.Get("Retry-After") == "" || !strings.HasPrefix(h.Get("Cache-Control"), "no-store") || h.Get("Telltale-Reference") == "" {
			t.Errorf("%s: %v", what, h)
		}
	}
	limited("REST", over)
	if over.status != http.StatusTooManyRequests || !strings.Contains(over.body, "rate_limited") {
		t.Errorf("REST: %d %s", over.status, over.body)
	}
	a := call(t, http.MethodPost, x.MCPURL, token, list, mcpHeaders...)
	limited("tools/list", a)
	if a.status != http.StatusTooManyRequests || !strings.Contains(a.body, `"error"`) || !strings.Contains(a.body, "8 requests a minute") {
		t.Errorf("tools/list: %d %s", a.status, a.body)
	}
	a = call(t, http.MethodPost, x.MCPURL, token, rpc(t, "tools/call", map[string]any{"name": "fleet_overview", "arguments": map[string]any{}}), mcpHeaders...)
	limited("tools/call", a)
	if a.status != http.StatusOK || !strings.Contains(a.body, `"isError":true`) || !strings.Contains(a.body, "rate_limited") || !strings.Contains(a.body, "wait ") {
		t.Errorf("tools/call: %d %s", a.status, a.body)
	}
	for what, y := range map[string]struct {
		x    tenant
		kind string
	}{"another caller": {x, "approve"}, "the other tenant": {other, "act"}} {
		for range 4 {
			b := call(t, http.MethodPost, y.x.MCPURL, y.x.Tokens[y.kind], list, mcpHeaders...)
			c := call(t, http.MethodGet, y.x.RESTURL+"/overview", y.x.Tokens[y.kind], "")
			if b.status != http.StatusOK || c.status != http.StatusOK {
				t.Errorf("%s: %d and %d %s", what, b.status, c.status, c.body)
			}
		}
	}
}
