package auth

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// maxSignIn bounds the body of a sign-in in bytes.
const maxSignIn = 4 << 10

// SessionView is what the page may know of its session. It holds no credential.
type SessionView struct {
	Tenant    string    `json:"tenant"`
	Principal string    `json:"principal"`          // id of the session, or of the person who signed in
	Name      string    `json:"name"`               // name of the token behind it, or of the person
	Provider  string    `json:"provider,omitempty"` // of a person: what the tenant calls the identity provider
	Scopes    []string  `json:"scopes"`
	CSRF      string    `json:"csrf"` // to be sent in the header Telltale-CSRF on every write
	ExpiresAt time.Time `json:"expires_at"`
}

// Handler serves one tenant's session, to be mounted under a path with the
// parameter "tenant":
//
//	POST    {"token":"tt_…"} exchanges an operator token for a session
//	GET     the present session, 401 without one
//	DELETE  signs out, 401 without a session; needs the CSRF token
//
// A sign-in always makes a fresh session and ends the one that the browser
// held. Refusals are answered by c.
func (s *Sessions) Handler(c *Challenger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Add("Vary", "Cookie")
		slug := r.PathValue("tenant")
		var err error
		switch r.Method {
		case http.MethodPost:
			err = s.signIn(w, r, slug)
		case http.MethodGet:
			err = s.current(w, r, slug)
		case http.MethodDelete:
			err = s.signOut(w, r, slug)
		default:
			h.Set("Allow", "GET, POST, DELETE")
			problem(w, http.StatusMethodNotAllowed, fault.New(fault.Invalid, "method", "a session is made, read or deleted"))
			return
		}
		if f := fault.Of(err); f != nil && f.Kind == fault.Invalid {
			writeFault(w, err)
		} else if err != nil {
			c.Refuse(w, r, slug, s.verifier.count(err))
		}
	})
}

func (s *Sessions) signIn(w http.ResponseWriter, r *http.Request, slug string) error {
	// A JSON body makes a cross-site sign-in need a preflight, which a foreign
	// origin does not get; the origin is checked all the same.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return fault.Bad("Content-Type", "want application/json")
	}
	if !s.ownOrigin(r) {
		return failed(CSRF)
	}
	var in struct {
		Token string `json:"token"`
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSignIn))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return fault.Bad("body", `want {"token":"tt_…"} of at most %d bytes`, maxSignIn)
	}
	if !s.tokens.Recognises(in.Token) {
		return failed(Malformed)
	}
	scope, err := s.verifier.check(r.Context(), slug, in.Token, s.site.ClientAddr(r))
	if err != nil {
		return err
	}
	value, ses := newSession(scope.Tenant)
	ses.TokenID = scope.Principal.ID
	if err := s.put(w, r, slug, value, ses); err != nil {
		return err
	}
	scope.Principal = tenants.Principal{Kind: tenants.SessionPrincipal, ID: ses.ID, Name: scope.Principal.Name}
	s.show(w, r, http.StatusCreated, scope, value, ses)
	return nil
}

func (s *Sessions) current(w http.ResponseWriter, r *http.Request, slug string) error {
	value, err := s.cookie(r, slug)
	if err != nil {
		return err
	}
	scope, ses, err := s.verify(r.Context(), slug, value, s.site.ClientAddr(r))
	if err != nil {
		return err
	}
	s.show(w, r, http.StatusOK, scope, value, ses)
	return nil
}

// signOut ends the session even when its token is no longer good, and clears
// the cookie also when the session is unknown or a second cookie was planted.
func (s *Sessions) signOut(w http.ResponseWriter, r *http.Request, slug string) error {
	value, err := s.cookie(r, slug)
	if f, ok := errors.AsType[*Failure](err); ok && f.Class == NoToken {
		return err
	}
	if err == nil {
		if !s.sameSite(r, value) {
			return failed(CSRF)
		}
		if err := s.end(r, slug, value); err != nil {
			return err
		}
	}
	http.SetCookie(w, s.newCookie(slug, "", time.Unix(1, 0)))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// end forgets the session that value proves to be.
func (s *Sessions) end(r *http.Request, slug, value string) error {
	secret, flaw := tenants.ParseSecret(tenants.SessionSecret, value)
	t, err := s.verifier.Tenant(r.Context(), slug)
	if flaw != tenants.SecretSound || fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	ses, err := s.store.SessionByID(r.Context(), t.ID, secret.ID)
	if fault.Is(err, fault.NotFound) || err == nil && !ses.Hash.Equal(secret.Hash) {
		return nil
	}
	if err == nil {
		err = s.store.EndSession(r.Context(), t.ID, secret.ID)
	}
	s.cache.drop(sessionKey(t.ID, secret.ID))
	return err
}

func (s *Sessions) show(w http.ResponseWriter, r *http.Request, status int, scope tenants.Scope, value string, ses tenants.BrowserSession) {
	provider := s.provider(r.Context(), ses)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(SessionView{ // the client is gone if this fails
		Tenant: scope.Slug, Principal: scope.Principal.ID, Name: scope.Principal.Name, Provider: provider,
		Scopes: scope.Granted.Effective().Words(), CSRF: csrfToken(value), ExpiresAt: ses.ExpiresAt,
	})
}

// provider is the name of the identity provider at which a session's person
// signed in; empty for a token's, and when it is not known now.
func (s *Sessions) provider(ctx context.Context, ses tenants.BrowserSession) string {
	var f Facts
	if s.people == nil || len(ses.Facts) == 0 || json.Unmarshal(ses.Facts, &f) != nil {
		return ""
	}
	trust, err := s.people.Trust(ctx, ses.Tenant)
	if err != nil {
		return ""
	}
	for _, i := range trust.Issuers {
		if i.ID == f.Issuer {
			return i.Name
		}
	}
	return ""
}

// cookieName is one name a tenant, so that a browser can be signed in to
// several. On plain-http loopback browsers refuse the __Host- prefix, and
// cookies do not tell ports apart, so the name does.
func (s *Sessions) cookieName(slug string) string {
	if s.site.secure {
		return "__Host-telltale_" + slug
	}
	return "telltale_" + s.site.port + "_" + slug
}

func (s *Sessions) newCookie(slug, value string, expires time.Time) *http.Cookie {
	c := &http.Cookie{
		Name: s.cookieName(slug), Value: value, Path: "/", Expires: expires, MaxAge: int(time.Until(expires).Seconds()),
		Secure: s.site.secure, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// cookie takes the value of the one session cookie. Two of one name mean that
// somebody planted one: neither is believed.
func (s *Sessions) cookie(r *http.Request, slug string) (string, error) {
	if tenants.CheckSlug(slug) != nil {
		return "", failed(NoToken)
	}
	switch found := r.CookiesNamed(s.cookieName(slug)); len(found) {
	case 0:
		return "", failed(NoToken)
	case 1:
		return found[0].Value, nil
	}
	return "", failed(Malformed)
}

// held is the id of the session that the browser proves to hold, or empty.
func (s *Sessions) held(r *http.Request, slug string) string {
	value, err := s.cookie(r, slug)
	if err != nil {
		return ""
	}
	if _, ses, err := s.verify(r.Context(), slug, value, s.site.ClientAddr(r)); err == nil {
		return ses.ID
	}
	return ""
}
