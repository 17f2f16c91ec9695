package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBridgeTurnsAnyAnswerIntoAMessage: whatever comes back, the client gets
// one JSON-RPC message with its id and words that help, and nothing else.
func TestBridgeTurnsAnyAnswerIntoAMessage(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		header map[string]string
		body   string
		want   []string // in the error
	}{
		"HTML": {200, map[string]string{"Content-Type": "text/html; charset=utf-8"}, "<html>sign in\n</html>", []string{"text/html", "sign-in page", "TELLTALE_URL"}},
		"401": {401, map[string]string{"Content-Type": "application/problem+json", "Telltale-Reference": "ref1"}, `{"detail":"the token has expired","next":["make another"]}`,
			[]string{"401", "TELLTALE_TOKEN", "the token has expired", "make another", `"reference_id":"ref1"`}},
		"403 of a scope": {403, map[string]string{"Content-Type": "application/problem+json", "WWW-Authenticate": `Bearer error="insufficient_scope", scope="telltale:read telltale:act"`}, `{"detail":"this needs telltale:act"}`,
			[]string{"403", "this needs telltale:act", "use a token with the scopes telltale:read telltale:act", `"scope":"telltale:read telltale:act"`}},
		"403 of a proxy":      {403, map[string]string{"Content-Type": "text/html"}, "<html>no</html>", []string{"403"}},
		"413":                 {413, nil, "", []string{"413", "larger than the server takes", "send less"}},
		"429":                 {429, map[string]string{"Content-Type": "application/problem+json", "Retry-After": "7"}, `{"detail":"600 calls a minute"}`, []string{"429", "600 calls a minute", "wait 7 s", `"retry_after_s":"7"`}},
		"429 of the protocol": {429, map[string]string{"Content-Type": "text/plain", "Retry-After": "12"}, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"used up; wait 12 s, then repeat","data":{"reason":"rate_limited","next_step":"wait 12 s, then repeat"}}}`, []string{`429: used up; wait 12 s, then repeat"`}},
		"502":                 {502, map[string]string{"Content-Type": "text/html"}, "<html>bad\r\ngateway</html>", []string{"502", "Bad Gateway"}},
		"redirect":            {307, map[string]string{"Location": "https://elsewhere.example/t/acme/mcp"}, "", []string{"307", "elsewhere.example"}},
		"accepted":            {202, nil, "", []string{"202"}},
		"JSON of no protocol": {200, map[string]string{"Content-Type": "application/json"}, `{"hello":1}`, []string{"no message of the protocol"}},
		"half JSON":           {200, map[string]string{"Content-Type": "application/json"}, `{"jsonrpc":"2.0","id":1,`, []string{"no message of the protocol"}},
		"error without an id": {400, map[string]string{"Content-Type": "application/json"}, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"duplicate key"}}`, []string{"duplicate key"}},
		"empty stream":        {200, map[string]string{"Content-Type": "text/event-stream"}, ": only a comment\n\n", []string{"ended before the answer"}},
		"endless line":        {200, map[string]string{"Content-Type": "text/event-stream"}, "data: " + strings.Repeat("x", maxAnswer), []string{"longer than"}},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				for k, v := range c.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			t.Cleanup(srv.Close)
			notification := `{"jsonrpc":"2.0","method":"notifications/initialized"}`
			r := cli(t, srv.URL+"/t/acme/mcp", "good", `{"jsonrpc":"2.0","id":"a","method":"tools/list"}`+"\n"+notification+"\n", "mcp")
			list := messages(t, r.out)
			if r.code != exitOK || len(list) != 1 || string(list[0]["id"]) != `"a"` || list[0]["error"] == nil {
				t.Fatalf("exit %d, stdout %s", r.code, r.out)
			}
			for _, w := range c.want {
				if !strings.Contains(string(list[0]["error"]), w) {
					t.Errorf("no %q in %s", w, list[0]["error"])
				}
			}
			if strings.Contains(r.out+r.err, "Bearer good") {
				t.Error("the token leaks")
			}
		})
	}
}

// TestBridgeAnswersWhenTheToolPanics: the server's reference id arrives, and
// the bridge goes on.
func TestBridgeAnswersWhenTheToolPanics(t *testing.T) {
	r := cli(t, serve(t), "good", strings.Join([]string{initialize, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"get_node","arguments":{"node":"panic"}}}`, `{"jsonrpc":"2.0","id":3,"method":"ping"}`}, "\n"), "mcp")
	answers := map[string]string{}
	for _, m := range messages(t, r.out) {
		answers[string(m["id"])] = string(m["error"]) + string(m["result"])
	}
	if r.code != exitOK || len(answers) != 3 || !strings.Contains(answers["2"], "reference id") {
		t.Errorf("exit %d %v %s", r.code, answers, r.err)
	}
}

