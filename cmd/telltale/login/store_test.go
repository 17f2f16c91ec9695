package login

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// stored is a store with one login that f knows.
func stored(t *testing.T, f *fake, left time.Duration) (*Store, Login) {
	t.Helper()
	s := &Store{Dir: filepath.Join(t.TempDir(), "telltale", "logins"), Ends: Endpoints{Client: f.plain()}}
	f.refresh = "refresh-0"
	in := Login{Resource: f.resource, Issuer: f.issuer, ClientID: "c", TokenEndpoint: f.issuer + "/token", RevocationEndpoint: f.issuer + "/revoke",
		AccessToken: "access-0", RefreshToken: "refresh-0", Obtained: time.Now().Add(-time.Hour), Expires: time.Now().Add(left)}
	if err := s.Put(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	return s, in
}

func TestStoreIsPrivate(t *testing.T) {
	f := newFake(t, false)
	s, in := stored(t, f, time.Hour)
	path := s.Path(in.Resource)
	for p, want := range map[string]os.FileMode{path: 0o600, s.Dir: 0o700, path + ".lock": 0o600} {
		if st, err := os.Stat(p); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v %v", p, st.Mode(), err)
		}
	}
	if got, err := s.Get(in.Resource); err != nil || got.AccessToken != "access-0" {
		t.Error(got, err)
	}
	if _, err := s.Get(in.Resource + "x"); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
	for _, c := range []struct {
		path    string
		bad, ok os.FileMode
	}{{path, 0o640, 0o600}, {path, 0o604, 0o600}, {s.Dir, 0o755, 0o700}} {
		if err := os.Chmod(c.path, c.bad); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Fresh(t.Context(), in.Resource); err == nil || !strings.Contains(err.Error(), "chmod") || strings.Contains(err.Error(), "access-0") {
			t.Errorf("%s %o: %v", c.path, c.bad, err)
		}
		if err := os.Chmod(c.path, c.ok); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"", "{", `{"resource":"https://other/mcp","access_token":"x"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(in.Resource); err == nil || !strings.Contains(err.Error(), "telltale login") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := s.Remove(t.Context(), in.Resource); err == nil {
		t.Error("what was removed could not be read, and nobody says so")
	}
	if _, err := s.Remove(t.Context(), in.Resource); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

func TestFilesOfResourcesDiffer(t *testing.T) {
	s := &Store{Dir: "/d"}
	seen := map[string]string{}
	for _, r := range []string{"https://h/t/a/mcp", "http://h/t/a/mcp", "https://h/t/a_mcp", "https://h/t/a/mcp/../../../../etc/x", "https://h/" + strings.Repeat("y", 300), "https://h/" + strings.Repeat("y", 301)} {
		p := s.Path(r)
		if filepath.Dir(p) != "/d" || len(p) > 120 || seen[p] != "" {
			t.Errorf("%s: %s", r, p)
		}
		seen[p] = r
	}
}

func TestRenewsAhead(t *testing.T) {
	for name, c := range map[string]struct {
		left time.Duration
		want string
	}{"long": {time.Hour, "access-0"}, "about to end": {30 * time.Second, "access-1"}, "over": {-time.Hour, "access-1"}} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, false)
			s, in := stored(t, f, c.left)
			got, err := s.Fresh(t.Context(), in.Resource)
			if err != nil || got.AccessToken != c.want {
				t.Fatal(got.AccessToken, err)
			}
			if kept, err := s.Get(in.Resource); err != nil || kept.AccessToken != c.want || c.want == "access-1" && (kept.RefreshToken != "refresh-1" || kept.Scope != "") {
				t.Errorf("kept %+v, %v", kept, err)
			}
		})
	}
}

// TestShortTokens: a token that lives for a minute is not renewed at each call.
func TestShortTokens(t *testing.T) {
	f := newFake(t, false)
	f.grant = map[string]any{"expires_in": 40}
	s, in := stored(t, f, -time.Second)
	for range 3 {
		if got, err := s.Fresh(t.Context(), in.Resource); err != nil || got.AccessToken != "access-1" {
			t.Fatal(got.AccessToken, err)
		}
	}
}

// TestOneRefreshForMany: each caller has a store of its own, as processes do,
// and the provider ends the login when a refresh token comes twice.
func TestOneRefreshForMany(t *testing.T) {
	f := newFake(t, false)
	s, in := stored(t, f, -time.Hour)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			mine := &Store{Dir: s.Dir, Ends: s.Ends}
			if got, err := mine.Fresh(t.Context(), in.Resource); err != nil || got.AccessToken != "access-1" {
				t.Error(got.AccessToken, err)
			}
		})
	}
	all.Wait()
	if f.minted != 1 || f.burnt {
		t.Errorf("%d refreshes, burnt %v", f.minted, f.burnt)
	}
	for range 4 { // and after a 401 of the same token
		all.Go(func() {
			if got, err := s.Renew(t.Context(), in.Resource, "access-1"); err != nil || got.AccessToken != "access-2" {
				t.Error(got.AccessToken, err)
			}
		})
	}
	all.Wait()
	if f.minted != 2 || f.burnt {
		t.Errorf("%d refreshes, burnt %v", f.minted, f.burnt)
	}
}

func TestRenewalFails(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*fake, *Login)
		want []string
	}{
		"revoked":      {func(f *fake, _ *Login) { f.refuse = "invalid_grant" }, []string{"has ended", "telltale login --url http://"}},
		"client gone":  {func(f *fake, _ *Login) { f.refuse = "invalid_client" }, []string{"has ended"}},
		"other error":  {func(f *fake, _ *Login) { f.refuse = "invalid_target" }, []string{"invalid_target"}},
		"no refresh":   {func(_ *fake, in *Login) { in.RefreshToken = "" }, []string{"cannot be renewed", "telltale login --url"}},
		"provider 503": {func(f *fake, _ *Login) { f.down = true }, []string{"503"}},
		"unreachable":  {func(_ *fake, in *Login) { in.TokenEndpoint = "http://127.0.0.1:1/token" }, []string{"no answer from http://127.0.0.1:1/token"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, false)
			s, in := stored(t, f, -time.Second)
			c.set(f, &in)
			if err := s.Put(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			_, err := s.Fresh(t.Context(), in.Resource)
			if err == nil {
				t.Fatal("no error")
			}
			wants(t, err.Error(), c.want...)
			if strings.Contains(err.Error(), "refresh-0") {
				t.Errorf("it leaks: %v", err)
			}
			if kept, err := s.Get(in.Resource); err != nil || kept.RefreshToken != in.RefreshToken {
				t.Errorf("kept %+v, %v", kept, err)
			}
		})
	}
}

// TestProviderAwayButTokenGood: what still works is used.
func TestProviderAwayButTokenGood(t *testing.T) {
	f := newFake(t, false)
	s, in := stored(t, f, 20*time.Second)
	in.TokenEndpoint = "http://127.0.0.1:1/token"
	if err := s.Put(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Fresh(t.Context(), in.Resource); err != nil || got.AccessToken != "access-0" {
		t.Error(got.AccessToken, err)
	}
}

// TestInterruptedRenewalIsKept: the request is out, so its answer must be
// stored although nobody waits any more.
func TestInterruptedRenewalIsKept(t *testing.T) {
	f := newFake(t, false)
	s, in := stored(t, f, -time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	unlock, err := s.lock(ctx, in.Resource)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Fresh(ctx, in.Resource); !errors.Is(err, context.Canceled) {
		t.Errorf("it waited for the lock: %v", err)
	}
	unlock()
	in2, err := s.renew(ctx, in.Resource, in.AccessToken)
	if err != nil || in2.RefreshToken != "refresh-1" {
		t.Errorf("%+v %v", in2, err)
	}
}

func TestRevoke(t *testing.T) {
	f := newFake(t, false)
	s, _ := stored(t, f, time.Hour)
	in, err := s.Remove(t.Context(), f.resource)
	if err != nil {
		t.Fatal(err)
	}
	if offered, err := s.Ends.Revoke(t.Context(), &in); !offered || err != nil || len(f.revoked) != 1 || f.revoked[0] != "refresh_token refresh-0" {
		t.Error(offered, err, f.revoked)
	}
	in.RevocationEndpoint = ""
	if offered, err := s.Ends.Revoke(t.Context(), &in); offered || err != nil {
		t.Error(offered, err)
	}
	if _, err := s.Get(f.resource); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}
