package auth

import (
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestVerify(t *testing.T) {
	r := newRig(t, SiteConfig{})
	past, future := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	sel := tenants.Selector{Labels: map[string]string{"site": "a"}}
	good, goodID := r.mint(acme, func(k *tenants.OperatorToken) { k.Scopes, k.Nodes = tenants.Read|tenants.Act, sel })
	theirs, _ := r.mint(globex, nil)
	expired, _ := r.mint(acme, func(k *tenants.OperatorToken) { k.ExpiresAt = &past })
	living, _ := r.mint(acme, func(k *tenants.OperatorToken) { k.ExpiresAt = &future })
	revoked, _ := r.mint(acme, func(k *tenants.OperatorToken) { k.RevokedAt = &past })
	nets, _ := r.mint(acme, func(k *tenants.OperatorToken) {
		k.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/32")}
	})
	stranger, _ := tenants.MintSecret(tenants.OperatorSecret)
	forged := forge(stranger, goodID)
	session, _ := tenants.MintSecret(tenants.SessionSecret)
	enrol, _ := tenants.MintSecret(tenants.EnrolSecret)
	for _, c := range []struct {
		what, slug, bearer string
		from               netip.Addr
		want               Class
	}{
		{"good", "acme", good, anywhere, ""},
		{"good from nowhere", "acme", good, netip.Addr{}, ""},
		{"not yet expired", "acme", living, anywhere, ""},
		{"inside its networks", "acme", nets, anywhere, ""},
		{"mapped address inside", "acme", nets, netip.MustParseAddr("::ffff:192.0.2.9"), ""},
		{"v6 inside", "acme", nets, netip.MustParseAddr("2001:db8::1%eth0"), ""},
		{"outside its networks", "acme", nets, netip.MustParseAddr("192.0.3.1"), Network},
		{"networks, unknown address", "acme", nets, netip.Addr{}, Network},
		{"none", "acme", "", anywhere, NoToken},
		{"word", "acme", "hello", anywhere, Malformed},
		{"cut", "acme", good[:len(good)-1], anywhere, Malformed},
		{"mistyped", "acme", mistype(good), anywhere, Checksum},
		{"very long", "acme", "tt_" + strings.Repeat("a", 1<<20), anywhere, Malformed},
		{"a session's cookie", "acme", session, anywhere, Malformed},
		{"an enrolment token", "acme", enrol, anywhere, Malformed},
		{"never issued", "acme", stranger, anywhere, Unknown},
		{"right id, wrong secret", "acme", forged, anywhere, Unknown},
		{"expired", "acme", expired, anywhere, Expired},
		{"revoked", "acme", revoked, anywhere, Revoked},
		{"ours at theirs", "globex", good, anywhere, WrongTenant},
		{"theirs at ours", "acme", theirs, anywhere, WrongTenant},
		{"revoked at theirs", "globex", revoked, anywhere, WrongTenant},
		{"forged at theirs", "globex", forged, anywhere, Unknown},
		{"unknown tenant", "nope", good, anywhere, WrongTenant},
		{"no tenant", "", good, anywhere, WrongTenant},
		{"bad tenant", "ACME", good, anywhere, WrongTenant},
		{"unknown tenant, nothing sent", "nope", "", anywhere, NoToken},
	} {
		for range 2 { // fetched, then remembered
			sc, err := r.verifier.Verify(t.Context(), c.slug, c.bearer, c.from)
			if c.want == "" {
				if err != nil || sc.Tenant != acme.ID || sc.Slug != "acme" {
					t.Errorf("%s: %+v, %v", c.what, sc, err)
				}
				continue
			}
			if f, ok := err.(*Failure); !ok || f.Class != c.want || sc.Principal.ID != "" || !sc.Tenant.IsZero() {
				t.Errorf("%s: got %+v, %v; want %s", c.what, sc, err, c.want)
			}
		}
	}
	sc, err := r.verifier.Verify(t.Context(), "acme", good, anywhere)
	want := tenants.Scope{Tenant: acme.ID, Slug: "acme", Granted: tenants.Read | tenants.Act, Obtainable: tenants.EveryScope, Nodes: sel,
		Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: goodID, Name: "tok"}}
	if diff := cmp.Diff(want, sc); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if n := r.verifier.Refusals(); n[WrongTenant] != 12 || n[Checksum] != 2 {
		t.Errorf("counted %v", n)
	}
}

// What looks the same to the caller is the same in every byte.
func TestWrongTenantLooksUnknown(t *testing.T) {
	a, b := failed(WrongTenant), failed(Unknown)
	if a.Public() != b.Public() || a.Description() != b.Description() || a.Status() != b.Status() || !cmp.Equal(fault.Of(a), fault.Of(b)) {
		t.Error("a good token of another tenant can be told from an unknown one")
	}
}

