package auth

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// memory is the stores of this package in memory, for tests of what auth does
// with them; slices_test.go runs it on the real ones.
type memory struct {
	mu       sync.Mutex
	tenants  map[string]tenants.Tenant
	tokens   map[string]tenants.OperatorToken
	sessions map[string]tenants.BrowserSession
	cas      map[tenants.TenantID][]tenants.CARecord
	nodes    map[tenants.NodeID]tenants.NodeIdentity
	trusts   map[tenants.TenantID]tenants.Trust
	members  map[string]tenants.Member
	used     map[string]time.Time
	reads    int
	down     bool
}

var (
	acme   = tenants.Tenant{ID: tenants.NewTenantID(), Slug: "acme", Name: "Acme"}
	globex = tenants.Tenant{ID: tenants.NewTenantID(), Slug: "globex", Name: "Globex"}
	errNo  = fault.New(fault.NotFound, "none", "none")
)

func newMemory() *memory {
	return &memory{
		tenants: map[string]tenants.Tenant{"acme": acme, "globex": globex}, tokens: map[string]tenants.OperatorToken{},
		sessions: map[string]tenants.BrowserSession{}, cas: map[tenants.TenantID][]tenants.CARecord{},
		nodes: map[tenants.NodeID]tenants.NodeIdentity{}, trusts: map[tenants.TenantID]tenants.Trust{}, members: map[string]tenants.Member{}, used: map[string]time.Time{},
	}
}

func find[K comparable, V any](m *memory, in map[K]V, key K) (V, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reads++
	v, ok := in[key]
	switch {
	case m.down:
		return v, fault.New(fault.Unavailable, "database_unavailable", "the database does not answer").Because(errors.New("secret detail"))
	case !ok:
		return v, errNo
	}
	return v, nil
}

func set[K comparable, V any](m *memory, in map[K]V, key K, change func(*V)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := in[key]
	change(&v)
	in[key] = v
}

func (m *memory) TenantBySlug(_ context.Context, slug string) (tenants.Tenant, error) {
	return find(m, m.tenants, slug)
}

func (m *memory) TokenByID(_ context.Context, id string) (tenants.OperatorToken, error) {
	return find(m, m.tokens, id)
}

func (m *memory) PutSession(_ context.Context, s tenants.BrowserSession, replaces string) error {
	set(m, m.sessions, s.Tenant.String()+s.ID, func(to *tenants.BrowserSession) { *to = s })
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, s.Tenant.String()+replaces)
	return nil
}

func (m *memory) SessionByID(_ context.Context, t tenants.TenantID, id string) (tenants.BrowserSession, error) {
	return find(m, m.sessions, t.String()+id)
}

func (m *memory) EndSession(_ context.Context, t tenants.TenantID, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sessions, t.String()+id)
	return nil
}

func (m *memory) LoadCAs(_ context.Context, t tenants.TenantID) ([]tenants.CARecord, error) {
	cas, err := find(m, m.cas, t)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	return append([]tenants.CARecord(nil), cas...), err
}

func (m *memory) StoreCA(_ context.Context, t tenants.TenantID, r tenants.CARecord, after string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	newest := ""
	if k := len(m.cas[t]); k > 0 {
		newest = m.cas[t][k-1].ID
	}
	if newest != after {
		return false, nil
	}
	m.cas[t] = append(m.cas[t], r)
	return true, nil
}

func (m *memory) NodeIdentity(_ context.Context, t tenants.TenantID, n tenants.NodeID) (tenants.NodeIdentity, error) {
	id, err := find(m, m.nodes, n)
	if err == nil && id.Tenant != t {
		return tenants.NodeIdentity{}, errNo
	}
	return id, err
}

func (m *memory) Trust(_ context.Context, t tenants.TenantID) (tenants.Trust, error) {
	trust, err := find(m, m.trusts, t)
	if fault.Is(err, fault.NotFound) {
		return tenants.Trust{}, nil
	}
	return trust, err
}

func (m *memory) Member(_ context.Context, t tenants.TenantID, issuer, subject string) (tenants.Member, error) {
	return find(m, m.members, t.String()+issuer+subject)
}

func (m *memory) TouchTokens(_ context.Context, _ tenants.TenantID, uses map[string]time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.used, uses)
	return nil
}

func (m *memory) TouchSessions(ctx context.Context, t tenants.TenantID, uses map[string]time.Time) error {
	return m.TouchTokens(ctx, t, uses)
}

