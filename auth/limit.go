package auth

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Bounds of a Limiter.
const (
	limitWindow   = time.Minute     // the quotas of a policy are for this long
	policyLife    = 3 * time.Second // how long a tenant's policy is believed
	maxPrincipals = 1 << 16         // callers remembered
	maxLimited    = 1 << 14         // tenants remembered
	sweepEvery    = time.Second     // a full memory is looked through that often
)

// LimitConfig holds what a Limiter is made of.
type LimitConfig struct {
	// Policy tells what a tenant is held to; zero rates mean the defaults. It is
	// asked at most every three seconds for each tenant in use.
	Policy func(context.Context, tenants.TenantID) tenants.Policy

	Principals int // callers remembered; zero means 65,536
	Tenants    int // tenants remembered; zero means 16,384
}

// Limiter holds callers to their tenant's policy: so many requests a minute of
// one principal, and of the whole tenant. It counts for this replica alone:
// behind N replicas that share the load evenly a caller has up to N times as
// much. Each quota is a leaky bucket (GCRA): a caller at rest may use a whole
// minute's worth at once, and gets it back evenly over a minute.
//
// Its memory is bounded. A caller who has used nothing within the last minute
// is forgotten first, which changes nothing for it; one with a quota in use
// never is. When all are in use, a further principal is held to its tenant's
// quota alone, and a further tenant to one quota that such tenants share.
type Limiter struct {
	cfg LimitConfig

	mu         sync.Mutex
	principals map[limitKey]time.Time // when the bucket is empty again
	tenants    map[tenants.TenantID]*limitTenant
	crowd      limitTenant // tenants beyond the bound
	swept      time.Time

	refusedPrincipal, refusedTenant atomic.Uint64
}

type limitKey struct {
	tenant tenants.TenantID
	kind   tenants.PrincipalKind
	id     string
}

type limitTenant struct {
	empty  time.Time // when the bucket is empty again
	policy tenants.Policy
	asked  time.Time
}

// NewLimiter makes a Limiter. It starts nothing and is safe for concurrent use.
func NewLimiter(cfg LimitConfig) *Limiter {
	if cfg.Principals <= 0 {
		cfg.Principals = maxPrincipals
	}
	if cfg.Tenants <= 0 {
		cfg.Tenants = maxLimited
	}
	return &Limiter{cfg: cfg, principals: map[limitKey]time.Time{}, tenants: map[tenants.TenantID]*limitTenant{}}
}

// Refused counts the requests over a principal's and over a tenant's quota.
func (l *Limiter) Refused() (principal, tenant uint64) {
	return l.refusedPrincipal.Load(), l.refusedTenant.Load()
}

// Whose quota a Verdict speaks of.
const (
	LimitPrincipal = "principal"
	LimitTenant    = "tenant"
)

// Verdict is what a Limiter says of one request.
type Verdict struct {
	OK         bool
	Which      string        // whose quota: the one that refused, else the one with less left
	Limit      int           // requests a minute; zero: nobody counted
	Remaining  int           // requests left now
	Reset      time.Duration // until the whole quota is there again
	RetryAfter time.Duration // until the next request is let in; zero when this one was
}

// Take counts one request. One that is refused counts for nothing.
func (l *Limiter) Take(ctx context.Context, s tenants.Scope) Verdict {
	policy := l.policy(ctx, s.Tenant)
	now := time.Now()
	own := limitKey{s.Tenant, s.Principal.Kind, s.Principal.ID}
	l.mu.Lock()
	defer l.mu.Unlock()
	whole := l.tenant(s.Tenant)
	ownEmpty, remembered := l.principals[own]
	if !remembered && len(l.principals) >= l.cfg.Principals {
		l.sweep(now)
	}
	personal := remembered || len(l.principals) < l.cfg.Principals
	v, tenantEmpty := pour(now, whole.empty, rate(policy.TenantRate, tenants.DefaultTenantRate))
	v.Which = LimitTenant
	if personal {
		var p Verdict
		p, ownEmpty = pour(now, ownEmpty, rate(policy.PrincipalRate, tenants.DefaultPrincipalRate))
		p.Which = LimitPrincipal
		v = tighter(p, v)
	}
	if !v.OK {
		if v.Which == LimitTenant {
			l.refusedTenant.Add(1)
		} else {
			l.refusedPrincipal.Add(1)
		}
		return v
	}
	whole.empty = tenantEmpty
	if personal {
		l.principals[own] = ownEmpty
	}
	return v
}

