package mcp

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const everyScope = "read,payloads,diagnose,act,approve,maintain,admin"

// withEverything offers every set over everything that is optional.
func withEverything(b *backend) func(*Config) {
	return func(c *Config) {
		withBackend(b)(c)
		c.ToolSets = ToolSets()
		c.Services.Tokens, c.Services.Audit, c.Services.Usage = fakeAdmin{b}, fakeAdmin{b}, fakeAdmin{b}
	}
}

// fakeAdmin stands for what administrators ask; its data is its tenant's own.
type fakeAdmin struct{ b *backend }

func (f fakeAdmin) ListTokens(_ context.Context, s tenants.Scope, cursor string, limit int) ([]tenants.OperatorToken, string, error) {
	if err := s.Require(tenants.Admin); err != nil {
		return nil, "", err
	}
	own := f.b.slugs[s.Tenant]
	list := []tenants.OperatorToken{
		{ID: own + "1", Tenant: s.Tenant, Name: own + "-deploy", Hash: tenants.SecretHash{1, 2, 3}, Scopes: tenants.Read | tenants.Diagnose, CreatedAt: noon, CreatedBy: own + "-boss", LastUsedAt: ptr(noon),
			CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Nodes: tenants.Selector{Labels: map[string]string{"role": "db"}}},
		{ID: own + "2", Tenant: s.Tenant, Name: own + "-old\u202e", Scopes: tenants.Admin, CreatedAt: noon, ExpiresAt: ptr(noon)},
		{ID: own + "3", Tenant: s.Tenant, Name: own + "-gone", Scopes: tenants.Admin, CreatedAt: noon, RevokedAt: ptr(noon)},
	}
	if cursor == "" && limit < len(list) {
		return list[:limit], "more", nil
	}
	return list, "", nil
}

func (f fakeAdmin) List(_ context.Context, s tenants.Scope, q audit.Query) (audit.Page, error) {
	if err := s.Require(tenants.Admin); err != nil {
		return audit.Page{}, err
	}
	own := f.b.slugs[s.Tenant]
	if q.Reference != "" && !q.Since.IsZero() || q.Reference == "" && q.Since != noon.Add(-auditSpan) {
		return audit.Page{}, fault.Bad("from", "asked since %s", q.Since)
	}
	return audit.Page{Entries: []audit.Row{{ID: "a", At: noon, Principal: audit.Caller{Kind: tenants.TokenPrincipal, ID: own + "1", Name: own + "-deploy"}, Surface: "mcp", Action: "trace_slow_io",
		Arguments: `{node="` + own + `-db1"}`, Outcome: audit.Refused, Reason: "rate_limited", Count: 3, Reference: "ref1"}}}, nil
}

func (f fakeAdmin) Usage(_ context.Context, s tenants.Scope) (Used, error) {
	if err := s.Require(tenants.Admin); err != nil {
		return Used{}, err
	}
	return Used{Usage: []Quota{{What: f.b.slugs[s.Tenant] + " nodes", Used: 12, Max: 48}, {What: "events", Used: 3000}}, Notes: []string{"members: not known at this moment"}}, nil
}

// TestAdminTools: off unless the server says so, only for admins, and no
// secret in any answer.
func TestAdminTools(t *testing.T) {
	names := []string{"list_tokens", "audit_recent", "tenant_usage"}
	standard := start(t, stub{}, func(c *Config) { withEverything(newBackend())(c); c.ToolSets = nil })
	for _, name := range names {
		if r := standard.post(t, "admin", "", toolCall(name, "{}")); !strings.Contains(r.body, "unknown tool") {
			t.Errorf("%s is on by default: %s", name, r.body)
		}
	}
	w := start(t, stub{}, withEverything(newBackend()))
	if list := string(toolList(t, w, "read,diagnose", "")); strings.Contains(list, "list_tokens") {
		t.Error("a caller without admin sees the set")
	}
	s := connect(t, w.URL+"/t/acme/mcp", "admin", "")
	for tool, words := range map[string][]string{
		"list_tokens":  {"acme-deploy", "read diagnose", "role=db", "active", "expired", "revoked", `acme-old\u202e`},
		"audit_recent": {"trace_slow_io", "acme-deploy", "refused rate_limited ×3", "ref1"},
		"tenant_usage": {"acme nodes", "12", "48", "25 %", "3000", "unbounded", "not known"},
	} {
		res := call(t, s, tool, "{}")
		text := textOf(t, res)
		for _, word := range words {
			if res.IsError || !strings.Contains(text, word) {
				t.Errorf("%s lacks %q:\n%s", tool, word, text)
			}
		}
		body := bodyOf(t, res.StructuredContent)
		walk(body, func(s string) {
			if l := strings.ToLower(s); strings.Contains(l, "hash") || strings.Contains(l, "secret") {
				t.Errorf("%s tells %q", tool, s)
			}
		})
	}
	if text := textOf(t, call(t, s, "list_tokens", `{"limit":1}`)); !strings.Contains(text, "next_cursor: more") {
		t.Errorf("a page: %s", text)
	}
	limited := connect(t, w.URL+"/t/acme/mcp", "admin#db", "")
	if text := textOf(t, call(t, limited, "tenant_usage", "{}")); !strings.Contains(text, "PERMISSION_DENIED") {
		t.Errorf("an admin of some nodes alone: %s", text)
	}
	if text := textOf(t, call(t, s, "audit_recent", `{"reference_id":"ref1"}`)); !strings.Contains(text, "ref1") {
		t.Errorf("by reference: %s", text)
	}
	if text := textOf(t, call(t, s, "audit_recent", `{"from":"`+noon.Add(-time.Hour).Format(time.RFC3339)+`"}`)); !strings.Contains(text, "INVALID_ARGUMENT") {
		t.Errorf("the window is passed on: %s", text)
	}
}