// mint stores a token and returns its secret and id.
func (m *memory) mint(t tenants.Tenant, change func(*tenants.OperatorToken)) (secret, id string) {
	text, hidden := tenants.MintSecret(tenants.OperatorSecret)
	tok := tenants.OperatorToken{ID: hidden.ID, Hash: hidden.Hash, Tenant: t.ID, Name: "tok", Scopes: tenants.Read, CreatedAt: time.Now()}
	if change != nil {
		change(&tok)
	}
	set(m, m.tokens, tok.ID, func(to *tenants.OperatorToken) { *to = tok })
	return text, tok.ID
}

func (m *memory) setDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
}

func (m *memory) readCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reads
}

// rig is the whole of auth for HTTP, as a server wires it.
type rig struct {
	*memory
	site     *Site
	fetch    *Fetcher
	oauth    *OAuth
	seen     *recorder
	tokens   *OperatorTokens
	verifier *Verifier
	sessions *Sessions
	gate     *Gate
	http.Handler
}

const publicURL = "https://telltale.example.org"

// recorder keeps attempts in memory.
type recorder struct {
	mu  sync.Mutex
	all []tenants.Attempt
}

func (r *recorder) Attempt(a tenants.Attempt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, a)
}

// take returns what was reported since the last call.
func (r *recorder) take() []tenants.Attempt {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.all
	r.all = nil
	return out
}

// newRig remembers nobody's trust, so that a test may change it.
func newRig(t testing.TB, cfg SiteConfig) *rig { return newRigWith(t, cfg, OAuthConfig{TTL: 1}) }

func newRigWith(t testing.TB, cfg SiteConfig, oauth OAuthConfig) *rig {
	t.Helper()
	if cfg.PublicURL == "" {
		cfg.PublicURL = publicURL
	}
	site, err := NewSite(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{memory: newMemory(), site: site, seen: &recorder{}}
	log := slog.New(slog.DiscardHandler)
	r.tokens = NewOperatorTokens(r, nil, OperatorConfig{})
	sealer, err := NewSealer(make([]byte, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	r.fetch = NewFetcher(FetchConfig{AllowHTTPLoopback: true})
	r.oauth = NewOAuth(site, r, r.fetch, sealer, oauth, log)
	r.verifier = NewVerifier(r, r.tokens, r.oauth)
	r.sessions = NewSessions(site, r.verifier, r.tokens, r, nil, 0)
	ch := NewChallenger(site, r, r.oauth, log).Reporting(r.seen)
	r.gate = NewGate(site, r.verifier, r.sessions, ch)
	echo := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		sc, ok := ScopeFrom(q.Context())
		if !ok {
			t.Error("let through without a scope")
		}
		w.Header().Set("Echo", string(sc.Principal.Kind)+" "+sc.Slug)
	})
	api := http.NewServeMux()
	api.Handle("/t/{tenant}/mcp", r.gate.Bearer(echo))
	api.Handle("/t/{tenant}/api/v1/nodes", r.gate.BearerOrSession(r.gate.Require(tenants.Read)(echo)))
	api.Handle("/t/{tenant}/api/v1/act", r.gate.BearerOrSession(r.gate.Require(tenants.Act)(echo)))
	api.Handle("/t/{tenant}/session", r.sessions.Handler(ch))
	fence := NewFence(site).Reporting(r, r.seen)
	metadata := NewMetadata(site, r, r.oauth).Reporting(r.seen)
	fenced := fence.Origins(api)
	r.Handler = fence.Hosts(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.Contains(q.URL.Path, "/.well-known/") {
			metadata.ServeHTTP(w, q)
			return
		}
		fenced.ServeHTTP(w, q)
	}))
	return r
}

// do sends one request; header is name, value, name, value…
func (r *rig) do(method, path, body string, header ...string) *httptest.ResponseRecorder {
	q := httptest.NewRequest(method, path, strings.NewReader(body))
	q.Host = strings.TrimPrefix(r.site.origin, "https://")
	q.Host = strings.TrimPrefix(q.Host, "http://")
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			q.Host = header[i+1]
		} else {
			q.Header.Add(header[i], header[i+1])
		}
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, q)
	return w
}

func wantClass(t *testing.T, err error, want Class) {
	t.Helper()
	f, ok := errors.AsType[*Failure](err)
	if !ok || f.Class != want {
		t.Fatalf("got %v, want class %s", err, want)
	}
}

var anywhere = netip.MustParseAddr("192.0.2.7")
