package auth_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// The slices satisfy what auth asks of those who know the issuers.
var (
	_ auth.TrustStore = (*access.Service)(nil)
	_ auth.Recorder   = (*audit.Service)(nil)
)

const resourceBase = "http://127.0.0.1:8400"

// door is one server's share of auth for access tokens on a common database.
type door struct {
	access   *access.Service
	oauth    *auth.OAuth
	verifier *auth.Verifier
	fetch    *auth.Fetcher
	handler  http.Handler
}

func newDoor(t *testing.T, db *tenantdb.DB) *door {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	sealer, err := auth.NewSealer(make([]byte, auth.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	site, err := auth.NewSite(auth.SiteConfig{PublicURL: resourceBase})
	if err != nil {
		t.Fatal(err)
	}
	d := &door{access: access.New(db, log, access.Config{Sealer: sealer, AllowHTTPLoopback: true}), fetch: auth.NewFetcher(auth.FetchConfig{AllowHTTPLoopback: true})}
	t.Cleanup(d.fetch.Close)
	dir := directory.New(db, log, directory.Config{TenantTTL: scaled})
	d.oauth = auth.NewOAuth(site, d.access, d.fetch, sealer, auth.OAuthConfig{TTL: scaled}, log)
	d.verifier = auth.NewVerifier(dir, auth.NewOperatorTokens(d.access, nil, auth.OperatorConfig{TTL: scaled}), d.oauth)
	gate := auth.NewGate(site, d.verifier, nil, auth.NewChallenger(site, dir, d.oauth, log))
	mux := http.NewServeMux()
	for _, path := range []string{"/t/{tenant}/mcp", "/t/{tenant}/api/v1/nodes"} {
		mux.Handle(path, gate.Bearer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			sc, _ := auth.ScopeFrom(q.Context())
			fmt.Fprint(w, sc.Granted)
		})))
	}
	d.handler = mux
	return d
}

// ask sends a token to both doors of a tenant and says how it was answered:
// the scopes, or the class of the refusal.
func (d *door) ask(t *testing.T, slug, token string) string {
	t.Helper()
	sc, err := d.verifier.Verify(t.Context(), slug, token, netip.MustParseAddr("192.0.2.7"))
	word := sc.Granted.String()
	f, refused := errors.AsType[*auth.Failure](err)
	switch {
	case refused:
		word = string(f.Class)
	case err != nil:
		t.Fatal(err)
	}
	for _, path := range []string{"/mcp", "/api/v1/nodes"} {
		q := httptest.NewRequest("GET", "/t/"+slug+path, nil)
		q.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		d.handler.ServeHTTP(w, q)
		switch {
		case refused && w.Code != f.Status(), !refused && (w.Code != 200 || w.Body.String() != word), strings.Contains(w.Body.String(), token):
			t.Errorf("%s%s: %d %s, the verifier says %s", slug, path, w.Code, w.Body, word)
		}
	}
	return word
}

