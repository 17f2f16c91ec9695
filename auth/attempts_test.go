package auth

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
)

// Each thing that happens at the door is reported once, under the reference
// that the caller got, with what an administrator needs and without a token.
func TestAttempts(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	good := r.signer.Access(t, acmeMCP, "bob", "telltale:read", []string{"acme-sre"}, nil)
	for _, c := range []struct {
		what, path, token string
		want              tenants.Attempt
	}{
		{"metadata", "/.well-known/oauth-protected-resource/t/acme/mcp", "", tenants.Attempt{Step: tenants.StepMetadata, Surface: "metadata", Client: "probe/1"}},
		{"no token", "/t/acme/mcp", "", tenants.Attempt{Step: tenants.StepChallenge, Class: "no_token", Surface: "mcp", Client: "probe/1"}},
		{"no token at REST", "/t/acme/api/v1/nodes", "", tenants.Attempt{Step: tenants.StepChallenge, Class: "no_token", Surface: "rest", Client: "probe/1"}},
		{"expired", "/t/acme/mcp", r.good(t, claim("exp", 1000)), tenants.Attempt{Step: tenants.StepRefused, Class: "expired", Surface: "mcp", Issuer: r.signer.URL, Received: "1970-01-01T00:16:40Z", Client: "probe/1"}},
		{"audience", "/t/acme/mcp", r.good(t, claim("aud", "https://o.example")), tenants.Attempt{Step: tenants.StepRefused, Class: "audience", Surface: "mcp", Issuer: r.signer.URL,
			Expected: acmeMCP + " " + publicURL + "/t/acme " + publicURL + "/t/acme/api/v1", Received: "https://o.example", Client: "probe/1"}},
		{"issuer", "/t/acme/mcp", r.good(t, claim("iss", "https://evil.example\n\u202e")), tenants.Attempt{Step: tenants.StepRefused, Class: "issuer", Surface: "mcp", Issuer: "https://evil.example",
			Expected: r.signer.URL + " " + r.dir.URL, Received: "https://evil.example", Client: "probe/1"}},
		{"no role", "/t/acme/mcp", r.good(t, claim("groups", []string{"others"})), tenants.Attempt{Step: tenants.StepScope, Class: "no_role", Surface: "mcp", Issuer: r.signer.URL,
			Expected: "a membership, or a claim that a role rule names", Received: "sub=alice groups=others", Principal: r.signer.URL + "|alice|client-1", Client: "client-1"}},
		{"scope", "/t/acme/api/v1/act", good, tenants.Attempt{Step: tenants.StepScope, Class: "scope", Surface: "rest", Expected: "telltale:act", Received: "telltale:read", Principal: r.signer.URL + "|bob|client-1", Client: "client-1"}},
		{"another tenant's operator token", "/t/acme/mcp", first(r.mint(globex, nil)), tenants.Attempt{Step: tenants.StepRefused, Class: "unknown", Surface: "mcp", Client: "probe/1"}},
	} {
		r.seen.take()
		header := []string{"User-Agent", "probe/1\t\x1b"}
		if c.token != "" {
			header = append(header, "Authorization", "Bearer "+c.token)
		}
		w := r.do("GET", c.path, "", header...)
		var got []tenants.Attempt
		for _, a := range r.seen.take() {
			if a.Step != tenants.StepAccepted {
				got = append(got, a)
			}
		}
		if len(got) != 1 {
			t.Errorf("%s: %d attempts: %+v", c.what, len(got), got)
			continue
		}
		a := got[0]
		if ref := w.Header().Get(ReferenceHeader); w.Code != 200 && a.Reference != ref || len(a.Reference) != 20 || time.Since(a.At) > time.Minute || a.Tenant != acme.ID || !a.From.IsValid() {
			t.Errorf("%s: %+v for the answer %s", c.what, a, ref)
		}
		if c.what == "expired" {
			a.Expected = "" // the time of the test
		}
		c.want.Proven = c.what == "expired" || c.what == "audience" || c.want.Step == tenants.StepScope // no stranger gets that far
		c.want.Tenant, c.want.Reference, c.want.At, c.want.From = a.Tenant, a.Reference, a.At, a.From
		if diff := cmp.Diff(c.want, a, cmp.Comparer(func(x, y tenants.Attempt) bool { return x == y })); diff != "" {
			t.Errorf("%s:\n%s", c.what, diff)
		}
		if c.token != "" && strings.Contains(fmt.Sprint(a), c.token) {
			t.Errorf("%s: holds the token", c.what)
		}
	}
	r.seen.take()
	for _, path := range []string{"/t/nope/mcp", "/t/NOPE/mcp", "/.well-known/oauth-protected-resource/t/nope/mcp", "/.well-known/oauth-protected-resource"} {
		r.do("GET", path, "")
	}
	if got := r.seen.take(); len(got) != 0 {
		t.Errorf("reported at nobody's door: %+v", got)
	}
}