// pour puts one request into a bucket that is empty at the given time: it
// takes limit requests and loses one every limitWindow/limit.
func pour(now, empty time.Time, limit int) (Verdict, time.Time) {
	each := limitWindow / time.Duration(limit)
	whole := each * time.Duration(limit)
	if empty.Before(now) {
		empty = now
	}
	after := empty.Add(each)
	level := after.Sub(now)
	if level > whole {
		return Verdict{Limit: limit, Reset: empty.Sub(now), RetryAfter: level - whole}, empty
	}
	return Verdict{OK: true, Limit: limit, Remaining: int((whole - level) / each), Reset: level}, after
}

// tighter is the verdict that binds: a refusal, of two the longer one, else
// what has less left.
func tighter(a, b Verdict) Verdict {
	switch {
	case a.OK != b.OK:
		if a.OK {
			return b
		}
		return a
	case a.RetryAfter != b.RetryAfter:
		if a.RetryAfter < b.RetryAfter {
			return b
		}
		return a
	case b.Remaining < a.Remaining:
		return b
	}
	return a
}

func rate(set, otherwise int) int {
	if set <= 0 {
		return otherwise
	}
	return min(set, int(limitWindow/time.Microsecond)) // no bucket loses faster than one a microsecond
}

// policy answers from memory for a while. Whoever finds it old asks; the
// others meanwhile go by the old one. Tenants beyond the bound get the defaults.
func (l *Limiter) policy(ctx context.Context, id tenants.TenantID) tenants.Policy {
	l.mu.Lock()
	t, now := l.tenant(id), time.Now()
	if t == &l.crowd || l.cfg.Policy == nil || now.Sub(t.asked) < policyLife {
		defer l.mu.Unlock()
		return t.policy
	}
	t.asked = now
	l.mu.Unlock()
	p := l.cfg.Policy(ctx, id)
	l.mu.Lock()
	defer l.mu.Unlock()
	t.policy = p
	return p
}

// tenant is the memory of one tenant. The lock is held.
func (l *Limiter) tenant(id tenants.TenantID) *limitTenant {
	if t, ok := l.tenants[id]; ok {
		return t
	}
	if len(l.tenants) >= l.cfg.Tenants {
		if l.sweep(time.Now()); len(l.tenants) >= l.cfg.Tenants {
			return &l.crowd
		}
	}
	t := &limitTenant{}
	l.tenants[id] = t
	return t
}

// sweep forgets whoever has its whole quota: for them nothing changes. The
// lock is held.
func (l *Limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = now
	for k, empty := range l.principals {
		if !empty.After(now) {
			delete(l.principals, k)
		}
	}
	for id, t := range l.tenants {
		if !t.empty.After(now) && now.Sub(t.asked) >= policyLife {
			delete(l.tenants, id)
		}
	}
}

// SetHeaders tells the caller its quota, as draft-ietf-httpapi-ratelimit-headers
// has it (structured fields), and when to come back.
func (v Verdict) SetHeaders(h http.Header) {
	if v.Limit == 0 {
		return
	}
	var room [64]byte
	pair := func(first string, a int, second string, b int) []string {
		text := append(append(append(room[:0], '"'), v.Which...), '"')
		text = strconv.AppendInt(append(text, first...), int64(a), 10)
		return []string{string(strconv.AppendInt(append(text, second...), int64(b), 10))}
	}
	h["Ratelimit-Policy"] = pair(";q=", v.Limit, ";w=", int(limitWindow/time.Second)) // in the spelling that http.Header uses
	h["Ratelimit"] = pair(";r=", v.Remaining, ";t=", seconds(v.Reset))
	if !v.OK {
		h.Set("Retry-After", strconv.Itoa(max(1, seconds(v.RetryAfter))))
	}
}

// Fault says the refusal: the bound, and how long to wait. It is nil when the
// request was let in.
func (v Verdict) Fault() error {
	if v.OK {
		return nil
	}
	wait := max(1, seconds(v.RetryAfter))
	return fault.Newf(fault.Exhausted, "rate_limited", "%s of %d requests a minute is used up", map[string]string{
		LimitPrincipal: "this principal's quota", LimitTenant: "this whole tenant's quota",
	}[v.Which], v.Limit).Do(fmt.Sprintf("wait %d s, then repeat the call; ask for more with one call instead of many small ones", wait))
}

func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }

// REST is the middleware that holds the callers of REST to the same quotas. It
// stands behind a Gate.
func (l *Limiter) REST(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scope, ok := ScopeFrom(r.Context())
		if !ok { // whoever stands behind refuses it
			next.ServeHTTP(w, r)
			return
		}
		v := l.Take(r.Context(), scope)
		v.SetHeaders(w.Header())
		if err := v.Fault(); err != nil {
			writeFault(w, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}
