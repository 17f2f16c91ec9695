package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// shell runs commands on one database.
type shell struct {
	t   *testing.T
	dsn string
}

func (s shell) run(want int, args ...string) (out, errs string) {
	s.t.Helper()
	var stdout, stderr bytes.Buffer
	getenv := func(k string) (string, bool) { return s.dsn, k == "TELLTALE_DATABASE" }
	if got := realMain(s.t.Context(), env{&stdout, &stderr, getenv}, args); got != want {
		s.t.Errorf("telltaled %s: %d, want %d\n%s%s", strings.Join(args, " "), got, want, stdout.String(), stderr.String())
	}
	return stdout.String(), stderr.String()
}

// provider is an identity provider that answers discovery, keys and
// introspection.
func provider(t *testing.T) *httptest.Server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	show := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v) // the test sees what does not arrive
		}
	}
	mux.Handle("/.well-known/openid-configuration", show(map[string]any{
		"issuer": srv.URL, "jwks_uri": srv.URL + "/jwks", "introspection_endpoint": srv.URL + "/introspect",
		"authorization_endpoint": srv.URL + "/auth", "token_endpoint": srv.URL + "/token", "code_challenge_methods_supported": []string{"S256"},
	}))
	mux.Handle("/jwks", show(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Use: "sig", Algorithm: "ES256"}}}))
	mux.HandleFunc("/introspect", func(w http.ResponseWriter, r *http.Request) {
		if id, secret, _ := r.BasicAuth(); id != "telltale" || secret != "hunter2" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		show(map[string]any{"active": false})(w, r)
	})
	return srv
}

