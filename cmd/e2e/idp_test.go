package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
)

// idpDir holds the demo identity provider; the binaries under test are not
// beside it.
const idpDir = "../../deploy/devidp"

// Each account connects with the same request: what it sees is what its groups
// may do in that tenant.
func TestSignIn(t *testing.T) {
	s := startDev(t, newDataDir(t), nil, "--no-agent", "--idp-dir", idpDir)
	if s.Issuer == nil {
		t.Fatalf("the ready file has no issuer:\n%s", s.output)
	}
	acme, globex := s.tenant(t, "acme"), s.tenant(t, "globex")
	idp := authtest.At(*s.Issuer, s.BaseURL)

	t.Run("discovery of both kinds", func(t *testing.T) {
		for _, path := range []string{"/.well-known/openid-configuration", "/.well-known/oauth-authorization-server"} {
			a := call(t, http.MethodGet, *s.Issuer+path, "", "")
			var doc struct{ Issuer string }
			if err := json.Unmarshal([]byte(a.body), &doc); err != nil || doc.Issuer != *s.Issuer {
				t.Errorf("%s: %d %v: issuer %q, want %q", path, a.status, err, doc.Issuer, *s.Issuer)
			}
		}
	})
	t.Run("a client finds the provider", func(t *testing.T) {
		for _, x := range []tenant{acme, globex} {
			a := call(t, http.MethodPost, x.MCPURL, "", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcpHeaders...)
			_, rest, _ := strings.Cut(a.header.Get("WWW-Authenticate"), `resource_metadata="`)
			at, _, ok := strings.Cut(rest, `"`)
			if a.status != http.StatusUnauthorized || !ok {
				t.Fatalf("%s without a token: %d %v", x.Slug, a.status, a.header)
			}
			var meta struct {
				Resource string   `json:"resource"`
				Servers  []string `json:"authorization_servers"`
			}
			if m := call(t, http.MethodGet, at, "", ""); json.Unmarshal([]byte(m.body), &meta) != nil || meta.Resource != x.MCPURL || !slices.Equal(meta.Servers, []string{*s.Issuer}) {
				t.Errorf("%s: %d %s", at, m.status, m.body)
			}
		}
	})
	t.Run("accounts", func(t *testing.T) { accountsSeeTheirs(t, idp, acme, globex) })
	t.Run("a token is for one tenant", func(t *testing.T) {
		const scope = "telltale:read"
		for _, c := range []struct{ of, at tenant }{{acme, globex}, {globex, acme}} {
			token := idp.Token(t, authtest.Dana, "", scope, c.of.MCPURL)
			for _, url := range []string{c.at.MCPURL, c.at.RESTURL + "/nodes"} {
				if a := knock(t, url, token); a.status != http.StatusUnauthorized || !strings.Contains(a.header.Get("WWW-Authenticate"), `error="invalid_token"`) {
					t.Errorf("%s's token at %s: %d %v", c.of.Slug, url, a.status, a.header)
				}
			}
			if a := knock(t, c.of.RESTURL+"/nodes", token); a.status != http.StatusOK {
				t.Errorf("%s's token at its own REST: %d %s", c.of.Slug, a.status, a.body)
			}
		}
	})
	t.Run("matrix", func(t *testing.T) { matrix(t, idp, acme, globex) })
	t.Run("a quota bites its caller alone", func(t *testing.T) { quotaBites(t, globex, acme) })
	t.Run("dies with a word", func(t *testing.T) {
		pids := providerOf(t, s.dir)
		if len(pids) != 1 {
			t.Fatalf("providers: %v, want one", pids)
		}
		if err := syscall.Kill(pids[0], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.ended:
		case <-time.After(20 * time.Second):
			t.Fatal("the stack goes on without its identity provider")
		}
		if text := s.output.String(); !strings.Contains(text, "the identity provider ended") || !strings.Contains(text, "idp.log") {
			t.Errorf("the stack does not say why it ended:\n%s", text)
		}
	})
}

