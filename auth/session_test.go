package auth

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// signIn exchanges a token and returns the cookie and the view.
func (r *rig) signIn(t *testing.T, slug, token string, header ...string) (cookie *http.Cookie, view SessionView) {
	t.Helper()
	w := r.do("POST", "/t/"+slug+"/session", `{"token":"`+token+`"}`, append([]string{"Content-Type", "application/json"}, header...)...)
	cookies := w.Result().Cookies()
	if err := json.Unmarshal(w.Body.Bytes(), &view); w.Code != 201 || len(cookies) != 1 || err != nil {
		t.Fatalf("sign in: %d %s", w.Code, w.Body)
	}
	return cookies[0], view
}

func (r *rig) with(c *http.Cookie, method, path string, header ...string) *httptest.ResponseRecorder {
	return r.do(method, path, "", append([]string{"Cookie", c.Name + "=" + c.Value}, header...)...)
}

func wantStatus(t *testing.T, what string, w *httptest.ResponseRecorder, want int) {
	t.Helper()
	if w.Code != want {
		t.Errorf("%s: %d %s, want %d", what, w.Code, w.Body, want)
	}
}

func TestSignIn(t *testing.T) {
	r := newRig(t, SiteConfig{})
	token, id := r.mint(acme, func(k *tenants.OperatorToken) { k.Scopes = tenants.Act })
	c, view := r.signIn(t, "acme", token)
	if c.Name != "__Host-telltale_acme" || !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" || c.MaxAge < 86000 || c.MaxAge > 86400 {
		t.Errorf("cookie %+v", c)
	}
	if view.Tenant != "acme" || view.Name != "tok" || strings.Join(view.Scopes, " ") != "telltale:read telltale:act" || view.CSRF == "" {
		t.Errorf("view %+v", view)
	}
	// What a script can read is no credential, and the store has no cookie.
	body := strings.TrimPrefix(c.Value, "tts_")
	for _, s := range r.memory.sessions {
		if s.TokenID != id || strings.Contains(s.ID, body) || !s.Hash.Equal(s.Hash) {
			t.Errorf("stored %+v", s)
		}
	}
	shown := r.with(c, "GET", "/t/acme/session").Body.String()
	if strings.Contains(shown, c.Value) || strings.Contains(shown, token) {
		t.Errorf("a script can read a credential: %s", shown)
	}
	w := r.with(c, "GET", "/t/acme/api/v1/nodes")
	wantStatus(t, "read", w, 200)
	if got := w.Header().Get("Echo"); got != "session acme" {
		t.Errorf("principal %q", got)
	}
	wantStatus(t, "MCP takes no cookie", r.with(c, "GET", "/t/acme/mcp"), 401)
	wantStatus(t, "the other tenant", r.with(c, "GET", "/t/globex/api/v1/nodes"), 401)
	wantStatus(t, "under the other tenant's name", r.with(&http.Cookie{Name: "__Host-telltale_globex", Value: c.Value}, "GET", "/t/globex/api/v1/nodes"), 401)
	wantStatus(t, "a bearer wins, also a bad one", r.with(c, "GET", "/t/acme/api/v1/nodes", "Authorization", "Bearer x"), 401)
	wantStatus(t, "two cookies of one name", r.do("GET", "/t/acme/api/v1/nodes", "", "Cookie", c.Name+"="+c.Value+"; "+c.Name+"="+c.Value), 401)
	wantStatus(t, "the CSRF token as cookie", r.with(&http.Cookie{Name: c.Name, Value: view.CSRF}, "GET", "/t/acme/api/v1/nodes"), 401)
	wantStatus(t, "the operator token as cookie", r.with(&http.Cookie{Name: c.Name, Value: token}, "GET", "/t/acme/api/v1/nodes"), 401)
	wantStatus(t, "the cookie as bearer", r.do("GET", "/t/acme/api/v1/nodes", "", "Authorization", "Bearer "+c.Value), 401)
}

