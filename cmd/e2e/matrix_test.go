package e2e_test

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/auth/authtest"
)

// The second dialect's names of this server and of its customers.
const guidAudience = "6f9619ff-8b86-d011-b42d-00cf4fc964ff"

func tidOf(x tenant) string { return "tid-of-" + x.Slug }

// trustSigner has a tenant trust an issuer whose groups are SLUG-sre, SLUG-viewers
// and SLUG-admins, and returns the issuer's id.
func trustSigner(t *testing.T, x tenant, s *authtest.Signer, more map[string]any) string {
	t.Helper()
	role := func(group string, scopes ...string) map[string]any {
		return map[string]any{"claim": "groups", "value": x.Slug + "-" + group, "scopes": scopes}
	}
	body := map[string]any{"url": s.URL, "client_id": authtest.IntrospectID, "client_secret": authtest.IntrospectSecret, "opaque": true, "roles": []any{
		role("sre", "telltale:read", "telltale:diagnose"), role("viewers", "telltale:read"), role("admins", "telltale:read", "telltale:admin"),
	}}
	for k, v := range more {
		if body[k] = v; v == nil {
			delete(body, k)
		}
	}
	var made map[string]any
	if status := rest(t, x, "admin", http.MethodPost, "/issuers?force=true", body, &made); status != http.StatusCreated {
		t.Fatalf("trust an issuer: %d %v", status, made)
	}
	return made["id"].(string)
}