// panicking is a connection with a defect.
type panicking struct{}

func (panicking) RoundTrip(*http.Request) (*http.Response, error) { panic("for a test") }

// TestBridgeSurvivesItsOwnPanic, and stdout stays pure.
func TestBridgeSurvivesItsOwnPanic(t *testing.T) {
	var out, errs bytes.Buffer
	p := &proxy{ep: endpoint{url: nobody, cred: envToken{"TELLTALE_TOKEN", "secret-token"}}, base: panicking{}, errw: &errs, out: bufio.NewWriter(&out), flights: map[string]context.CancelFunc{}}
	if err := p.run(t.Context(), strings.NewReader(initialize+"\n"+`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`+"\n")); err != nil {
		t.Fatal(err)
	}
	list := messages(t, out.String())
	if len(list) != 2 || !strings.Contains(string(list[0]["error"]), "-32603") || !strings.Contains(errs.String(), "for a test") || strings.Contains(errs.String()+out.String(), "secret-token") {
		t.Errorf("%s\n%.300s", out.String(), errs.String())
	}
}

// TestValidateSaysWhatIsWrong on standard error, with an exit code.
func TestValidateSaysWhatIsWrong(t *testing.T) {
	url := serve(t)
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<!doctype html><html></html>") }))
	t.Cleanup(html.Close)
	for name, c := range map[string]struct {
		url, token string
		code       int
		want       []string
	}{
		"well":         {url, "good", exitOK, []string{"is a tenant's URL", "trying the token in TELLTALE_TOKEN", "answers and takes it; protocol"}},
		"bad URL":      {strings.TrimSuffix(url, "/mcp"), "good", exitUsage, []string{"not a tenant's MCP URL"}},
		"no login":     {url, "", exitUsage, []string{"is a tenant's URL", "telltale login --url " + url}},
		"bad token":    {url, "old", exitFailed, []string{"401", "expired", "reference id"}},
		"odd token":    {url, "a b", exitUsage, []string{"TELLTALE_TOKEN: the token holds characters"}},
		"no scope":     {url, "blind", exitFailed, []string{"0 tools", "telltale:read"}},
		"away":         {nobody, "good", exitOffline, []string{"no answer"}},
		"sign-in page": {html.URL + "/t/acme/mcp", "good", exitFailed, []string{"text/html"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := cli(t, c.url, c.token, "", "mcp", "--validate")
			r.expect(t, c.code, c.want...)
			if r.out != "" {
				t.Errorf("stdout %s", r.out)
			}
		})
	}
}

// TestTokenSources: which one wins, and that a file is read again when its
// token is refused.
func TestTokenSources(t *testing.T) {
	url := serve(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cli(t, url, "old", "", "nodes", "--token-file", file).expect(t, exitOK, "node-0")
	cli(t, url, "good", "", "nodes", "--token-env", "OTHER").expect(t, exitUsage, "the variable OTHER holds no token")
	cli(t, url, "good", "", "nodes", "--token-env", "TELLTALE_TOKEN").expect(t, exitOK, "node-0")
	ctx := t.Context()
	c := fileToken(file)
	if other, err := c.instead(ctx, "good"); other != "" || err != nil {
		t.Errorf("%q %v", other, err)
	}
	if err := os.WriteFile(file, []byte("newer"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := c.instead(ctx, "good"); other != "newer" || err != nil {
		t.Errorf("%q %v", other, err)
	}
}

// TestBridgeForwardsNothingThatIsNoMessage.
func TestBridgeForwardsNothingThatIsNoMessage(t *testing.T) {
	seen := 0
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen++ }))
	t.Cleanup(srv.Close)
	lines := []string{"{", "\xff\xfe", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\xff\"}", "[]", `"x"`, "1", `{"id":1,"method":7}`, "null"}
	r := cli(t, srv.URL+"/t/acme/mcp", "good", strings.Join(lines, "\n"), "mcp")
	list := messages(t, r.out)
	if seen != 0 || len(list) != len(lines) {
		t.Errorf("%d forwarded, %d answers: %s", seen, len(list), r.out)
	}
	for _, m := range list {
		if string(m["id"]) != "null" || !json.Valid(m["error"]) {
			t.Errorf("%s", m)
		}
	}
}

// TestWithoutAHome: a token is enough, and without one it is said what is
// missing.
func TestWithoutAHome(t *testing.T) {
	for token, want := range map[string]string{"good": "node-0", "": "TELLTALE_TOKEN"} {
		cmd := exec.CommandContext(t.Context(), binary, "nodes", "--url", serve(t))
		cmd.Env = []string{"TELLTALE_TOKEN=" + token}
		out, err := cmd.CombinedOutput()
		if (err == nil) != (token != "") || !strings.Contains(string(out), want) {
			t.Errorf("token %q: %v %s", token, err, out)
		}
	}
}
