package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
	"github.com/telltale-dev/telltale/cmd/telltale/login"
	"github.com/telltale-dev/telltale/tenants"
)

// stack is the real door before a small fleet, and a real identity provider.
func stack(t *testing.T, cfg authtest.Config) (url string, idp *authtest.Provider) {
	t.Helper()
	url = serveTo(t, func(origin string) tenants.Trust {
		cfg.BaseURL = origin
		idp = authtest.StartProvider(t, cfg)
		return tenants.Trust{Issuers: []tenants.Issuer{{
			ID: "0195a000-0000-7000-8000-000000000001", Name: "demo", URL: idp.Issuer(), Mode: tenants.AudienceResource,
			Roles: []tenants.RoleRule{
				{Claim: "groups", Value: "acme-sre", Scopes: tenants.Read | tenants.Diagnose | tenants.Act},
				{Claim: "groups", Value: "acme-viewers", Scopes: tenants.Read},
			},
		}}}
	})
	return url, idp
}

// signInAs runs telltale login and is its browser.
func signInAs(t *testing.T, home, url string, idp *authtest.Provider, account string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append([]string{"login", "--no-browser"}, args...)...)
	cmd.Env = []string{"TELLTALE_URL=" + url, "HOME=" + home}
	var out strings.Builder
	cmd.Stdout = &out
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(pipe); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if to, ok := strings.CutPrefix(lines.Text(), "  http"); ok {
			visit(t, idp.SignIn(t, account, "http"+to).String())
		}
	}
	_ = cmd.Wait() // the code says it
	return result{cmd.ProcessState.ExitCode(), out.String(), said.String()}
}

func visit(t *testing.T, url string) {
	t.Helper()
	res, err := (&http.Client{Timeout: 20 * time.Second}).Get(url)
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()
	if page, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(page), "Signed in") {
		t.Errorf("the browser shows %d %s %v", res.StatusCode, page, err)
	}
}

func loginFile(t *testing.T, home string) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(home, ".config/telltale/logins/*.json"))
	if err != nil || len(list) != 1 {
		t.Fatalf("logins %v %v", list, err)
	}
	return list[0]
}

// edit changes the stored login.
func edit(t *testing.T, file string, change func(*login.Login)) login.Login {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var in login.Login
	if err := json.Unmarshal(raw, &in); err != nil {
		t.Fatal(err)
	}
	change(&in)
	if raw, err = json.Marshal(in); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return in
}

func (r result) expect(t *testing.T, code int, want ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit %d, want %d: %s%s", r.code, code, r.out, r.err)
	}
	for _, w := range want {
		if !strings.Contains(r.out+r.err, w) {
			t.Errorf("no %q: %s%s", w, r.out, r.err)
		}
	}
}

// TestLoginAtARealProvider goes from nothing to a login, to one more scope, to
// nothing.
func TestLoginAtARealProvider(t *testing.T) {
	url, idp := stack(t, authtest.Config{})
	home := t.TempDir()
	cliAt(t, home, url, "", "", "nodes").expect(t, exitUsage, "telltale login --url "+url)

	r := signInAs(t, home, url, idp, authtest.Alice)
	r.expect(t, exitOK, "signed in at "+idp.Issuer(), "telltale:read", "lets you use")
	if r.out != "" {
		t.Errorf("stdout %s", r.out)
	}
	file := loginFile(t, home)
	for path, want := range map[string]os.FileMode{file: 0o600, filepath.Dir(file): 0o700} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
	}
	cliAt(t, home, url, "", "", "nodes").expect(t, exitOK, "node-0")
	cliAt(t, home, url+"?readonly=1", "", "", "tools").expect(t, exitOK, "list_nodes") // the same resource
	cliAt(t, home, url, "", "", "mcp", "--validate").expect(t, exitOK, "the login at "+idp.Issuer(), "2026-07-28 and 2025-11-25")

	// One scope more: the refusal says how, to the letter.
	task := []string{"call", "monitor_process_io", `{"node":"node-1","pid":17}`}
	r = cliAt(t, home, url, "", "", task...)
	r.expect(t, exitFailed, "403", "telltale:diagnose", "sign in for these scopes: telltale login --url "+url+" --scopes '")
	_, scopes, _ := strings.Cut(r.err, "--scopes '")
	scopes, _, _ = strings.Cut(scopes, "'")
	signInAs(t, home, url, idp, authtest.Alice, "--scopes", scopes).expect(t, exitOK, "telltale:diagnose")
	cliAt(t, home, url, "", "", task...).expect(t, exitFailed, "pid_gone")
	// A token that is given wins over the login.
	cliAt(t, home, url, "tt_wrong", "", "nodes").expect(t, exitFailed, "401", "the token in TELLTALE_TOKEN")

	kept := edit(t, file, func(*login.Login) {})
	cliAt(t, home, url, "", "", "logout").expect(t, exitOK, "revoked and removed")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	cliAt(t, home, url, "", "", "logout").expect(t, exitOK, "nobody is signed in")
	kept.Expires = time.Now().Add(-time.Hour)
	raw, err := json.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	cliAt(t, home, url, "", "", "nodes").expect(t, exitFailed, "has ended", "telltale login --url "+url) // it was revoked indeed
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	cliAt(t, home, url, "", "", "nodes").expect(t, exitFailed, "open to others", "chmod 600")
}

