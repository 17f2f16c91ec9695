package auth

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TokenStore finds operator tokens by their public id, whichever tenant they
// belong to; NotFound when there is none.
type TokenStore interface {
	TokenByID(ctx context.Context, id string) (tenants.OperatorToken, error)
}

// OperatorConfig tunes OperatorTokens. The zero value is ready for production.
type OperatorConfig struct {
	// TTL bounds how late a revocation bites. Zero means 3 s; it is cut so that
	// tenants.RevocationDelay holds.
	TTL time.Duration
	// MaxCached bounds the tokens remembered, known and unknown each. Zero
	// means 10,000.
	MaxCached int
}

// OperatorTokens is the authenticator of operator tokens (tt_…). The tokens'
// hashes are compared in constant time, after their checksum and a look-up by
// id that is remembered for a few seconds. Safe for concurrent use.
type OperatorTokens struct {
	store TokenStore
	uses  *Uses
	cache *cache[tenants.OperatorToken]
}

// NewOperatorTokens makes the authenticator; uses may be nil, then no last use
// is noted.
func NewOperatorTokens(store TokenStore, uses *Uses, cfg OperatorConfig) *OperatorTokens {
	if cfg.MaxCached <= 0 {
		cfg.MaxCached = 10_000
	}
	return &OperatorTokens{store: store, uses: uses, cache: newCache[tenants.OperatorToken](boundTTL(cfg.TTL), cfg.MaxCached)}
}

// Recognises takes everything that starts like an operator token.
func (o *OperatorTokens) Recognises(bearer string) bool {
	return strings.HasPrefix(bearer, string(tenants.OperatorSecret)+"_")
}

// Verify checks a token in one tenant. Everything about a token stays hidden
// until its secret has proved right; then wrong tenant, revocation, expiry and
// network are tried, in this order.
func (o *OperatorTokens) Verify(ctx context.Context, t tenants.Tenant, bearer string, from netip.Addr) (tenants.Scope, error) {
	secret, flaw := tenants.ParseSecret(tenants.OperatorSecret, bearer)
	switch flaw {
	case tenants.SecretMalformed:
		return tenants.Scope{}, failed(Malformed)
	case tenants.SecretChecksum:
		return tenants.Scope{}, failed(Checksum)
	}
	tok, found, err := o.find(ctx, secret.ID)
	if err != nil {
		return tenants.Scope{}, err
	}
	if !found || !tok.Hash.Equal(secret.Hash) {
		return tenants.Scope{}, failed(Unknown)
	}
	return o.admit(t, tok, from)
}

// Stats returns the counters of the token cache.
func (o *OperatorTokens) Stats() CacheStats { return o.cache.stats() }

func (o *OperatorTokens) find(ctx context.Context, id string) (tenants.OperatorToken, bool, error) {
	return o.cache.load(ctx, id, 0, func(ctx context.Context) (tenants.OperatorToken, bool, error) {
		tok, err := o.store.TokenByID(ctx, id)
		if fault.Is(err, fault.NotFound) {
			return tok, false, nil
		}
		return tok, err == nil, err
	})
}

// admit checks a token whose holder has proved to hold it, or holds a session
// that was exchanged for it.
func (o *OperatorTokens) admit(t tenants.Tenant, tok tenants.OperatorToken, from netip.Addr) (tenants.Scope, error) {
	now := time.Now()
	switch {
	case t.ID.IsZero() || tok.Tenant != t.ID:
		return tenants.Scope{}, failed(WrongTenant)
	case tok.RevokedAt != nil:
		return tenants.Scope{}, failed(Revoked)
	case tok.ExpiresAt != nil && !now.Before(*tok.ExpiresAt):
		return tenants.Scope{}, failed(Expired)
	case !within(tok.CIDRs, from):
		return tenants.Scope{}, failed(Network)
	}
	o.uses.token(tok.Tenant, tok.ID, tok.LastUsedAt, now)
	return tenants.Scope{
		Tenant: t.ID, Slug: t.Slug, Granted: tok.Scopes, Obtainable: tenants.EveryScope, Nodes: tok.Nodes,
		Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: tok.ID, Name: tok.Name},
	}, nil
}

func within(nets []netip.Prefix, from netip.Addr) bool {
	if len(nets) == 0 {
		return true
	}
	from = from.Unmap().WithZone("")
	for _, n := range nets {
		if from.IsValid() && n.Contains(from) {
			return true
		}
	}
	return false
}
