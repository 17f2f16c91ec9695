package auth

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
)

func TestChallenges(t *testing.T) {
	r := newRig(t, SiteConfig{})
	good, _ := r.mint(acme, nil)
	theirs, _ := r.mint(globex, nil)
	const link = `resource_metadata="https://telltale.example.org/.well-known/oauth-protected-resource/t/acme/mcp"`
	for _, issuer := range []bool{false, true} {
		if issuer {
			r.trusts[acme.ID] = tenants.Trust{Issuers: []tenants.Issuer{{URL: "https://id.example.org"}}}
		}
		with := func(rest string) string {
			if issuer {
				return "Bearer " + link + ", " + rest
			}
			return "Bearer " + rest
		}
		for _, c := range []struct {
			what, path string
			header     []string
			status     int
			challenge  string
		}{
			{"none", "/t/acme/mcp", nil, 401, with(`scope="telltale:read"`)},
			{"none at REST", "/t/acme/api/v1/nodes", nil, 401, with(`scope="telltale:read"`)},
			{"none, unknown tenant", "/t/nope/mcp", nil, 401, "Bearer " + strings.Replace(link, "acme", "nope", 1) + `, scope="telltale:read"`},
			{"only in the query", "/t/acme/mcp?access_token=" + good, nil, 401, with(`scope="telltale:read"`)},
			{"another scheme", "/t/acme/mcp", []string{"Authorization", "Basic YTpi"}, 401, with(`scope="telltale:read"`)},
			{"nonsense", "/t/acme/mcp", []string{"Authorization", "Bearer x"}, 401,
				with(`error="invalid_token", error_description="malformed: the credential has no form that is accepted here", scope="telltale:read"`)},
			{"mistyped", "/t/acme/mcp", []string{"Authorization", "Bearer " + mistype(good)}, 401,
				with(`error="invalid_token", error_description="checksum: the token is mistyped or cut", scope="telltale:read"`)},
			{"the other tenant's", "/t/acme/mcp", []string{"Authorization", "Bearer " + theirs}, 401,
				with(`error="invalid_token", error_description="unknown: the credential is not known here", scope="telltale:read"`)},
			{"two headers", "/t/acme/mcp", []string{"Authorization", "Bearer " + good, "Authorization", "Bearer " + good}, 400, ""},
			{"missing scope", "/t/acme/api/v1/act", []string{"Authorization", "Bearer " + good}, 403, strings.TrimSuffix(
				`Bearer error="insufficient_scope", scope="telltale:read telltale:act", `+map[bool]string{true: link, false: ""}[issuer], ", ")},
			{"good", "/t/acme/mcp", []string{"Authorization", "bearer " + good}, 200, ""},
			{"good at REST", "/t/acme/api/v1/nodes", []string{"Authorization", "bearer " + good}, 200, ""},
			{"long", "/t/acme/mcp", []string{"Authorization", "Bearer " + strings.Repeat("a", 400_000)}, 401,
				with(`error="invalid_token", error_description="malformed: the credential has no form that is accepted here", scope="telltale:read"`)},
		} {
			w := r.do("POST", c.path, "", c.header...)
			if got := w.Header().Get("WWW-Authenticate"); w.Code != c.status || got != c.challenge {
				t.Errorf("%s: %d %q\nwant %d %q", c.what, w.Code, got, c.status, c.challenge)
			}
			if ref := w.Header().Get(ReferenceHeader); (w.Code != 200) != (len(ref) == 20) {
				t.Errorf("%s: reference %q on %d", c.what, ref, w.Code)
			}
			if w.Header().Get("Cache-Control") != "no-store" || !strings.Contains(strings.Join(w.Header().Values("Vary"), ","), "Authorization") {
				t.Errorf("%s: a cache may keep the answer", c.what)
			}
			if w.Code == 200 {
				continue
			}
			var doc Problem
			if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || doc.Status != w.Code || doc.Detail == "" || doc.ReferenceID != w.Header().Get(ReferenceHeader) || doc.Next == nil {
				t.Errorf("%s: body %s", c.what, w.Body)
			}
			if strings.Contains(w.Body.String(), "tt_") || strings.Contains(w.Header().Get("WWW-Authenticate"), "tt_") {
				t.Errorf("%s: the answer shows a token", c.what)
			}
		}
	}
}

