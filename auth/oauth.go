package auth

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const (
	clockSkew   = 30 * time.Second // between this server and an issuer
	provenTTL   = 60 * time.Second // how long a verified JWT is remembered
	activeTTL   = 30 * time.Second // how long an introspected token is
	inactiveTTL = 10 * time.Second // how long one that the issuer does not know is
	maxNoted    = 300              // bytes of what a Failure tells an administrator
)

// Opener opens secrets that a Sealer sealed.
type Opener interface {
	Open(sealed []byte, use string) ([]byte, error)
}

// OAuthConfig tunes OAuth. The zero value is ready for production.
type OAuthConfig struct {
	// TTL bounds how late a change of issuers, roles, members and policy bites.
	// Zero means 3 s; it is cut so that tenants.RevocationDelay holds.
	TTL time.Duration
	// MaxCached bounds the tokens remembered, of either kind; zero means 10,000.
	MaxCached int
}

// OAuth is the authenticator of access tokens from a tenant's own identity
// providers: signed JWTs (RFC 9068 and what is near it) and opaque tokens
// (RFC 7662). Put it behind OperatorTokens in a chain: it takes every form.
//
// What a token says is proved once and remembered by the token's hash for a
// short time; what its holder may do is judged anew at each request by the
// tenant's roles, members and policy. Nothing is fetched that a token names:
// only issuers that the tenant trusts are asked, and unknown key ids and down
// issuers cost a bounded number of fetches. Safe for concurrent use; it has no
// goroutines of its own.
type OAuth struct {
	site      *Site
	store     TrustStore
	fetch     *Fetcher
	opener    Opener
	log       *slog.Logger
	trusts    *cache[trustView]
	members   *cache[tenants.Member]
	signed    *cache[proof]
	opaque    *cache[proof]
	providers providers
	lanes     lanes

	introspections, introspectFails atomic.Uint64
}

// NewOAuth makes the authenticator. opener may be nil: then issuers whose
// client secret is sealed cannot be asked about opaque tokens.
func NewOAuth(site *Site, store TrustStore, fetch *Fetcher, opener Opener, cfg OAuthConfig, log *slog.Logger) *OAuth {
	if cfg.MaxCached <= 0 {
		cfg.MaxCached = 10_000
	}
	o := &OAuth{
		site: site, store: store, fetch: fetch, opener: opener, log: log,
		trusts: newCache[trustView](boundTTL(cfg.TTL), 10_000), members: newCache[tenants.Member](boundTTL(cfg.TTL), 10_000),
		signed: newCache[proof](provenTTL, cfg.MaxCached), opaque: newCache[proof](activeTTL, cfg.MaxCached),
		providers: providers{fetch: fetch, log: log, room: newRoom[*provider](maxProviders)},
		lanes:     lanes{room: newRoom[lane](maxLanes)},
	}
	o.opaque.noneTTL = inactiveTTL
	return o
}

// proof is what was found out about one token under one issuer's settings.
type proof struct {
	facts   Facts
	issuer  string // tenants.Issuer.ID
	print   [sha256.Size]byte
	expires time.Time
	refused *Failure // an active token that failed a check; nil: good
}

// Recognises takes whatever is no secret of this server's own making.
func (o *OAuth) Recognises(bearer string) bool {
	for _, kind := range []tenants.SecretKind{tenants.OperatorSecret, tenants.SessionSecret, tenants.EnrolSecret} {
		if strings.HasPrefix(bearer, string(kind)+"_") {
			return false
		}
	}
	return true
}

// Verify turns an access token into a scope in the tenant. A refusal is a
// *Failure; fault.Unavailable with the reason issuer_unreachable means that
// the issuer is down and nothing is known of its keys or of this token.
func (o *OAuth) Verify(ctx context.Context, t tenants.Tenant, bearer string, from netip.Addr) (tenants.Scope, error) {
	s, _, err := o.VerifyAccess(ctx, t, bearer, from)
	return s, err
}

// VerifyAccess is Verify for a caller that keeps what the token says of its
// holder (a dashboard session), to ask Reevaluate with it later.
func (o *OAuth) VerifyAccess(ctx context.Context, t tenants.Tenant, bearer string, _ netip.Addr) (tenants.Scope, Facts, error) {
	v, err := o.view(ctx, t.ID)
	if err != nil {
		return tenants.Scope{}, Facts{}, err
	}
	p, i, err := o.prove(ctx, t, &v, bearer)
	if err != nil {
		return tenants.Scope{}, Facts{}, err
	}
	if !time.Now().Before(p.expires.Add(clockSkew)) {
		return tenants.Scope{}, Facts{}, expired(i, p.expires)
	}
	s, err := o.admit(ctx, t, &v, i, p.facts)
	if err != nil {
		return tenants.Scope{}, Facts{}, err
	}
	return s, p.facts, nil
}

func (o *OAuth) prove(ctx context.Context, t tenants.Tenant, v *trustView, bearer string) (proof, *issuerView, error) {
	if len(bearer) > maxBearer {
		return proof{}, nil, failed(Malformed)
	}
	hash := sha256.Sum256([]byte(bearer))
	if looksLikeJWT(bearer) {
		return o.proveJWT(ctx, t, v, bearer, t.ID.String()+string(hash[:]))
	}
	return o.proveOpaque(ctx, t, v, bearer, t.ID.String()+string(hash[:]))
}

func (o *OAuth) proveJWT(ctx context.Context, t tenants.Tenant, v *trustView, bearer, key string) (proof, *issuerView, error) {
	for range 2 {
		p, _, err := o.signed.load(ctx, key, 0, func(ctx context.Context) (proof, bool, error) {
			p, err := o.checkJWT(ctx, t, v, bearer)
			return p, err == nil, err
		})
		if err != nil {
			return proof{}, nil, err
		}
		if i := v.byID(p.issuer); i != nil && i.print == p.print {
			return p, i, nil
		}
		o.signed.drop(key) // the settings changed since
	}
	return proof{}, nil, fault.New(fault.Unavailable, "settings_changing", "the tenant's issuers are being changed").Do("try again in a second")
}

// OAuthStats are counters since the start and present sizes.
type OAuthStats struct {
	Signed, Opaque, Trust, Members       CacheStats
	Providers                            int // identity providers remembered
	KeyFetches, KeyFailures, UnknownKids uint64
	MetadataFetches, MetadataFailures    uint64
	Introspections, IntrospectFailures   uint64
}

// Stats returns the counters.
func (o *OAuth) Stats() OAuthStats {
	s := OAuthStats{
		Signed: o.signed.stats(), Opaque: o.opaque.stats(), Trust: o.trusts.stats(), Members: o.members.stats(),
		Introspections: o.introspections.Load(), IntrospectFailures: o.introspectFails.Load(),
	}
	s.Providers, s.KeyFetches, s.KeyFailures, s.MetadataFetches, s.MetadataFailures, s.UnknownKids = o.providers.counts()
	return s
}
