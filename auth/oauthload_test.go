package auth

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
)

// Many callers with new and known tokens at once share what is fetched, and
// what is remembered is bounded.
func TestManyAtOnce(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{MaxCached: 10})
	tokens := make([]string, 40)
	for n := range tokens {
		change := claim("jti", fmt.Sprint(n))
		if tokens[n] = r.good(t, change); n%2 == 0 {
			tokens[n] = r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, change)
		}
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, token := range tokens {
				if _, err := r.verifier.Verify(t.Context(), "acme", token, anywhere); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := r.signer.Asked("/keys"); n != 1 {
		t.Errorf("%d fetches of keys", n)
	}
	if n := r.signer.Asked("/.well-known/openid-configuration"); n != 1 {
		t.Errorf("%d fetches of metadata", n)
	}
	s := r.oauth.Stats()
	if s.Signed.Known > 10 || s.Opaque.Known > 10 || s.Signed.KnownEvicted == 0 || s.Trust.Misses > 8 || s.KeyFetches != 1 || s.Introspections == 0 || s.IntrospectFailures != 0 {
		t.Errorf("%+v", s)
	}
	for n := range 100 {
		_, err := r.verify(t, "acme", fmt.Sprintf("guess-%d", n))
		wantClass(t, err, Inactive)
	}
	if s := r.oauth.Stats(); s.Opaque.None > 10 || s.Opaque.Known == 0 {
		t.Errorf("guesses pushed out what is real: %+v", s.Opaque)
	}
}

// A tenant that names another place for an issuer's keys does not change what
// the others believe of that issuer.
func TestKeysAreNotPlanted(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	evil := authtest.NewSigner(t)
	r.issuer(globex, func(i *tenants.Issuer) { i.JWKSURL = evil.URL + "/keys" })
	forged := evil.Access(t, globexMCP, "u", "telltale:read", []string{"globex-sre"}, claim("iss", r.signer.URL))
	r.wantGood(t, "globex believes its own setting", "globex", forged, tenants.Read)
	forged = evil.Access(t, acmeMCP, "u", "telltale:read", []string{"acme-sre"}, claim("iss", r.signer.URL))
	r.wantRefusal(t, "acme does not", "acme", forged, Signature)
	r.wantGood(t, "acme's own", "acme", r.good(t, nil), sre)
}

func FuzzSplitJWT(f *testing.F) {
	s := authtest.NewSigner(f)
	f.Add(s.Access(f, acmeMCP, "u", "x", []string{"g"}, nil))
	f.Add("e30.e30.")
	f.Add("eyJhIjoxLCJhIjoyfQ.e30.AA")
	f.Add("....")
	f.Fuzz(func(t *testing.T, token string) {
		p, err := splitJWT(token)
		if err != nil {
			return
		}
		if p.header == nil || p.claims == nil || !looksLikeJWT(token) {
			t.Fatalf("decoded %q to nothing", token)
		}
		agree(t, p.payload, p.claims)
	})
}

func FuzzClaims(f *testing.F) {
	for _, seed := range []string{`{}`, `{"iss":"https://id.example.org","sub":"u","aud":["x"],"exp":1e10,"scope":"telltale:read","g":{"r":["a",1,true,null]}}`, `{"a":1,"a":2}`, `{"a":"\ud800"}`, `[`, `{"exp":1e999}`, `{"aud":{}}`} {
		f.Add([]byte(seed))
	}
	site, err := NewSite(SiteConfig{PublicURL: publicURL})
	if err != nil {
		f.Fatal(err)
	}
	o := &OAuth{site: site}
	i := newIssuerView(tenants.Issuer{ID: "i", URL: "https://id.example.org", Roles: []tenants.RoleRule{{Claim: "g.r", Value: "a", Scopes: tenants.Read}}})
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := decodeClaims(raw, maxClaims)
		if err != nil {
			return
		}
		agree(t, raw, c)
		_ = notAccess(c)
		p, err := o.checkAnswer(acme, &i, c)
		if err != nil {
			if f, ok := err.(*Failure); !ok || f.Status() != 401 || len(f.Received) > maxNoted || len(f.Expected) > maxNoted {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		auds, _ := strictWords(c["aud"])
		if c.text("iss") != i.URL || !plain(p.facts.Subject) || c.has("cnf") || len(auds) == 0 || p.expires.IsZero() {
			t.Fatalf("%q was accepted: %+v", raw, p)
		}
		if _, err := json.Marshal(p.facts); err != nil {
			t.Fatal(err)
		}
	})
}

// agree checks that the strict decoder and the usual one read the same.
func agree(t *testing.T, raw []byte, c claims) {
	t.Helper()
	var usual map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&usual); err != nil {
		t.Fatalf("%q: the usual decoder says %v", raw, err)
	}
	if len(usual) != len(c) {
		t.Fatalf("%q: %d names against %d", raw, len(c), len(usual))
	}
	for name, v := range usual {
		if s, isText := v.(string); isText && c.text(name) != s {
			t.Fatalf("%q: %s is %q against %q", raw, name, c.text(name), s)
		}
	}
}

func BenchmarkVerifyCached(b *testing.B) {
	r := newOAuthRig(b, OAuthConfig{})
	for form, token := range map[string]string{"JWT": r.good(b, nil), "opaque": r.signer.Opaque(b, acmeMCP, "alice", allWords, []string{"acme-sre"}, nil)} {
		b.Run(form, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.verify(b, "acme", token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkVerifyNew proves a signature each time: what one new token costs.
func BenchmarkVerifyNew(b *testing.B) {
	r := newOAuthRig(b, OAuthConfig{})
	for alg, change := range map[string]func(*authtest.Draft){"RS256": nil, "ES256": func(d *authtest.Draft) { d.Header["alg"], d.Header["kid"] = "ES256", "es-1" }} {
		token := r.good(b, change)
		b.Run(alg, func(b *testing.B) {
			b.ReportAllocs()
			v := newTrustView(r.trusts[acme.ID])
			for b.Loop() {
				if _, err := r.oauth.checkJWT(b.Context(), acme, &v, token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
