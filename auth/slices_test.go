package auth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
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
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// The slices satisfy what auth asks of its stores.
var (
	_ auth.TenantLookup = (*directory.Service)(nil)
	_ auth.CAStore      = (*directory.Service)(nil)
	_ auth.NodeStore    = (*directory.Service)(nil)
	_ auth.TokenStore   = (*access.Service)(nil)
	_ auth.SessionStore = (*access.Service)(nil)
	_ auth.UseStore     = (*access.Service)(nil)
)

// scaled is a time to live so short that a test can wait for its end.
const scaled = 200 * time.Millisecond

// replica is one server's share of auth on a common database.
type replica struct {
	directory *directory.Service
	access    *access.Service
	verifier  *auth.Verifier
	ca        *auth.NodeCA
	uses      *auth.Uses
	handler   http.Handler
}

func newReplica(t *testing.T, db *tenantdb.DB) *replica {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	r := &replica{directory: directory.New(db, log, directory.Config{TenantTTL: scaled}), access: access.New(db, log, access.Config{})}
	site, err := auth.NewSite(auth.SiteConfig{PublicURL: "http://127.0.0.1:8400"})
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := auth.NewSealer(make([]byte, auth.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	if r.ca, err = auth.NewNodeCA(r.directory, r.directory, sealer, log, auth.NodeCAConfig{TrustDomain: "telltale.test", TTL: scaled}); err != nil {
		t.Fatal(err)
	}
	r.uses = auth.NewUses(r.access, log)
	tokens := auth.NewOperatorTokens(r.access, r.uses, auth.OperatorConfig{TTL: scaled})
	r.verifier = auth.NewVerifier(r.directory, tokens)
	sessions := auth.NewSessions(site, r.verifier, tokens, r.access, r.uses, scaled)
	challenger := auth.NewChallenger(site, r.directory, nil, log)
	gate := auth.NewGate(site, r.verifier, sessions, challenger)
	mux := http.NewServeMux()
	mux.Handle("/t/{tenant}/session", sessions.Handler(challenger))
	mux.Handle("/t/{tenant}/api", gate.BearerOrSession(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		sc, _ := auth.ScopeFrom(q.Context())
		fmt.Fprint(w, sc.Slug)
	})))
	r.handler = mux
	return r
}

func (r *replica) do(method, path, body string, header ...string) *httptest.ResponseRecorder {
	q := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		q.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, q)
	return w
}

// eventually waits for cond within the promise on revocation.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(tenants.RevocationDelay)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", tenants.RevocationDelay, what)
		}
	}
}

// Two replicas on one database: what one makes the other accepts, what one
// revokes the other refuses within the promise, and the two tenants never meet.
func TestTwoReplicas(t *testing.T) {
	db := dbtest.New(t)
	here, there := newReplica(t, db), newReplica(t, db)
	ctx := t.Context()
	scopes, secrets, ids := map[string]tenants.Scope{}, map[string]string{}, map[string]string{}
	for _, slug := range []string{"acme", "globex"} {
		tn, err := here.directory.CreateTenant(ctx, slug, "")
		if err != nil {
			t.Fatal(err)
		}
		scopes[slug] = auth.Local(tn, "test", tenants.Admin)
		secret, tok, err := here.access.CreateToken(ctx, scopes[slug], access.TokenSpec{Name: "t", Scopes: tenants.Read, Nodes: tenants.Selector{Labels: map[string]string{"site": "a"}}})
		if err != nil {
			t.Fatal(err)
		}
		secrets[slug], ids[slug] = secret, tok.ID
	}
	from := netip.MustParseAddr("192.0.2.1")
	class := func(r *replica, slug, bearer string) auth.Class {
		t.Helper()
		sc, err := r.verifier.Verify(ctx, slug, bearer, from)
		if f, ok := errors.AsType[*auth.Failure](err); ok {
			return f.Class
		}
		if err != nil || sc.Tenant != scopes[slug].Tenant || sc.Nodes.Labels["site"] != "a" {
			t.Fatalf("%s: %+v, %v", slug, sc, err)
		}
		return ""
	}
	for _, r := range []*replica{here, there} {
		for _, at := range []string{"acme", "globex", "nope"} {
			for of, secret := range secrets {
				want := auth.WrongTenant
				if at == of {
					want = ""
				}
				if got := class(r, at, secret); got != want {
					t.Errorf("%s's token at %s: %q, want %q", of, at, got, want)
				}
			}
		}
	}

	// A session made here is good there, and ends there with its token.
	w := here.do("POST", "/t/acme/session", `{"token":"`+secrets["acme"]+`"}`, "Content-Type", "application/json")
	if w.Code != 201 {
		t.Fatalf("sign in: %d %s", w.Code, w.Body)
	}
	cookie := w.Result().Cookies()[0]
	asked := func(path string) int { return there.do("GET", path, "", "Cookie", cookie.Name+"="+cookie.Value).Code }
	if got := asked("/t/acme/api"); got != 200 {
		t.Errorf("session on the other replica: %d", got)
	}
	if got := asked("/t/globex/api"); got != 401 {
		t.Errorf("session at the other tenant: %d", got)
	}
	if err := here.access.RevokeToken(ctx, scopes["acme"], ids["acme"]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "token refused there", func() bool { return class(there, "acme", secrets["acme"]) == auth.Revoked })
	eventually(t, "session refused there", func() bool { return asked("/t/acme/api") == 401 })
	if got := class(there, "globex", secrets["globex"]); got != "" {
		t.Errorf("the other tenant's token: %s", got)
	}
	if err := here.directory.SetSuspended(ctx, "globex", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "suspension there", func() bool { return class(there, "globex", secrets["globex"]) == auth.Suspended })
}

