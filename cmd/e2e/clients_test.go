package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth/authtest"
)

// clients holds the pinned npm packages, pinnedNode runs them; deploy/deps.sh
// test installs both.
const (
	clients    = "../../deploy/clients"
	pinnedNode = "../../deploy/node/bin/node"
)

// TestRealClients puts clients that others wrote before a stack: the TypeScript
// SDKs and the Inspector, in every protocol era that they know, and mcp-remote,
// which signs a person in.
func TestRealClients(t *testing.T) {
	s := startDev(t, newDataDir(t), nil, "--no-agent", "--idp-dir", "../../deploy/devidp")
	acme, globex := s.tenant(t, "acme"), s.tenant(t, "globex")
	s.await(20*time.Second, "a node in each tenant", func() bool { return len(nodes(t, acme)) > 0 && len(nodes(t, globex)) > 0 })
	for name, c := range map[string]struct {
		script, arg, version string
	}{
		"TypeScript SDK 1.x":         {"sdk1.mjs", "", "2025-11-25"},
		"TypeScript SDK 2.x, legacy": {"sdk2.mjs", "legacy", "2025-11-25"},
		"TypeScript SDK 2.x, auto":   {"sdk2.mjs", "auto", "2026-07-28"},
		"TypeScript SDK 2.x, pinned": {"sdk2.mjs", "2026-07-28", "2026-07-28"},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); converses(t, acme, c.script, c.arg, c.version) })
	}
	if s.Issuer == nil {
		t.Fatal("no identity provider: deploy/deps.sh test installs it")
	}
	idp := authtest.At(*s.Issuer, s.BaseURL)
	t.Run("mcp-remote with JWTs", func(t *testing.T) { t.Parallel(); signsInThroughRemote(t, acme, idp, authtest.Alice) })
	t.Run("mcp-remote, newest era", func(t *testing.T) {
		t.Parallel()
		signsInThroughRemote(t, globex, idp, authtest.Dana, "--protocol", "auto")
	})
	t.Run("mcp-remote with opaque tokens", func(t *testing.T) { t.Parallel(); signsInThroughRemote(t, globex, idp, authtest.Carol) })
	for era, version := range map[string]string{"legacy": "2025-11-25", "auto": "2026-07-28", "modern": "2026-07-28"} {
		t.Run("Inspector over HTTP, "+era, func(t *testing.T) { t.Parallel(); inspects(t, acme, era, version, false) })
		t.Run("Inspector over stdio, "+era, func(t *testing.T) { t.Parallel(); inspects(t, acme, era, version, true) })
	}
}

// node22 runs a program of the clients' folder, in an empty home, and returns
// what it printed.
func node22(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, pinnedNode, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("node %s: %v\n%s%s", strings.Join(args, " "), err, errs.String(), out)
	}
	return out
}

// heard is what the SDK scripts print.
type heard struct {
	Version      string
	Era          string
	Server       string
	Instructions int
	Capabilities struct {
		Tools, Prompts map[string]any
		Resources      struct{ Subscribe bool }
		Extensions     map[string]any
		Logging        any
	}
	Tools         []string
	Read, Refused toolResult
	Unknown       *struct{ Code int }
	Resources     []string
	Resource      struct{ Contents []struct{ URI, Text string } }
	Prompts       []string
	Prompt        struct{ Messages []map[string]any }
	Ping          map[string]any
	Listens       struct{ ResourceSubscriptions []string }
	Closed        string
}

type toolResult struct {
	IsError           bool
	Content           []struct{ Type, Text string }
	StructuredContent map[string]any
}

// converses lets an SDK have its conversation, and checks what it heard.
func converses(t *testing.T, x tenant, script, arg, version string) {
	var h heard
	out := node22(t, filepath.Join(clients, script), x.MCPURL, x.Tokens["diagnose"], arg)
	if err := json.Unmarshal(out, &h); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	modern := version == "2026-07-28"
	if h.Version != version || h.Server != "telltale" || h.Instructions == 0 {
		t.Errorf("met %s at %s with %d characters of instructions", h.Server, h.Version, h.Instructions)
	}
	if c := h.Capabilities; c.Tools == nil || c.Prompts == nil || c.Logging != nil || c.Resources.Subscribe != modern || (c.Extensions != nil) != modern {
		t.Errorf("capabilities %+v", c)
	}
	for _, want := range []string{"fleet_overview", "trace_tcp_retransmits", "check_task_result"} {
		if !slices.Contains(h.Tools, want) {
			t.Errorf("tools %v lack %s", h.Tools, want)
		}
	}
	if r := h.Read; r.IsError || len(r.Content) != 1 || !strings.Contains(r.Content[0].Text, "online") || r.StructuredContent["nodes"] == nil {
		t.Errorf("fleet_overview: %+v", r)
	}
	if r := h.Refused; !r.IsError || r.StructuredContent["argument"] != "duration_s" || r.StructuredContent["next_step"] == "" || !strings.Contains(r.Content[0].Text, "1 to 300") {
		t.Errorf("the refusal: %+v", r)
	}
	if h.Unknown == nil || h.Unknown.Code != -32602 {
		t.Errorf("an unknown tool: %+v", h.Unknown)
	}
	if !slices.Contains(h.Resources, "telltale://health") || len(h.Resource.Contents) != 1 || !strings.Contains(h.Resource.Contents[0].Text, `"nodes"`) {
		t.Errorf("resources %v, health %+v", h.Resources, h.Resource)
	}
	if !slices.Contains(h.Prompts, "system_triage") || len(h.Prompt.Messages) == 0 {
		t.Errorf("prompts %v, %+v", h.Prompts, h.Prompt)
	}
	if modern { // this era has no ping
		if h.Ping["code"] == nil || h.Era != "modern" || !slices.Equal(h.Listens.ResourceSubscriptions, []string{"telltale://events/recent"}) || h.Closed != "local" {
			t.Errorf("ping %v, era %s, listens to %v, closed %s", h.Ping, h.Era, h.Listens, h.Closed)
		}
	} else if len(h.Ping) != 0 {
		t.Errorf("ping answered %v", h.Ping)
	}
}