// TestLoginSaysWhatTheRoleLeaves of the scopes that the provider granted.
func TestLoginSaysWhatTheRoleLeaves(t *testing.T) {
	url, idp := stack(t, authtest.Config{})
	signInAs(t, t.TempDir(), url, idp, authtest.Bob, "--scopes", "read,act,openid").expect(t, exitOK,
		"in force there: telltale:read\n", "your role there, or the token, leaves out telltale:act\n", "lets you use")
}

// TestLoginTellsWhatTheServerSays before it is asked for a credential.
func TestLoginTellsWhatTheServerSays(t *testing.T) {
	for body, want := range map[string][]string{
		`{"detail":"the tenant is away","next":["ask the operator"]}`:                                {"503: the tenant is away; ask the operator; reference id ref7"},
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"switched off; ask somebody"}}`: {"503: switched off; ask somebody; reference id ref7"},
		"<html>": {"503 instead of asking"},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Telltale-Reference", "ref7")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(srv.Close)
		cli(t, srv.URL+"/t/acme/mcp", "", "", "login", "--no-browser").expect(t, exitFailed, want...)
	}
}

func TestProvidersOwnScopesAreNotOurs(t *testing.T) {
	list := scopeWords("read openid,offline_access email api://x/.default https://x/telltale.read groups urn:x")
	if msg := mistyped(list); msg != "" || list[0] != "telltale:read" {
		t.Errorf("%v %s", list, msg)
	}
}

// TestLoginWithoutARole: the provider knows erin, and the tenant gives her
// nothing.
func TestLoginWithoutARole(t *testing.T) {
	url, idp := stack(t, authtest.Config{})
	r := signInAs(t, t.TempDir(), url, idp, authtest.Erin)
	r.expect(t, exitFailed, "signed in at", "403", "your account has no role in this tenant")
	if strings.Contains(r.err, "--scopes") {
		t.Errorf("a login with other scopes would not help: %s", r.err)
	}
}

// TestProcessesShareOneLogin: many start at once when the token has ended. The
// provider ends a login whose refresh token comes twice.
func TestProcessesShareOneLogin(t *testing.T) {
	url, idp := stack(t, authtest.Config{})
	home := t.TempDir()
	signInAs(t, home, url, idp, authtest.Bob, "--client-id", authtest.CLI).expect(t, exitOK)
	file := loginFile(t, home)
	for range 2 {
		before := edit(t, file, func(in *login.Login) { in.Expires = time.Now().Add(-time.Minute) })
		var all sync.WaitGroup
		for range 6 {
			all.Go(func() { cliAt(t, home, url, "", "", "nodes").expect(t, exitOK, "node-0") })
		}
		all.Wait()
		if after := edit(t, file, func(*login.Login) {}); after.RefreshToken == before.RefreshToken || after.AccessToken == before.AccessToken {
			t.Error("nothing was renewed")
		}
	}
	// A token that the server refuses before its time is replaced, too, once.
	edit(t, file, func(in *login.Login) { in.AccessToken = "ey.refused.token" })
	cliAt(t, home, url, "", "", "nodes").expect(t, exitOK, "node-0")
	idp.Stop(t)
	edit(t, file, func(in *login.Login) { in.Expires = time.Now().Add(-time.Minute) })
	cliAt(t, home, url, "", "", "nodes").expect(t, exitOffline, "no answer from "+idp.Issuer())
}

// TestLoginOpensTheBrowser that BROWSER names.
func TestLoginOpensTheBrowser(t *testing.T) {
	url, idp := stack(t, authtest.Config{})
	home := t.TempDir()
	browser := filepath.Join(home, "browser")
	if err := os.WriteFile(browser, []byte("#!/bin/sh\necho noise; echo noise >&2\necho \"$2\" > \"$HOME/asked.part\" && mv \"$HOME/asked.part\" \"$HOME/asked\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, "login", "--url", url)
	cmd.Env = []string{"HOME=" + home, "BROWSER=" + browser + " --new %s:other", "PATH=" + os.Getenv("PATH")}
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var asked []byte
	for limit := time.Now().Add(20 * time.Second); len(asked) == 0; {
		if time.Now().After(limit) {
			t.Fatal("no browser was started")
		}
		<-time.After(10 * time.Millisecond)
		asked, _ = os.ReadFile(filepath.Join(home, "asked"))
	}
	visit(t, idp.SignIn(t, authtest.Alice, strings.TrimSpace(string(asked))).String())
	if err := cmd.Wait(); err != nil || out.String() != "" || strings.Contains(said.String(), "noise") {
		t.Errorf("%v, stdout %q, stderr %s", err, out.String(), said.String())
	}
}

func TestLoginUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"argument":    {[]string{"login", "now"}, "no argument"},
		"port":        {[]string{"login", "--port", "70000"}, "--port \"70000\""},
		"scope":       {[]string{"login", "--url", nobody, "--scopes", "read,diagnos"}, `no scope "diagnos"; Telltale's are read, payloads, diagnose, act, approve, maintain, admin`},
		"long scope":  {[]string{"login", "--url", nobody, "--scopes", "telltale:Read openid"}, `no scope "Read"`},
		"no URL":      {[]string{"login"}, "TELLTALE_URL"},
		"plain http":  {[]string{"login", "--url", "http://telltale.example/t/acme/mcp"}, "unencrypted"},
		"logout word": {[]string{"logout", "now"}, "no argument"},
	} {
		t.Run(name, func(t *testing.T) { cli(t, "", "", "", c.args...).expect(t, exitUsage, c.want) })
	}
	cli(t, nobody, "", "", "login", "--no-browser").expect(t, exitOffline, "no answer from "+nobody)
	cli(t, serve(t), "", "", "login", "--no-browser").expect(t, exitFailed, "no identity provider", "TELLTALE_TOKEN")
}