func first(a, _ string) string { return a }

// Who comes in is reported once a minute, and operator tokens never.
func TestAcceptedOnceAMinute(t *testing.T) {
	onClock(t, func(t *testing.T, r *oauthRig, sleep func(time.Duration)) {
		one, two := r.good(t, nil), r.signer.Access(t, acmeMCP, "bob", allWords, []string{"acme-sre"}, nil)
		operator, _ := r.mint(acme, nil)
		for range 3 {
			for range 5 {
				for _, token := range []string{one, two, operator} {
					r.do("GET", "/t/acme/mcp", "", "Authorization", "Bearer "+token)
				}
			}
			got := r.seen.take()
			if len(got) != 2 || got[0].Step != tenants.StepAccepted || got[0].Principal != r.signer.URL+"|alice|client-1" || got[0].Client != "client-1" || got[0].Issuer != r.signer.URL || got[1].Principal == got[0].Principal {
				t.Fatalf("%+v", got)
			}
			sleep(acceptedGrain)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a := newAttempts(nil, nil, &recorder{})
		for n := range 3 * maxAccepted {
			a.first(fmt.Sprint(n))
		}
		if len(a.seen.at) > maxAccepted {
			t.Errorf("%d principals remembered", len(a.seen.at))
		}
	})
}

// The first challenge asks for what the tenant's policy says; a step-up for
// what is held and needed, and only for what can be obtained.
func TestStepUp(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	r.trust(acme, func(to *tenants.Trust) {
		to.Policy = tenants.Policy{FirstScopes: tenants.Read | tenants.Diagnose | tenants.Admin, Scopes: tenants.Read | tenants.Diagnose | tenants.Act}
	})
	const link = `resource_metadata="https://telltale.example.org/.well-known/oauth-protected-resource/t/acme/mcp"`
	access := func(scope string, groups ...string) string {
		return r.signer.Access(t, acmeMCP, "u", scope, groups, nil)
	}
	for _, c := range []struct {
		what, path, token string
		status            int
		challenge         string
	}{
		{"first", "/t/acme/mcp", "", 401, `Bearer ` + link + `, scope="telltale:read telltale:diagnose"`},
		{"first at REST", "/t/acme/api/v1/nodes", "", 401, `Bearer ` + link + `, scope="telltale:read telltale:diagnose"`},
		{"first of another tenant", "/t/globex/mcp", "", 401, `Bearer ` + strings.Replace(link, "acme", "globex", 1) + `, scope="telltale:read"`},
		{"bad", "/t/acme/mcp", access("x") + "A", 401, `Bearer ` + link + `, error="invalid_token", error_description="signature: no key of the issuer fits the token's signature", scope="telltale:read telltale:diagnose"`},
		{"step up", "/t/acme/api/v1/act", access("telltale:read telltale:diagnose", "acme-sre"), 403, `Bearer error="insufficient_scope", scope="telltale:read telltale:diagnose telltale:act", ` + link},
		{"beyond the role", "/t/acme/api/v1/act", access("telltale:read telltale:act", "acme-viewers"), 403, ""},
		{"no role", "/t/acme/mcp", access(allWords), 403, ""},
		{"no scope, with a role", "/t/acme/mcp", access("openid", "acme-sre"), 403, `Bearer error="insufficient_scope", scope="telltale:read telltale:diagnose", ` + link},
		{"no scope, with another role", "/t/acme/mcp", access("telltale:admin telltale:payloads", "acme-none"), 403, ""},
	} {
		var header []string
		if c.token != "" {
			header = []string{"Authorization", "Bearer " + c.token}
		}
		w := r.do("GET", c.path, "", header...)
		if got := w.Header().Get("WWW-Authenticate"); w.Code != c.status || got != c.challenge {
			t.Errorf("%s: %d %q\nwant %d %q\n%s", c.what, w.Code, got, c.status, c.challenge, w.Body)
		}
		var doc Problem
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || doc.Reason == "" || len(doc.Next) != 1 {
			t.Errorf("%s: %s", c.what, w.Body)
		}
		if c.what == "no role" && doc.Reason != "credential_no_role" {
			t.Errorf("%s: %s", c.what, doc.Reason)
		}
	}
}

// A tenant without an issuer sends nobody to metadata that names none, and
// accepts no access token.
func TestTenantWithoutIssuer(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	r.trust(acme, func(to *tenants.Trust) { to.Issuers = nil })
	if got := r.do("GET", "/t/acme/mcp", "").Header().Get("WWW-Authenticate"); got != `Bearer scope="telltale:read"` {
		t.Error(got)
	}
	if body := r.do("GET", "/.well-known/oauth-protected-resource/t/acme/mcp", "").Body.String(); strings.Contains(body, "authorization_servers") {
		t.Error(body)
	}
	r.wantRefusal(t, "JWT", "acme", r.good(t, nil), IssuerUnknown)
	r.wantRefusal(t, "opaque", "acme", r.signer.Opaque(t, acmeMCP, "u", allWords, []string{"acme-sre"}, nil), Malformed)
	operator, _ := r.mint(acme, nil)
	if w := r.do("GET", "/t/acme/mcp", "", "Authorization", "Bearer "+operator); w.Code != 200 {
		t.Error(w.Code)
	}
}

func TestMetadataOfPolicyAndSoleTenant(t *testing.T) {
	r := newRig(t, SiteConfig{SoleTenant: "acme", Documentation: "https://docs.example.org/connect"})
	r.trusts[acme.ID] = tenants.Trust{
		Issuers: []tenants.Issuer{{URL: "https://a.example.org"}, {URL: "https://b.example.org/x"}, {URL: "https://a.example.org"}},
		Policy:  tenants.Policy{Scopes: tenants.Act},
	}
	const want = `{"resource":"https://telltale.example.org/t/acme/mcp","authorization_servers":["https://a.example.org","https://b.example.org/x"],"scopes_supported":["telltale:read","telltale:act"],` +
		`"bearer_methods_supported":["header"],"resource_name":"Telltale: Acme","resource_documentation":"https://docs.example.org/connect"}`
	for _, path := range []string{
		"/.well-known/oauth-protected-resource/t/acme/mcp", "/.well-known/oauth-protected-resource/t/acme/mcp/", "/t/acme/mcp/.well-known/oauth-protected-resource",
		"/t/acme/mcp/.well-known/oauth-protected-resource/", "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/",
	} {
		w := r.do("GET", path, "", "Origin", "https://anything.example")
		if w.Code != 200 || strings.TrimSpace(w.Body.String()) != want || w.Header().Get("Access-Control-Allow-Origin") != "*" || w.Header().Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
		if w := r.do("HEAD", path, ""); w.Code != 200 {
			t.Errorf("HEAD %s: %d", path, w.Code)
		}
	}
	if w := r.do("GET", "/.well-known/oauth-protected-resource/t/nope/mcp/", ""); w.Code != 404 || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("unknown: %d %v", w.Code, w.Header())
	}
	r.setDown(true)
	if w := r.do("GET", "/.well-known/oauth-protected-resource/t/acme/mcp", ""); w.Code != 503 || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("down: %d", w.Code)
	}
	_, err := NewSite(SiteConfig{PublicURL: publicURL, SoleTenant: "A B", Documentation: "connect.html"})
	if err == nil || !strings.Contains(err.Error(), "sole tenant") || !strings.Contains(err.Error(), "documentation") {
		t.Error(err)
	}
	gone := newRig(t, SiteConfig{SoleTenant: "gone"})
	if w := gone.do("GET", "/.well-known/oauth-protected-resource", ""); w.Code != 404 {
		t.Errorf("a sole tenant that is not there: %d", w.Code)
	}
}

// A page of another origin, such as an inspector in the browser, learns from
// its reference id what to do, too.
func TestAttemptOfAnotherOrigin(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	for path, known := range map[string]bool{"/t/acme/mcp": true, "/t/acme/api/v1/nodes": true, "/t/nobody/mcp": false, "/other": false} {
		r.seen.take()
		w := r.do("POST", path, "{}", "Origin", "https://inspector.example\u202e")
		got := r.seen.take()
		if w.Code != 403 || (len(got) == 1) != known || len(got) > 1 {
			t.Errorf("%s: %d, %+v", path, w.Code, got)
			continue
		}
		if known && (got[0].Reference != w.Header().Get(ReferenceHeader) || got[0].Class != "foreign_origin" || got[0].Received != "https://inspector.example" || got[0].Step != tenants.StepRefused) {
			t.Errorf("%s: %+v", path, got[0])
		}
	}
	if what, next, ok := Origin.Explain(); !ok || what == "" || next == "" {
		t.Errorf("%q, %q", what, next)
	}
}