func TestIssuerCommands(t *testing.T) {
	s := shell{t, dbtest.DSN(t)}
	dir := t.TempDir()
	key, secret := filepath.Join(dir, "key"), filepath.Join(dir, "secret")
	if _, err := auth.LoadOrCreateKey(key); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	idp := provider(t)
	for _, slug := range []string{"acme", "globex"} {
		s.run(0, "tenant", "create", slug)
	}
	out, _ := s.run(0, "issuer", "add", "acme", idp.URL, "--allow-http-loopback", "--key-file", key, "--name", "Example", "--opaque", "--client-id", "telltale", "--client-secret-file", secret,
		"--dashboard-client-id", "dash", "--role", "groups=urn:acme:sre:read,diagnose", "--role", "groups=dbas:act@role=db")
	for _, want := range []string{"introspection", "sign_in", "reference ", "added issuer " + idp.URL} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "FAILED") || strings.Contains(out, "hunter2") {
		t.Error(out)
	}
	aligned(t, out)
	out, _ = s.run(0, "issuer", "list", "acme")
	for _, want := range []string{"Example", "JWT, opaque", "groups=urn:acme:sre:read,diagnose", "groups=dbas:act@role=db"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out, _ = s.run(0, "issuer", "list", "globex"); strings.Contains(out, idp.URL) {
		t.Errorf("globex shows\n%s", out)
	}

	// Once more changes it; without the secret's file the secret stays.
	out, _ = s.run(0, "issuer", "add", "acme", idp.URL, "--allow-http-loopback", "--key-file", key, "--name", "Example", "--opaque", "--client-id", "telltale")
	if !strings.Contains(out, "changed issuer") || !strings.Contains(out, "note: no rule") {
		t.Error(out)
	}
	for _, ref := range []string{idp.URL, "Example"} {
		s.run(0, "issuer", "test", "acme", ref, "--allow-http-loopback", "--key-file", key)
	}
	out, errs := s.run(1, "issuer", "test", "acme", "Example", "--allow-http-loopback") // no key: the secret cannot be opened
	if !strings.Contains(out, "FAILED") || !strings.Contains(errs, "introspection") {
		t.Error(out, errs)
	}
	s.run(1, "issuer", "test", "globex", idp.URL, "--allow-http-loopback", "--key-file", key)

	// What fails is not stored without --force.
	dead := idp.URL + "/elsewhere"
	out, errs = s.run(1, "issuer", "add", "acme", dead, "--allow-http-loopback", "--role", "*:read")
	if !strings.Contains(out, "FAILED") || !strings.Contains(errs, "--force") {
		t.Error(out, errs)
	}
	out, _ = s.run(0, "issuer", "add", "acme", dead, "--allow-http-loopback", "--role", "*:read", "--force")
	if !strings.Contains(out, "note: a rule without a claim") {
		t.Error(out)
	}
	_, errs = s.run(1, "issuer", "add", "globex", dead, "--allow-http-loopback", "--role", "*:read", "--force")
	if !strings.Contains(errs, "another tenant") || strings.Contains(errs, "acme") {
		t.Error(errs)
	}

	if !strings.Contains(errs, "issuer tenants") && !strings.Contains(errs, "--tenant-claim") && !strings.Contains(errs, "tenant_claim") {
		t.Error(errs)
	}
	out, _ = s.run(0, "issuer", "tenants", dead)
	if !strings.Contains(out, "acme") || strings.Contains(out, "globex") || !strings.Contains(out, "everybody: no other tenant") {
		t.Error(out)
	}
	s.run(0, "issuer", "add", "acme", dead, "--allow-http-loopback", "--role", "*:read", "--tenant-claim", "org=acme", "--force")
	s.run(0, "issuer", "add", "globex", dead, "--allow-http-loopback", "--role", "*:read", "--tenant-claim", "org=globex", "--force")
	out, _ = s.run(0, "issuer", "tenants", dead)
	if !strings.Contains(out, "org=acme") || !strings.Contains(out, "org=globex") || strings.Contains(out, "no other") {
		t.Error(out)
	}
	s.run(0, "issuer", "remove", "globex", dead)

	out, _ = s.run(0, "member", "add", "acme", "Example", "alice", "--scopes", "read,act", "--name", "Alice", "--nodes", "role=db")
	id := strings.TrimSuffix(strings.Fields(out)[1], ":")
	s.run(1, "member", "add", "globex", "Example", "alice", "--scopes", "read")
	out, _ = s.run(0, "member", "list", "acme", "--issuer", "Example")
	if !strings.Contains(out, "alice") || !strings.Contains(out, "role=db") || !strings.Contains(out, idp.URL) {
		t.Error(out)
	}
	aligned(t, out)
	s.run(1, "member", "remove", "globex", id)
	s.run(0, "member", "remove", "acme", id)
	s.run(0, "issuer", "remove", "acme", "Example")
	s.run(1, "issuer", "remove", "acme", "Example")
}

// aligned checks that the columns of a table's first rows begin alike.
func aligned(t *testing.T, text string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	at := strings.Index(lines[0], "  ") // behind the first head
	for at < len(lines[0]) && lines[0][at] == ' ' {
		at++
	}
	if len(lines) < 2 || len(lines[1]) < at || lines[1][at-1] != ' ' || lines[1][at] == ' ' {
		t.Errorf("not aligned:\n%s", text)
	}
}