// An unknown tenant answers exactly as a known one that has an issuer, with and
// without a token, but for its own slug in the link.
func TestUnknownTenantAnswersAlike(t *testing.T) {
	r := newRig(t, SiteConfig{})
	r.trusts[acme.ID] = tenants.Trust{Issuers: []tenants.Issuer{{URL: "https://id.example.org"}}}
	theirs, _ := r.mint(globex, nil)
	stranger, _ := tenants.MintSecret(tenants.OperatorSecret)
	for _, path := range []string{"/mcp", "/api/v1/nodes", "/session"} {
		for _, bearer := range []string{"", theirs, stranger, mistype(theirs)} {
			var header []string
			if bearer != "" {
				header = []string{"Authorization", "Bearer " + bearer}
			}
			known, unknown := r.do("GET", "/t/acme"+path, "", header...), r.do("GET", "/t/nope"+path, "", header...)
			for _, w := range []*httptest.ResponseRecorder{known, unknown} {
				ref := w.Header().Get(ReferenceHeader)
				w.Header().Del(ReferenceHeader)
				w.Body = bytes.NewBuffer(bytes.ReplaceAll(w.Body.Bytes(), []byte(ref), nil))
			}
			was := unknown.Header().Get("WWW-Authenticate")
			if unknown.Header().Set("WWW-Authenticate", strings.Replace(was, "/t/nope/", "/t/acme/", 1)); !strings.Contains(was, "/t/nope/mcp") {
				t.Errorf("%s: an unknown tenant has no link: %s", path, was)
			}
			if known.Code != unknown.Code || !cmp.Equal(known.Header(), unknown.Header()) || known.Body.String() != unknown.Body.String() {
				t.Errorf("%s with %.8q: %d %v %s\nagainst %d %v %s", path, bearer, known.Code, known.Header(), known.Body, unknown.Code, unknown.Header(), unknown.Body)
			}
		}
	}
}