func TestNodesOnTwoReplicas(t *testing.T) {
	db := dbtest.New(t)
	here, there := newReplica(t, db), newReplica(t, db)
	ctx := t.Context()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(csr)
	type machine struct {
		scope  tenants.Scope
		tenant tenants.TenantID
		node   tenants.NodeID
		cert   *x509.Certificate
	}
	machines := map[string]*machine{}
	for i, slug := range []string{"acme", "globex"} {
		tn, err := here.directory.CreateTenant(ctx, slug, "")
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{scope: auth.Local(tn, "test", tenants.Admin)}
		secret, _, err := here.directory.CreateEnrolToken(ctx, m.scope, directory.EnrolTokenSpec{})
		if err != nil {
			t.Fatal(err)
		}
		by := []*replica{here, there}[i]
		if m.tenant, m.node, err = by.directory.RedeemEnrolToken(ctx, secret, directory.NodeFacts{Name: "n", KeyHash: sum[:]}); err != nil {
			t.Fatal(err)
		}
		out, err := by.ca.Issue(ctx, m.tenant, m.node, csr, 0)
		if err != nil {
			t.Fatal(err)
		}
		if m.cert, err = x509.ParseCertificate(out.Cert); err != nil {
			t.Fatal(err)
		}
		machines[slug] = m
	}
	verify := func(r *replica, m *machine) error {
		sc, err := r.ca.VerifyPeer(context.WithoutCancel(ctx), m.cert, time.Now())
		if err == nil && (sc.Tenant != m.tenant || sc.Principal.ID != m.node.String() || sc.Slug != m.scope.Slug) {
			t.Errorf("verified as %+v", sc)
		}
		return err
	}
	for slug, m := range machines {
		for _, r := range []*replica{here, there} {
			if err := verify(r, m); err != nil {
				t.Errorf("%s: %v", slug, err)
			}
		}
	}
	a, g := machines["acme"], machines["globex"]
	if err := here.directory.RevokeNode(ctx, g.scope, a.node); !fault.Is(err, fault.NotFound) {
		t.Errorf("globex revokes acme's node: %v", err)
	}
	if err := here.directory.RevokeNode(ctx, a.scope, a.node); err != nil {
		t.Fatal(err)
	}
	eventually(t, "node refused there", func() bool { return fault.Of(verify(there, a)) != nil })
	if f := fault.Of(verify(there, a)); f.Reason != "node_revoked" {
		t.Errorf("refused for %s", f.Reason)
	}
	if err := verify(there, g); err != nil {
		t.Error(err)
	}
	if err := here.ca.RotateCA(ctx, g.tenant); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*replica{here, there} {
		if err := verify(r, g); err != nil {
			t.Errorf("after a new authority: %v", err)
		}
	}
}

// Last uses reach the rows when the collector ends.
func TestUsesReachTheRows(t *testing.T) {
	r := newReplica(t, dbtest.New(t))
	tn, err := r.directory.CreateTenant(t.Context(), "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	secret, tok, err := r.access.CreateToken(t.Context(), auth.Local(tn, "test", tenants.Admin), access.TokenSpec{Name: "t", Scopes: tenants.Read})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.verifier.Verify(t.Context(), "acme", secret, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.uses.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got, err := r.access.TokenByID(t.Context(), tok.ID); err != nil || got.LastUsedAt == nil || time.Since(*got.LastUsedAt) > time.Minute {
		t.Errorf("last use %v, %v", got.LastUsedAt, err)
	}
}
