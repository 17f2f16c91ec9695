package auth

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// TenantLookup finds a tenant by its slug; NotFound when there is none. It is
// called for every request and should answer from memory for a few seconds.
type TenantLookup interface {
	TenantBySlug(ctx context.Context, slug string) (tenants.Tenant, error)
}

// Authenticator verifies one family of bearers, for example operator tokens.
type Authenticator interface {
	// Recognises says by its form alone whether a bearer is of this family.
	Recognises(bearer string) bool
	// Verify turns the bearer into a scope in the tenant, or returns a *Failure;
	// any other error means that it could not find out. The zero tenant is one
	// that does not exist: nothing is good there.
	Verify(ctx context.Context, t tenants.Tenant, bearer string, from netip.Addr) (tenants.Scope, error)
}

// Verifier turns a bearer into a scope by the first authenticator that
// recognises it. It is safe for concurrent use.
type Verifier struct {
	tenants TenantLookup
	chain   []Authenticator

	mu       sync.Mutex
	refusals map[Class]uint64
}

// NewVerifier makes a Verifier over a chain of authenticators.
func NewVerifier(lookup TenantLookup, chain ...Authenticator) *Verifier {
	return &Verifier{tenants: lookup, chain: chain, refusals: map[Class]uint64{}}
}

// Tenant returns the tenant with this slug; NotFound when there is none.
func (v *Verifier) Tenant(ctx context.Context, slug string) (tenants.Tenant, error) {
	if err := tenants.CheckSlug(slug); err != nil {
		return tenants.Tenant{}, fault.New(fault.NotFound, "unknown_tenant", "no such tenant")
	}
	t, err := v.tenants.TenantBySlug(ctx, slug)
	if t.SuspendedBy == bySelf && ctx.Value(evenSuspendedKey{}) != nil {
		t.Suspended = false
	}
	return t, err
}

// Verify turns a bearer sent to a tenant's URLs from an address into a scope.
// A refusal is a *Failure; any other error is a fault that says what is away.
// An unknown tenant refuses exactly as a known one refuses an unknown bearer.
// An invalid address is no network: a token limited to networks refuses it.
func (v *Verifier) Verify(ctx context.Context, slug, bearer string, from netip.Addr) (tenants.Scope, error) {
	scope, err := v.check(ctx, slug, bearer, from)
	return scope, v.count(err)
}

// check is Verify without the counting.
func (v *Verifier) check(ctx context.Context, slug, bearer string, from netip.Addr) (tenants.Scope, error) {
	t, err := v.Tenant(ctx, slug)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return tenants.Scope{}, err
	}
	if err != nil {
		t = tenants.Tenant{}
	}
	if bearer == "" {
		return tenants.Scope{}, failed(NoToken)
	}
	for _, a := range v.chain {
		if len(bearer) > maxBearer || !a.Recognises(bearer) {
			continue
		}
		scope, err := a.Verify(ctx, t, bearer, from)
		switch {
		case err != nil:
			return tenants.Scope{}, err
		case t.ID.IsZero() || scope.Tenant != t.ID:
			return tenants.Scope{}, failed(WrongTenant)
		case t.Suspended:
			return tenants.Scope{}, failed(Suspended)
		}
		return scope, nil
	}
	return tenants.Scope{}, failed(Malformed)
}

// count counts a refusal by its true class and returns err as it is.
func (v *Verifier) count(err error) error {
	if f, ok := errors.AsType[*Failure](err); ok {
		v.mu.Lock()
		v.refusals[f.Class]++
		v.mu.Unlock()
	}
	return err
}

// Refusals counts refused credentials by class since the start.
func (v *Verifier) Refusals() map[Class]uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make(map[Class]uint64, len(v.refusals))
	for c, n := range v.refusals {
		out[c] = n
	}
	return out
}