func TestClassesAreComplete(t *testing.T) {
	for c := range classes {
		what, next, ok := c.Explain()
		f := failed(c)
		if f.Status() < 400 || f.Description() == "" || strings.Contains(f.Description(), `"`) || fault.Of(f).Next == "" || !ok || what != f.Description() || next != fault.Of(f).Next {
			t.Errorf("%s is answered with %d %q", c, f.Status(), f.Description())
		}
	}
}

func TestSuspendedTenant(t *testing.T) {
	r := newRig(t, SiteConfig{})
	good, _ := r.mint(acme, nil)
	set(r.memory, r.memory.tenants, "acme", func(x *tenants.Tenant) { x.Suspended = true })
	_, err := r.verifier.Verify(t.Context(), "acme", good, anywhere)
	wantClass(t, err, Suspended)
	stranger, _ := tenants.MintSecret(tenants.OperatorSecret)
	_, err = r.verifier.Verify(t.Context(), "acme", stranger, anywhere)
	wantClass(t, err, Unknown) // who has no credential learns nothing
}

func TestStoreDown(t *testing.T) {
	r := newRig(t, SiteConfig{})
	good, _ := r.mint(acme, nil)
	r.setDown(true)
	for range 2 {
		if _, err := r.verifier.Verify(t.Context(), "acme", good, anywhere); !fault.Is(err, fault.Unavailable) {
			t.Fatalf("got %v", err)
		}
	}
	r.setDown(false)
	if _, err := r.verifier.Verify(t.Context(), "acme", good, anywhere); err != nil {
		t.Errorf("an outage was remembered: %v", err)
	}
}

// A revocation bites within the promise, and not a look-up earlier: between
// look-ups the store is left in peace.
func TestRevocationDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		tokens := NewOperatorTokens(m, nil, OperatorConfig{TTL: time.Hour}) // cut to the promise
		v := NewVerifier(m, tokens)
		secret, id := m.mint(acme, nil)
		verify := func() error {
			_, err := v.Verify(t.Context(), "acme", secret, anywhere)
			return err
		}
		if err := verify(); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		set(m, m.tokens, id, func(k *tenants.OperatorToken) { k.RevokedAt = &now })
		for verify() == nil {
			if time.Since(now) > tenants.RevocationDelay {
				t.Fatal("a revoked token is still accepted")
			}
			time.Sleep(100 * time.Millisecond)
		}
		if late := time.Since(now); late < time.Second {
			t.Errorf("noticed after %v: nothing is remembered", late)
		}
		// An unknown token that is made now is accepted as soon.
		text, hidden := tenants.MintSecret(tenants.OperatorSecret)
		secret = text
		wantClass(t, verify(), Unknown)
		set(m, m.tokens, hidden.ID, func(k *tenants.OperatorToken) {
			*k = tenants.OperatorToken{ID: hidden.ID, Hash: hidden.Hash, Tenant: acme.ID, Scopes: tenants.Read}
		})
		time.Sleep(tenants.RevocationDelay)
		if err := verify(); err != nil {
			t.Error(err)
		}
		now = time.Now()
		set(m, m.tokens, hidden.ID, func(k *tenants.OperatorToken) { k.RevokedAt = &now })
		tokens.cache.drop(hidden.ID) // what is remembered is over
		wantClass(t, verify(), Revoked)
	})
}

// Expiry needs no look-up at all.
func TestExpiryWhileRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		v := NewVerifier(m, NewOperatorTokens(m, nil, OperatorConfig{}))
		end := time.Now().Add(time.Second)
		secret, _ := m.mint(acme, func(k *tenants.OperatorToken) { k.ExpiresAt = &end })
		if _, err := v.Verify(t.Context(), "acme", secret, anywhere); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		_, err := v.Verify(t.Context(), "acme", secret, anywhere)
		wantClass(t, err, Expired)
	})
}

// Guessing fills its own room, bounded, and pushes out no real token.
func TestGuessingIsBounded(t *testing.T) {
	m := newMemory()
	tokens := NewOperatorTokens(m, nil, OperatorConfig{MaxCached: 8})
	v := NewVerifier(m, tokens)
	secret, _ := m.mint(acme, nil)
	if _, err := v.Verify(t.Context(), "acme", secret, anywhere); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		guess, _ := tenants.MintSecret(tenants.OperatorSecret)
		_, err := v.Verify(t.Context(), "acme", guess, anywhere)
		wantClass(t, err, Unknown)
	}
	before := m.readCount()
	if _, err := v.Verify(t.Context(), "acme", secret, anywhere); err != nil {
		t.Fatal(err)
	}
	if m.readCount() != before+1 { // the tenant, which is the directory's to remember
		t.Error("guessing pushed out a real token")
	}
	if s := tokens.Stats(); s.Known != 1 || s.None != 8 || s.NoneEvicted != 92 || s.KnownEvicted != 0 {
		t.Errorf("%+v", s)
	}
}