// accountsSeeTheirs signs every account in at both tenants for all scopes.
func accountsSeeTheirs(t *testing.T, idp *authtest.Provider, acme, globex tenant) {
	const scope = "telltale:read telltale:diagnose telltale:admin"
	const read, diagnose, nothing = "metrics_summary", "profile_on_cpu", ""
	for _, c := range []struct {
		account string
		at      tenant
		most    string // the most that it may do
	}{
		{authtest.Alice, acme, diagnose},
		{authtest.Bob, acme, read},
		{authtest.Carol, acme, nothing},
		{authtest.Dana, acme, diagnose},
		{authtest.Erin, acme, nothing},
		{authtest.Alice, globex, nothing},
		{authtest.Bob, globex, nothing},
		{authtest.Carol, globex, diagnose},
		{authtest.Dana, globex, diagnose},
		{authtest.Erin, globex, nothing},
	} {
		t.Run(c.account+" at "+c.at.Slug, func(t *testing.T) {
			token := idp.Token(t, c.account, "", scope, c.at.MCPURL)
			if opaque := !strings.Contains(token, "."); opaque != (c.at.Slug == "globex") {
				t.Errorf("opaque: %v", opaque)
			}
			if c.most == nothing {
				for _, url := range []string{c.at.MCPURL, c.at.RESTURL + "/nodes"} {
					a := knock(t, url, token)
					// No challenge: a client would step up for ever.
					if a.status != http.StatusForbidden || a.header.Get("WWW-Authenticate") != "" || !strings.Contains(a.body, "credential_no_role") {
						t.Errorf("%s: %d %v %s, want 403 credential_no_role without a challenge", url, a.status, a.header, a.body)
					}
				}
				return
			}
			x := c.at
			x.Tokens = map[string]string{"oauth": token}
			names := tools(t, x, "oauth")
			if !slices.Contains(names, read) || slices.Contains(names, diagnose) != (c.most == diagnose) {
				t.Errorf("%s sees %v, and may at most do %s", c.account, names, c.most)
			}
			if a := knock(t, c.at.RESTURL+"/nodes", token); a.status != http.StatusOK {
				t.Errorf("REST: %d %s", a.status, a.body)
			}
		})
	}
}

// knock sends the cheapest request that an endpoint has.
func knock(t *testing.T, url, token string) answer {
	t.Helper()
	if strings.HasSuffix(url, "/mcp") {
		return call(t, http.MethodPost, url, token, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcpHeaders...)
	}
	return call(t, http.MethodGet, url, token, "")
}

// providerOf finds the identity provider of a data directory.
func providerOf(t *testing.T, dir string) (pids []int) {
	t.Helper()
	out, _ := exec.Command("pgrep", "-f", "server.mjs --config "+filepath.Join(dir, "idp")).Output()
	for _, f := range strings.Fields(string(out)) {
		var pid int
		if _, err := fmt.Sscan(f, &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// The issuer, its registrations and its tokens outlive the stack, even one that
// was killed, and no process does.
func TestIssuerLasts(t *testing.T) {
	dir := newDataDir(t)
	s := startDev(t, dir, nil, "--no-agent", "--idp-dir", idpDir)
	issuer, acme := *s.Issuer, s.tenant(t, "acme")
	idp := authtest.At(issuer, s.BaseURL)
	client := idp.Register(t, map[string]any{
		"redirect_uris": []string{"http://127.0.0.1:1/cb"}, "token_endpoint_auth_method": "none", "grant_types": []string{"authorization_code", "refresh_token"},
	})
	got := idp.Tokens(t, authtest.Alice, client, "telltale:read", acme.MCPURL)
	for _, f := range []string{"config.json", "keys.json", "state.json"} {
		s.await(5*time.Second, f, func() bool { _, err := os.Stat(filepath.Join(dir, "idp", f)); return err == nil })
		if info, err := os.Stat(filepath.Join(dir, "idp", f)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v, want mode 0600", f, info, err)
		}
	}
	s.kill()
	deadline := time.Now().Add(20 * time.Second)
	for len(s.leftovers()) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("still running after the server was killed: %v", s.leftovers())
		}
		<-time.After(50 * time.Millisecond)
	}

	again := startDev(t, dir, nil, "--no-agent", "--idp-dir", idpDir, "--http", strings.TrimPrefix(s.BaseURL, "http://"), "--first-scopes", "read,diagnose")
	if again.Issuer == nil || *again.Issuer != issuer {
		t.Fatalf("issuer %v, was %s", again.Issuer, issuer)
	}
	next := idp.Refresh(t, client, got.Refresh)
	for _, token := range []string{got.Access, next.Access} {
		if a := knock(t, acme.MCPURL, token); a.status != http.StatusOK {
			t.Errorf("a token of before or after the restart: %d %s", a.status, a.body)
		}
	}
	if a := knock(t, acme.MCPURL, ""); !strings.Contains(a.header.Get("WWW-Authenticate"), `scope="telltale:read telltale:diagnose"`) {
		t.Errorf("the first challenge with --first-scopes: %v", a.header)
	}
	again.interrupt()
	if left := again.leftovers(); len(left) > 0 {
		t.Errorf("left running: %v", left)
	}
}

func TestWithoutIdentityProvider(t *testing.T) {
	dir := newDataDir(t)
	s := startDev(t, dir, nil, "--no-agent")
	a := knock(t, s.tenant(t, "acme").MCPURL, "")
	if a.status != http.StatusUnauthorized || strings.Contains(a.header.Get("WWW-Authenticate"), "resource_metadata") {
		t.Errorf("a tenant without an issuer sends clients to none: %d %v", a.status, a.header)
	}
	s.interrupt()
	if s.Issuer != nil || !strings.Contains(s.output.String(), "no identity provider: there is none in") {
		t.Errorf("issuer %v:\n%s", s.Issuer, s.output)
	}
}

// A person signs in from the command line and works with what they got.
func TestLogin(t *testing.T) {
	s := startDev(t, newDataDir(t), nil, "--no-agent", "--idp-dir", idpDir)
	idp := authtest.At(*s.Issuer, s.BaseURL)
	for _, c := range []struct {
		account, slug string
		diagnoses     bool
	}{{authtest.Alice, "acme", true}, {authtest.Bob, "acme", false}, {authtest.Carol, "globex", true}} {
		t.Run(c.account, func(t *testing.T) {
			home, x := t.TempDir(), s.tenant(t, c.slug)
			env := append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+filepath.Join(home, ".config"), "TELLTALE_URL="+x.MCPURL, "TELLTALE_TOKEN=")
			login(t, idp, c.account, env)

			var modes []string
			if err := filepath.WalkDir(home, func(path string, d os.DirEntry, err error) error {
				if info, e := os.Stat(path); err == nil && e == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
					modes = append(modes, path)
				}
				return err
			}); err != nil || len(modes) > 0 {
				t.Errorf("readable for others: %v, %v", modes, err)
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "telltale"), "tools")
			cmd.Env = env
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "metrics_summary") || strings.Contains(string(out), "profile_on_cpu") != c.diagnoses {
				t.Errorf("tools: %v\n%s", err, out)
			}
		})
	}
}

