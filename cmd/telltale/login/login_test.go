package login

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestSignsIn(t *testing.T) {
	f := newFake(t, false)
	flow, pages := f.flow()
	in, err := flow.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wants(t, shown(t, pages), "200 ", "Signed in")
	want := Login{
		Resource: f.resource, Issuer: f.issuer, ClientID: "registered", ClientAuth: "none", TokenEndpoint: f.issuer + "/token", RevocationEndpoint: f.issuer + "/revoke",
		AccessToken: "access-1", RefreshToken: "refresh-1", Scope: "telltale:read offline_access",
	}
	if diff := cmp.Diff(want, in, cmpopts.IgnoreFields(Login{}, "Since", "Obtained", "Expires")); diff != "" {
		t.Error(diff)
	}
	if left := time.Until(in.Expires); left < 59*time.Minute || left > time.Hour {
		t.Errorf("%s left", left)
	}
	back, err := url.Parse(f.asked.Get("redirect_uri"))
	if err != nil || back.Hostname() != "127.0.0.1" || back.Scheme != "http" || back.Path != "/callback" {
		t.Errorf("redirect %s", back)
	}
	if f.asked.Get("resource") != f.resource || f.asked.Get("tenant") != "1" || f.asked.Get("response_type") != "code" || len(f.asked.Get("state")) < 20 || f.asked.Get("client_id") != "registered" {
		t.Errorf("asked %v", f.asked)
	}
	reg := f.registers[0]
	if reg["application_type"] != "native" || reg["token_endpoint_auth_method"] != "none" || !cmp.Equal(reg["redirect_uris"], []any{back.String()}) {
		t.Errorf("registered %v", reg)
	}
	if len(f.hellos) != 1 || f.hellos[0] != "" {
		t.Errorf("a credential went to the resource: %q", f.hellos)
	}
	if _, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", back.Host); err == nil {
		t.Error("somebody still listens for the browser")
	}
}

// TestPlacesOfMetadata: RFC 8414 with the path inserted, and both of OpenID
// Connect.
func TestPlacesOfMetadata(t *testing.T) {
	for _, c := range []struct{ issuer, place string }{
		{"/idp", "/.well-known/oauth-authorization-server/idp"}, {"/idp", "/.well-known/openid-configuration/idp"}, {"/idp", "/idp/.well-known/openid-configuration"},
		{"", "/.well-known/oauth-authorization-server"}, {"/", "/.well-known/openid-configuration"},
	} {
		t.Run(c.place, func(t *testing.T) {
			f := newFake(t, false)
			f.place, f.issuer = c.place, f.srv.URL+c.issuer
			f.meta = map[string]any{"authorization_endpoint": f.srv.URL + "/idp/auth", "token_endpoint": f.srv.URL + "/idp/token", "registration_endpoint": nil}
			flow, pages := f.flow()
			in, err := flow.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			shown(t, pages)
			if in.Issuer != f.issuer || in.ClientID != DefaultClient {
				t.Errorf("%s %s", in.Issuer, in.ClientID)
			}
		})
	}
}

