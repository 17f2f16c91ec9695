package auth

import (
	"context"
	"net/http"

	"github.com/telltale-dev/telltale/tenants"
)

// Gate is the HTTP middleware that lets verified callers through. The tenant
// comes from the path parameter "tenant", as the router placed it in the
// request (http.Request.PathValue).
type Gate struct {
	site       *Site
	verifier   *Verifier
	sessions   *Sessions
	challenger *Challenger
}

// NewGate makes a Gate. sessions may be nil: then cookies are not accepted
// anywhere.
func NewGate(site *Site, v *Verifier, s *Sessions, c *Challenger) *Gate {
	return &Gate{site: site, verifier: v, sessions: s, challenger: c}
}

// Values of headers that every answer has, shared by all of them: a header's
// Set and Add put other slices in their place and never write into these.
var (
	noStore    = []string{"no-store"}
	varyOrigin = []string{"Origin"}
)

type scopeKey struct{}

// ScopeFrom returns the scope that a Gate verified for a request. ok is false
// behind no Gate: then nobody may do anything.
func ScopeFrom(ctx context.Context) (s tenants.Scope, ok bool) {
	s, ok = ctx.Value(scopeKey{}).(tenants.Scope)
	return s, ok && !s.Tenant.IsZero()
}

// WithScope places a verified scope in a context.
func WithScope(ctx context.Context, s tenants.Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, s)
}

// Bearer lets bearers through and nothing else: cookies are ignored. It is the
// gate of MCP.
func (g *Gate) Bearer(next http.Handler) http.Handler { return g.guard(next, false) }

// BearerOrSession lets bearers through, and dashboard sessions when a request
// has no Authorization header at all. A session's write (any method but GET,
// HEAD and OPTIONS, and whatever stands behind LikeWrite) must carry the session's CSRF token and, if it carries an
// Origin, this server's own.
func (g *Gate) BearerOrSession(next http.Handler) http.Handler { return g.guard(next, true) }

func (g *Gate) guard(next http.Handler, cookies bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h["Cache-Control"] = noStore
		h.Add("Vary", "Authorization")
		slug := r.PathValue("tenant")
		var scope tenants.Scope
		var err error
		if cookies && g.sessions != nil && len(r.Header.Values("Authorization")) == 0 {
			h.Add("Vary", "Cookie")
			scope, err = g.sessions.authenticate(r, slug)
			err = g.verifier.count(err)
		} else {
			scope, err = g.bearer(r, slug)
		}
		if err != nil {
			g.challenger.Refuse(w, r, slug, err)
			return
		}
		g.challenger.attempts.accepted(r, scope)
		next.ServeHTTP(w, r.WithContext(WithScope(r.Context(), scope)))
	})
}

func (g *Gate) bearer(r *http.Request, slug string) (tenants.Scope, error) {
	bearer, err := Bearer(r)
	if err != nil {
		return tenants.Scope{}, g.verifier.count(err)
	}
	return g.verifier.Verify(r.Context(), slug, bearer, g.site.ClientAddr(r))
}

// bySelf is what tenants.Tenant.SuspendedBy says when the tenant's own
// administrators suspended it.
const bySelf = "admin"

type evenSuspendedKey struct{}

// EvenSuspended stands before Bearer or BearerOrSession on what ends a
// suspension: a tenant that its own administrators suspended is treated as if
// it were not. It must be followed by Require(tenants.Admin).
func EvenSuspended(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), evenSuspendedKey{}, true)))
	})
}

type likeWriteKey struct{}

// LikeWrite stands before BearerOrSession on a read that costs much or leaves
// something behind: a session must prove for it what it proves for a write,
// since a link of another site sends the cookie along.
func LikeWrite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), likeWriteKey{}, true)))
	})
}

// Require lets callers through that hold the scopes, and answers 403 with the
// challenge to the others. It stands behind Bearer or BearerOrSession.
func (g *Gate) Require(need tenants.Scopes) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			scope, ok := ScopeFrom(r.Context())
			if !ok {
				g.challenger.Refuse(w, r, r.PathValue("tenant"), failed(NoToken))
				return
			}
			if !scope.Granted.Has(need) {
				g.challenger.InsufficientScope(w, r, scope, need)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
