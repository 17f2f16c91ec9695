package auth

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/netip"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const (
	// SessionIdle ends a session that was not used for so long.
	SessionIdle = 12 * time.Hour
	// SessionAbsolute ends a session whatever its use.
	SessionAbsolute = 24 * time.Hour
	// CSRFHeader carries a session's CSRF token on every write.
	CSRFHeader = "Telltale-CSRF"
)

// SessionStore keeps dashboard sessions, each inside its tenant.
type SessionStore interface {
	// PutSession stores a session and, in the same transaction, ends the one it
	// replaces (an id, or empty).
	PutSession(ctx context.Context, s tenants.BrowserSession, replaces string) error
	// SessionByID finds one; NotFound when there is none in that tenant.
	SessionByID(ctx context.Context, t tenants.TenantID, id string) (tenants.BrowserSession, error)
	// EndSession forgets one; ending an unknown one is fine.
	EndSession(ctx context.Context, t tenants.TenantID, id string) error
}

// Sessions turns dashboard cookies into scopes. A session is exchanged for an
// operator token: it has that token's scopes, nodes and networks as they stand
// now, and ends with it. Or a person signed in at the tenant's identity
// provider (SignIn): then it has what the provider granted, judged by today's
// roles, members and policy. The cookie's value is kept as a hash only, the
// CSRF token is derived from it, and no script can read the cookie. Safe for
// concurrent use.
type Sessions struct {
	site     *Site
	verifier *Verifier
	tokens   *OperatorTokens
	store    SessionStore
	uses     *Uses
	people   *OAuth // nil: operator tokens alone make sessions
	cache    *cache[tenants.BrowserSession]
}

// NewSessions makes the session keeper. ttl bounds how late a sign-out made on
// another replica bites; zero means 3 s. uses may be nil, then sessions end
// SessionIdle after sign-in.
func NewSessions(site *Site, v *Verifier, tokens *OperatorTokens, store SessionStore, uses *Uses, ttl time.Duration) *Sessions {
	return &Sessions{site: site, verifier: v, tokens: tokens, store: store, uses: uses, cache: newCache[tenants.BrowserSession](boundTTL(ttl), 10_000)}
}

// WithPeople lets sessions stand for people who signed in at an identity
// provider, too. Call it before the first request.
func (s *Sessions) WithPeople(o *OAuth) *Sessions {
	s.people = o
	return s
}

// Stats returns the counters of the session cache.
func (s *Sessions) Stats() CacheStats { return s.cache.stats() }

// authenticate finds the session of a request and checks what it may do.
func (s *Sessions) authenticate(r *http.Request, slug string) (tenants.Scope, error) {
	value, err := s.cookie(r, slug)
	if err != nil {
		return tenants.Scope{}, err
	}
	scope, _, err := s.verify(r.Context(), slug, value, s.site.ClientAddr(r))
	if err != nil {
		return tenants.Scope{}, err
	}
	if (!safe(r.Method) || r.Context().Value(likeWriteKey{}) != nil) && !s.sameSite(r, value) {
		return tenants.Scope{}, failed(CSRF)
	}
	return scope, nil
}

func (s *Sessions) verify(ctx context.Context, slug, value string, from netip.Addr) (tenants.Scope, tenants.BrowserSession, error) {
	none := tenants.BrowserSession{}
	secret, flaw := tenants.ParseSecret(tenants.SessionSecret, value)
	if flaw != tenants.SecretSound {
		return tenants.Scope{}, none, failed(Malformed)
	}
	t, err := s.verifier.Tenant(ctx, slug)
	if fault.Is(err, fault.NotFound) {
		return tenants.Scope{}, none, failed(Unknown)
	}
	if err != nil {
		return tenants.Scope{}, none, err
	}
	ses, found, err := s.cache.load(ctx, sessionKey(t.ID, secret.ID), 0, func(ctx context.Context) (tenants.BrowserSession, bool, error) {
		ses, err := s.store.SessionByID(ctx, t.ID, secret.ID)
		if fault.Is(err, fault.NotFound) {
			return ses, false, nil
		}
		return ses, err == nil, err
	})
	if err != nil {
		return tenants.Scope{}, none, err
	}
	now := time.Now()
	switch {
	case !found || ses.Tenant != t.ID || !ses.Hash.Equal(secret.Hash):
		return tenants.Scope{}, none, failed(Unknown)
	case !now.Before(ses.ExpiresAt), now.Sub(ses.LastSeenAt) >= SessionIdle:
		return tenants.Scope{}, none, failed(Expired)
	}
	scope, err := s.holder(ctx, t, ses, from)
	if err != nil {
		return tenants.Scope{}, none, err
	}
	if t.Suspended {
		return tenants.Scope{}, none, failed(Suspended)
	}
	s.uses.session(t.ID, ses.ID, ses.LastSeenAt, now)
	return scope, ses, nil
}