// TestClients: which client id is used, and how it authenticates.
func TestClients(t *testing.T) {
	for name, c := range map[string]struct {
		set      func(*fake, *Flow)
		id       string
		basic    string
		formID   string
		formPass string
	}{
		"PKCE assumed": {func(f *fake, l *Flow) {
			f.meta = map[string]any{"code_challenge_methods_supported": nil}
			l.AssumePKCE = true
		}, "registered", ":", "registered", ""},
		"named": {func(_ *fake, l *Flow) { l.ClientID = "mine" }, "mine", ":", "mine", ""},
		"URL": {func(f *fake, l *Flow) {
			l.ClientID = "https://x.example/c.json"
			f.meta = map[string]any{"client_id_metadata_document_supported": true}
		}, "https://x.example/c.json", ":", "https://x.example/c.json", ""},
		"registration refused": {func(f *fake, _ *Flow) {
			f.regStatus = 403
			f.regAnswer = map[string]any{"client_id": nil, "error": "access_denied"}
		}, DefaultClient, ":", DefaultClient, ""},
		"registered with a secret": {func(f *fake, _ *Flow) {
			f.regAnswer = map[string]any{"client_secret": "s3 cret", "token_endpoint_auth_method": nil}
		}, "registered", "registered:s3+cret", "", ""},
		"registered, secret posted": {func(f *fake, _ *Flow) {
			f.regAnswer = map[string]any{"client_secret": "s3cret", "token_endpoint_auth_method": post}
		}, "registered", ":", "registered", "s3cret"},
		"secret of a public client": {func(f *fake, _ *Flow) { f.regAnswer = map[string]any{"client_secret": "s3cret"} }, "registered", ":", "registered", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, false)
			flow, pages := f.flow()
			c.set(f, flow)
			in, err := flow.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			shown(t, pages)
			form := f.forms[0]
			if in.ClientID != c.id || f.basic[0] != c.basic || form.Get("client_id") != c.formID || form.Get("client_secret") != c.formPass {
				t.Errorf("id %s, basic %s, form %v", in.ClientID, f.basic[0], form)
			}
		})
	}
}

