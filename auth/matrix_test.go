package auth

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func claim(name string, v any) func(*authtest.Draft) {
	return func(d *authtest.Draft) {
		if d.Claims[name] = v; v == nil {
			delete(d.Claims, name)
		}
	}
}

func header(name string, v any) func(*authtest.Draft) {
	return func(d *authtest.Draft) {
		if d.Header[name] = v; v == nil {
			delete(d.Header, name)
		}
	}
}

// The claims of a token are held to the same whether a JWT carries them or
// introspection tells them.
func TestMatrixOfClaims(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	now := time.Now().Unix()
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		want   Class // "" is good
	}{
		{"good", nil, ""},
		{"aud of the tenant", claim("aud", publicURL+"/t/acme"), ""},
		{"aud of REST", claim("aud", publicURL+"/t/acme/api/v1"), ""},
		{"aud of several", claim("aud", []string{"https://other.example", acmeMCP}), ""},
		{"aud of another", claim("aud", "https://other.example"), Audience},
		{"aud of the other tenant", claim("aud", globexMCP), Audience},
		{"aud longer", claim("aud", acmeMCP+"x"), Audience},
		{"aud shorter", claim("aud", publicURL), Audience},
		{"aud in another case", claim("aud", strings.ToUpper(acmeMCP)), Audience},
		{"aud with a slash", claim("aud", acmeMCP+"/"), Audience},
		{"aud empty", claim("aud", ""), Audience},
		{"aud list empty", claim("aud", []string{}), Audience},
		{"no aud", claim("aud", nil), Audience},
		{"aud a number", claim("aud", 7), Claims},
		{"aud of mixed kinds", claim("aud", []any{acmeMCP, 7}), Claims},
		{"iss of another", claim("iss", "https://evil.example"), IssuerUnknown},
		{"iss with a slash", claim("iss", r.signer.URL+"/"), IssuerUnknown},
		{"no iss", claim("iss", nil), IssuerUnknown},
		{"iss a list", claim("iss", []string{r.signer.URL}), IssuerUnknown},
		{"expired", claim("exp", now-60), Expired},
		{"expired within the skew", claim("exp", now-20), ""},
		{"no exp", claim("exp", nil), Claims},
		{"exp a string", claim("exp", "9999999999"), Claims},
		{"exp beyond all", claim("exp", 1e300), Claims},
		{"exp negative", claim("exp", -1), Claims},
		{"exp with a fraction", claim("exp", float64(now)+60.5), ""},
		{"nbf to come", claim("nbf", now+60), NotYet},
		{"nbf within the skew", claim("nbf", now+20), ""},
		{"nbf a string", claim("nbf", "1"), Claims},
		{"iat to come", claim("iat", now+60), NotYet},
		{"no iat", claim("iat", nil), ""},
		{"cnf", claim("cnf", map[string]any{"jkt": "x"}), Bound},
		{"cnf null", func(d *authtest.Draft) { d.Claims["cnf"] = json.RawMessage("null") }, Bound},
		{"no sub", claim("sub", nil), Claims},
		{"sub empty", claim("sub", ""), Claims},
		{"sub a number", claim("sub", 7), Claims},
		{"sub with a line break", claim("sub", "a\nb"), Claims},
		{"sub too long", claim("sub", strings.Repeat("a", 256)), Claims},
		{"nobody's groups", claim("groups", nil), NoRole},
		{"groups of the other tenant", claim("groups", []string{"globex-sre"}), NoRole},
		{"a group in another case", claim("groups", []string{"ACME-SRE"}), NoRole},
		{"one group as a string", claim("groups", "acme-sre"), ""},
		{"groups nested", claim("groups", []any{[]any{"acme-sre"}}), NoRole},
		{"scopes of others", claim("scope", "openid profile"), NoScope},
		{"no scopes", claim("scope", nil), NoScope},
	} {
		jwt := r.signer.Access(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, c.change)
		opaque := r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, c.change)
		for form, token := range map[string]string{"JWT": jwt, "opaque": opaque} {
			for range 2 { // proved, then remembered
				if c.want == "" {
					r.wantGood(t, form+" "+c.what, "acme", token, tenants.Read|tenants.Payloads|tenants.Diagnose|tenants.Act)
				} else {
					r.wantRefusal(t, form+" "+c.what, "acme", token, c.want)
				}
			}
		}
	}
}