// inspects asks with the Inspector's command line: the portability of every
// tool's schema held strictly, a call, and the other lists.
func inspects(t *testing.T, x tenant, era, version string, stdio bool) {
	spoke := &versions{}
	target, err := url.Parse(x.MCPURL)
	if err != nil {
		t.Fatal(err)
	}
	own := &http.Transport{} // the end of another test's server closes what the shared one holds
	defer own.CloseIdleConnections()
	spy := httptest.NewServer(&httputil.ReverseProxy{Transport: own, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		spoke.add(r.In.Header.Get("Mcp-Protocol-Version"))
		r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host})
		wholeBody(r)
	}})
	defer spy.Close()
	address := spy.URL + target.Path
	ask := func(into any, args ...string) {
		t.Helper()
		call := []string{filepath.Join(clients, "node_modules/.bin/mcp-inspector"), "--cli", "--protocol-era", era, "--format", "json", "--quiet"}
		if stdio {
			call = append(append(call, args...), "-e", "TELLTALE_URL="+address, "-e", "TELLTALE_TOKEN="+x.Tokens["diagnose"], "--", filepath.Join(bin, "telltale"), "mcp")
		} else {
			call = append(append(call, args...), "--transport", "http", "--server-url", address, "--header", "Authorization: Bearer "+x.Tokens["diagnose"], "--stored-auth-only")
		}
		var answer struct{ Result json.RawMessage }
		out := node22(t, call...)
		if json.Unmarshal(out, &answer) != nil || json.Unmarshal(answer.Result, into) != nil {
			t.Fatalf("%v printed %s", args, out)
		}
	}
	var tools struct{ Tools []struct{ Name string } }
	ask(&tools, "--method", "tools/list", "--strict")
	var res toolResult
	ask(&res, "--method", "tools/call", "--tool-name", "fleet_overview")
	var resources struct{ Resources []struct{ URI string } }
	ask(&resources, "--method", "resources/list")
	var prompts struct{ Prompts []struct{ Name string } }
	ask(&prompts, "--method", "prompts/list")
	if len(tools.Tools) < 15 || res.IsError || res.StructuredContent["nodes"] == nil || len(resources.Resources) < 5 || len(prompts.Prompts) < 5 {
		t.Errorf("%d tools, %d resources, %d prompts, call %+v", len(tools.Tools), len(resources.Resources), len(prompts.Prompts), res)
	}
	if !spoke.only(version) {
		t.Errorf("spoke %v, want %s", spoke.seen, version)
	}
}

// wholeBody reads a request's body before it is passed on: an answer that comes
// faster than the transport's last look at the body would close it, and the
// transport would then cut the answer.
func wholeBody(r *httputil.ProxyRequest) {
	if r.Out.Body == nil {
		return
	}
	body, err := io.ReadAll(r.Out.Body)
	if err != nil {
		body = nil // the client is gone; whoever reads it finds it too short
	}
	r.Out.Body = io.NopCloser(bytes.NewReader(body))
}

// versions are the protocol versions that requests named.
type versions struct {
	sync.Mutex
	seen map[string]int
}

func (v *versions) add(name string) {
	v.Lock()
	defer v.Unlock()
	if v.seen == nil {
		v.seen = map[string]int{}
	}
	v.seen[name]++
}

// only reports whether all requests but the first of a conversation, which
// names none in the initialize era, named this version.
func (v *versions) only(name string) bool {
	v.Lock()
	defer v.Unlock()
	for k := range v.seen {
		if k != name && k != "" {
			return false
		}
	}
	return v.seen[name] > 0
}
