package auth

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestVerifyIDToken(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	issuer := r.trusts[acme.ID].Issuers[0]
	issuer.DashboardClientID = "dash"
	now := time.Now().Unix()
	for _, c := range []struct {
		what   string
		change func(*authtest.Draft)
		want   Class
	}{
		{"good", nil, ""},
		{"no typ", header("typ", nil), ""},
		{"several audiences with azp", func(d *authtest.Draft) { d.Claims["aud"], d.Claims["azp"] = []string{"dash", "x"}, "dash" }, ""},
		{"several audiences", claim("aud", []string{"dash", "x"}), Audience},
		{"azp of another", claim("azp", "x"), Audience},
		{"an access token", header("typ", "at+jwt"), Type},
		{"for another client", claim("aud", "x"), Audience},
		{"another nonce", claim("nonce", "m"), Claims},
		{"no nonce", claim("nonce", nil), Claims},
		{"expired", claim("exp", now-60), Expired},
		{"no exp", claim("exp", nil), Expired},
		{"to come", claim("iat", now+60), NotYet},
		{"another issuer", claim("iss", "https://evil.example"), IssuerUnknown},
		{"no subject", claim("sub", nil), Claims},
		{"alg none", header("alg", "none"), Algorithm},
		{"unknown kid", header("kid", "x"), Signature},
		{"crit", header("crit", []string{"x"}), Malformed},
	} {
		raw := r.signer.Access(t, "dash", "alice", "", nil, func(d *authtest.Draft) {
			d.Header["typ"], d.Claims["nonce"], d.Claims["sid"] = "JWT", "n", "s1"
			if c.change != nil {
				c.change(d)
			}
		})
		id, err := r.oauth.VerifyIDToken(t.Context(), issuer, raw, "n")
		if c.want != "" {
			if f, ok := err.(*Failure); !ok || f.Class != c.want || id != (Identity{}) {
				t.Errorf("%s: %+v, %v", c.what, id, err)
			}
			continue
		}
		if err != nil || id != (Identity{Subject: "alice", Name: "The alice", Session: "s1"}) {
			t.Errorf("%s: %+v, %v", c.what, id, err)
		}
		r.wantRefusal(t, c.what+" as access token", "acme", raw, Type)
		_, err = r.oauth.VerifyIDToken(t.Context(), issuer, raw, "")
		wantClass(t, err, Claims)
		_, err = r.oauth.VerifyIDToken(t.Context(), tenants.Issuer{URL: r.signer.URL}, raw, "n")
		wantClass(t, err, Audience)
	}
}

func TestEndpoints(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{})
	issuer := r.trusts[acme.ID].Issuers[0]
	r.signer.SetMetadata("end_session_endpoint", r.signer.URL+"/end")
	r.signer.SetMetadata("authorization_response_iss_parameter_supported", true)
	got, err := r.oauth.Endpoints(t.Context(), issuer)
	want := Endpoints{Authorization: r.signer.URL + "/auth", Token: r.signer.URL + "/token", EndSession: r.signer.URL + "/end", PKCE: true, IssInAnswer: true}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []any{nil, "http://id.example.org/token", "https://10.0.0.1/token", "javascript:alert(1)"} {
		r.dir.SetMetadata("token_endpoint", bad)
		fresh := newOAuthRigAt(t, OAuthConfig{}, r.signer, r.dir)
		if got, err := fresh.oauth.Endpoints(t.Context(), r.trusts[acme.ID].Issuers[1]); !fault.Is(err, fault.Unavailable) {
			t.Errorf("token endpoint %v: %+v, %v", bad, got, err)
		}
	}
	r.dir.SetMetadata("issuer", "https://other.example")
	fresh := newOAuthRigAt(t, OAuthConfig{}, r.signer, r.dir)
	if _, err := fresh.oauth.Endpoints(t.Context(), r.trusts[acme.ID].Issuers[1]); !fault.Is(err, fault.Unavailable) {
		t.Errorf("metadata of another issuer: %v", err)
	}
}

// Facts survive being stored, and give what the roles give today.
func TestFactsRoundTrip(t *testing.T) {
	r := newOAuthRig(t, OAuthConfig{TTL: 1})
	acmeNow := r.tenants["acme"]
	token := r.signer.Access(t, acmeMCP, "u", "telltale:read telltale:diagnose", []string{"acme-limited", "other"}, nil)
	sc, facts, err := r.oauth.VerifyAccess(t.Context(), acmeNow, token, anywhere)
	if err != nil || facts.Issuer != "acme-one" || facts.Subject != "u" || facts.Client != "client-1" || facts.Scopes != tenants.Read|tenants.Diagnose {
		t.Fatalf("%+v, %v", facts, err)
	}
	raw, err := json.Marshal(facts)
	if err != nil {
		t.Fatal(err)
	}
	var back Facts
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	again, err := r.oauth.Reevaluate(t.Context(), acmeNow, back)
	if err != nil || again.Granted != sc.Granted || again.Principal != sc.Principal || again.Nodes.Labels["site"] != "a" || again.Tenant != acme.ID {
		t.Errorf("%+v, %v", again, err)
	}
	_, err = r.oauth.Reevaluate(t.Context(), r.tenants["globex"], back)
	wantClass(t, err, IssuerUnknown)
	_, err = r.oauth.Reevaluate(t.Context(), tenants.Tenant{}, back)
	wantClass(t, err, IssuerUnknown)
	_, err = r.oauth.Reevaluate(t.Context(), acmeNow, Facts{})
	wantClass(t, err, IssuerUnknown)
	r.issuer(acme, func(i *tenants.Issuer) {
		i.Roles = []tenants.RoleRule{{Claim: "groups", Value: "other", Scopes: tenants.Read | tenants.Admin}}
	})
	if again, err = r.oauth.Reevaluate(t.Context(), acmeNow, back); err != nil || again.Granted != tenants.Read || !again.Nodes.All() {
		t.Errorf("another role: %+v, %v", again, err)
	}
	r.issuer(acme, func(i *tenants.Issuer) { i.URL = "https://moved.example" })
	_, err = r.oauth.Reevaluate(t.Context(), acmeNow, back)
	wantClass(t, err, IssuerUnknown)
}
