package auth

import (
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// Recorder keeps what happens at a tenant's door, for the connector self-test.
// It never blocks.
type Recorder interface {
	Attempt(tenants.Attempt)
}

const (
	acceptedGrain = time.Minute // between two reports of one principal that came in
	maxAccepted   = 10_000      // principals remembered for that
)

// attempts reports to a Recorder. A nil attempts reports nothing.
type attempts struct {
	site    *Site
	tenants TenantLookup
	to      Recorder

	mu   sync.Mutex
	seen room[struct{}]
}

func newAttempts(site *Site, lookup TenantLookup, to Recorder) *attempts {
	if to == nil {
		return nil
	}
	return &attempts{site: site, tenants: lookup, to: to, seen: newRoom[struct{}](maxAccepted)}
}

// begin fills in what every attempt has.
func (a *attempts) begin(r *http.Request, t tenants.TenantID, step tenants.AttemptStep, ref string) tenants.Attempt {
	return tenants.Attempt{
		Tenant: t, Reference: ref, At: time.Now(), Step: step, Surface: surface(r.URL.Path),
		Client: clean(r.UserAgent(), 120), From: a.site.ClientAddr(r),
	}
}

// surface says by its path which door a request came to.
func surface(path string) string {
	_, rest, _ := strings.Cut(strings.TrimPrefix(path, "/t/"), "/")
	switch {
	case strings.Contains(path, "/.well-known/"):
		return "metadata"
	case rest == "mcp" || strings.HasPrefix(rest, "mcp/"):
		return "mcp"
	case strings.HasPrefix(rest, "ui/"), strings.HasPrefix(rest, "api/v1/session"):
		return "dashboard"
	}
	return "rest"
}

func (a *attempts) fetched(r *http.Request, t tenants.Tenant) {
	if a != nil && r.Method == http.MethodGet {
		a.to.Attempt(a.begin(r, t.ID, tenants.StepMetadata, strings.ToLower(rand.Text()[:20])))
	}
}

func (a *attempts) refused(r *http.Request, slug, ref string, f *Failure) {
	if a == nil || tenants.CheckSlug(slug) != nil {
		return
	}
	t, err := a.tenants.TenantBySlug(r.Context(), slug)
	if err != nil {
		return // nobody's door
	}
	at := a.begin(r, t.ID, tenants.StepRefused, ref)
	if f.Class == NoToken {
		at.Step = tenants.StepChallenge
	}
	if f.Class == NoScope || f.Class == NoRole {
		at.Step = tenants.StepScope
	}
	at.Class, at.Issuer, at.Expected, at.Received, at.Proven = string(f.Public()), f.Issuer, f.Expected, f.Received, f.Class.proven()
	if f.Principal.ID != "" {
		at.Principal, at.Client = f.Principal.ID, f.Principal.Client
	}
	a.to.Attempt(at)
}

func (a *attempts) lacking(r *http.Request, ref string, s tenants.Scope, need tenants.Scopes) {
	if a == nil {
		return
	}
	at := a.begin(r, s.Tenant, tenants.StepScope, ref)
	at.Class, at.Expected, at.Received, at.Principal, at.Proven = string(Lacking), need.String(), s.Granted.String(), s.Principal.ID, true
	if s.Principal.Client != "" {
		at.Client = s.Principal.Client
	}
	a.to.Attempt(at)
}

// accepted reports a good token of an issuer, at most once a minute and
// principal.
func (a *attempts) accepted(r *http.Request, s tenants.Scope) {
	if a == nil || s.Principal.Kind != tenants.OAuthPrincipal || !a.first(s.Tenant.String()+s.Principal.ID) {
		return
	}
	at := a.begin(r, s.Tenant, tenants.StepAccepted, strings.ToLower(rand.Text()[:20]))
	at.Principal, at.Expected, at.Received, at.Proven = s.Principal.ID, "", s.Granted.String(), true
	at.Issuer, _, _ = strings.Cut(s.Principal.ID, "|")
	if s.Principal.Client != "" {
		at.Client = s.Principal.Client
	}
	a.to.Attempt(at)
}

func (a *attempts) first(who string) bool {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.seen.get(who); e != nil {
		if now.Sub(e.since) < acceptedGrain {
			return false
		}
		a.seen.remove(who)
	}
	a.seen.put(who, struct{}{}, now)
	return true
}
