package auth

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// onClock runs a test on a clock of its own with providers on the real
// network. sleep lets time pass; it first ends idle connections, on which the
// clock would wait.
func onClock(t *testing.T, test func(t *testing.T, r *oauthRig, sleep func(time.Duration))) {
	t.Helper()
	signer, dir := authtest.NewSigner(t), authtest.NewSigner(t)
	synctest.Test(t, func(t *testing.T) {
		r := newOAuthRigAt(t, OAuthConfig{}, signer, dir)
		test(t, r, func(d time.Duration) {
			r.fetch.Close()
			time.Sleep(d)
		})
	})
}

const sre = tenants.Read | tenants.Payloads | tenants.Diagnose | tenants.Act

// What an administrator takes away is gone within the promise, in whatever
// form the token is, though what the token proves is remembered for longer.
func TestTakenAway(t *testing.T) {
	take := func(what string, change func(r *oauthRig), want Class, ofOpaque ...Class) {
		t.Run(what, func(t *testing.T) {
			onClock(t, func(t *testing.T, r *oauthRig, sleep func(time.Duration)) {
				jwt, opaque := r.good(t, nil), r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, nil)
				for range 3 {
					r.wantGood(t, "JWT", "acme", jwt, sre)
					r.wantGood(t, "opaque", "acme", opaque, sre)
					sleep(time.Second)
				}
				_, facts, err := r.oauth.VerifyAccess(t.Context(), r.tenants["acme"], jwt, anywhere)
				if err != nil {
					t.Fatal(err)
				}
				change(r)
				sleep(tenants.RevocationDelay)
				_, err = r.verify(t, "acme", jwt)
				wantClass(t, err, want)
				_, err = r.verify(t, "acme", opaque)
				wantClass(t, err, append(ofOpaque, want)[0])
				_, err = r.oauth.Reevaluate(t.Context(), r.tenants["acme"], facts)
				wantClass(t, err, want)
			})
		})
	}
	take("the role", func(r *oauthRig) { r.issuer(acme, func(i *tenants.Issuer) { i.Roles = i.Roles[1:] }) }, NoRole)
	take("all scopes that the policy leaves", func(r *oauthRig) {
		r.trust(acme, func(to *tenants.Trust) { to.Policy.Scopes = tenants.Payloads })
		r.issuer(acme, func(i *tenants.Issuer) { i.Roles = i.Roles[1:] })
	}, NoRole)
	take("the issuer", func(r *oauthRig) { r.trust(acme, func(to *tenants.Trust) { to.Issuers = to.Issuers[1:] }) }, IssuerUnknown, Malformed)
	take("the tenant's claim", func(r *oauthRig) {
		r.issuer(acme, func(i *tenants.Issuer) { i.TenantClaim, i.TenantValue = "tid", "x" })
	}, TenantClaim)
	take("the tenant", func(r *oauthRig) {
		set(r.memory, r.memory.tenants, "acme", func(x *tenants.Tenant) { x.Suspended = true })
	}, Suspended)
}

func TestMembers(t *testing.T) {
	onClock(t, func(t *testing.T, r *oauthRig, sleep func(time.Duration)) {
		token := r.signer.Access(t, acmeMCP, "Erin|x", allWords, nil, nil)
		_, err := r.verify(t, "acme", token)
		wantClass(t, err, NoRole)
		key := acme.ID.String() + "acme-one" + "Erin|x"
		set(r.memory, r.members, key, func(m *tenants.Member) {
			*m = tenants.Member{Tenant: acme.ID, IssuerID: "acme-one", Subject: "Erin|x", Scopes: tenants.Diagnose, Nodes: siteA}
		})
		sleep(tenants.RevocationDelay)
		sc := r.wantGood(t, "admitted", "acme", token, tenants.Diagnose|tenants.Read)
		if sc.Nodes.Labels["site"] != "a" || sc.Obtainable != tenants.Diagnose|tenants.Read || sc.Principal.ID != r.signer.URL+"|Erin%7Cx|client-1" {
			t.Errorf("%+v", sc)
		}
		for _, subject := range []string{"erin|x", "Erin", "Erin|x "} {
			_, err := r.verify(t, "acme", r.signer.Access(t, acmeMCP, subject, allWords, nil, nil))
			wantClass(t, err, NoRole)
		}
		_, err = r.verify(t, "globex", r.signer.Access(t, globexMCP, "Erin|x", allWords, nil, nil))
		wantClass(t, err, NoRole)
		r.mu.Lock()
		delete(r.members, key)
		r.mu.Unlock()
		sleep(tenants.RevocationDelay)
		_, err = r.verify(t, "acme", token)
		wantClass(t, err, NoRole)
	})
}

