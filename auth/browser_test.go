package auth_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// page is one replica's dashboard doors; noted collects what it reports.
type page struct {
	access *access.Service
	http.Handler
	mu    sync.Mutex
	noted map[string]tenants.Attempt
}

func (p *page) Attempt(a tenants.Attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noted[a.Reference] = a
}

func newPage(t *testing.T, db *tenantdb.DB) *page {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	sealer, err := auth.NewSealer(make([]byte, auth.KeySize))
	if err != nil {
		t.Fatal(err)
	}
	site, err := auth.NewSite(auth.SiteConfig{PublicURL: resourceBase})
	if err != nil {
		t.Fatal(err)
	}
	p := &page{access: access.New(db, log, access.Config{Sealer: sealer, AllowHTTPLoopback: true}), noted: map[string]tenants.Attempt{}}
	fetch := auth.NewFetcher(auth.FetchConfig{AllowHTTPLoopback: true})
	t.Cleanup(fetch.Close)
	dir := directory.New(db, log, directory.Config{TenantTTL: scaled})
	tokens := auth.NewOperatorTokens(p.access, nil, auth.OperatorConfig{TTL: scaled})
	oauth := auth.NewOAuth(site, p.access, fetch, sealer, auth.OAuthConfig{TTL: scaled}, log)
	verifier := auth.NewVerifier(dir, tokens, oauth)
	sessions := auth.NewSessions(site, verifier, tokens, p.access, nil, scaled).WithPeople(oauth)
	challenger := auth.NewChallenger(site, dir, oauth, log).Reporting(p)
	gate := auth.NewGate(site, verifier, sessions, challenger)
	in := auth.NewSignIn(sessions, oauth, sealer, challenger)
	mux := http.NewServeMux()
	const api = "/t/{tenant}/api/v1"
	mux.Handle(api+"/session", sessions.Handler(challenger))
	mux.HandleFunc(api+"/session/providers", in.Providers)
	mux.HandleFunc(api+"/session/login", in.Begin)
	mux.HandleFunc(api+"/session/callback", in.Callback)
	mux.Handle(api+"/nodes", gate.BearerOrSession(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		sc, _ := auth.ScopeFrom(q.Context())
		fmt.Fprint(w, sc.Principal.ID, " ", sc.Granted)
	})))
	p.Handler = mux
	return p
}

// browser keeps cookies, as one would.
type browser map[string]string

func (b browser) get(h http.Handler, target string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for name, value := range b {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	resp := w.Result()
	for _, c := range resp.Cookies() {
		if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" {
			panic("an open cookie: " + c.String())
		}
		if b[c.Name] = c.Value; c.MaxAge < 0 {
			delete(b, c.Name)
		}
	}
	return resp
}