// matrix sends each bad token of mcp-auth to MCP and to REST, in both forms, and
// follows the reference id of each refusal.
func matrix(t *testing.T, idp *authtest.Provider, acme, globex tenant) {
	signer, dir := authtest.NewSigner(t), authtest.NewSigner(t)
	for _, x := range []tenant{acme, globex} {
		trustSigner(t, x, signer, nil)
		trustSigner(t, x, dir, map[string]any{"opaque": nil, "client_id": nil, "client_secret": nil, "mode": "static", "audiences": []string{guidAudience},
			"tenant_claim": "tid", "tenant_value": tidOf(x), "types": []string{"jwt"}})
	}
	const scope = "telltale:read telltale:diagnose"
	sre := func(x tenant) []string { return []string{x.Slug + "-sre"} }
	// Both servers' caches of trust are at most some seconds old.
	poll(t, 6*time.Second, "trust in the new issuers", func() bool {
		return knock(t, acme.MCPURL, dir.Directory(t, guidAudience, tidOf(acme), "u", []string{"telltale:read"}, sre(acme), nil)).status == http.StatusOK &&
			knock(t, globex.MCPURL, signer.Access(t, globex.MCPURL, "u", scope, sre(globex), nil)).status == http.StatusOK
	})

	now := time.Now().Unix()
	claim := func(name string, v any) func(*authtest.Draft) { return func(d *authtest.Draft) { d.Claims[name] = v } }
	header := func(name string, v any) func(*authtest.Draft) { return func(d *authtest.Draft) { d.Header[name] = v } }
	foreign, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		class  auth.Class // of both forms
	}{
		{"aud", claim("aud", "https://other.example"), auth.Audience},
		{"aud of the other tenant", claim("aud", globex.MCPURL), auth.Audience},
		{"iss", claim("iss", "https://evil.example"), auth.IssuerUnknown},
		{"exp", claim("exp", now-60), auth.Expired},
		{"nbf", claim("nbf", now+60), auth.NotYet},
		{"cnf", claim("cnf", map[string]any{"jkt": "x"}), auth.Bound},
		{"sub", claim("sub", 7), auth.Claims},
		{"the other tenant's groups", claim("groups", sre(globex)), auth.NoRole},
	} {
		refused(t, "JWT, "+c.what, acme, signer.Access(t, acme.MCPURL, "alice", scope, sre(acme), c.change), c.class)
		refused(t, "opaque, "+c.what, acme, signer.Opaque(t, acme.MCPURL, "alice", scope, sre(acme), c.change), c.class)
	}
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		class  auth.Class
	}{
		{"typ", header("typ", "JWT"), auth.Type},
		{"an ID token", func(d *authtest.Draft) { d.Header["typ"], d.Claims["nonce"] = "JWT", "n" }, auth.Type},
		{"alg none", header("alg", "none"), auth.Algorithm},
		{"HS256 with the public key", func(d *authtest.Draft) { d.Header["alg"], d.Key = "HS256", signer.PublicPEM() }, auth.Algorithm},
		{"a foreign key", func(d *authtest.Draft) { d.Key = foreign }, auth.Signature},
		{"an unknown kid", header("kid", "rs-77"), auth.Signature},
		{"a claim twice", func(d *authtest.Draft) {
			raw, _ := json.Marshal(d.Claims)
			d.RawClaims = []byte(strings.TrimSuffix(string(raw), "}") + `,"sub":"mallory"}`)
		}, auth.Malformed},
	} {
		refused(t, "JWT, "+c.what, acme, signer.Access(t, acme.MCPURL, "alice", scope, sre(acme), c.change), c.class)
	}
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		class  auth.Class
	}{
		{"token_type DPoP", claim("token_type", "DPoP"), auth.Bound},
		{"a refresh token", claim("token_use", "refresh_token"), auth.Type},
		{"inactive", claim("active", false), auth.Inactive},
	} {
		refused(t, "opaque, "+c.what, acme, signer.Opaque(t, acme.MCPURL, "alice", scope, sre(acme), c.change), c.class)
	}
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		class  auth.Class
	}{
		{"aud", claim("aud", acme.MCPURL), auth.Audience}, {"tenant", claim("tid", tidOf(globex)), auth.TenantClaim}, {"typ", header("typ", "at+jwt"), auth.Type},
		{"ID token", claim("nonce", "n"), auth.Type}, {"exp", claim("exp", now-60), auth.Expired}, {"nbf", claim("nbf", now+60), auth.NotYet},
		{"cnf", claim("cnf", map[string]any{}), auth.Bound}, {"alg", header("alg", "none"), auth.Algorithm}, {"kid", header("kid", "x"), auth.Signature},
		{"iss", claim("iss", dir.URL+"/"), auth.IssuerUnknown},
	} {
		refused(t, "second dialect, "+c.what, acme, dir.Directory(t, guidAudience, tidOf(acme), "bob", []string{"telltale:read"}, sre(acme), c.change), c.class)
	}

	t.Run("replay across tenants", func(t *testing.T) {
		for _, c := range []struct{ of, at tenant }{{acme, globex}, {globex, acme}} {
			refused(t, "JWT", c.at, signer.Access(t, c.of.MCPURL, "u", scope, sre(c.of), nil), auth.Audience)
			refused(t, "opaque", c.at, signer.Opaque(t, c.of.MCPURL, "u", scope, sre(c.of), nil), auth.Audience)
			refused(t, "second dialect", c.at, dir.Directory(t, guidAudience, tidOf(c.of), "u", []string{"telltale:read"}, sre(c.of), nil), auth.TenantClaim)
			refused(t, "operator token", c.at, c.of.Tokens["admin"], auth.Unknown)
		}
	})
	t.Run("the independent provider", func(t *testing.T) {
		alice := idp.Tokens(t, authtest.Alice, "", "openid offline_access "+scope, acme.MCPURL)
		carol := idp.Tokens(t, authtest.Carol, "", "openid offline_access "+scope, globex.MCPURL)
		for _, c := range []struct {
			what  string
			at    tenant
			token string
			class auth.Class
		}{
			{"ID token", acme, alice.ID, auth.Type}, {"JWT replayed", globex, alice.Access, auth.Audience}, {"opaque replayed", acme, carol.Access, auth.Inactive},
			{"refresh token", acme, alice.Refresh, auth.Inactive}, {"ID token where opaque ones are good", globex, carol.ID, auth.Type},
			{"no role", acme, idp.Token(t, authtest.Carol, "", scope, acme.MCPURL), auth.NoRole}, {"nobody", globex, idp.Token(t, authtest.Erin, "", scope, globex.MCPURL), auth.NoRole},
			{"no scope", acme, idp.Token(t, authtest.Bob, "", "openid", acme.MCPURL), auth.NoScope}, {"a cut JWT", acme, alice.Access[:len(alice.Access)-9], auth.Malformed},
		} {
			refused(t, c.what, c.at, c.token, c.class)
		}
		gone := idp.Token(t, authtest.Carol, "", scope, globex.MCPURL)
		idp.Revoke(t, authtest.CLI, gone)
		refused(t, "revoked", globex, gone, auth.Inactive)
	})
	t.Run("flood of unknown kids", func(t *testing.T) {
		before, began := signer.Asked("/keys"), time.Now()
		var last answer
		for n := range 300 {
			last = knock(t, acme.RESTURL+"/overview", signer.Access(t, acme.MCPURL, "u", scope, sre(acme), header("kid", fmt.Sprintf("flood-%d", n))))
			if last.status != http.StatusUnauthorized {
				t.Fatalf("%d %s", last.status, last.body)
			}
		}
		if n := signer.Asked("/keys") - before; n > 2+int(time.Since(began)/(10*time.Second)) {
			t.Errorf("300 unknown kids cost %d fetches of keys", n)
		}
	})
	t.Run("issuer down", func(t *testing.T) {
		known := signer.Opaque(t, acme.MCPURL, "u", scope, sre(acme), nil)
		served := func(what, token string) {
			for _, url := range []string{acme.MCPURL, acme.RESTURL + "/overview"} {
				if a := knock(t, url, token); a.status != http.StatusOK {
					t.Errorf("%s: %d %s", what, a.status, a.body)
				}
			}
		}
		served("opaque", known)
		signer.SetDown(true)
		served("a known opaque token while the issuer is down", known)
		served("a fresh JWT while the issuer is down", signer.Access(t, acme.MCPURL, "u", scope, sre(acme), nil))
		refused(t, "an unknown opaque token", acme, signer.Opaque(t, acme.MCPURL, "u", scope, sre(acme), nil), auth.Unreachable)
		refused(t, "a JWT for another", acme, signer.Access(t, globex.MCPURL, "u", scope, sre(acme), nil), auth.Audience)
		signer.SetDown(false)
	})
}