// TestBridgeFollowsTheLogin: it starts before anybody is signed in, says so,
// and uses the login that is made meanwhile; a refused token is replaced.
func TestBridgeFollowsTheLogin(t *testing.T) {
	url, idp := stack(t, authtest.Config{})
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), binary, "mcp", "--url", url)
	cmd.Env = []string{"HOME=" + home}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(out)
	answers.Buffer(nil, 1<<20)
	ask := func(line string, want ...string) {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
		if !answers.Scan() {
			t.Fatalf("no answer: %v", answers.Err())
		}
		for _, w := range want {
			if !strings.Contains(answers.Text(), w) {
				t.Errorf("no %q: %s", w, answers.Text())
			}
		}
	}
	list := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"list_nodes","arguments":{}}}`
	ask(initialize, `"id":1,"error"`, "telltale login --url "+url, "no_credential")
	signInAs(t, home, url, idp, authtest.Alice).expect(t, exitOK)
	ask(initialize, `"result"`)
	ask(list, `"id":7`, "node-0")
	edit(t, loginFile(t, home), func(in *login.Login) { in.AccessToken = "ey.refused.token" })
	ask(list, `"id":7`, "node-0")
	ask(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"monitor_process_io","arguments":{"node":"n","pid":1}}}`, `"id":8,"error"`, "telltale login", `"scope":"`, "telltale:diagnose", `"reference_id":"`)
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}
