package auth

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
)

// stepWord is "ok", "skipped" or "failed" for each step, in order.
func stepWords(t *testing.T, what string, steps []tenants.Step) string {
	t.Helper()
	var out []string
	for _, s := range steps {
		word := "FAILED"
		switch {
		case s.Skipped:
			word = "skipped"
		case s.OK:
			word = "ok"
		}
		if (s.Next == "") != s.OK || s.Name == "" || !s.OK && s.Received == "" {
			t.Errorf("%s: %+v", what, s)
		}
		for _, text := range []string{s.Expected, s.Received, s.Next} {
			if strings.Contains(text, authtest.IntrospectSecret) || strings.Contains(text, "dial tcp") {
				t.Errorf("%s: shows %+v", what, s)
			}
		}
		out = append(out, s.Name+" "+word)
	}
	return strings.Join(out, ", ")
}

func TestIssuerTest(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	base := r.trusts[acme.ID].Issuers[0]
	base.Roles = base.Roles[:3]
	base.DashboardClientID = "dash"
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/says-yes":
			_, _ = w.Write([]byte(`{"active":true}`))
		case "/no-keys":
			_, _ = w.Write([]byte(`{"keys":[{"kty":"oct","k":"AAAA"}]}`))
		default:
			http.NotFound(w, q)
		}
	}))
	t.Cleanup(elsewhere.Close)
	const front = "url ok, discovery ok, issuer ok, "
	for _, c := range []struct {
		what   string
		change func(*tenants.Issuer)
		want   string
	}{
		{"good", func(*tenants.Issuer) {}, front + "keys ok, algorithms ok, introspection ok, audience ok, roles ok, sign_in ok"},
		{"JWTs only, no dashboard", func(i *tenants.Issuer) { i.Opaque, i.DashboardClientID = false, "" }, front + "keys ok, algorithms ok, introspection skipped, audience ok, roles ok, sign_in skipped"},
		{"wrong secret", func(i *tenants.Issuer) { i.ClientID = "other" }, front + "keys ok, algorithms ok, introspection FAILED, audience ok, roles ok, sign_in ok"},
		{"damaged secret", func(i *tenants.Issuer) { i.SealedSecret = []byte("x") }, front + "keys ok, algorithms ok, introspection FAILED, audience ok, roles ok, sign_in ok"},
		{"an endpoint that vouches for anything", func(i *tenants.Issuer) { i.IntrospectionURL = elsewhere.URL + "/says-yes" }, front + "keys ok, algorithms ok, introspection FAILED, audience ok, roles ok, sign_in ok"},
		{"no endpoint there", func(i *tenants.Issuer) { i.IntrospectionURL = elsewhere.URL + "/nothing" }, front + "keys ok, algorithms ok, introspection FAILED, audience ok, roles ok, sign_in ok"},
		{"a slash too many", func(i *tenants.Issuer) { i.URL += "/" }, "url ok, discovery ok, issuer FAILED, keys skipped, algorithms skipped, introspection skipped, audience ok, roles ok, sign_in skipped"},
		{"nobody there", func(i *tenants.Issuer) { i.URL = "http://127.0.0.1:1" }, "url ok, discovery FAILED, issuer skipped, keys skipped, algorithms skipped, introspection skipped, audience ok, roles ok, sign_in skipped"},
		{"not found", func(i *tenants.Issuer) { i.URL = elsewhere.URL }, "url ok, discovery FAILED, issuer skipped, keys skipped, algorithms skipped, introspection skipped, audience ok, roles ok, sign_in skipped"},
		{"all places set, no metadata", func(i *tenants.Issuer) {
			i.URL, i.JWKSURL, i.IntrospectionURL, i.DashboardClientID = elsewhere.URL, r.signer.URL+"/keys", r.signer.URL+"/introspect", ""
		}, "url ok, discovery skipped, issuer skipped, keys ok, algorithms ok, introspection ok, audience ok, roles ok, sign_in skipped"},
		{"http", func(i *tenants.Issuer) { i.URL = "http://id.example.org" }, "url FAILED, discovery skipped, issuer skipped, keys skipped, algorithms skipped, introspection skipped, audience ok, roles ok, sign_in skipped"},
		{"private", func(i *tenants.Issuer) { i.URL = "https://10.0.0.1" }, "url FAILED, discovery skipped, issuer skipped, keys skipped, algorithms skipped, introspection skipped, audience ok, roles ok, sign_in skipped"},
		{"no usable keys", func(i *tenants.Issuer) { i.JWKSURL = elsewhere.URL + "/no-keys" }, front + "keys FAILED, algorithms skipped, introspection ok, audience ok, roles ok, sign_in ok"},
		{"an algorithm without a key", func(i *tenants.Issuer) { i.Algorithms = []string{"ES512"} }, front + "keys ok, algorithms FAILED, introspection ok, audience ok, roles ok, sign_in ok"},
		{"a symmetric algorithm", func(i *tenants.Issuer) { i.Algorithms = []string{"HS256"} }, front + "keys ok, algorithms FAILED, introspection ok, audience ok, roles ok, sign_in ok"},
		{"static without a tenant claim", func(i *tenants.Issuer) { i.Mode, i.Audiences = tenants.AudienceStatic, []string{guid} }, front + "keys ok, algorithms ok, introspection ok, audience FAILED, roles ok, sign_in ok"},
		{"static without audiences", func(i *tenants.Issuer) { i.Mode = tenants.AudienceStatic }, front + "keys ok, algorithms ok, introspection ok, audience FAILED, roles ok, sign_in ok"},
		{"everybody of a shared issuer", func(i *tenants.Issuer) { i.Roles = []tenants.RoleRule{{Scopes: tenants.Read}} }, front + "keys ok, algorithms ok, introspection ok, audience ok, roles FAILED, sign_in ok"},
	} {
		i := base
		c.change(&i)
		if diff := cmp.Diff(c.want, stepWords(t, c.what, r.oauth.Test(t.Context(), i))); diff != "" {
			t.Errorf("%s:\n%s", c.what, diff)
		}
	}
	good := base
	good.Opaque = false
	r.signer.SetMetadata("token_endpoint", "https://10.0.0.1/token")
	if got := stepWords(t, "a private endpoint", r.oauth.Test(t.Context(), good)); !strings.HasSuffix(got, "sign_in FAILED") {
		t.Errorf("a sign-in that would be refused passes: %s", got)
	}
	r.signer.SetMetadata("token_endpoint", r.signer.URL+"/token")
	r.signer.SetMetadata("code_challenge_methods_supported", []string{"plain"})
	r.signer.SetMetadata("introspection_endpoint", nil)
	r.signer.SetMetadata("jwks_uri", nil)
	want := front + "keys FAILED, algorithms skipped, introspection FAILED, audience ok, roles ok, sign_in FAILED"
	if diff := cmp.Diff(want, stepWords(t, "poor metadata", r.oauth.Test(t.Context(), base))); diff != "" {
		t.Error(diff)
	}
}
