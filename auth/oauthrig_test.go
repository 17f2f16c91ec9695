package auth

import (
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const (
	acmeMCP   = publicURL + "/t/acme/mcp"
	globexMCP = publicURL + "/t/globex/mcp"
	guid      = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"
	acmeTID   = "11111111-0000-4000-8000-000000000001"
	globexTID = "22222222-0000-4000-8000-000000000002"
	allWords  = "telltale:read telltale:payloads telltale:diagnose telltale:act telltale:approve telltale:maintain telltale:admin"
)

// siteA is the part of the nodes that group acme-limited sees.
var siteA = tenants.Selector{Labels: map[string]string{"site": "a"}}

// oauthRig is a rig whose two tenants both trust two identity providers: one
// of the first dialect (signer) and one of the second (dir).
type oauthRig struct {
	*rig
	signer, dir *authtest.Signer
}

func newOAuthRig(t testing.TB, cfg OAuthConfig) *oauthRig {
	t.Helper()
	return newOAuthRigAt(t, cfg, authtest.NewSigner(t), authtest.NewSigner(t))
}

func newOAuthRigAt(t testing.TB, cfg OAuthConfig, signer, dir *authtest.Signer) *oauthRig {
	t.Helper()
	r := &oauthRig{rig: newRigWith(t, SiteConfig{}, cfg), signer: signer, dir: dir}
	t.Cleanup(r.fetch.Close)
	sealer, _ := NewSealer(make([]byte, KeySize))
	for slug, tid := range map[string]string{"acme": acmeTID, "globex": globexTID} {
		roles := []tenants.RoleRule{
			{Claim: "groups", Value: slug + "-sre", Scopes: tenants.Read | tenants.Payloads | tenants.Diagnose | tenants.Act},
			{Claim: "groups", Value: slug + "-viewers", Scopes: tenants.Read},
			{Claim: "groups", Value: slug + "-limited", Scopes: tenants.Read | tenants.Diagnose, Nodes: siteA},
			{Scopes: tenants.EveryScope}, // void: both issuers are shared
		}
		r.trusts[r.tenants[slug].ID] = tenants.Trust{Issuers: []tenants.Issuer{
			{
				ID: slug + "-one", URL: r.signer.URL, Mode: tenants.AudienceResource, Opaque: true, Shared: true, Roles: roles,
				ClientID: authtest.IntrospectID, SealedSecret: sealer.Seal([]byte(authtest.IntrospectSecret), tenants.IssuerSecretUse),
			},
			{
				ID: slug + "-two", URL: r.dir.URL, Mode: tenants.AudienceStatic, Audiences: []string{"api://other", guid}, TenantClaim: "tid", TenantValue: tid,
				Types: []string{"jwt"}, Shared: true, Roles: roles,
			},
		}}
	}
	return r
}

// trust changes a tenant's trust.
func (r *oauthRig) trust(t tenants.Tenant, change func(*tenants.Trust)) {
	set(r.memory, r.trusts, t.ID, func(to *tenants.Trust) {
		to.Issuers = append([]tenants.Issuer(nil), to.Issuers...)
		change(to)
	})
}

func (r *oauthRig) issuer(t tenants.Tenant, change func(*tenants.Issuer)) {
	r.trust(t, func(to *tenants.Trust) { change(&to.Issuers[0]) })
}

func (r *oauthRig) verify(t testing.TB, slug, token string) (tenants.Scope, error) {
	t.Helper()
	return r.verifier.Verify(t.Context(), slug, token, anywhere)
}

// good makes a token of a member of acme-sre with all scopes.
func (r *oauthRig) good(t testing.TB, change func(*authtest.Draft)) string {
	t.Helper()
	return r.signer.Access(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, change)
}

// wantRefusal checks a token at the verifier and at both doors.
func (r *oauthRig) wantRefusal(t *testing.T, what, slug, token string, want Class) {
	t.Helper()
	sc, err := r.verify(t, slug, token)
	f, ok := err.(*Failure)
	if !ok || f.Class != want || !sc.Tenant.IsZero() {
		t.Errorf("%s: %+v, %v; want %s", what, sc, err, want)
		return
	}
	for _, hidden := range []string{f.Error(), f.Expected, f.Received, f.Issuer, f.Description(), fault.Of(f).Error()} {
		if strings.Contains(hidden, token) {
			t.Errorf("%s: the refusal shows the token", what)
		}
	}
	for _, path := range []string{"/mcp", "/api/v1/nodes"} {
		w := r.do("GET", "/t/"+slug+path, "", "Authorization", "Bearer "+token)
		challenge := w.Header().Get("WWW-Authenticate")
		wantIn := `error="invalid_token", error_description="` + f.Description() + `"`
		switch {
		case w.Code != f.Status():
			t.Errorf("%s at %s: status %d", what, path, w.Code)
		case f.Status() == 401 && !strings.Contains(challenge, wantIn), f.Class == NoRole && challenge != "":
			t.Errorf("%s at %s: challenge %q", what, path, challenge)
		case strings.Contains(w.Body.String(), token) || strings.Contains(challenge, token) || w.Header().Get(ReferenceHeader) == "":
			t.Errorf("%s at %s: %v %s", what, path, w.Header(), w.Body)
		}
	}
}

func (r *oauthRig) wantGood(t *testing.T, what, slug, token string, granted tenants.Scopes) tenants.Scope {
	t.Helper()
	sc, err := r.verify(t, slug, token)
	if err != nil || sc.Slug != slug || sc.Tenant != r.tenants[slug].ID || sc.Granted != granted || sc.Principal.Kind != tenants.OAuthPrincipal {
		t.Errorf("%s: %+v, %v; want %s", what, sc, err, granted)
	}
	for _, path := range []string{"/mcp", "/api/v1/nodes"} {
		w := r.do("GET", "/t/"+slug+path, "", "Authorization", "Bearer "+token)
		if w.Code != 200 && granted.Has(tenants.Read) {
			t.Errorf("%s at %s: %d %s", what, path, w.Code, w.Body)
		}
	}
	return sc
}