func TestOutageIsNoRefusal(t *testing.T) {
	r := newRig(t, SiteConfig{})
	good, _ := r.mint(acme, nil)
	r.setDown(true)
	w := r.do("GET", "/t/acme/mcp", "", "Authorization", "Bearer "+good)
	if w.Code != 503 || w.Header().Get("WWW-Authenticate") != "" || strings.Contains(w.Body.String(), "secret detail") || w.Header().Get(ReferenceHeader) == "" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

// The log names the refusal by its true class and reference, never the token.
func TestRefusalIsLogged(t *testing.T) {
	r := newRig(t, SiteConfig{})
	theirs, _ := r.mint(globex, nil)
	var out bytes.Buffer
	ch := NewChallenger(r.site, r, nil, slog.New(slog.NewTextHandler(&out, nil)))
	mux := http.NewServeMux()
	mux.Handle("/t/{tenant}/mcp", NewGate(r.site, r.verifier, nil, ch).Bearer(http.NotFoundHandler()))
	r.Handler = mux
	r.do("GET", "/t/"+theirs+"/mcp", "", "Authorization", "Bearer "+theirs) // pasted in the wrong place
	w := r.do("GET", "/t/acme/mcp", "", "Authorization", "Bearer "+theirs)
	line := out.String()
	if !strings.Contains(line, "class=wrong_tenant") || !strings.Contains(line, "reference="+w.Header().Get(ReferenceHeader)) || strings.Contains(line, "tt_") {
		t.Error(line)
	}
}

func TestMetadata(t *testing.T) {
	r := newRig(t, SiteConfig{})
	get := func(path string) (int, string) {
		t.Helper()
		w := r.do("GET", path, "", "Origin", "https://anything.example", "X-Forwarded-Host", "evil.example")
		if w.Header().Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: not readable from a browser", path)
		}
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	const tail = `"scopes_supported":["telltale:read","telltale:payloads","telltale:diagnose","telltale:act","telltale:approve","telltale:maintain","telltale:admin"],"bearer_methods_supported":["header"],"resource_name":"Telltale: Acme"}`
	want := `{"resource":"https://telltale.example.org/t/acme/mcp",` + tail
	for _, path := range []string{"/.well-known/oauth-protected-resource/t/acme/mcp", "/t/acme/mcp/.well-known/oauth-protected-resource"} {
		if code, body := get(path); code != 200 || body != want {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	r.trusts[acme.ID] = tenants.Trust{Issuers: []tenants.Issuer{{URL: "https://id.example.org"}}}
	want = `{"resource":"https://telltale.example.org/t/acme/mcp","authorization_servers":["https://id.example.org"],` + tail
	if code, body := get("/.well-known/oauth-protected-resource/t/acme/mcp"); code != 200 || body != want {
		t.Errorf("with an issuer: %d %s", code, body)
	}
	if code, body := get("/.well-known/oauth-protected-resource/t/globex/mcp"); code != 200 || !strings.Contains(body, "/t/globex/mcp") || strings.Contains(body, "acme") || strings.Contains(body, "authorization_servers") {
		t.Errorf("globex: %d %s", code, body)
	}
	for _, path := range []string{
		"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/", "/.well-known/oauth-protected-resource/t/nope/mcp",
		"/.well-known/oauth-protected-resource/t/acme", "/.well-known/oauth-protected-resource/t/acme/mcp/x", "/.well-known/oauth-protected-resource/t/ACME/mcp",
		"/.well-known/oauth-protected-resource/t/acme/globex/mcp", "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource/t//mcp",
		"/t/nope/mcp/.well-known/oauth-protected-resource", "/t/acme/.well-known/oauth-protected-resource", "/.well-known/oauth-authorization-server",
	} {
		if code, body := get(path); code != 404 || strings.Contains(body, "example.org/t/") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if w := r.do("OPTIONS", "/.well-known/oauth-protected-resource/t/acme/mcp", "", "Origin", "https://x.example", "Access-Control-Request-Method", "GET"); w.Code != 204 {
		t.Errorf("preflight: %d", w.Code)
	}
	if w := r.do("POST", "/.well-known/oauth-protected-resource/t/acme/mcp", "{}"); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestHosts(t *testing.T) {
	for _, c := range []struct {
		public string
		more   []string
		host   string
		want   bool
	}{
		{"https://t.example.org", nil, "t.example.org", true},
		{"https://t.example.org", nil, "T.Example.ORG", true},
		{"https://t.example.org", nil, "t.example.org:444", false},
		{"https://t.example.org", nil, "evil.example", false},
		{"https://t.example.org", nil, "t.example.org.evil.example", false},
		{"https://t.example.org", nil, "", false},
		{"https://t.example.org", nil, "127.0.0.1", false},
		{"https://t.example.org", nil, "localhost:8400", false},
		{"https://t.example.org", []string{"inner"}, "inner:9", true},
		{"https://t.example.org", []string{"inner:8"}, "inner:9", false},
		{"https://t.example.org", []string{"inner:8"}, "inner:8", true},
		{"http://127.0.0.1:8400", nil, "127.0.0.1:8400", true},
		{"http://127.0.0.1:8400", nil, "localhost:8400", true},
		{"http://127.0.0.1:8400", nil, "[::1]:8400", true},
		{"http://127.0.0.1:8400", nil, "rebound.example:8400", false},
		{"http://127.0.0.1:8400", nil, "127.0.0.1.evil.example:8400", false},
	} {
		r := newRig(t, SiteConfig{PublicURL: c.public, AllowedHosts: c.more})
		w := r.do("GET", "/t/acme/mcp", "", "Host", c.host)
		if got := w.Code != http.StatusMisdirectedRequest; got != c.want {
			t.Errorf("%s %v: host %q: %d", c.public, c.more, c.host, w.Code)
		}
	}
}

func TestOrigins(t *testing.T) {
	r := newRig(t, SiteConfig{AllowedOrigins: []string{"https://tool.example"}})
	good, _ := r.mint(acme, nil)
	for _, c := range []struct {
		origin string
		ok     bool
	}{
		{"https://telltale.example.org", true}, {"https://tool.example", true}, {"https://TOOL.example", true},
		{"http://telltale.example.org", false}, {"https://telltale.example.org:444", false}, {"https://tool.example.evil.example", false},
		{"null", false}, {"", false}, {"http://127.0.0.1:8400", false}, {"*", false},
	} {
		w := r.do("POST", "/t/acme/mcp", "", "Origin", c.origin, "Authorization", "Bearer "+good)
		allow := w.Header().Get("Access-Control-Allow-Origin")
		if c.ok && (w.Code != 200 || allow != c.origin || !strings.Contains(w.Header().Get("Access-Control-Expose-Headers"), "MCP-Protocol-Version")) ||
			!c.ok && (w.Code != 403 || allow != "" || w.Header().Get(ReferenceHeader) == "") {
			t.Errorf("origin %q: %d %v", c.origin, w.Code, w.Header())
		}
		if w.Header().Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("origin %q: cookies are offered", c.origin)
		}
		w = r.do("OPTIONS", "/t/acme/mcp", "", "Origin", c.origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "authorization")
		if want := map[bool]int{true: 204, false: 403}[c.ok]; w.Code != want {
			t.Errorf("preflight of %q: %d", c.origin, w.Code)
		}
	}
	if w := r.do("POST", "/t/acme/mcp", "", "Origin", "https://tool.example", "Origin", "https://evil.example", "Authorization", "Bearer "+good); w.Code != 403 {
		t.Errorf("two origins: %d", w.Code)
	}
	if w := r.do("POST", "/t/acme/mcp", "", "Authorization", "Bearer "+good); w.Code != 200 || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("no origin: %d", w.Code)
	}
	dev := newRig(t, SiteConfig{PublicURL: "http://127.0.0.1:8400"})
	for origin, want := range map[string]int{"http://localhost:8400": 401, "http://localhost:5173": 403, "https://localhost:8400": 403} {
		if w := dev.do("POST", "/t/acme/mcp", "", "Origin", origin); w.Code != want {
			t.Errorf("loopback origin %s: %d, want %d", origin, w.Code, want)
		}
	}
}

func TestClientAddr(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []struct {
		peer, forwarded string
		unix            bool
		want            string
	}{
		{"192.0.2.1:5", "", false, "192.0.2.1"},
		{"192.0.2.1:5", "198.51.100.9", false, "192.0.2.1"}, // no proxy of ours
		{"10.0.0.1:5", "198.51.100.9", false, "198.51.100.9"},
		{"10.0.0.1:5", "203.0.113.1, 198.51.100.9", false, "198.51.100.9"}, // what the client wrote itself is not believed
		{"10.0.0.1:5", "203.0.113.1, 10.1.1.1", false, "203.0.113.1"},
		{"10.0.0.1:5", "nonsense", false, "invalid IP"},
		{"10.0.0.1:5", "203.0.113.1, nonsense", false, "invalid IP"},
		{"10.0.0.1:5", "", false, "10.0.0.1"},
		{"[::ffff:192.0.2.1]:5", "", false, "192.0.2.1"},
		{"@", "198.51.100.9", false, "invalid IP"},
		{"@", "198.51.100.9", true, "198.51.100.9"},
		{"", "", true, "invalid IP"},
	} {
		site, err := NewSite(SiteConfig{PublicURL: publicURL, TrustedProxies: proxies, TrustUnix: c.unix})
		if err != nil {
			t.Fatal(err)
		}
		q := httptest.NewRequest("GET", "/", nil)
		q.RemoteAddr = c.peer
		if c.forwarded != "" {
			q.Header.Set("X-Forwarded-For", c.forwarded)
		}
		if got := site.ClientAddr(q).String(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

func TestSiteMistakes(t *testing.T) {
	for _, u := range []string{"", "telltale.example.org", "ftp://x", "https://x/path", "https://u@x", "https://x?a=b", "http://telltale.example.org", "https://"} {
		if _, err := NewSite(SiteConfig{PublicURL: u}); err == nil {
			t.Errorf("public URL %q was accepted", u)
		}
	}
	_, err := NewSite(SiteConfig{PublicURL: "http://x.example", AllowedHosts: []string{"*"}, AllowedOrigins: []string{"*", "https://a/b"}})
	for _, part := range []string{"plain http", `host "*"`, `origin "*"`, `origin "https://a/b"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not name %s", err, part)
		}
	}
	s, err := NewSite(SiteConfig{PublicURL: "https://Telltale.Example.org/"})
	if err != nil || s.MCP("acme") != "https://telltale.example.org/t/acme/mcp" || s.REST("acme") != "https://telltale.example.org/t/acme/api/v1" {
		t.Error(s, err)
	}
}

func TestScopeFromNothing(t *testing.T) {
	if _, ok := ScopeFrom(t.Context()); ok {
		t.Error("a scope out of nothing")
	}
	if _, ok := ScopeFrom(WithScope(t.Context(), tenants.Scope{})); ok {
		t.Error("the zero scope counts as one")
	}
	r := newRig(t, SiteConfig{})
	w := httptest.NewRecorder()
	r.gate.Require(tenants.Read)(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 401 {
		t.Errorf("a route without a gate: %d", w.Code)
	}
}
