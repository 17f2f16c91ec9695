package login

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a tenant and its identity provider, as strict as a good one and as
// wrong as a test makes it.
type fake struct {
	t        *testing.T
	srv      *httptest.Server
	resource string
	issuer   string

	challenge  string         // WWW-Authenticate of the 401; "-" for none
	status     int            // of the MCP endpoint
	prm        map[string]any // overrides; a nil value removes
	meta       map[string]any
	place      string // of the provider's metadata
	answer     func(v url.Values)
	grant      map[string]any // overrides of token answers
	refuse     string         // error code of the token endpoint
	noResource bool           // the provider knows no resource parameter
	down       bool           // the token endpoint answers 503

	mu        sync.Mutex
	asked     url.Values // of the authorization request
	forms     []url.Values
	basic     []string
	hellos    []string // Authorization headers that the resource saw
	registers []map[string]any
	regStatus int
	regAnswer map[string]any
	refresh   string // the one that is good now
	minted    int
	burnt     bool // a refresh token was used twice: the grant is gone
	revoked   []string
}

func newFake(t *testing.T, secure bool) *fake {
	f := &fake{t: t, status: http.StatusUnauthorized, regStatus: http.StatusCreated, place: "/.well-known/oauth-authorization-server/idp"}
	if secure {
		f.srv = httptest.NewTLSServer(f)
	} else {
		f.srv = httptest.NewServer(f)
	}
	t.Cleanup(f.srv.Close)
	f.resource, f.issuer = f.srv.URL+"/t/acme/mcp", f.srv.URL+"/idp"
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	prmPath := "/.well-known/oauth-protected-resource/t/acme/mcp"
	switch r.URL.Path {
	case "/t/acme/mcp":
		f.hellos = append(f.hellos, r.Header.Get("Authorization"))
		switch f.challenge {
		case "-":
		case "":
			w.Header().Add("WWW-Authenticate", "Negotiate YII=")
			w.Header().Add("WWW-Authenticate", fmt.Sprintf(`Bearer resource_metadata="%s%s", scope="telltale:read"`, f.srv.URL, prmPath))
		default:
			w.Header().Set("WWW-Authenticate", f.challenge)
		}
		w.Header().Set("Location", "https://elsewhere.example/t/acme/mcp")
		w.WriteHeader(f.status)
	case prmPath:
		f.json(w, 200, map[string]any{"resource": f.resource, "authorization_servers": []string{f.issuer}, "scopes_supported": []string{"telltale:read", "telltale:act"}}, f.prm)
	case f.place:
		f.json(w, 200, map[string]any{
			"issuer": f.issuer, "authorization_endpoint": f.issuer + "/auth?tenant=1", "token_endpoint": f.issuer + "/token", "registration_endpoint": f.issuer + "/reg", "revocation_endpoint": f.issuer + "/revoke",
			"code_challenge_methods_supported": []string{"plain", "S256"}, "scopes_supported": []string{"openid", "offline_access"}, "authorization_response_iss_parameter_supported": true,
		}, f.meta)
	case "/moved":
		http.Redirect(w, r, f.srv.URL+prmPath, http.StatusFound)
	case "/idp/auth":
		f.asked = r.URL.Query()
		v := url.Values{"code": {"the-code"}, "state": {f.asked.Get("state")}, "iss": {f.issuer}}
		if f.answer != nil {
			f.answer(v)
		}
		http.Redirect(w, r, f.asked.Get("redirect_uri")+"?"+v.Encode(), http.StatusFound)
	case "/idp/reg":
		var m map[string]any
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			f.t.Error(err)
		}
		f.registers = append(f.registers, m)
		f.json(w, f.regStatus, map[string]any{"client_id": "registered", "token_endpoint_auth_method": "none"}, f.regAnswer)
	case "/idp/token":
		f.token(w, r)
	case "/idp/revoke":
		_ = r.ParseForm()
		f.revoked = append(f.revoked, r.PostForm.Get("token_type_hint")+" "+r.PostForm.Get("token"))
	default:
		http.NotFound(w, r)
	}
}

func (f *fake) json(w http.ResponseWriter, status int, doc, over map[string]any) {
	maps.Copy(doc, over)
	for k, v := range doc {
		if v == nil {
			delete(doc, k)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(doc)
}

func (f *fake) token(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		f.t.Error(err)
	}
	v := r.PostForm
	f.forms = append(f.forms, v)
	id, secret, _ := r.BasicAuth()
	f.basic = append(f.basic, id+":"+secret)
	bad := func(code string) {
		f.json(w, 400, map[string]any{"error": code, "error_description": "as the\x1b[31m test wants"}, nil)
	}
	switch {
	case f.down:
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "<html>down</html>")
		return
	case f.refuse != "":
		bad(f.refuse)
		return
	case v.Get("resource") != f.resource && !f.noResource, v.Has("resource") && f.noResource:
		bad("invalid_target")
		return
	case v.Get("grant_type") == "authorization_code":
		sum := sha256.Sum256([]byte(v.Get("code_verifier")))
		if v.Get("code") != "the-code" || base64.RawURLEncoding.EncodeToString(sum[:]) != f.asked.Get("code_challenge") || f.asked.Get("code_challenge_method") != "S256" || v.Get("redirect_uri") != f.asked.Get("redirect_uri") {
			bad("invalid_grant")
			return
		}
	case v.Get("grant_type") != "refresh_token" || f.burnt || v.Get("refresh_token") != f.refresh:
		f.burnt = true
		bad("invalid_grant")
		return
	}
	f.minted++
	f.refresh = fmt.Sprintf("refresh-%d", f.minted)
	f.json(w, 200, map[string]any{"access_token": fmt.Sprintf("access-%d", f.minted), "refresh_token": f.refresh, "token_type": "Bearer", "expires_in": 3600, "scope": f.asked.Get("scope")}, f.grant)
}

// plain is a client that follows no redirect, as the command's.
func (f *fake) plain() *http.Client {
	c := *f.srv.Client()
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

// flow is a login whose browser is a goroutine that the test waits for. pages
// holds what the browser shows in the end.
func (f *fake) flow() (flow *Flow, pages chan string) {
	pages = make(chan string, 8)
	flow = &Flow{URL: f.resource + "?toolsets=observe", Client: f.plain(), UserAgent: "test", Say: f.t.Logf}
	flow.Browse = func(to string) { go func() { pages <- f.visit(to) }() }
	return flow, pages
}

// visit is a browser: it follows redirects.
func (f *fake) visit(to string) string {
	res, err := f.srv.Client().Get(to)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", res.StatusCode, text)
}

func shown(t *testing.T, pages chan string) string {
	t.Helper()
	select {
	case p := <-pages:
		return p
	case <-time.After(20 * time.Second):
		t.Fatal("the browser shows nothing for 20 s")
		return ""
	}
}

func wants(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("no %q in %q", w, got)
		}
	}
}