// A remembered token ends when it expires, a revoked opaque one within 30 s,
// and an issuer's settings hold for what was remembered before they changed.
func TestRememberedTokensEnd(t *testing.T) {
	onClock(t, func(t *testing.T, r *oauthRig, sleep func(time.Duration)) {
		short := r.good(t, claim("exp", time.Now().Unix()+2))
		opaque := r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, nil)
		brief := r.signer.Opaque(t, acmeMCP, "alice", allWords, []string{"acme-sre"}, claim("exp", time.Now().Unix()+2))
		long := r.good(t, nil)
		for _, token := range []string{short, opaque, brief, long} {
			r.wantGood(t, "at first", "acme", token, sre)
		}
		r.signer.Revoke(opaque)
		sleep(activeTTL - time.Second)
		r.wantGood(t, "within the skew", "acme", short, sre)
		sleep(3 * time.Second)
		for what, token := range map[string]string{"JWT": short, "opaque": brief} {
			_, err := r.verify(t, "acme", token)
			if f, ok := err.(*Failure); !ok || f.Class != Expired {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := r.verify(t, "acme", opaque)
		wantClass(t, err, Inactive)
		r.wantGood(t, "the long one", "acme", long, sre)
		r.issuer(acme, func(i *tenants.Issuer) { i.Types = []string{"jwt"} })
		sleep(tenants.RevocationDelay)
		_, err = r.verify(t, "acme", long)
		wantClass(t, err, Type)
	})
}

// New keys are found by their first token, old ones end with the maximum age,
// and a key that comes right after a fetch waits for the floor and no longer.
func TestKeyRotation(t *testing.T) {
	onClock(t, func(t *testing.T, r *oauthRig, sleep func(time.Duration)) {
		first := r.good(t, nil)
		r.wantGood(t, "the first key", "acme", first, sre)
		old := r.good(t, claim("exp", time.Now().Unix()+7200))
		r.signer.Rotate(t)
		sleep(time.Millisecond)
		_, err := r.verify(t, "acme", r.good(t, nil))
		wantClass(t, err, Signature) // within the floor
		sleep(keyFloor)
		r.wantGood(t, "the second key, after the floor", "acme", r.good(t, nil), sre)
		_, err = r.verify(t, "acme", old)
		wantClass(t, err, Signature)
		if n := r.signer.Asked("/keys"); n != 2 {
			t.Errorf("%d fetches", n)
		}

		// An issuer that takes a key back is asked again in time.
		kept := r.good(t, claim("exp", time.Now().Unix()+7200))
		r.wantGood(t, "remembered", "acme", kept, sre)
		r.signer.Rotate(t)
		sleep(keyAge)
		_, err = r.verify(t, "acme", kept)
		wantClass(t, err, Signature)
		if n := r.signer.Asked("/keys"); n != 3 {
			t.Errorf("%d fetches", n)
		}

		// Down for hours: the last good keys stay, and the attempts are few.
		stays := r.good(t, claim("exp", time.Now().Unix()+72000))
		r.wantGood(t, "before it is down", "acme", stays, sre)
		r.signer.SetDown(true)
		asked := r.signer.Asked("/keys") + r.signer.Asked("/.well-known/openid-configuration")
		for range 10 {
			sleep(time.Hour)
			for range 20 {
				r.wantGood(t, "while it is down", "acme", stays, sre)
			}
		}
		if n := r.signer.Asked("/keys") + r.signer.Asked("/.well-known/openid-configuration") - asked; n < 10 || n > 80 {
			t.Errorf("%d attempts in ten hours", n)
		}
		r.signer.SetDown(false)
		r.signer.Rotate(t)
		sleep(keyAge)
		r.wantGood(t, "up with a third key", "acme", r.good(t, nil), sre)
	})
}

// An unknown key id is asked about once a fetch, and again when its time as
// unknown is over.
func TestUnknownKidIsRemembered(t *testing.T) {
	onClock(t, func(t *testing.T, r *oauthRig, sleep func(time.Duration)) {
		r.wantGood(t, "good", "acme", r.good(t, nil), sre)
		bad := r.good(t, header("kid", "nobody's"))
		for range 14 { // 28 s: the memory of the fetch after 10 s
			sleep(2 * time.Second)
			_, err := r.verify(t, "acme", bad)
			wantClass(t, err, Signature)
		}
		if n := r.signer.Asked("/keys"); n != 2 {
			t.Errorf("%d fetches within the memory", n)
		}
		sleep(kidMemory)
		_, err := r.verify(t, "acme", bad)
		wantClass(t, err, Signature)
		if n := r.signer.Asked("/keys"); n != 3 {
			t.Errorf("%d fetches after it", n)
		}
	})
}

// Those who wait share one fetch; a failed one is not tried again within the
// floor; what is stale serves those who do not lead the fetch.
func TestKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calls, fail := 0, error(nil)
		release := make(chan struct{})
		k := &kept[int]{floor: 10 * time.Second, age: time.Minute, get: func(ctx context.Context) (int, error) {
			mu.Lock()
			calls++
			n, err := calls, fail
			mu.Unlock()
			select {
			case <-release:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			return n, err
		}}
		got := make(chan int, 50)
		for range 50 {
			go func() {
				v, err := k.current(t.Context(), false)
				if err != nil {
					t.Error(err)
				}
				got <- v
			}()
		}
		synctest.Wait()
		close(release)
		for range 50 {
			if v := <-got; v != 1 {
				t.Fatalf("got %d", v)
			}
		}
		if v, _ := k.current(t.Context(), true); v != 1 || calls != 1 {
			t.Errorf("within the floor: %d, %d calls", v, calls)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		fail = errors.New("down")
		mu.Unlock()
		for range 5 {
			if v, err := k.current(t.Context(), false); v != 1 || err != nil || calls != 2 {
				t.Errorf("down: %d, %v, %d calls", v, err, calls)
			}
		}
		release = make(chan struct{}) // the next fetch hangs
		time.Sleep(10 * time.Second)
		began := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if v, err := k.current(t.Context(), false); v != 1 || err != nil {
				t.Errorf("leading a fetch that hangs: %d, %v", v, err)
			}
		}()
		synctest.Wait()
		if v, err := k.current(t.Context(), false); v != 1 || err != nil || time.Since(began) != 0 {
			t.Errorf("beside a fetch that hangs: %d, %v after %v", v, err, time.Since(began))
		}
		gone, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := k.current(gone, true); !fault.Is(err, fault.Deadline) {
			t.Errorf("a caller that goes away: %v", err)
		}
		<-done
		if waited := time.Since(began); waited != loadTimeout {
			t.Errorf("the fetch ended after %v", waited)
		}
	})
}
