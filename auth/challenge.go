package auth

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Issuers lists the URLs of the identity providers whose tokens a tenant
// accepts.
type Issuers interface {
	Issuers(ctx context.Context, t tenants.TenantID) ([]string, error)
}

// firstScope is what the first challenge asks for: enough to look around.
const firstScope = tenants.Read

// Challenger writes the answers to refused credentials: status,
// WWW-Authenticate (RFC 6750, RFC 9728), reference id and problem document
// (RFC 9457). One log line a refusal; never a credential.
type Challenger struct {
	site    *Site
	tenants TenantLookup
	issuers Issuers
	log     *slog.Logger
}

// NewChallenger makes a Challenger. issuers may be nil: then no tenant has one,
// and challenges carry no metadata link, which would lead a client nowhere.
func NewChallenger(site *Site, lookup TenantLookup, issuers Issuers, log *slog.Logger) *Challenger {
	return &Challenger{site: site, tenants: lookup, issuers: issuers, log: log}
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
		writeFault(w, err)
		return
	}
	c.log.Info("credential refused", "reference", ref, "tenant", known(slug), "class", f.Class, "from", c.site.ClientAddr(r))
	if f.Status() == http.StatusUnauthorized {
		parts := c.link(r.Context(), slug)
		if f.Class != NoToken {
			parts = append(parts, param("error", "invalid_token"), param("error_description", f.Description()))
		}
		challenge(w, append(parts, param("scope", firstScope.String())))
	}
	problem(w, f.Status(), fault.Of(f))
}

// InsufficientScope answers 403 to a verified caller that lacks a scope it
// could obtain. The scope to ask for is what it holds and what is needed, so
// that stepping up never loses anything.
func (c *Challenger) InsufficientScope(w http.ResponseWriter, r *http.Request, s tenants.Scope, need tenants.Scopes) {
	ref := Reference(w)
	w.Header().Set("Cache-Control", "no-store")
	c.log.Info("scope missing", "reference", ref, "tenant", s.Slug, "principal", s.Principal.ID, "kind", s.Principal.Kind, "granted", s.Granted.String(), "needed", need.String())
	parts := append([]string{param("error", "insufficient_scope"), param("scope", (s.Granted | need).String())}, c.link(r.Context(), s.Slug)...)
	challenge(w, parts)
	err := s.Require(need)
	if err == nil { // the caller holds it: the route asked for nothing, which fails closed
		err = fault.New(fault.Denied, "insufficient_scope", "this needs another scope")
	}
	problem(w, http.StatusForbidden, fault.Of(err))
}

// known keeps what a stranger wrote into the path out of the log.
func known(slug string) string {
	if tenants.CheckSlug(slug) != nil {
		return "none"
	}
	return slug
}

// link is the metadata parameter, for a tenant that has an issuer.
func (c *Challenger) link(ctx context.Context, slug string) []string {
	if urls, err := issuersOf(ctx, c.tenants, c.issuers, slug); err != nil || len(urls) == 0 {
		return nil
	}
	return []string{param("resource_metadata", c.site.Metadata(slug))}
}

func issuersOf(ctx context.Context, lookup TenantLookup, issuers Issuers, slug string) ([]string, error) {
	if issuers == nil || tenants.CheckSlug(slug) != nil {
		return nil, nil
	}
	t, err := lookup.TenantBySlug(ctx, slug)
	if err != nil {
		return nil, err
	}
	return issuers.Issuers(ctx, t.ID)
}

func challenge(w http.ResponseWriter, params []string) {
	w.Header().Set("WWW-Authenticate", "Bearer "+strings.Join(params, ", "))
}

// param writes one auth-param. The values are ours and hold no quote.
func param(name, value string) string { return name + `="` + value + `"` }