// What only a JWT can get wrong, and that none of it makes this server fetch
// from anybody but the issuers.
func TestMatrixOfHeaders(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	evil := authtest.NewSigner(t)
	foreign, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	both := func(fs ...func(*authtest.Draft)) func(*authtest.Draft) {
		return func(d *authtest.Draft) {
			for _, f := range fs {
				f(d)
			}
		}
	}
	raw := func(head, body string) func(*authtest.Draft) {
		return func(d *authtest.Draft) {
			edit := func(m map[string]any, with string) []byte {
				if with == "" {
					return nil
				}
				text, _ := json.Marshal(m)
				return []byte(strings.TrimSuffix(string(text), "}") + "," + with + "}")
			}
			d.RawHeader, d.RawClaims = edit(d.Header, head), edit(d.Claims, body)
		}
	}
	signedBy := func(k any) func(*authtest.Draft) { return func(d *authtest.Draft) { d.Key = k } }
	deep := strings.Repeat(`{"a":`, 50) + "1" + strings.Repeat("}", 50)
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		want   Class
	}{
		{"alg none", header("alg", "none"), Algorithm},
		{"alg None", header("alg", "None"), Algorithm},
		{"no alg", header("alg", nil), Algorithm},
		{"HS256 with the public key", both(header("alg", "HS256"), signedBy(r.signer.PublicPEM())), Algorithm},
		{"HS256 with nothing", both(header("alg", "HS256"), signedBy([]byte{})), Algorithm},
		{"crit", header("crit", []string{"b64"}), Malformed},
		{"b64", header("b64", false), Malformed},
		{"typ JWT", header("typ", "JWT"), Type},
		{"no typ", header("typ", nil), Type},
		{"typ empty", header("typ", ""), Type},
		{"typ a number", header("typ", 7), Type},
		{"typ of a logout token", header("typ", "logout+jwt"), Type},
		{"typ in long form", header("typ", "application/at+jwt"), ""},
		{"typ in capitals", header("typ", "AT+JWT"), ""},
		{"an ID token", both(header("typ", "JWT"), claim("aud", "telltale-dashboard"), claim("nonce", "n"), claim("at_hash", "x")), Type},
		{"ES256", both(header("alg", "ES256"), header("kid", "es-1")), ""},
		{"EdDSA", both(header("alg", "EdDSA"), header("kid", "ed-1")), ""},
		{"without kid", header("kid", nil), ""},
		{"ES256 without kid", both(header("alg", "ES256"), header("kid", nil)), ""},
		{"the key of another algorithm", header("kid", "es-1"), Signature},
		{"an unknown kid", header("kid", "rs-77"), Signature},
		{"kid of a secret", header("kid", "secret"), Signature},
		{"kid too long", header("kid", strings.Repeat("k", 300)), Signature},
		{"a foreign key", signedBy(foreign), Signature},
		{"a foreign key, in jwk", both(signedBy(foreign), header("jwk", map[string]any{"kty": "RSA", "n": "AQAB", "e": "AQAB"})), Signature},
		{"a foreign key, at jku", both(signedBy(foreign), header("jku", evil.URL+"/keys"), header("x5u", evil.URL+"/keys")), Signature},
		{"an issuer nobody trusts", claim("iss", evil.URL), IssuerUnknown},
		{"alg twice", raw(`"alg":"RS256"`, ""), Malformed},
		{"aud twice", raw("", `"aud":"`+acmeMCP+`"`), Malformed},
		{"sub twice, once escaped", raw("", `"s\u0075b":"mallory"`), Malformed},
		{"a name twice, deep inside", raw("", `"x":{"y":[{"z":1,"z":2}]}`), Malformed},
		{"nested too deep", raw("", `"x":`+deep), Malformed},
		{"not UTF-8", raw("", "\"x\":\"\xff\""), Malformed},
		{"claims that are a list", func(d *authtest.Draft) { d.RawClaims = []byte(`["iss"]`) }, Malformed},
		{"two objects", func(d *authtest.Draft) { d.RawClaims = []byte(`{"iss":"x"}{}`) }, Malformed},
		{"claims that are cut", func(d *authtest.Draft) { d.RawClaims = []byte(`{"iss":`) }, Malformed},
		{"ISS for another reader", raw("", `"ISS":"https://evil.example"`), Claims},
	} {
		token := r.good(t, c.change)
		for range 2 {
			if c.want == "" {
				r.wantGood(t, c.what, "acme", token, tenants.Read|tenants.Payloads|tenants.Diagnose|tenants.Act)
			} else {
				r.wantRefusal(t, c.what, "acme", token, c.want)
			}
		}
	}
	if n := evil.Asked("/keys") + evil.Asked("/.well-known/openid-configuration"); n != 0 {
		t.Errorf("the foreign issuer was asked %d times", n)
	}
	good := r.good(t, nil)
	parts := strings.Split(good, ".")
	for what, token := range map[string]string{
		"changed claims": parts[0] + "." + parts[1][:20] + "A" + parts[1][21:] + "." + parts[2], "no signature": parts[0] + "." + parts[1] + ".",
		"signature of another": parts[0] + "." + parts[1] + "." + strings.Split(r.good(t, nil), ".")[2],
	} {
		if _, err := r.verify(t, "acme", token); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
	r.wantRefusal(t, "cut in its signature", "acme", good[:len(good)-9], Malformed)
	r.wantRefusal(t, "as a JSON serialisation in base64", "acme", strings.Repeat("e30.", 3)+"e30", Inactive) // no JWT: nobody knows it
}