// TestRefuses walks through everything that must end a login, and looks that
// no code and no secret went out where it must not.
func TestRefuses(t *testing.T) {
	over := func(kv ...any) map[string]any {
		m := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i].(string)] = kv[i+1]
		}
		return m
	}
	set := func(kv ...string) func(url.Values) {
		return func(v url.Values) {
			for i := 0; i < len(kv); i += 2 {
				if v.Del(kv[i]); kv[i+1] != "" {
					v.Set(kv[i], kv[i+1])
				}
			}
		}
	}
	for name, c := range map[string]struct {
		set    func(*fake, *Flow)
		secure bool // the resource is https
		spent  bool // the code may have been sent
		want   []string
	}{
		"wrong issuer":            {func(f *fake, _ *Flow) { f.answer = set("iss", "https://evil.example") }, false, false, []string{`"https://evil.example"`, "the code was not used"}},
		"issuer twice":            {func(f *fake, _ *Flow) { f.answer = func(v url.Values) { v.Add("iss", "https://evil.example") } }, false, false, []string{"the code was not used"}},
		"promised issuer missing": {func(f *fake, _ *Flow) { f.answer = set("iss", "") }, false, false, []string{"does not say that it comes from"}},
		"wrong, not promised": {func(f *fake, _ *Flow) {
			f.answer = set("iss", "https://evil.example")
			f.meta = over("authorization_response_iss_parameter_supported", nil)
		}, false, false, []string{"evil"}},
		"error of another issuer": {func(f *fake, _ *Flow) { f.answer = set("iss", "https://evil.example", "error", "access_denied") }, false, false, []string{"the answer comes from"}},
		"denied": {func(f *fake, _ *Flow) {
			f.answer = set("code", "", "error", "access_denied", "error_description", "no\x1b[2J\nthanks")
		}, false, false, []string{"access_denied: no [2J thanks", "consent"}},
		"invalid target":        {func(f *fake, _ *Flow) { f.answer = set("code", "", "error", "invalid_target") }, false, false, []string{"does not know this tenant's URL"}},
		"no code":               {func(f *fake, _ *Flow) { f.answer = set("code", "") }, false, false, []string{"holds no code"}},
		"metadata of another":   {func(f *fake, _ *Flow) { f.prm = over("resource", f.srv.URL+"/t/globex/mcp") }, false, false, []string{"globex", "somebody stands in between"}},
		"metadata with a slash": {func(f *fake, _ *Flow) { f.prm = over("resource", f.resource+"/") }, false, false, []string{"is about"}},
		"issuer of another":     {func(f *fake, _ *Flow) { f.meta = over("issuer", f.issuer+"/") }, false, false, []string{"to the letter"}},
		"no PKCE":               {func(f *fake, _ *Flow) { f.meta = over("code_challenge_methods_supported", nil) }, false, false, []string{"PKCE", "--assume-pkce"}},
		"plain PKCE only": {func(f *fake, l *Flow) {
			f.meta = over("code_challenge_methods_supported", []string{"plain"})
			l.AssumePKCE = true
		}, false, false, []string{"only as plain"}},
		"token endpoint downgraded": {func(f *fake, _ *Flow) { f.meta = over("token_endpoint", "http://127.0.0.1:1/token") }, true, false, []string{"token endpoint", "not https"}},
		"browser downgraded":        {func(f *fake, _ *Flow) { f.meta = over("authorization_endpoint", "http://idp.example/auth") }, false, false, []string{"not https"}},
		"a file for the browser":    {func(f *fake, _ *Flow) { f.meta = over("authorization_endpoint", "file:///etc/passwd") }, false, false, []string{"authorization endpoint"}},
		"issuer downgraded":         {func(f *fake, _ *Flow) { f.prm = over("authorization_servers", []string{"http://127.0.0.1:1"}) }, true, false, []string{"not https"}},
		"metadata link downgraded":  {func(f *fake, _ *Flow) { f.challenge = `Bearer resource_metadata="http://127.0.0.1:1/x"` }, true, false, []string{"not https"}},
		"metadata moved":            {func(f *fake, _ *Flow) { f.challenge = `Bearer resource_metadata="` + f.srv.URL + `/moved"` }, false, false, []string{"redirects to"}},
		"no provider":               {func(f *fake, _ *Flow) { f.challenge = "-"; f.prm = over("authorization_servers", nil) }, false, false, []string{"no identity provider", "TELLTALE_TOKEN"}},
		"another provider wanted":   {func(_ *fake, l *Flow) { l.Issuer = "https://other.example" }, false, false, []string{"does not accept", "https://other.example"}},
		"no metadata of provider":   {func(f *fake, _ *Flow) { f.place = "/nowhere" }, false, false, []string{"publishes no metadata"}},
		"no MCP there":              {func(f *fake, _ *Flow) { f.status = 404 }, false, false, []string{"no MCP endpoint"}},
		"MCP moved":                 {func(f *fake, _ *Flow) { f.status = 307 }, false, false, []string{"elsewhere.example"}},
		"open to all":               {func(f *fake, _ *Flow) { f.status = 200 }, false, false, []string{"no credential"}},
		"broken server":             {func(f *fake, _ *Flow) { f.status = 502 }, false, false, []string{"502"}},
		"URL as client id":          {func(_ *fake, l *Flow) { l.ClientID = "https://x.example/c.json" }, false, false, []string{"takes no URL"}},
		"code refused":              {func(f *fake, _ *Flow) { f.refuse = "invalid_grant" }, false, true, []string{"invalid_grant: as the [31m test wants"}},
		"token of another kind":     {func(f *fake, _ *Flow) { f.grant = over("token_type", "DPoP") }, false, true, []string{"DPoP"}},
		"token with a line break":   {func(f *fake, _ *Flow) { f.grant = over("access_token", "a\r\nX: y") }, false, true, []string{"no header can carry"}},
		"provider down":             {func(f *fake, _ *Flow) { f.down = true }, false, true, []string{"503"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, c.secure)
			flow, pages := f.flow()
			c.set(f, flow)
			in, err := flow.Run(t.Context())
			if err == nil {
				t.Fatalf("signed in: %+v", in)
			}
			wants(t, err.Error(), c.want...)
			if strings.ContainsAny(err.Error(), "\x1b\n") || strings.Contains(err.Error(), "the-code") || strings.Contains(err.Error(), "access-") {
				t.Errorf("%q", err)
			}
			if len(f.forms) > 0 != c.spent {
				t.Errorf("%d requests to the token endpoint", len(f.forms))
			}
			if f.asked != nil {
				wants(t, shown(t, pages), "403 ", "Not signed in")
			}
		})
	}
}

