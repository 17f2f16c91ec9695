package auth

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

func limitScope(t tenants.TenantID, id string) tenants.Scope {
	return tenants.Scope{Tenant: t, Granted: tenants.Read, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: id}}
}

func policyOf(principal, tenant int) func(context.Context, tenants.TenantID) tenants.Policy {
	return func(context.Context, tenants.TenantID) tenants.Policy {
		return tenants.Policy{PrincipalRate: principal, TenantRate: tenant}
	}
}

func TestLimiterCountsByPrincipalAndTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		acme, globex := tenants.NewTenantID(), tenants.NewTenantID()
		l := NewLimiter(LimitConfig{Policy: policyOf(6, 9)})
		take := func(tenant tenants.TenantID, id string) Verdict { return l.Take(t.Context(), limitScope(tenant, id)) }
		for i := range 6 {
			if v := take(acme, "a"); !v.OK || v.Which != LimitPrincipal || v.Limit != 6 || v.Remaining != 5-i || v.Reset != time.Duration(i+1)*10*time.Second {
				t.Fatalf("call %d: %+v", i, v)
			}
		}
		v := take(acme, "a")
		if v.OK || v.Which != LimitPrincipal || v.RetryAfter != 10*time.Second || v.Remaining != 0 {
			t.Errorf("the seventh: %+v", v)
		}
		// A refusal counts for nothing, and another principal has its own quota
		// until the tenant's is used up.
		for i := range 3 {
			if v := take(acme, "b"); !v.OK || v.Which != LimitTenant && i > 0 {
				t.Errorf("another principal, call %d: %+v", i, v)
			}
		}
		if v := take(acme, "c"); v.OK || v.Which != LimitTenant || v.Limit != 9 {
			t.Errorf("the tenant's tenth: %+v", v)
		}
		if v := take(globex, "a"); !v.OK || v.Remaining != 5 {
			t.Errorf("the other tenant: %+v", v)
		}
		// One session and one token of the same id are two principals.
		other := limitScope(globex, "a")
		other.Principal.Kind = tenants.OAuthPrincipal
		if v := l.Take(t.Context(), other); v.Remaining != 5 {
			t.Errorf("another kind: %+v", v)
		}
		time.Sleep(10 * time.Second) // of the bubble's clock
		if v := take(acme, "a"); !v.OK {
			t.Errorf("after the wait: %+v", v)
		}
		if v := take(acme, "a"); v.OK {
			t.Errorf("one came back, not two: %+v", v)
		}
		time.Sleep(2 * time.Minute)
		if v := take(acme, "a"); v.Remaining != 5 {
			t.Errorf("rested: %+v", v)
		}
		if p, n := l.Refused(); p != 2 || n != 1 {
			t.Errorf("counted %d and %d refusals", p, n)
		}
	})
}

func TestLimiterFollowsThePolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		policy := tenants.Policy{PrincipalRate: 1}
		l := NewLimiter(LimitConfig{Policy: func(context.Context, tenants.TenantID) tenants.Policy { asked.Add(1); return policy }})
		s := limitScope(tenants.NewTenantID(), "a")
		l.Take(t.Context(), s)
		if v := l.Take(t.Context(), s); v.OK {
			t.Errorf("%+v", v)
		}
		policy = tenants.Policy{} // the defaults
		time.Sleep(policyLife)
		if v := l.Take(t.Context(), s); !v.OK || v.Limit != tenants.DefaultPrincipalRate {
			t.Errorf("a raised limit: %+v", v)
		}
		for range 100 {
			l.Take(t.Context(), s)
		}
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times within seconds", n)
		}
		if v := NewLimiter(LimitConfig{}).Take(t.Context(), s); !v.OK || v.Limit != tenants.DefaultPrincipalRate {
			t.Errorf("without a policy: %+v", v)
		}
	})
}

// TestLimiterForgetsNobodyActive fills the memory with callers whose quota is
// in use: none of them gets it back, and the memory stays bounded.
func TestLimiterForgetsNobodyActive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimiter(LimitConfig{Policy: policyOf(2, 1_000_000), Principals: 100, Tenants: 4})
		acme := tenants.NewTenantID()
		for i := range 100 {
			for range 2 {
				l.Take(t.Context(), limitScope(acme, fmt.Sprint(i)))
			}
		}
		for i := range 10_000 {
			if v := l.Take(t.Context(), limitScope(acme, fmt.Sprintf("more-%d", i))); !v.OK || v.Which != LimitTenant {
				t.Fatalf("beyond the bound the tenant's quota holds: %+v", v)
			}
		}
		if n := len(l.principals); n != 100 {
			t.Errorf("%d principals remembered", n)
		}
		for i := range 100 {
			if v := l.Take(t.Context(), limitScope(acme, fmt.Sprint(i))); v.OK || v.Which != LimitPrincipal {
				t.Fatalf("caller %d got its quota back: %+v", i, v)
			}
		}
		time.Sleep(time.Minute)
		if v := l.Take(t.Context(), limitScope(acme, "new")); v.Which != LimitPrincipal || len(l.principals) != 1 {
			t.Errorf("those at rest make room: %+v, %d remembered", v, len(l.principals))
		}
		for range 50 {
			l.Take(t.Context(), limitScope(tenants.NewTenantID(), "x"))
		}
		if n := len(l.tenants); n > 4 {
			t.Errorf("%d tenants remembered", n)
		}
	})
}

func TestLimiterAtOnce(t *testing.T) {
	l := NewLimiter(LimitConfig{Policy: policyOf(50, 1_000_000)})
	s := limitScope(tenants.NewTenantID(), "a")
	l.Take(t.Context(), s) // the policy is known
	var ok atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if l.Take(t.Context(), s).OK {
					ok.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := int(ok.Load()); n < 49 || n > 50+int(time.Since(start)/time.Second) {
		t.Errorf("%d of 800 were let in", n)
	}
}

func TestLimiterOverREST(t *testing.T) {
	l := NewLimiter(LimitConfig{Policy: policyOf(1, 100)})
	s := limitScope(tenants.NewTenantID(), "secret-principal")
	h := l.REST(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	ask := func(ctx context.Context) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		return w
	}
	w := ask(WithScope(t.Context(), s))
	if w.Code != http.StatusNoContent || w.Header().Get("RateLimit-Policy") != `"principal";q=1;w=60` || w.Header().Get("RateLimit") != `"principal";r=0;t=60` || w.Header().Get("Retry-After") != "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	w = ask(WithScope(t.Context(), s))
	body := w.Body.String()
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "60" || w.Header().Get("Content-Type") != "application/problem+json" || !strings.Contains(body, `"reason":"rate_limited"`) || !strings.Contains(body, "wait 60 s") || strings.Contains(body, "secret-principal") {
		t.Errorf("%d %v %s", w.Code, w.Header(), body)
	}
	if w = ask(t.Context()); w.Code != http.StatusNoContent || w.Header().Get("RateLimit") != "" {
		t.Errorf("without a scope: %d %v", w.Code, w.Header())
	}
}

func BenchmarkLimiter(b *testing.B) {
	l := NewLimiter(LimitConfig{Policy: policyOf(60_000_000, 60_000_000)})
	s := limitScope(tenants.NewTenantID(), "a")
	for b.Loop() {
		l.Take(b.Context(), s)
	}
}
