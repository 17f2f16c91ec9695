package rest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
)

// A change of one number keeps what it does not name, above all what only the
// operator of the server can give; null takes a value back.
func TestQuotasKeepWhatIsAbsent(t *testing.T) {
	w := newWorld(t)
	operator := auth.Local(tenants.Tenant{ID: w.acme.Tenant, Slug: "acme"}, "telltaled", tenants.Admin)
	_, err := w.access.SetPolicy(t.Context(), operator, tenants.Policy{MaxTokens: 50_000, TenantRate: 900, FirstScopes: tenants.Read | tenants.Diagnose}, nil)
	w.must(err)
	for _, c := range []struct {
		body string
		want policyBody
	}{
		{`{"principal_rate":5}`, policyBody{PrincipalRate: 5, TenantRate: 900, MaxTokens: 50_000, FirstScopes: []string{"telltale:read", "telltale:diagnose"}}},
		{`{}`, policyBody{PrincipalRate: 5, TenantRate: 900, MaxTokens: 50_000, FirstScopes: []string{"telltale:read", "telltale:diagnose"}}},
		{`{"first_scopes":null,"principal_rate":null,"tenant_rate":0}`, policyBody{MaxTokens: 50_000}},
		{`{"max_tokens":3}`, policyBody{MaxTokens: 3}},
		{`{"max_tokens":50000}`, policyBody{MaxTokens: 50_000}}, // back to what the operator gave
	} {
		r := w.do("PUT", "/t/acme/api/v1/quotas", w.admin, c.body)
		var got quotasView
		w.must(json.Unmarshal(r.body, &got))
		if d := cmp.Diff(c.want, got.Set); d != "" || r.StatusCode != 200 || got.Most.MaxTokens != 50_000 {
			t.Errorf("%s: %d %s", c.body, r.StatusCode, d)
		}
	}
	for body, field := range map[string]string{`{"principal_rate":"5"}`: "principal_rate", `{"scopes":[]}`: "scopes", `{"scopes":[7]}`: "scopes"} {
		r := w.do("PUT", "/t/acme/api/v1/quotas", w.admin, body)
		if p := r.problem(t); r.StatusCode != 400 || p.Field != field {
			t.Errorf("%s: %d %+v", body, r.StatusCode, p)
		}
	}
	if p, err := w.access.PolicyOf(t.Context(), w.other.Tenant); err != nil || p.TenantRate != tenants.DefaultTenantRate {
		t.Errorf("another tenant: %+v, %v", p, err)
	}
}

// The audit tells a suspension from its end, and a reset from a number.
func TestAuditedValues(t *testing.T) {
	on, off := true, false
	var change policyChange
	if err := json.Unmarshal([]byte(`{"max_nodes":null,"tenant_rate":7,"scopes":["telltale:read"]}`), &change); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		body any
		want string
	}{{&tenantRequest{&on}, "suspended=true"}, {&tenantRequest{&off}, "suspended=false"}, {&tenantRequest{}, ""}, {&change, "scopes=[telltale:read] tenant_rate=7 max_nodes=default"}} {
		if got := strings.Join(sentOf(c.body), " "); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