// onward is where a redirect leads, without the origin.
func onward(t *testing.T, resp *http.Response) string {
	t.Helper()
	to, err := resp.Location()
	if err != nil || resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("no redirect: %s %v", resp.Status, err)
	}
	return to.RequestURI()
}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// People of two tenants sign in at the real provider, and each gets what the
// tenant's own rules say: on another replica than the one that began.
func TestSignInAtTheProvider(t *testing.T) {
	p := authtest.StartProvider(t, authtest.Config{BaseURL: resourceBase})
	db := dbtest.New(t)
	here, there := newPage(t, db), newPage(t, db)
	dir := directory.New(db, slog.New(slog.DiscardHandler), directory.Config{})
	admins, issuers := map[string]tenants.Scope{}, map[string]tenants.Issuer{}
	for _, slug := range []string{"acme", "globex"} {
		tn, err := dir.CreateTenant(t.Context(), slug, "")
		if err != nil {
			t.Fatal(err)
		}
		admins[slug] = auth.Local(tn, "test", tenants.Admin)
		secret := authtest.ServerSecret
		issuers[slug], err = here.access.PutIssuer(t.Context(), admins[slug], access.IssuerSpec{
			Name: "people of " + slug, URL: p.Issuer(), ClientID: authtest.Server, ClientSecret: &secret, Opaque: slug == "globex", DashboardClientID: authtest.Dashboard,
			Roles: []tenants.RoleRule{
				{Claim: "groups", Value: slug + "-sre", Scopes: tenants.Diagnose | tenants.Act}, {Claim: "groups", Value: slug + "-viewers", Scopes: tenants.Read},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := body(t, browser{}.get(here, "/t/acme/api/v1/session/providers")); got != `{"providers":[{"id":"`+issuers["acme"].ID+`","name":"people of acme"}]}`+"\n" {
		t.Errorf("providers of acme: %s", got)
	}
	if got := body(t, browser{}.get(here, "/t/nobody/api/v1/session/providers")); got != `{"providers":[]}`+"\n" {
		t.Errorf("providers of nobody: %s", got)
	}

	// begin returns the provider's page.
	begin := func(b browser, slug, query string) string {
		t.Helper()
		resp := b.get(here, "/t/"+slug+"/api/v1/session/login"+query)
		to, err := resp.Location()
		if err != nil || !strings.HasPrefix(to.String(), p.Issuer()+"/auth?") {
			t.Fatalf("%s: %s", slug, resp.Status)
		}
		return to.String()
	}
	for _, c := range []struct{ account, slug, may string }{
		{authtest.Alice, "acme", "telltale:read telltale:diagnose telltale:act"}, {authtest.Bob, "acme", "telltale:read"},
		{authtest.Carol, "globex", "telltale:read telltale:diagnose telltale:act"}, // opaque tokens
		{authtest.Carol, "acme", ""}, {authtest.Erin, "acme", ""}, {authtest.Alice, "globex", ""},
	} {
		b := browser{}
		back := p.SignIn(t, c.account, begin(b, c.slug, "?return="+url.QueryEscape("/t/"+c.slug+"/ui/events?x=1")))
		resp := b.get(there, back.RequestURI())
		to := onward(t, resp)
		if c.may == "" {
			ref, ok := strings.CutPrefix(to, "/t/"+c.slug+"/connect?reference=")
			if !ok || there.noted[ref].Class != "no_role" || there.noted[ref].Tenant != admins[c.slug].Tenant || len(b) != 0 {
				t.Errorf("%s at %s: sent to %s, cookies %v, noted %+v", c.account, c.slug, to, b, there.noted[ref])
			}
			continue
		}
		if to != "/t/"+c.slug+"/ui/events?x=1" || len(b) != 1 {
			t.Errorf("%s at %s: sent to %s with %d cookies", c.account, c.slug, to, len(b))
		}
		var view auth.SessionView
		if err := json.Unmarshal([]byte(body(t, b.get(here, "/t/"+c.slug+"/api/v1/session"))), &view); err != nil || strings.Join(view.Scopes, " ") != c.may || view.CSRF == "" || view.Name == "" || view.Provider != "people of "+c.slug {
			t.Errorf("%s at %s: %+v, %v", c.account, c.slug, view, err)
		}
		want := p.Issuer() + "|" + c.account + "|" + authtest.Dashboard + " " + c.may
		if got := body(t, b.get(there, "/t/"+c.slug+"/api/v1/nodes")); got != want {
			t.Errorf("%s at %s calls as %q, want %q", c.account, c.slug, got, want)
		}
		other := map[string]string{"acme": "globex", "globex": "acme"}[c.slug]
		if resp := b.get(here, "/t/"+other+"/api/v1/nodes"); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s's session at %s: %s", c.account, other, resp.Status)
		}
		if resp := b.get(there, back.RequestURI()); !strings.Contains(onward(t, resp), "/connect?reference=") {
			t.Errorf("the answer was good twice: %s", resp.Status)
		}
	}

	// What an administrator takes away is gone within the promise.
	b := browser{}
	b.get(here, p.SignIn(t, authtest.Alice, begin(b, "acme", "")).RequestURI())
	if resp := b.get(here, "/t/acme/api/v1/nodes"); resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	if err := there.access.DeleteIssuer(t.Context(), admins["acme"], issuers["acme"].ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session of a removed issuer ends", func() bool {
		return b.get(here, "/t/acme/api/v1/nodes").StatusCode == http.StatusUnauthorized
	})
	if resp := b.get(here, "/t/acme/api/v1/session/login"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a tenant without an issuer: %s", resp.Status)
	}

	// The provider asks again only when it is told to.
	for query, prompt := range map[string]string{"": "", "?again=false": "", "?again=true": "login"} {
		if to, err := url.Parse(begin(browser{}, "globex", query)); err != nil || to.Query().Get("prompt") != prompt {
			t.Errorf("%q: prompt in %v, %v; want %q", query, to, err, prompt)
		}
	}

	// Answers that belong to no sign-in of this browser.
	for what, spoil := range map[string]func(browser, *url.URL) string{
		"another browser":    func(b browser, to *url.URL) string { clear(b); return to.RequestURI() },
		"another state":      func(_ browser, to *url.URL) string { return strings.Replace(to.RequestURI(), "state=", "state=x", 1) },
		"another issuer":     func(_ browser, to *url.URL) string { return to.Path + "?" + replace(to, "iss", "https://evil.example") },
		"no issuer":          func(_ browser, to *url.URL) string { return to.Path + "?" + replace(to, "iss", "") },
		"no code":            func(_ browser, to *url.URL) string { return to.Path + "?" + replace(to, "code", "") },
		"a made-up code":     func(_ browser, to *url.URL) string { return to.Path + "?" + replace(to, "code", "x") },
		"a planted cookie":   func(b browser, to *url.URL) string { b["telltale_8400_globex_signin"] = "x"; return to.RequestURI() },
		"the other tenant's": func(_ browser, to *url.URL) string { return strings.Replace(to.RequestURI(), "/globex/", "/acme/", 1) },
		"an error": func(_ browser, to *url.URL) string {
			return to.Path + "?error=access_denied&" + replace(to, "code", "")
		},
	} {
		b := browser{}
		to := p.SignIn(t, authtest.Carol, begin(b, "globex", ""))
		resp := b.get(here, spoil(b, to))
		ref, ok := strings.CutPrefix(resp.Header.Get("Location"), "/t/globex/connect?reference=")
		if what == "the other tenant's" {
			ref, ok = strings.CutPrefix(resp.Header.Get("Location"), "/t/acme/connect?reference=")
		}
		if class := here.noted[ref].Class; !ok || class != "sign_in_over" && class != "sign_in_refused" && class != "issuer" {
			t.Errorf("%s: %s to %q, class %q", what, resp.Status, resp.Header.Get("Location"), class)
		}
		if resp := b.get(here, "/t/globex/api/v1/nodes"); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s signed in: %s", what, resp.Status)
		}
	}
	for _, evil := range []string{"https://evil.example/t/globex/ui/", "//evil.example/t/globex/ui/", "/t/acme/ui/", "/t/globex/ui/../../acme", "/t/globex/ui/\\evil", "javascript:1", "/t/globex/api/v1/nodes", strings.Repeat("/t/globex/ui/", 100)} {
		b := browser{}
		resp := b.get(here, p.SignIn(t, authtest.Carol, begin(b, "globex", "?return="+url.QueryEscape(evil))).RequestURI())
		if to := onward(t, resp); to != "/t/globex/ui/" {
			t.Errorf("return to %q leads to %s", evil, to)
		}
	}

	// A provider that is away is told on a page, not as JSON.
	_, err := here.access.PutIssuer(t.Context(), admins["acme"], access.IssuerSpec{Name: "away", URL: "http://127.0.0.1:1", DashboardClientID: authtest.Dashboard,
		Roles: []tenants.RoleRule{{Claim: "groups", Value: "x", Scopes: tenants.Read}}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "an issuer that is away leads to the connect page", func() bool {
		ref, ok := strings.CutPrefix(browser{}.get(here, "/t/acme/api/v1/session/login").Header.Get("Location"), "/t/acme/connect?reference=")
		return ok && here.noted[ref].Class == "issuer_unreachable"
	})
}

func replace(u *url.URL, key, value string) string {
	q := u.Query()
	if q.Set(key, value); value == "" {
		q.Del(key)
	}
	return q.Encode()
}