func TestIssuerUsage(t *testing.T) {
	s := shell{t, dbtest.DSN(t)}
	s.run(0, "tenant", "create", "acme")
	missing := filepath.Join(t.TempDir(), "key")
	for _, c := range []struct {
		args string
		want string
	}{
		{"issuer add acme", "URL is missing"},
		{"issuer add acme https://idp.example.com --role groups=sre", "CLAIM=VALUE:SCOPES"},
		{"issuer add acme https://idp.example.com --role groups=sre:everything", "CLAIM=VALUE:SCOPES"},
		{"issuer add acme https://idp.example.com --role groups:read", "CLAIM=VALUE:SCOPES"},
		{"issuer add acme https://idp.example.com --role groups=sre:read@db", "labels"},
		{"issuer add acme https://idp.example.com --tenant-claim tid", "claim=value"},
		{"issuer add acme https://idp.example.com --client-secret-file x", "--key-file"},
		{"issuer add acme https://idp.example.com --key-file " + missing, "there is no"},
		{"issuer add acme https://idp.example.com --issuer-networks x", "--issuer-networks"},
		{"issuer test acme", "ISSUER is missing"},
		{"member add acme x alice", "--scopes"},
	} {
		if _, errs := s.run(2, strings.Fields(c.args)...); !strings.Contains(errs, c.want) {
			t.Errorf("%s: %s", c.args, errs)
		}
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("a key was made")
	}
	for args, want := range map[string]string{
		"issuer add nobody https://idp.example.com":                       "no tenant",
		"issuer add acme http://idp.example.com":                          "https",
		"issuer add acme http://127.0.0.1:1":                              "https",
		"issuer add acme https://idp.example.com --audiences a":           "tenant_claim",
		"issuer add acme https://idp.example.com --algorithms HS256":      "algorithms",
		"issuer add acme https://idp.example.com --opaque --client-id me": "client",
		"issuer test acme nothing":                                        "issuer list acme",
		"member add acme nothing alice --scopes read":                     "issuer list acme",
		"member remove acme nothing":                                      "no such member",
	} {
		if _, errs := s.run(1, strings.Fields(args)...); !strings.Contains(errs, want) {
			t.Errorf("%s: %s", args, errs)
		}
	}
	for _, c := range []string{"issuer add", "issuer test", "issuer list", "issuer remove", "member add", "member list", "member remove", "tenant quotas"} {
		if out, _ := s.run(0, append(strings.Fields(c), "--help")...); !strings.Contains(out, "--database") {
			t.Errorf("%s --help: %s", c, out)
		}
	}
}

func TestRoleWords(t *testing.T) {
	var r roleRules
	for _, v := range []string{"groups=sre:read,diagnose", "*:read", "https://ns/role=urn:x:y:act@site=a,role=db", "email=a@b.example:read"} {
		if err := r.Set(v); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
	for _, v := range []string{"", ":", "*", "*:", "groups=sre:telltale:read", "=sre:read", "groups=:read", "*:read@", "*:read@=x"} {
		if err := new(roleRules).Set(v); err == nil {
			t.Errorf("%q was read", v)
		}
	}
	want := roleRules{
		{Claim: "groups", Value: "sre", Scopes: tenants.Read | tenants.Diagnose}, {Scopes: tenants.Read},
		{Claim: "https://ns/role", Value: "urn:x:y", Scopes: tenants.Act, Nodes: tenants.Selector{Labels: map[string]string{"site": "a", "role": "db"}}},
		{Claim: "email", Value: "a@b.example", Scopes: tenants.Read},
	}
	if d := cmp.Diff(want, r); d != "" {
		t.Error(d)
	}
}

func TestTenantQuotas(t *testing.T) {
	s := shell{t, dbtest.DSN(t)}
	s.run(0, "tenant", "create", "acme")
	s.run(0, "tenant", "create", "globex")
	out, _ := s.run(0, "tenant", "quotas", "acme")
	if !strings.Contains(out, "default") {
		t.Error(out)
	}
	out, _ = s.run(0, "tenant", "quotas", "acme", "--max-tokens", "2", "--tenant-rate", "1000000", "--scopes", "read,admin", "--first-scopes", "read")
	for _, want := range []string{"max-tokens        2", "1000000", "read,admin"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	out, _ = s.run(0, "tenant", "quotas", "acme", "--scopes", "all", "--tenant-rate", "0")
	if strings.Contains(out, "1000000") || !strings.Contains(out, "max-tokens        2") {
		t.Error(out)
	}
	for range 2 {
		s.run(0, "token", "create", "--tenant", "acme", "--name", "x", "--scopes", "read")
		s.run(0, "token", "create", "--tenant", "globex", "--name", "x", "--scopes", "read")
	}
	if _, errs := s.run(1, "token", "create", "--tenant", "acme", "--name", "x", "--scopes", "read"); !strings.Contains(errs, "2 of at most 2") {
		t.Error(errs)
	}
	s.run(0, "token", "create", "--tenant", "globex", "--name", "x", "--scopes", "read")
	s.run(1, "tenant", "quotas", "acme", "--max-issuers", "101")
	s.run(2, "tenant", "quotas", "acme", "--scopes", "everything")
}