// Nothing is fetched for a token that cannot be good.
func TestNoFetchForNothing(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	for _, change := range []func(*authtest.Draft){header("alg", "none"), header("alg", "HS256"), header("crit", []string{"x"}), claim("iss", "https://evil.example"), header("typ", "JWT")} {
		_, err := r.verify(t, "acme", r.good(t, change))
		if _, ok := err.(*Failure); !ok {
			t.Errorf("got %v", err)
		}
	}
	r.wantRefusal(t, "at a tenant that does not exist", "nope", r.good(t, nil), IssuerUnknown)
	r.wantRefusal(t, "opaque, at a tenant that does not exist", "nope", "abcdef", Malformed)
	if fetches, _ := r.fetch.Stats(); fetches != 0 {
		t.Errorf("%d fetches", fetches)
	}
}

// A token of one tenant is nothing at the other, both ways, in every form.
func TestReplayAcrossTenants(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	both := []string{acmeMCP, globexMCP}
	for _, x := range []struct{ here, there, mcp, tid string }{{"acme", "globex", acmeMCP, acmeTID}, {"globex", "acme", globexMCP, globexTID}} {
		groups := []string{x.here + "-sre"}
		want := tenants.Read | tenants.Act
		jwt := r.signer.Access(t, x.mcp, "u", want.String(), groups, nil)
		opaque := r.signer.Opaque(t, x.mcp, "u", want.String(), groups, nil)
		second := r.dir.Directory(t, guid, x.tid, "u", want.Words(), groups, nil)
		for what, token := range map[string]string{"JWT": jwt, "opaque": opaque, "second dialect": second} {
			r.wantGood(t, what, x.here, token, want)
			class := Audience
			if what == "second dialect" {
				class = TenantClaim
			}
			r.wantRefusal(t, what+" of "+x.here, x.there, token, class)
			r.wantGood(t, what+" again", x.here, token, want)
		}
		// Shared providers happily name both tenants: the roles decide.
		jwt = r.signer.Access(t, x.mcp, "u", allWords, groups, claim("aud", both))
		opaque = r.signer.Opaque(t, x.mcp, "u", allWords, groups, claim("aud", both))
		for what, token := range map[string]string{"JWT": jwt, "opaque": opaque} {
			r.wantRefusal(t, what+" for both", x.there, token, NoRole)
		}
	}
	mixed := r.dir.Directory(t, guid, acmeTID, "u", []string{"telltale:read"}, []string{"acme-sre"}, claim("tid", []string{"x", acmeTID}))
	r.wantGood(t, "several tenants in the claim", "acme", mixed, tenants.Read)
}