// Last uses cost one write a minute, whatever the traffic, and the last ones
// are written at the end.
func TestLastUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		uses := NewUses(m, slog.New(slog.DiscardHandler))
		v := NewVerifier(m, NewOperatorTokens(m, uses, OperatorConfig{}))
		secret, id := m.mint(acme, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- uses.Run(ctx) }()
		verify := func() {
			t.Helper()
			if _, err := v.Verify(t.Context(), "acme", secret, anywhere); err != nil {
				t.Fatal(err)
			}
		}
		writes := map[time.Time]bool{}
		for range 1800 { // three minutes
			verify()
			time.Sleep(100 * time.Millisecond)
			m.mu.Lock()
			if at, ok := m.used[id]; ok {
				writes[at] = true
				set := m.tokens[id]
				set.LastUsedAt = &at
				m.tokens[id] = set
			}
			m.mu.Unlock()
		}
		if n := len(writes); n < 2 || n > 4 {
			t.Errorf("%d writes in three minutes", n)
		}
		time.Sleep(2 * time.Minute)
		verify()
		last := time.Now()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := m.used[id]; !got.Equal(last) {
			t.Errorf("the last use is %v, want %v", got, last)
		}
	})
}

func TestUsesAreBounded(t *testing.T) {
	u := NewUses(newMemory(), slog.New(slog.DiscardHandler))
	for i := range maxUses + 5 {
		u.token(acme.ID, fmt.Sprint(i), nil, time.Now())
	}
	if u.Dropped() != 5 {
		t.Errorf("dropped %d", u.Dropped())
	}
}

func TestBearer(t *testing.T) {
	for _, c := range []struct {
		headers []string
		want    string
		class   Class
	}{
		{[]string{"Bearer abc"}, "abc", ""},
		{[]string{"bearer abc"}, "abc", ""},
		{[]string{"BEARER   abc"}, "abc", ""},
		{[]string{"Bearer a-b.c_d~e+f/g=="}, "a-b.c_d~e+f/g==", ""},
		{nil, "", NoToken},
		{[]string{"Basic abc"}, "", NoToken},
		{[]string{"Bearer"}, "", Malformed},
		{[]string{"Bearer "}, "", Malformed},
		{[]string{"Bearerabc"}, "", NoToken},
		{[]string{""}, "", NoToken},
		{[]string{"Bearer a b"}, "", Malformed},
		{[]string{"Bearer a, Bearer b"}, "", Malformed},
		{[]string{"Bearer a=b"}, "", Malformed},
		{[]string{"Bearer a\x00"}, "", Malformed},
		{[]string{"Bearer é"}, "", Malformed},
		{[]string{"Bearer abc", "Bearer abc"}, "", Repeated},
		{[]string{"Basic abc", "Bearer abc"}, "", Repeated},
		{[]string{"Bearer " + strings.Repeat("a", maxBearer)}, strings.Repeat("a", maxBearer), ""},
		{[]string{"Bearer " + strings.Repeat("a", maxBearer+1)}, "", Malformed},
		{[]string{"Bearer " + strings.Repeat("a", 1<<20)}, "", Malformed},
	} {
		q, _ := http.NewRequest("GET", "/?access_token=tt_x", nil)
		for _, h := range c.headers {
			q.Header.Add("Authorization", h)
		}
		got, err := Bearer(q)
		if c.class != "" {
			wantClass(t, err, c.class)
		} else if err != nil || got != c.want {
			t.Errorf("%.40q: %.40q, %v", c.headers, got, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	m := newMemory()
	v := NewVerifier(m, NewOperatorTokens(m, nil, OperatorConfig{MaxCached: 16}))
	secret, _ := m.mint(acme, nil)
	f.Add("acme", secret)
	f.Add("globex", secret)
	f.Add("acme", mistype(secret))
	f.Add("", "")
	f.Fuzz(func(t *testing.T, slug, bearer string) {
		sc, err := v.Verify(t.Context(), slug, bearer, anywhere)
		if ok := slug == "acme" && bearer == secret; ok != (err == nil) || !ok && !sc.Tenant.IsZero() {
			t.Fatalf("%q at %q: %+v, %v", bearer, slug, sc, err)
		}
	})
}

// mistype changes one character of the secret's body.
func mistype(secret string) string {
	b := []byte(secret)
	b[30] = 'a' + (b[30]+1)%20
	if string(b) == secret {
		b[30]++
	}
	return string(b)
}

// forge puts a known id into another secret and mends the checksum.
func forge(secret, id string) string {
	p := strings.Split(secret, "_")
	body := p[0] + "_" + id + "_" + p[2]
	return fmt.Sprintf("%s_%08x", body, crc32.ChecksumIEEE([]byte(body)))
}