// refused sends a bad token to both doors and follows the reference of each
// refusal: without a credential to the class and the next step, and as the
// tenant's administrator to the values, too.
func refused(t *testing.T, what string, x tenant, token string, class auth.Class) {
	t.Helper()
	f := &auth.Failure{Class: class}
	for _, url := range []string{x.MCPURL, x.RESTURL + "/overview"} {
		a := knock(t, url, token)
		challenge, ref := a.header.Get("WWW-Authenticate"), a.header.Get("Telltale-Reference")
		if a.status != f.Status() || ref == "" || a.header.Get("Cache-Control") != "no-store" || !slices.Contains(a.header.Values("Vary"), "Authorization") || !strings.Contains(a.body, ref) {
			t.Errorf("%s at %s: %d, want %d: %v %s", what, url, a.status, f.Status(), a.header, a.body)
		}
		meta := `resource_metadata="` + strings.Replace(x.MCPURL, "/t/", "/.well-known/oauth-protected-resource/t/", 1) + `"`
		want := "Bearer " + meta + `, error="invalid_token", error_description="` + f.Description() + `", scope="telltale:read"`
		switch {
		case class == auth.NoScope:
			want = `Bearer error="insufficient_scope", scope="telltale:read", ` + meta
		case a.status != http.StatusUnauthorized:
			want = ""
		}
		if challenge != want {
			t.Errorf("%s at %s: challenge %s, want %s", what, url, challenge, want)
		}
		if strings.Contains(a.body+challenge, token) {
			t.Errorf("%s at %s: the refusal shows the token", what, url)
		}
		self := strings.TrimSuffix(x.RESTURL, "/api/v1") + "/connect.json?reference=" + ref
		var plain struct {
			Class, Detail      string
			Next               []string
			Expected, Received *string
		}
		poll(t, 5*time.Second, "attempt "+ref+" of "+what, func() bool {
			b := call(t, http.MethodGet, self, "", "")
			if b.status == http.StatusOK && (strings.Contains(b.body, `"expected"`) || strings.Contains(b.body, `"received"`) || strings.Contains(b.body, `"from"`)) {
				t.Errorf("%s: values for everybody: %s", what, b.body)
			}
			return b.status == http.StatusOK && json.Unmarshal([]byte(b.body), &plain) == nil
		})
		if plain.Class != string(class) || plain.Detail != f.Description() || len(plain.Next) == 0 {
			t.Errorf("%s: reference %s leads to %+v, want class %s", what, ref, plain, class)
		}
		var full struct {
			Attempt struct {
				Class, Reference, Surface, Expected, Received string
				ReferenceID                                   string `json:"reference_id"`
			}
		}
		b := call(t, http.MethodGet, self, x.Tokens["admin"], "")
		if err := json.Unmarshal([]byte(b.body), &full); err != nil || full.Attempt.Class != string(class) || full.Attempt.ReferenceID != ref {
			t.Errorf("%s: the administrator sees %d %s", what, b.status, b.body)
		}
		valueless := class == auth.Unknown || class == auth.Malformed && full.Attempt.Expected == ""
		if !valueless && full.Attempt.Expected == "" {
			t.Errorf("%s: the administrator is not told what was expected: %s", what, b.body)
		}
		if strings.Contains(b.body, token) {
			t.Errorf("%s: the self-test shows the token", what)
		}
	}
}