// The second dialect: typ JWT by explicit setting, scp as an array, GUIDs.
func TestSecondDialect(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	now := time.Now().Unix()
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		want   Class
	}{
		{"good", nil, ""},
		{"typ at+jwt, not set", header("typ", "at+jwt"), Type},
		{"no typ is a plain JWT", header("typ", nil), ""},
		{"scp as a string", claim("scp", "telltale:read telltale:diagnose openid"), ""},
		{"keycloak's access token", claim("typ", "Bearer"), ""},
		{"keycloak's access token with nonce", func(d *authtest.Draft) { d.Claims["typ"], d.Claims["nonce"] = "Bearer", "n" }, ""},
		{"keycloak's ID token", claim("typ", "ID"), Type},
		{"keycloak's refresh token", claim("typ", "Refresh"), Type},
		{"an ID token for the API's own client", func(d *authtest.Draft) { d.Claims["nonce"] = "n"; delete(d.Claims, "scp") }, Type},
		{"with at_hash", claim("at_hash", "x"), Type},
		{"a logout token", claim("events", map[string]any{}), Type},
		{"cognito's ID token", claim("token_use", "id"), Type},
		{"cognito's access token", claim("token_use", "access"), ""},
		{"another audience", claim("aud", "11111111-8b86-d011-b42d-00cf4fc964ff"), Audience},
		{"the MCP URL as audience", claim("aud", acmeMCP), Audience},
		{"another customer", claim("tid", globexTID), TenantClaim},
		{"no customer", claim("tid", nil), TenantClaim},
		{"expired", claim("exp", now-60), Expired},
		{"to come", claim("nbf", now+60), NotYet},
		{"cnf", claim("cnf", map[string]any{}), Bound},
		{"alg none", header("alg", "none"), Algorithm},
		{"unknown kid", header("kid", "x"), Signature},
	} {
		token := r.dir.Directory(t, guid, acmeTID, "bob", []string{"telltale:read", "telltale:diagnose"}, []string{"acme-sre"}, c.change)
		if c.want != "" {
			r.wantRefusal(t, c.what, "acme", token, c.want)
			continue
		}
		sc := r.wantGood(t, c.what, "acme", token, tenants.Read|tenants.Diagnose)
		if sc.Principal.Client != "0d4a9d6f-0000-4000-8000-00000000c11e" || sc.Principal.Name != "bob@example.org" {
			t.Errorf("%s: %+v", c.what, sc.Principal)
		}
	}
	open := newOAuthRigAt(t, OAuthConfig{}, r.signer, r.dir)
	open.trust(acme, func(to *tenants.Trust) { to.Issuers[1].TenantClaim = "" })
	open.wantRefusal(t, "static without a tenant claim", "acme", r.dir.Directory(t, guid, acmeTID, "bob", []string{"telltale:read"}, []string{"acme-sre"}, nil), TenantClaim)
}

// What only introspection can say.
func TestIntrospectionAnswers(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		want   Class
	}{
		{"active a string", claim("active", "true"), Inactive},
		{"active a number", claim("active", 1), Inactive},
		{"no active", claim("active", nil), Inactive},
		{"inactive", claim("active", false), Inactive},
		{"no token_type", claim("token_type", nil), ""},
		{"token_type in small letters", claim("token_type", "bearer"), ""},
		{"DPoP", claim("token_type", "DPoP"), Bound},
		{"a refresh token", claim("token_type", "refresh_token"), Type},
		{"a refresh token of keycloak", claim("typ", "Refresh"), Type},
		{"a refresh token of hydra", claim("token_use", "refresh_token"), Type},
	} {
		token := r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, c.change)
		if c.want == "" {
			r.wantGood(t, c.what, "acme", token, tenants.Read|tenants.Payloads|tenants.Diagnose|tenants.Act)
			continue
		}
		r.wantRefusal(t, c.what, "acme", token, c.want)
	}
	asked := r.signer.Asked("/introspect")
	r.wantRefusal(t, "never issued", "acme", "never-issued", Inactive)
	if n := r.signer.Asked("/introspect") - asked; n != 1 {
		t.Errorf("asked %d times about one token", n)
	}
	closed := newOAuthRigAt(t, OAuthConfig{}, r.signer, r.dir)
	closed.issuer(acme, func(i *tenants.Issuer) { i.Opaque = false })
	token := r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, nil)
	asked = r.signer.Asked("/introspect")
	closed.wantRefusal(t, "opaque where none is accepted", "acme", token, Malformed)
	if r.signer.Asked("/introspect") != asked {
		t.Error("asked an issuer that gives no opaque tokens")
	}
	closed.issuer(globex, func(i *tenants.Issuer) { i.ClientID = "wrong" })
	w := closed.do("GET", "/t/globex/mcp", "", "Authorization", "Bearer "+token)
	if w.Code != 503 || !strings.Contains(w.Body.String(), "client credentials") {
		t.Errorf("wrong client credentials: %d %s", w.Code, w.Body)
	}
}

// A flood of unknown key ids costs the issuer next to nothing.
func TestUnknownKidFlood(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	r.wantGood(t, "before", "acme", r.good(t, nil), tenants.Read|tenants.Payloads|tenants.Diagnose|tenants.Act)
	began := time.Now()
	token := r.good(t, nil)
	parts := strings.Split(token, ".")
	for n := range 3000 {
		head := fmt.Sprintf(`{"alg":"RS256","typ":"at+jwt","kid":"flood-%d"}`, n)
		bad := r.signer.Sign(t, &authtest.Draft{Header: map[string]any{"alg": "none"}, RawHeader: []byte(head), Claims: map[string]any{}})
		_, err := r.verify(t, "acme", strings.Split(bad, ".")[0]+"."+parts[1]+"."+parts[2])
		wantClass(t, err, Signature)
	}
	most := 1 + int(time.Since(began)/keyFloor) + 1
	if n := r.signer.Asked("/keys"); n > most {
		t.Errorf("%d fetches of keys in %v", n, time.Since(began))
	}
	if s := r.oauth.Stats(); s.UnknownKids < 3000 || s.Providers != 1 {
		t.Errorf("%+v", s)
	}
}

