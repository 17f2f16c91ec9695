package authtest_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth/authtest"
)

type claims struct {
	Issuer   string   `json:"iss"`
	Subject  string   `json:"sub"`
	Audience string   `json:"aud"`
	Client   string   `json:"client_id"`
	Scope    string   `json:"scope"`
	Groups   []string `json:"groups"`
	Active   bool     `json:"active"`
}

func read(t *testing.T, jwt string, i int, into any) {
	t.Helper()
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		t.Fatalf("no JWT: %s", jwt)
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[i])
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

func introspect(t *testing.T, p *authtest.Provider, token string) (c claims) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.Issuer()+"/token/introspection", strings.NewReader(url.Values{"token": {token}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(authtest.Server, url.QueryEscape(authtest.ServerSecret))
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(body, &c); err != nil {
		t.Fatalf("%s %s", resp.Status, body)
	}
	return c
}

func TestProvider(t *testing.T) {
	p := authtest.StartProvider(t, authtest.Config{BaseURL: "http://127.0.0.1:8400"})
	acme, globex := p.MCP("acme"), p.MCP("globex")

	var got claims
	read(t, p.Token(t, authtest.Alice, "", "telltale:read telltale:diagnose", acme), 1, &got)
	want := claims{Issuer: p.Issuer(), Subject: "alice", Audience: acme, Client: authtest.CLI, Scope: "telltale:read telltale:diagnose", Groups: []string{"acme-sre"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	opaque := p.Token(t, authtest.Dana, authtest.Dashboard, "telltale:read", globex)
	want = claims{Issuer: p.Issuer(), Subject: "dana", Audience: globex, Client: authtest.Dashboard, Scope: "telltale:read", Groups: []string{"acme-admins", "globex-admins"}, Active: true}
	if diff := cmp.Diff(want, introspect(t, p, opaque)); diff != "" {
		t.Error(diff)
	}

	client := p.Register(t, map[string]any{
		"redirect_uris": []string{"http://127.0.0.1:7/cb"}, "token_endpoint_auth_method": "none", "grant_types": []string{"authorization_code", "refresh_token"},
	})
	first := p.Tokens(t, authtest.Carol, client, "telltale:read", globex)
	next := p.Refresh(t, client, first.Refresh)
	if !introspect(t, p, next.Access).Active {
		t.Error("the refreshed token is not active")
	}

	kid := p.RotateKeys(t)
	var header struct{ Kid, Typ string }
	read(t, p.ClientCredentials(t, authtest.Robot, "telltale:read", acme), 0, &header)
	if header.Kid != kid || header.Typ != "at+jwt" {
		t.Errorf("header %+v, want the new key %s", header, kid)
	}

	issuer := p.Issuer()
	p.Restart(t)
	if p.Issuer() != issuer {
		t.Errorf("issuer %s after the restart, was %s", p.Issuer(), issuer)
	}
	if !introspect(t, p, opaque).Active {
		t.Error("a restart forgot a token")
	}
	p.Revoke(t, authtest.Dashboard, opaque)
	if introspect(t, p, opaque).Active {
		t.Error("a revoked token is active")
	}
}

func TestFormatsAndExpiry(t *testing.T) {
	p := authtest.StartProvider(t, authtest.Config{
		BaseURL: "http://127.0.0.1:8400/", TokenTTL: 7 * time.Second,
		Formats: map[string]string{"acme": "opaque", "globex": "jwt"},
	})
	if got := p.Tokens(t, authtest.Bob, "", "telltale:read", p.MCP("acme")); strings.Contains(got.Access, ".") || got.Expires != 7 {
		t.Errorf("acme: %d s, %s", got.Expires, got.Access)
	}
	var got claims
	read(t, p.Token(t, authtest.Erin, "", "telltale:read", p.MCP("globex")), 1, &got)
	if got.Groups == nil || len(got.Groups) != 0 {
		t.Errorf("erin's groups: %v, want an empty list", got.Groups)
	}
}