// TestStrangersAnswer: another page of the browser, or another program, must
// neither end the login nor be believed.
func TestStrangersAnswer(t *testing.T) {
	f := newFake(t, false)
	flow, pages := f.flow()
	var said []string
	flow.Say = func(format string, _ ...any) { said = append(said, format) }
	flow.Browse = func(to string) {
		u, err := url.Parse(to)
		if err != nil {
			t.Error(err)
		}
		back := u.Query().Get("redirect_uri")
		for _, s := range []struct{ url, want string }{
			{back + "?code=evil&state=guess", "400 "}, {back + "?code=evil", "400 "}, {back + "?error=access_denied&state=", "400 "},
			{back + "?code=evil&state=x&state=" + u.Query().Get("state"), "400 "}, {strings.TrimSuffix(back, "callback"), "404 "}, {back + "x?code=evil", "404 "},
			{strings.Replace(back, "127.0.0.1", "localhost", 1) + "?code=evil&state=guess", "404 "},
		} {
			wants(t, f.visit(s.url), s.want)
		}
		go func() { pages <- f.visit(to) }()
	}
	in, err := flow.Run(t.Context())
	if err != nil || in.AccessToken != "access-1" {
		t.Fatal(err, in)
	}
	wants(t, shown(t, pages), "200 ")
	wants(t, strings.Join(said, "\n"), "belongs to no login")
}

func TestSecondAnswerIsTurnedAway(t *testing.T) {
	r, err := listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	early := newFake(t, false)
	wants(t, early.visit(r.uri+"?code=a&state=s"), "409 ") // nothing was asked yet
	r.expect(request{state: "s", issuer: "i"})
	pages := make(chan string, 1)
	go func() { pages <- early.visit(r.uri + "?code=a&state=s") }()
	if a := <-r.answers; a.code != "a" || a.err != nil {
		t.Errorf("%+v", a)
	}
	wants(t, early.visit(r.uri+"?code=b&state=s"), "409 ")
	r.verdict(nil)
	wants(t, shown(t, pages), "200 ")
}

// TestNoResource leaves the parameter out everywhere, for providers that refuse
// it, and for as long as the login lives.
func TestNoResource(t *testing.T) {
	f := newFake(t, false)
	f.noResource, f.grant = true, map[string]any{"expires_in": 1}
	flow, pages := f.flow()
	flow.NoResource = true
	in, err := flow.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shown(t, pages)
	s := &Store{Dir: t.TempDir() + "/logins", Ends: Endpoints{Client: f.plain()}, Now: func() time.Time { return time.Now().Add(time.Hour) }}
	if err := s.Put(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	if next, err := s.Fresh(t.Context(), f.resource); err != nil || next.AccessToken != "access-2" || f.asked.Has("resource") {
		t.Errorf("%+v %v, asked %v", next, err, f.asked)
	}
}

func TestNobodyComes(t *testing.T) {
	f := newFake(t, false)
	flow, _ := f.flow()
	ctx, cancel := context.WithCancel(t.Context())
	flow.Browse = func(string) { cancel() }
	if _, err := flow.Run(ctx); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Error(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	flow.Browse = nil
	if _, err := flow.Run(ctx); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Error(err)
	}
}

func TestUnreachable(t *testing.T) {
	flow := &Flow{URL: "http://127.0.0.1:1/t/acme/mcp", Client: http.DefaultClient, Say: t.Logf}
	_, err := flow.Run(t.Context())
	if _, ok := err.(*Unreachable); !ok || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
}

func TestResource(t *testing.T) {
	for in, want := range map[string]string{
		"https://Host.Example/t/acme/mcp/?toolsets=observe#x": "https://host.example/t/acme/mcp",
		"HTTP://127.0.0.1:8400/t/acme/mcp":                    "http://127.0.0.1:8400/t/acme/mcp",
		"https://h/t/acme/mcp?":                               "https://h/t/acme/mcp",
	} {
		if got, err := Resource(in); got != want || err != nil {
			t.Errorf("%s: %s %v", in, got, err)
		}
	}
	if _, err := Resource("acme"); err == nil {
		t.Error("no error")
	}
}