// While an issuer is down, its last good keys and what was proved stay; only
// where nothing is known is the answer 503.
func TestIssuerDown(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	all := tenants.Read | tenants.Payloads | tenants.Diagnose | tenants.Act
	opaque := r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, nil)
	r.wantGood(t, "JWT", "acme", r.good(t, nil), all)
	r.wantGood(t, "opaque", "acme", opaque, all)
	r.signer.SetDown(true)
	r.wantGood(t, "a fresh JWT", "acme", r.good(t, nil), all)
	r.wantGood(t, "a known opaque token", "acme", opaque, all)
	r.wantRefusal(t, "an unknown kid", "acme", r.good(t, header("kid", "other")), Signature)
	r.wantRefusal(t, "a bad token", "acme", r.good(t, claim("aud", "x")), Audience)
	want503 := func(r *oauthRig, what, token string) {
		t.Helper()
		if _, err := r.verify(t, "acme", token); !fault.Is(err, fault.Unavailable) || fault.Of(err).Reason != "issuer_unreachable" {
			t.Errorf("%s: %v", what, err)
		}
		for _, path := range []string{"/t/acme/mcp", "/t/acme/api/v1/nodes"} {
			w := r.do("GET", path, "", "Authorization", "Bearer "+token)
			if w.Code != 503 || w.Header().Get("WWW-Authenticate") != "" || w.Header().Get("Retry-After") != "10" || !strings.Contains(w.Body.String(), "issuer_unreachable") || w.Header().Get(ReferenceHeader) == "" {
				t.Errorf("%s: %d %v %s", what, w.Code, w.Header(), w.Body)
			}
			if got := r.seen.take(); len(got) == 0 || got[len(got)-1].Class != string(Unreachable) || got[len(got)-1].Reference != w.Header().Get(ReferenceHeader) || strings.Contains(got[len(got)-1].Received, "dial") {
				t.Errorf("%s: reported %+v", what, got)
			}
		}
	}
	other := r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, nil)
	want503(r, "an unknown opaque token", other)
	fresh := newOAuthRigAt(t, OAuthConfig{}, r.signer, r.dir)
	asked := r.signer.Asked("/.well-known/openid-configuration")
	want503(fresh, "JWT, nothing known", r.good(t, nil))
	want503(fresh, "JWT again", r.good(t, nil))
	if n := r.signer.Asked("/.well-known/openid-configuration") - asked; n > 2 { // http.Client may try an idempotent request again
		t.Errorf("a down issuer was asked %d times", n)
	}
	r.signer.SetDown(false)
	r.wantGood(t, "opaque, up again", "acme", other, all)
}

// Two headers, tokens in the query and absurd lengths.
func TestSmuggling(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	good := r.good(t, nil)
	for _, c := range []struct {
		what, path string
		header     []string
		status     int
		class      string
	}{
		{"two headers", "/t/acme/mcp", []string{"Authorization", "Bearer " + good, "Authorization", "Bearer " + good}, 400, "credential_repeated"},
		{"two in one header", "/t/acme/mcp", []string{"Authorization", "Bearer " + good + ", Bearer " + good}, 401, "credential_malformed"},
		{"in the query", "/t/acme/mcp?access_token=" + good, nil, 401, "credential_no_token"},
		{"long", "/t/acme/mcp", []string{"Authorization", "Bearer " + good + strings.Repeat("A", 100_000)}, 401, "credential_malformed"},
		{"a long subject, within bounds", "/t/acme/mcp", []string{"Authorization", "Bearer " + r.good(t, claim("sub", strings.Repeat("s", 5000)))}, 401, "credential_claims"},
	} {
		for _, door := range []string{"/mcp", "/api/v1/nodes"} {
			w := r.do("GET", strings.Replace(c.path, "/mcp", door, 1), "", c.header...)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.class) {
				t.Errorf("%s: %d %s", c.what, w.Code, w.Body)
			}
		}
	}
	q := httptest.NewRequest("POST", "/t/acme/mcp", strings.NewReader("access_token="+good))
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if _, err := Bearer(q); err == nil {
		t.Error("a token in the body counts")
	}
}
