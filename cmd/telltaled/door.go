package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/audit"
)

// door is what stands between a request and whoever answers it.
type door struct {
	oauth      *auth.OAuth
	verifier   *auth.Verifier
	sessions   *auth.Sessions
	challenger *auth.Challenger
	fence      *auth.Fence
	gate       *auth.Gate
	metadata   *auth.Metadata
	limiter    *auth.Limiter
	signIn     *auth.SignIn
}

// sealer opens what the key file seals: the keys of the tenants' certificate
// authorities and the secrets of their issuers.
func (c *config) sealer() (*auth.Sealer, error) {
	key, err := auth.LoadOrCreateKey(c.keyFile)
	if err != nil {
		return nil, err
	}
	return auth.NewSealer(key)
}

// fetcher is the one way to the tenants' identity providers.
func (c *config) fetcher() (*auth.Fetcher, error) {
	nets, err := c.issuerNets.prefixes("--issuer-networks")
	if err != nil {
		return nil, err
	}
	return auth.NewFetcher(auth.FetchConfig{AllowHTTPLoopback: c.issuerLoopback, AllowNetworks: nets}), nil
}

// newDoor wires the verifier chain: operator tokens first, which are known by
// their form, then access tokens of the tenant's issuers.
func (a *app) newDoor(cfg *config, sealer *auth.Sealer, record *audit.Service, uses *auth.Uses, own prometheus.Registerer, log *slog.Logger) (door, error) {
	fetch, err := cfg.fetcher()
	if err != nil {
		return door{}, err
	}
	tokens := auth.NewOperatorTokens(a.access, uses, auth.OperatorConfig{})
	d := door{oauth: auth.NewOAuth(a.site, a.access, fetch, sealer, auth.OAuthConfig{}, log), fence: auth.NewFence(a.site).Reporting(a.directory, record)}
	d.verifier = auth.NewVerifier(a.directory, tokens, d.oauth)
	d.challenger = auth.NewChallenger(a.site, a.directory, d.oauth, log).Reporting(record)
	d.metadata = auth.NewMetadata(a.site, a.directory, d.oauth).Reporting(record)
	d.sessions = auth.NewSessions(a.site, d.verifier, tokens, a.access, uses, 0).WithPeople(d.oauth)
	d.signIn = auth.NewSignIn(d.sessions, d.oauth, sealer, d.challenger)
	d.gate = auth.NewGate(a.site, d.verifier, d.sessions, d.challenger)
	d.limiter = auth.NewLimiter(auth.LimitConfig{Policy: func(ctx context.Context, t tenants.TenantID) tenants.Policy {
		trust, err := d.oauth.Trust(ctx, t)
		if err != nil { // the defaults hold until it can be read
			return tenants.Policy{}
		}
		return trust.Policy
	}})
	own.MustRegister(doorCaches(map[string]func() auth.CacheStats{
		"tokens": tokens.Stats, "sessions": d.sessions.Stats,
		"signed":  func() auth.CacheStats { return d.oauth.Stats().Signed },
		"opaque":  func() auth.CacheStats { return d.oauth.Stats().Opaque },
		"trust":   func() auth.CacheStats { return d.oauth.Stats().Trust },
		"members": func() auth.CacheStats { return d.oauth.Stats().Members },
	}), refusals(d.verifier, d.fence), limited(d.limiter), providerCounts(d.oauth, fetch))
	return d, nil
}

// routes is who answers what: tools stands behind the bearer's gate, and rest
// has guards of its own.
func (d *door) routes(tools, rest http.Handler) http.Handler {
	guarded := d.fence.Hosts(d.fence.Origins(d.gate.Bearer(tools)))
	r := chi.NewRouter()
	r.Handle("/t/{tenant}/mcp", guarded)
	r.Handle("/t/{tenant}/mcp/", guarded) // never a redirect: it would lose the Authorization header
	r.Handle("/t/{tenant}/mcp/.well-known/*", d.metadata)
	r.Handle("/.well-known/*", d.metadata)
	r.NotFound(rest.ServeHTTP)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if slug, ok := toolsOf(q.URL); ok { // asked all the time, and needs no search
			q.SetPathValue("tenant", slug)
			guarded.ServeHTTP(w, q)
			return
		}
		r.ServeHTTP(w, q)
	})
}

// toolsOf is the slug of a plain /t/SLUG/mcp; any other spelling is the
// router's to judge.
func toolsOf(u *url.URL) (slug string, ok bool) {
	rest, ok := strings.CutPrefix(u.Path, "/t/")
	if !ok || u.RawPath != "" {
		return "", false
	}
	slug, rest, _ = strings.Cut(rest, "/")
	return slug, slug != "" && rest == "mcp"
}

// limited counts what was over a quota of calls, by whose quota.
func limited(l *auth.Limiter) prometheus.Collector {
	desc := prometheus.NewDesc("telltale_rate_limited_total", "Requests over a quota of calls a minute, by whose quota.", []string{"quota"}, nil)
	return countsBy[string]{desc, func() map[string]uint64 {
		principal, tenant := l.Refused()
		return map[string]uint64{auth.LimitPrincipal: principal, auth.LimitTenant: tenant}
	}}
}

// trust is how issuers are kept: their secrets sealed, their URLs https.
func (c *config) trust(sealer *auth.Sealer) access.Config {
	return access.Config{Sealer: sealer, AllowHTTPLoopback: c.issuerLoopback}
}
