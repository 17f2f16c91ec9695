package auth

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// firstScope is what the first challenge asks for unless the tenant's policy
// says otherwise: enough to look around.
const firstScope = tenants.Read

// Challenger writes the answers to refused credentials: status,
// WWW-Authenticate (RFC 6750, RFC 9728), reference id and problem document
// (RFC 9457). One log line a refusal, one Attempt to the Recorder; never a
// credential in either.
type Challenger struct {
	site     *Site
	tenants  TenantLookup
	trusts   Trusts
	log      *slog.Logger
	attempts *attempts
}

// NewChallenger makes a Challenger that reports to nobody; see Reporting.
// trusts may be nil: then no tenant has an issuer, and challenges carry no
// metadata link, which would lead a client nowhere.
func NewChallenger(site *Site, lookup TenantLookup, trusts Trusts, log *slog.Logger) *Challenger {
	return &Challenger{site: site, tenants: lookup, trusts: trusts, log: log}
}

// Reporting returns a Challenger that reports what happens at the door to rec.
func (c *Challenger) Reporting(rec Recorder) *Challenger {
	d := *c
	d.attempts = newAttempts(c.site, c.tenants, rec)
	return &d
}

// Refuse answers any error of a verification: a *Failure with its status and
// challenge, everything else as 503 or 500 without one.
func (c *Challenger) Refuse(w http.ResponseWriter, r *http.Request, slug string, err error) {
	ref := Reference(w)
	w.Header().Set("Cache-Control", "no-store")
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		level := slog.LevelError
		if r.Context().Err() != nil {
			level = slog.LevelDebug // the client went away, nobody is wrong
		}
		c.log.Log(r.Context(), level, "credential not verified", "reference", ref, "tenant", known(slug), "err", err)
		if down := fault.Of(err); down.Reason == string(Unreachable) {
			w.Header().Set("Retry-After", strconv.Itoa(int(keyFloor.Seconds())))
			c.attempts.refused(r, slug, ref, &Failure{Class: Unreachable, Expected: "an answer of the identity provider", Received: describe(err)})
		}
		writeFault(w, err)
		return
	}
	c.log.Info("credential refused", "reference", ref, "tenant", known(slug), "class", f.Class, "issuer", f.Issuer, "from", c.site.ClientAddr(r))
	c.attempts.refused(r, slug, ref, f)
	link, first := c.invitation(r.Context(), slug)
	switch {
	case f.Status() == http.StatusUnauthorized:
		parts := link
		if f.Class != NoToken {
			parts = append(parts, param("error", "invalid_token"), param("error_description", f.Description()))
		}
		challenge(w, append(parts, param("scope", first.String())))
	case f.Class == NoScope:
		if first &= f.Obtainable; first == 0 {
			first = f.Obtainable
		}
		challenge(w, append([]string{param("error", "insufficient_scope"), param("scope", first.String())}, link...))
	}
	problem(w, f.Status(), fault.Of(f))
}

// InsufficientScope answers 403 to a verified caller that lacks a scope. If it
// could obtain it, the challenge asks for what it holds and what is needed, so
// that stepping up never loses anything. If it could not, there is no
// challenge: a client would step up for ever.
func (c *Challenger) InsufficientScope(w http.ResponseWriter, r *http.Request, s tenants.Scope, need tenants.Scopes) {
	ref := Reference(w)
	w.Header().Set("Cache-Control", "no-store")
	c.log.Info("scope missing", "reference", ref, "tenant", s.Slug, "principal", s.Principal.ID, "kind", s.Principal.Kind, "granted", s.Granted.String(), "needed", need.String())
	c.attempts.lacking(r, ref, s, need)
	err := s.Require(need)
	if err == nil { // the caller holds it: the route asked for nothing, which fails closed
		err = fault.New(fault.Denied, "insufficient_scope", "this needs another scope")
	}
	f := fault.Of(err)
	if s.CanObtain(need) {
		link, _ := c.invitation(r.Context(), s.Slug)
		challenge(w, append([]string{param("error", "insufficient_scope"), param("scope", (s.Granted | need).String())}, link...))
		if s.Principal.Kind == tenants.OAuthPrincipal {
			f = f.Do("ask the identity provider for a token with the scopes that the challenge names")
		}
	} else if s.Principal.Kind == tenants.OAuthPrincipal {
		f = f.Do("no token can give this: ask a tenant administrator for a role with that scope")
	}
	problem(w, http.StatusForbidden, f)
}

// known keeps what a stranger wrote into the path out of the log.
func known(slug string) string {
	if tenants.CheckSlug(slug) != nil {
		return "none"
	}
	return slug
}

// invitation is the metadata parameter, for a tenant that has an issuer, and
// the scopes that the first challenge asks for. A tenant that does not exist is
// answered like one that has issuers and keeps the default policy.
func (c *Challenger) invitation(ctx context.Context, slug string) (link []string, first tenants.Scopes) {
	if c.trusts == nil || tenants.CheckSlug(slug) != nil {
		return nil, firstScope
	}
	link = []string{param("resource_metadata", c.site.Metadata(slug))}
	trust, err := trustOf(ctx, c.tenants, c.trusts, slug)
	if err != nil { // unknown, or not known now: the metadata tells
		return link, firstScope
	}
	if len(trust.Issuers) == 0 {
		link = nil
	}
	if first = trust.Policy.FirstScopes; trust.Policy.Scopes != 0 {
		first &= trust.Policy.Scopes.Effective()
	}
	if first == 0 {
		first = firstScope
	}
	return link, first
}

func trustOf(ctx context.Context, lookup TenantLookup, trusts Trusts, slug string) (tenants.Trust, error) {
	if trusts == nil {
		return tenants.Trust{}, nil
	}
	t, err := lookup.TenantBySlug(ctx, slug)
	if err != nil {
		return tenants.Trust{}, err
	}
	return trusts.Trust(ctx, t.ID)
}

func challenge(w http.ResponseWriter, params []string) {
	w.Header().Set("WWW-Authenticate", "Bearer "+strings.Join(params, ", "))
}

// param writes one auth-param. The values are ours and hold no quote.
func param(name, value string) string { return name + `="` + value + `"` }