// login runs `telltale login` and plays the browser.
func login(t *testing.T, idp *authtest.Provider, account string, env []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "telltale"), "login", "--no-browser", "--scopes", "read,diagnose")
	cmd.Env = env
	r, w := io.Pipe()
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		w.Close()
		ended <- err
	}()
	var said strings.Builder
	for lines := bufio.NewScanner(r); lines.Scan(); {
		fmt.Fprintln(&said, lines.Text())
		if at := strings.Index(lines.Text(), idp.Issuer()+"/auth?"); at >= 0 {
			back := idp.SignIn(t, account, strings.Fields(lines.Text()[at:])[0])
			if a := call(t, http.MethodGet, back.String(), "", ""); a.status != http.StatusOK {
				t.Errorf("the browser comes back to %d %s", a.status, a.body)
			}
		}
	}
	if err := <-ended; err != nil {
		t.Fatalf("login: %v\n%s", err, said.String())
	}
}

// A browser comes to the dashboard, is sent to the provider and comes back with
// a session that may do what the account's groups may.
func TestDashboardSignIn(t *testing.T) {
	s := startDev(t, newDataDir(t), nil, "--no-agent", "--idp-dir", idpDir)
	idp := authtest.At(*s.Issuer, s.BaseURL)
	for _, c := range []struct {
		account, slug string
		page          string // where the browser ends: the dashboard, or why it may not
		nodes         int
	}{
		{authtest.Alice, "acme", "/t/acme/ui", http.StatusOK},
		{authtest.Dana, "globex", "/t/globex/ui", http.StatusOK},
		{authtest.Carol, "acme", "/t/acme/connect", http.StatusUnauthorized},
	} {
		t.Run(c.account+" at "+c.slug, func(t *testing.T) {
			jar, err := cookiejar.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			browser := &http.Client{Jar: jar, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
			get := func(url string) *http.Response {
				t.Helper()
				resp, err := browser.Get(url)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				return resp
			}
			x := s.tenant(t, c.slug)
			begin := get(x.RESTURL + "/session/login")
			to, err := begin.Location()
			if err != nil || !strings.HasPrefix(to.String(), *s.Issuer+"/auth?") {
				t.Fatalf("login: %s %v", begin.Status, begin.Header)
			}
			back := idp.SignIn(t, c.account, to.String())
			if !strings.HasPrefix(back.String(), x.RESTURL+"/session/callback?") {
				t.Fatalf("the provider sends the browser to %s", back)
			}
			ends := func(page string) {
				t.Helper()
				resp := get(back.String())
				if at, err := resp.Location(); err != nil || !strings.HasPrefix(at.Path, page) {
					t.Errorf("callback: %s %v, want %s", resp.Status, resp.Header, page)
				}
			}
			ends(c.page)
			if resp := get(x.RESTURL + "/nodes"); resp.StatusCode != c.nodes {
				t.Errorf("nodes with what the browser has: %s, want %d", resp.Status, c.nodes)
			}
			ends("/t/" + c.slug + "/connect") // an answer is good once
		})
	}
}