func TestSignInRefusals(t *testing.T) {
	r := newRig(t, SiteConfig{AllowedOrigins: []string{"https://tool.example"}})
	good, _ := r.mint(acme, nil)
	theirs, _ := r.mint(globex, nil)
	body := `{"token":"` + good + `"}`
	for _, c := range []struct {
		what, body string
		header     []string
		want       int
	}{
		{"a form", "token=" + good, []string{"Content-Type", "application/x-www-form-urlencoded"}, 400},
		{"no type", body, nil, 400},
		{"plain text", body, []string{"Content-Type", "text/plain"}, 400},
		{"not JSON", "x", []string{"Content-Type", "application/json"}, 400},
		{"unknown field", `{"token":"x","more":1}`, []string{"Content-Type", "application/json"}, 400},
		{"huge", `{"token":"` + strings.Repeat("a", 1<<20) + `"}`, []string{"Content-Type", "application/json"}, 400},
		{"empty", `{}`, []string{"Content-Type", "application/json"}, 401},
		{"the other tenant's token", `{"token":"` + theirs + `"}`, []string{"Content-Type", "application/json"}, 401},
		{"mistyped", `{"token":"` + mistype(good) + `"}`, []string{"Content-Type", "application/json"}, 401},
		{"foreign origin", body, []string{"Content-Type", "application/json", "Origin", "https://evil.example"}, 403},
		{"an origin that may use bearers only", body, []string{"Content-Type", "application/json", "Origin", "https://tool.example"}, 403},
		{"cross-site fetch", body, []string{"Content-Type", "application/json", "Sec-Fetch-Site", "cross-site"}, 403},
		{"own origin", body, []string{"Content-Type", "application/json; charset=utf-8", "Origin", publicURL, "Sec-Fetch-Site", "same-origin"}, 201},
	} {
		w := r.do("POST", "/t/acme/session", c.body, c.header...)
		wantStatus(t, c.what, w, c.want)
		if (len(w.Result().Cookies()) > 0) != (c.want == 201) {
			t.Errorf("%s: cookies %v", c.what, w.Result().Cookies())
		}
		if (w.Code == 401 || w.Code == 403) && w.Header().Get(ReferenceHeader) == "" {
			t.Errorf("%s: no reference", c.what)
		}
	}
	wantStatus(t, "another method", r.do("PUT", "/t/acme/session", ""), 405)
	wantStatus(t, "no session", r.do("GET", "/t/acme/session", ""), 401)
}

func TestCSRF(t *testing.T) {
	r := newRig(t, SiteConfig{AllowedOrigins: []string{"https://tool.example"}})
	token, _ := r.mint(acme, func(k *tenants.OperatorToken) { k.Scopes = tenants.Act })
	c, view := r.signIn(t, "acme", token)
	_, other := r.signIn(t, "acme", token)
	for _, x := range []struct {
		what   string
		method string
		header []string
		want   int
	}{
		{"read without", "GET", nil, 200},
		{"write without", "POST", nil, 403},
		{"delete without", "DELETE", nil, 403},
		{"invented method", "BREW", nil, 403},
		{"wrong", "POST", []string{CSRFHeader, "x"}, 403},
		{"another session's", "POST", []string{CSRFHeader, other.CSRF}, 403},
		{"twice", "POST", []string{CSRFHeader, view.CSRF, CSRFHeader, view.CSRF}, 403},
		{"right", "POST", []string{CSRFHeader, view.CSRF}, 200},
		{"right, own origin", "POST", []string{CSRFHeader, view.CSRF, "Origin", publicURL}, 200},
		{"right, foreign origin", "POST", []string{CSRFHeader, view.CSRF, "Origin", "https://evil.example"}, 403},
		{"right, origin for bearers", "POST", []string{CSRFHeader, view.CSRF, "Origin", "https://tool.example"}, 403},
		{"right, other site", "POST", []string{CSRFHeader, view.CSRF, "Sec-Fetch-Site", "same-site"}, 403},
	} {
		wantStatus(t, x.what, r.with(c, x.method, "/t/acme/api/v1/act", x.header...), x.want)
	}
	wantStatus(t, "a bearer needs none", r.do("POST", "/t/acme/api/v1/act", "", "Authorization", "Bearer "+token), 200)
	w := r.with(c, "POST", "/t/acme/api/v1/act")
	if w.Header().Get(ReferenceHeader) == "" || w.Header().Get("WWW-Authenticate") != "" || !strings.Contains(w.Body.String(), "csrf") {
		t.Errorf("%v %s", w.Header(), w.Body)
	}
}

func TestSignOutAndRotation(t *testing.T) {
	r := newRig(t, SiteConfig{})
	token, _ := r.mint(acme, nil)
	theirs, _ := r.mint(globex, nil)
	g, _ := r.signIn(t, "globex", theirs)
	c1, v1 := r.signIn(t, "acme", token, "Cookie", g.Name+"="+g.Value)
	c2, v2 := r.signIn(t, "acme", token, "Cookie", c1.Name+"="+c1.Value)
	if c1.Value == c2.Value || v1.CSRF == v2.CSRF {
		t.Error("signing in again keeps the session")
	}
	wantStatus(t, "the former session", r.with(c1, "GET", "/t/acme/session"), 401)
	wantStatus(t, "the new session", r.with(c2, "GET", "/t/acme/session"), 200)
	wantStatus(t, "sign out without CSRF", r.with(c2, "DELETE", "/t/acme/session"), 403)
	wantStatus(t, "still in", r.with(c2, "GET", "/t/acme/session"), 200)
	w := r.with(c2, "DELETE", "/t/acme/session", CSRFHeader, v2.CSRF)
	wantStatus(t, "sign out", w, 204)
	if cs := w.Result().Cookies(); len(cs) != 1 || cs[0].MaxAge >= 0 || cs[0].Value != "" || cs[0].Name != c2.Name {
		t.Errorf("cookie after sign-out: %v", cs)
	}
	wantStatus(t, "out", r.with(c2, "GET", "/t/acme/session"), 401)
	wantStatus(t, "sign out again", r.with(c2, "DELETE", "/t/acme/session", CSRFHeader, v2.CSRF), 204)
	wantStatus(t, "nothing to sign out", r.do("DELETE", "/t/acme/session", ""), 401)
	wantStatus(t, "a bearer is no session", r.do("DELETE", "/t/acme/session", "", "Authorization", "Bearer "+theirs), 401)
	wantStatus(t, "the other tenant's cookie", r.with(g, "DELETE", "/t/acme/session", CSRFHeader, v2.CSRF), 401)
	wantStatus(t, "a planted cookie is cleared", r.do("DELETE", "/t/acme/session", "", "Cookie", c2.Name+"=a; "+c2.Name+"=b"), 204)
	wantStatus(t, "the other tenant's session", r.with(g, "GET", "/t/globex/session"), 200)
}