// holder is whom a session stands for, with what he may do now. A person keeps
// his own name, in limits and in the audit; a token's session has one of its own.
func (s *Sessions) holder(ctx context.Context, t tenants.Tenant, ses tenants.BrowserSession, from netip.Addr) (tenants.Scope, error) {
	if len(ses.Facts) > 0 {
		var f Facts
		if s.people == nil || json.Unmarshal(ses.Facts, &f) != nil {
			return tenants.Scope{}, failed(Unknown)
		}
		return s.people.Reevaluate(ctx, t, f)
	}
	tok, found, err := s.tokens.find(ctx, ses.TokenID)
	if err != nil {
		return tenants.Scope{}, err
	}
	if !found {
		return tenants.Scope{}, failed(Unknown)
	}
	scope, err := s.tokens.admit(t, tok, from)
	scope.Principal = tenants.Principal{Kind: tenants.SessionPrincipal, ID: ses.ID, Name: tok.Name}
	return scope, err
}

// newSession mints a session of a tenant that begins now.
func newSession(t tenants.TenantID) (value string, ses tenants.BrowserSession) {
	value, secret := tenants.MintSecret(tenants.SessionSecret)
	now := time.Now()
	return value, tenants.BrowserSession{
		ID: secret.ID, Hash: secret.Hash, Tenant: t, CreatedAt: now, LastSeenAt: now, ExpiresAt: now.Add(SessionAbsolute),
	}
}

// put stores a session, ends the one that the browser held, and gives the
// browser its cookie.
func (s *Sessions) put(w http.ResponseWriter, r *http.Request, slug, value string, ses tenants.BrowserSession) error {
	old := s.held(r, slug)
	if err := s.store.PutSession(r.Context(), ses, old); err != nil {
		return err
	}
	if old != "" {
		s.cache.drop(sessionKey(ses.Tenant, old))
	}
	http.SetCookie(w, s.newCookie(slug, value, ses.ExpiresAt))
	return nil
}

// sameSite checks what a forged cross-site write cannot have: the CSRF token,
// and no foreign Origin.
func (s *Sessions) sameSite(r *http.Request, value string) bool {
	tokens := r.Header.Values(CSRFHeader)
	if len(tokens) != 1 || !hmac.Equal([]byte(tokens[0]), []byte(csrfToken(value))) {
		return false
	}
	return s.ownOrigin(r)
}

// ownOrigin accepts a missing Origin (no browser sends a cross-site write
// without one) and this server's own. An origin that may call with a bearer
// may still not use another's cookie.
func (s *Sessions) ownOrigin(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	if site != "" && site != "same-origin" {
		return false
	}
	origins := r.Header.Values("Origin")
	return len(origins) == 0 || len(origins) == 1 && s.site.ownOrigin(origins[0])
}

// csrfToken is bound to the session and rotates with it. It may be known to
// the page's scripts: the cookie cannot be computed from it.
func csrfToken(value string) string {
	mac := hmac.New(sha256.New, []byte(value))
	mac.Write([]byte("telltale csrf 1"))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

func sessionKey(t tenants.TenantID, id string) string { return t.String() + "/" + id }

func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}