// The whole way with a provider that knows nothing of this server, over two
// replicas on one database: people with roles in one tenant, in both and in
// none, tokens in both forms, and what is taken away.
func TestRealProvider(t *testing.T) {
	p := authtest.StartProvider(t, authtest.Config{BaseURL: resourceBase})
	db := dbtest.New(t)
	here, there := newDoor(t, db), newDoor(t, db)
	dir := directory.New(db, slog.New(slog.DiscardHandler), directory.Config{})
	secret := authtest.ServerSecret
	ids, scopes := map[string]tenants.Issuer{}, map[string]tenants.Scope{}
	for _, slug := range []string{"acme", "globex"} {
		tn, err := dir.CreateTenant(t.Context(), slug, "")
		if err != nil {
			t.Fatal(err)
		}
		scopes[slug] = auth.Local(tn, "test", tenants.EveryScope)
		rule := func(group string, s tenants.Scopes) tenants.RoleRule {
			return tenants.RoleRule{Claim: "groups", Value: slug + group, Scopes: s}
		}
		ids[slug], err = here.access.CreateIssuer(t.Context(), scopes[slug], access.IssuerSpec{
			URL: p.Issuer(), Opaque: slug == "globex", ClientID: authtest.Server, ClientSecret: &secret, DashboardClientID: authtest.Dashboard,
			Roles: []tenants.RoleRule{rule("-sre", tenants.Read|tenants.Diagnose|tenants.Act), rule("-viewers", tenants.Read), rule("-admins", tenants.EveryScope)},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range here.oauth.Test(t.Context(), ids[slug]) {
			if !s.OK {
				t.Errorf("%s: %+v", slug, s)
			}
		}
	}
	const wide = "openid offline_access telltale:read telltale:diagnose telltale:act telltale:admin"
	alice := p.Tokens(t, authtest.Alice, "", wide, p.MCP("acme"))
	dana := p.Tokens(t, authtest.Dana, "", wide, p.MCP("globex"))
	carol := p.Token(t, authtest.Carol, "", "telltale:read", p.MCP("globex"))
	for _, c := range []struct{ what, slug, token, want string }{
		{"alice at home", "acme", alice.Access, "telltale:read telltale:diagnose telltale:act"},
		{"alice's at the other tenant", "globex", alice.Access, "audience"},
		{"bob holds less than he asks for", "acme", p.Token(t, authtest.Bob, "", wide, p.MCP("acme")), "telltale:read"},
		{"bob without scopes", "acme", p.Token(t, authtest.Bob, "", "openid", p.MCP("acme")), "no_scope"},
		{"carol with a token for acme", "acme", p.Token(t, authtest.Carol, "", wide, p.MCP("acme")), "no_role"},
		{"carol at home", "globex", carol, "telltale:read"},
		{"carol's at the other tenant", "acme", carol, "malformed"},
		{"dana at one", "globex", dana.Access, "telltale:read telltale:diagnose telltale:act telltale:admin"},
		{"dana at the other", "acme", p.Token(t, authtest.Dana, "", "telltale:read telltale:admin", p.MCP("acme")), "telltale:read telltale:admin"},
		{"erin", "acme", p.Token(t, authtest.Erin, "", wide, p.MCP("acme")), "no_role"},
		{"alice's ID token", "acme", alice.ID, "type"},
		{"alice's refresh token", "acme", alice.Refresh, "malformed"},
		{"dana's refresh token where opaque ones are good", "globex", dana.Refresh, "audience"},
		{"a token for no resource", "globex", p.Token(t, authtest.Dana, "", "openid telltale:read", ""), "audience"},
		{"a robot", "acme", p.ClientCredentials(t, authtest.Robot, "telltale:read", p.MCP("acme")), "telltale:read"},
		{"an unknown token", "globex", "x" + carol, "inactive"},
	} {
		for which, d := range map[string]*door{"here": here, "there": there} {
			got := d.ask(t, c.slug, c.token)
			if got != c.want {
				t.Errorf("%s, %s: %s, want %s", c.what, which, got, c.want)
			}
		}
	}
	id, err := here.oauth.VerifyIDToken(t.Context(), ids["acme"], p.Tokens(t, authtest.Alice, authtest.Dashboard, "openid", p.MCP("acme")).ID, "none was sent")
	if f, ok := errors.AsType[*auth.Failure](err); !ok || f.Class != auth.Claims {
		t.Errorf("an ID token of another sign-in: %+v, %v", id, err)
	}
	if e, err := here.oauth.Endpoints(t.Context(), ids["acme"]); err != nil || !e.PKCE || !e.IssInAnswer || e.Authorization == "" || e.Token == "" {
		t.Errorf("%+v, %v", e, err)
	}

	// Taken away on one replica, gone on the other.
	now := ids["acme"]
	if err := here.access.DeleteIssuer(t.Context(), scopes["acme"], now.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the issuer's tokens are refused there", func() bool {
		_, err := there.verifier.Verify(t.Context(), "acme", alice.Access, netip.MustParseAddr("192.0.2.7"))
		f, ok := errors.AsType[*auth.Failure](err)
		return ok && f.Class == auth.IssuerUnknown
	})
	if got := there.ask(t, "globex", carol); got != "telltale:read" {
		t.Errorf("the other tenant's people: %s", got)
	}

	// The provider goes away and comes back.
	p.Stop(t)
	if got := there.ask(t, "globex", carol); got != "telltale:read" {
		t.Errorf("while the provider is away: %s", got)
	}
	began := time.Now()
	if _, err := there.verifier.Verify(t.Context(), "globex", "never seen", netip.MustParseAddr("192.0.2.7")); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("a new opaque token while it is away: %v", err)
	}
}
