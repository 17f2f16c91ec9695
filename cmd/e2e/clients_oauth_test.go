package e2e_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
)

// remote is a running mcp-remote, whose browser is the test.
type remote struct {
	t       *testing.T
	idp     *authtest.Provider
	account string
	in      io.Writer
	answers chan map[string]any
	visits  chan string
	said    *lockedBuffer // standard error
	asked   []url.Values  // what each authorization request asked for
	next    int
}

// startRemote starts mcp-remote against a tenant, with an empty home and
// nothing but the URL that a person would paste, and perhaps flags.
func startRemote(t *testing.T, x tenant, idp *authtest.Provider, account string, flags ...string) *remote {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(pinnedNode, append([]string{filepath.Join(clients, "node_modules/.bin/mcp-remote"), x.MCPURL, "--host", "127.0.0.1", "--auth-timeout", "60"}, flags...)...)
	// No desktop: the opener asks BROWSER alone, and that does nothing.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "MCP_REMOTE_CONFIG_DIR=" + filepath.Join(home, "auth"), "BROWSER=true"}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	r := &remote{t: t, idp: idp, account: account, in: in, answers: make(chan map[string]any, 64), visits: make(chan string, 8), said: &lockedBuffer{}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(errs); s.Scan(); {
			fmt.Fprintln(r.said, s.Text())
			if to := strings.TrimSpace(s.Text()); strings.HasPrefix(to, idp.Issuer()+"/auth?") {
				r.visits <- to
			}
		}
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		dec := json.NewDecoder(out)
		for {
			var m map[string]any
			if dec.Decode(&m) != nil {
				break
			}
			if m["id"] != nil {
				r.answers <- m
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = in.Close()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
			t.Error("mcp-remote did not end with its input")
		}
		if t.Failed() {
			t.Logf("mcp-remote said:\n%s", r.said)
		}
	})
	return r
}

// ask sends one request and returns its answer. Whenever mcp-remote shows a
// person an address meanwhile, the account signs in there.
func (r *remote) ask(method, params string) map[string]any {
	r.t.Helper()
	r.next++
	fmt.Fprintf(r.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", r.next, method, params)
	limit := time.After(60 * time.Second)
	for {
		select {
		case m := <-r.answers:
			if m["id"] == float64(r.next) {
				return m
			}
		case to := <-r.visits:
			r.signIn(to)
		case <-limit:
			r.t.Fatalf("no answer to %s", method)
		}
	}
}

func (r *remote) signIn(to string) {
	r.t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		r.t.Fatal(err)
	}
	r.asked = append(r.asked, u.Query())
	back := r.idp.SignIn(r.t, r.account, to)
	// After a step-up it listens only a moment later: people are slower.
	poll(r.t, 20*time.Second, "the client's redirect address", func() bool {
		resp, err := http.Get(back.String())
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
}

// signsInThroughRemote is the whole way of a person whose client knows nothing
// but the URL: discovery, registration, login with PKCE, tools, and a second
// authorization when a tool needs more than the first one gave.
func signsInThroughRemote(t *testing.T, x tenant, idp *authtest.Provider, account string, flags ...string) {
	r := startRemote(t, x, idp, account, flags...)
	hello := r.ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	fmt.Fprintln(r.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if hello["error"] != nil || len(r.asked) != 1 {
		t.Fatalf("initialize after %d logins: %v", len(r.asked), hello)
	}
	first := r.asked[0]
	if first.Get("resource") != x.MCPURL || first.Get("code_challenge_method") != "S256" || first.Get("client_id") == "" || strings.Contains(first.Get("scope"), "telltale:diagnose") {
		t.Errorf("the first login asked for %v", first)
	}
	list, _ := json.Marshal(r.ask("tools/list", `{}`))
	if !strings.Contains(string(list), `"fleet_overview"`) {
		t.Errorf("tools: %.400s", list)
	}
	read, _ := json.Marshal(r.ask("tools/call", `{"name":"fleet_overview","arguments":{}}`))
	if !strings.Contains(string(read), "coverage") || len(r.asked) != 1 {
		t.Errorf("read after %d logins: %.400s", len(r.asked), read)
	}
	// A tool beyond the token's scope, within what the account may hold.
	more, _ := json.Marshal(r.ask("tools/call", `{"name":"trace_tcp_retransmits","arguments":{"duration_s":1,"node":"`+nodes(t, x)[0].Node+`"}}`))
	if !strings.Contains(string(more), "ticket_id") || strings.Contains(string(more), `"isError":true`) {
		t.Errorf("the tool that needed a step-up: %.600s", more)
	}
	if len(r.asked) != 2 || !strings.Contains(r.asked[1].Get("scope"), "telltale:diagnose") || !strings.Contains(r.asked[1].Get("scope"), "telltale:read") || r.asked[1].Get("client_id") != first.Get("client_id") {
		t.Errorf("authorizations: %v", r.asked)
	}
	newest := func() bool { return strings.Contains(r.said.String(), "Remote server speaks MCP 2026-07-28") }
	if len(flags) > 0 {
		poll(t, 10*time.Second, "word of the newest era", newest)
	} else if newest() {
		t.Error("it met the newest era unasked")
	}
}