// A session ends when it idles, at its absolute end, and with its token.
func TestSessionEnds(t *testing.T) {
	end := func(name string, steps func(t *testing.T, r *rig, c *http.Cookie, tokenID string)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, SiteConfig{})
				token, id := r.mint(acme, nil)
				c, _ := r.signIn(t, "acme", token)
				wantStatus(t, "at first", r.with(c, "GET", "/t/acme/api/v1/nodes"), 200)
				steps(t, r, c, id)
			})
		})
	}
	touch := func(r *rig) { // what Uses and the slice do
		for k := range r.memory.sessions {
			set(r.memory, r.memory.sessions, k, func(s *tenants.BrowserSession) { s.LastSeenAt = time.Now() })
		}
	}
	end("idle", func(t *testing.T, r *rig, c *http.Cookie, _ string) {
		time.Sleep(SessionIdle - time.Second)
		wantStatus(t, "just before", r.with(c, "GET", "/t/acme/api/v1/nodes"), 200)
		time.Sleep(time.Second)
		wantStatus(t, "idle", r.with(c, "GET", "/t/acme/api/v1/nodes"), 401)
	})
	end("absolute", func(t *testing.T, r *rig, c *http.Cookie, _ string) {
		for range 23 {
			time.Sleep(time.Hour)
			touch(r)
			wantStatus(t, "in use", r.with(c, "GET", "/t/acme/api/v1/nodes"), 200)
		}
		time.Sleep(time.Hour)
		touch(r)
		wantStatus(t, "after a day", r.with(c, "GET", "/t/acme/api/v1/nodes"), 401)
	})
	within := func(what string, change func(r *rig, id string)) {
		end(what, func(t *testing.T, r *rig, c *http.Cookie, id string) {
			change(r, id)
			time.Sleep(tenants.RevocationDelay)
			wantStatus(t, what, r.with(c, "GET", "/t/acme/api/v1/nodes"), map[bool]int{true: 403, false: 401}[what == "tenant suspended"])
		})
	}
	within("token revoked", func(r *rig, id string) {
		now := time.Now()
		set(r.memory, r.memory.tokens, id, func(k *tenants.OperatorToken) { k.RevokedAt = &now })
	})
	within("token expired", func(r *rig, id string) {
		now := time.Now()
		set(r.memory, r.memory.tokens, id, func(k *tenants.OperatorToken) { k.ExpiresAt = &now })
	})
	within("token limited to other networks", func(r *rig, id string) {
		set(r.memory, r.memory.tokens, id, func(k *tenants.OperatorToken) { k.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
	})
	within("tenant suspended", func(r *rig, _ string) {
		set(r.memory, r.memory.tenants, "acme", func(x *tenants.Tenant) { x.Suspended = true })
	})
	within("signed out on another replica", func(r *rig, _ string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		clear(r.memory.sessions)
	})
}

// The session's scope is its token's, nodes included.
func TestSessionIsNoWiderThanItsToken(t *testing.T) {
	r := newRig(t, SiteConfig{PublicURL: "http://127.0.0.1:8400"})
	token, _ := r.mint(acme, func(k *tenants.OperatorToken) { k.Nodes.Labels = map[string]string{"site": "a"} })
	c, _ := r.signIn(t, "acme", token)
	if c.Name != "telltale_8400_acme" || c.Secure || !c.HttpOnly {
		t.Errorf("loopback cookie %+v", c)
	}
	q := httptest.NewRequest("GET", "/", nil)
	q.AddCookie(c)
	sc, err := r.sessions.authenticate(q, "acme")
	if err != nil || sc.Nodes.All() || sc.Granted != tenants.Read || sc.Principal.Kind != tenants.SessionPrincipal {
		t.Errorf("%+v, %v", sc, err)
	}
	wantStatus(t, "a scope it lacks", r.with(c, "GET", "/t/acme/api/v1/act"), 403)
}
