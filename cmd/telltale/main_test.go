package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/mcp"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// binary is the built program; TestMain makes it once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "telltale-cli")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "telltale")
	build := exec.Command("go", "build", "-o", binary, "-ldflags", "-X main.version=9.8.7", ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// fleetOf is a small fleet in memory; the services have their own tests.
type fleetOf []fleet.Node

func (f fleetOf) Overview(context.Context, tenants.Scope) (fleet.Overview, error) {
	return fleet.Overview{Nodes: len(f)}, nil
}

func (f fleetOf) List(_ context.Context, _ tenants.Scope, q fleet.ListQuery) (fleet.Page, error) {
	start := 0
	if _, err := fmt.Sscanf(q.Cursor, "%d", &start); q.Cursor != "" && err != nil {
		return fleet.Page{}, fault.Bad("cursor", "not a cursor")
	}
	var match fleetOf
	for _, n := range f {
		if len(q.Status) == 0 || slices.Contains(q.Status, n.Status) {
			match = append(match, n)
		}
	}
	end := min(start+3, len(match)) // small pages, so that the command has to turn them
	p := fleet.Page{Nodes: match[min(start, end):end]}
	if end < len(match) {
		p.NextCursor = fmt.Sprint(end)
	}
	return p, nil
}

func (f fleetOf) Get(_ context.Context, _ tenants.Scope, ref string) (fleet.NodeDetail, error) {
	if ref == "panic" {
		panic("for a test")
	}
	return fleet.NodeDetail{}, fault.New(fault.NotFound, "unknown_node", "no such node")
}

// wait is a module whose summary takes until the caller or the test ends.
func (f fleetOf) Summary(ctx context.Context, _ tenants.Scope, q metrics.SummaryQuery) (metrics.Summary, error) {
	if q.Node == "slow" {
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
			return metrics.Summary{}, ctx.Err()
		}
	}
	return metrics.Summary{Module: q.Module, Metrics: []metrics.MetricSummary{}}, nil
}

func (f fleetOf) Query(context.Context, tenants.Scope, metrics.Query) (metrics.Result, error) {
	return metrics.Result{}, fault.New(fault.Unavailable, "away", "not now")
}

// doorman accepts the token "good" in the tenant acme.
type doorman struct{ tenant tenants.Tenant }

func (d doorman) Recognises(string) bool { return true }

func (d doorman) TenantBySlug(_ context.Context, slug string) (tenants.Tenant, error) {
	if slug != d.tenant.Slug {
		return tenants.Tenant{}, fault.New(fault.NotFound, "unknown_tenant", "no such tenant")
	}
	return d.tenant, nil
}

func (d doorman) Verify(_ context.Context, t tenants.Tenant, bearer string, _ netip.Addr) (tenants.Scope, error) {
	switch bearer {
	case "good":
		return tenants.Scope{Tenant: t.ID, Slug: t.Slug, Granted: tenants.Read | tenants.Diagnose, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "x"}}, nil
	case "blind":
		return tenants.Scope{Tenant: t.ID, Slug: t.Slug, Granted: tenants.Payloads, Obtainable: tenants.Read, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "y"}}, nil
	}
	return tenants.Scope{}, &auth.Failure{Class: auth.Expired}
}

// serve runs the real handler behind the real authentication.
func serve(t *testing.T) string { return serveTo(t, nil) }

// serveTo lets callers in whom trust says to, besides the doorman's. trust gets
// the origin of the server, which identity providers have to know.
func serveTo(t *testing.T, trust func(origin string) tenants.Trust) string {
	t.Helper()
	now := time.Now()
	age := 1.5
	var f fleetOf
	for i := range 7 {
		n := fleet.Node{Node: fmt.Sprintf("0195a000-0000-7000-8000-%012d", i), Name: fmt.Sprintf("node-%d", i), Status: fleet.Online, Labels: map[string]string{"role": "web"}, LastSeen: &now, FreshnessS: &age, AgentVersion: "1.0"}
		if i == 6 {
			n.Status, n.Name = fleet.Offline, "a-much-longer-name"
		}
		f = append(f, n)
	}
	reg := &inspector.Registry{}
	reg.Add(inspector.Component{Name: "network", Metrics: []inspector.Metric{{Name: "network.events", Kind: inspector.Delta, Unit: inspector.Count, Help: "for tests"}}})
	reg.Add(inspector.Component{Name: "storage", Tasks: []inspector.TaskKind{{Name: "monitor_process_io", Title: "Monitor a process's I/O", Help: "For tests. Use it in tests.", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace,
		Args: []inspector.Arg{{Name: "pid", Kind: inspector.IntArg, Min: 1, Max: 1 << 22}}}}})
	log := slog.New(slog.DiscardHandler)
	srv := httptest.NewUnstartedServer(nil)
	origin := "http://" + srv.Listener.Addr().String()
	d := doorman{tenants.Tenant{ID: tenants.NewTenantID(), Slug: "acme"}}
	site, err := auth.NewSite(auth.SiteConfig{PublicURL: origin})
	if err != nil {
		t.Fatal(err)
	}
	var trusts auth.Trusts
	chain := []auth.Authenticator{d}
	if trust != nil {
		fetch := auth.NewFetcher(auth.FetchConfig{AllowHTTPLoopback: true})
		t.Cleanup(fetch.Close)
		oauth := auth.NewOAuth(site, trusted(trust(origin)), fetch, nil, auth.OAuthConfig{TTL: time.Millisecond}, log)
		trusts, chain = oauth, []auth.Authenticator{oauth}
	}
	ch := auth.NewChallenger(site, d, trusts, log)
	gate := auth.NewGate(site, auth.NewVerifier(d, chain...), nil, ch)
	h := gate.Bearer(mcp.New(mcp.Config{Challenger: ch, Tenants: d, Services: mcp.Services{Fleet: f, Metrics: f, Events: someEvents(), Tasks: tickets{}, Registry: reg}, Log: log}))
	mux := http.NewServeMux()
	mux.Handle("/t/{tenant}/mcp", h)
	mux.Handle("/t/{tenant}/mcp/", h)
	mux.Handle("GET /t/{tenant}/api/v1/session", gate.Bearer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scope, _ := auth.ScopeFrom(r.Context())
		_ = json.NewEncoder(w).Encode(map[string][]string{"scopes": scope.Granted.Effective().Words()})
	})))
	mux.Handle("/.well-known/oauth-protected-resource/", auth.NewMetadata(site, d, trusts))
	srv.Config.Handler = mux
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL + "/t/acme/mcp"
}

// trusted is a tenant's trust that knows no member.
type trusted tenants.Trust

func (t trusted) Trust(context.Context, tenants.TenantID) (tenants.Trust, error) {
	return tenants.Trust(t), nil
}

func (trusted) Member(context.Context, tenants.TenantID, string, string) (tenants.Member, error) {
	return tenants.Member{}, fault.New(fault.NotFound, "unknown_member", "no such member")
}

type result struct {
	code     int
	out, err string
}

// cli runs the built program with settings from the environment.
func cli(t *testing.T, url, token, input string, args ...string) result {
	t.Helper()
	return cliAt(t, t.TempDir(), url, token, input, args...)
}

// cliAt is cli with a home, where logins are.
func cliAt(t *testing.T, home, url, token, input string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = []string{"TELLTALE_URL=" + url, "TELLTALE_TOKEN=" + token, "HOME=" + home, "TERM=xterm"}
	cmd.Stdin = strings.NewReader(input)
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errb.String()}
}

const nobody = "http://127.0.0.1:1/t/acme/mcp"

func TestCommands(t *testing.T) {
	url := serve(t)
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte("good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		url, token string
		args       []string
		code       int
		out, err   []string // what stdout and stderr must hold; empty: they must be empty
	}{
		"help":               {"", "", []string{"--help"}, 0, []string{"nodes", "tools", "call", "mcp", "version", "TELLTALE_URL", "--token-file"}, nil},
		"nothing":            {"", "", nil, 2, nil, []string{"usage: telltale COMMAND"}},
		"help of a command":  {"", "", []string{"call", "--help"}, 0, []string{"usage: telltale call", "metrics_summary"}, nil},
		"help call":          {"", "", []string{"help", "mcp"}, 0, []string{"--validate"}, nil},
		"unknown command":    {url, "good", []string{"explode"}, 2, nil, []string{`no command "explode"`}},
		"URL first":          {"", "good", []string{"--url", url, "--token-env=TELLTALE_TOKEN", "nodes"}, 0, []string{"node-0"}, nil},
		"URL twice":          {"", "good", []string{"--url=" + nobody, "nodes", "--url", url}, 0, []string{"node-0"}, nil},
		"other flag first":   {url, "good", []string{"--json", "nodes"}, 2, nil, []string{"telltale COMMAND --json"}},
		"flags only":         {"", "good", []string{"--url", url}, 2, nil, []string{"no command"}},
		"odd query":          {url + "?toolsets=obs", "good", []string{"tools"}, 1, nil, []string{"400", "toolsets names the unknown \"obs\"", "known names: observe", "reference id"}},
		"odd query, call":    {url + "?read_only=1", "good", []string{"call", "list_nodes"}, 1, nil, []string{"400", "read_only", "readonly", "reference id"}},
		"odd query, check":   {url + "?read_only=1", "good", []string{"mcp", "--validate"}, 1, nil, []string{"400", "read_only", "readonly", "reference id"}},
		"unknown flag":       {url, "good", []string{"nodes", "--colour"}, 2, nil, []string{"unknown flag --colour"}},
		"flag without value": {url, "good", []string{"nodes", "--url"}, 2, nil, []string{"--url needs a value"}},
		"version":            {"", "", []string{"version"}, 0, []string{"telltale 9.8.7"}, nil},
		"no settings":        {"", "", []string{"nodes"}, 2, nil, []string{"TELLTALE_URL", "TELLTALE_TOKEN"}},
		"bad URL":            {"acme", "good", []string{"nodes"}, 2, nil, []string{"https://HOST/t/acme/mcp"}},
		"base URL":           {strings.TrimSuffix(url, "/t/acme/mcp"), "good", []string{"nodes"}, 2, nil, []string{"not a tenant's MCP URL"}},
		"plain http abroad":  {"http://example.org/t/acme/mcp", "good", []string{"nodes"}, 2, nil, []string{"https"}},
		"nodes":              {url, "good", []string{"nodes"}, 0, []string{"NAME", "node-0", "a-much-longer-name", "offline"}, nil},
		"nodes by status":    {url + "/", "good", []string{"nodes", "--status", "offline"}, 0, []string{"a-much-longer-name"}, nil},
		"nodes as JSON":      {url, "good", []string{"nodes", "--json"}, 0, []string{`"name":"node-0"`}, nil},
		"bad status":         {url, "good", []string{"nodes", "--status", "odd"}, 1, nil, []string{"INVALID_ARGUMENT (status)"}},
		"bad label":          {url, "good", []string{"nodes", "--label", "odd"}, 2, nil, []string{"KEY=VALUE"}},
		"token file":         {url, "", []string{"nodes", "--token-file", tokenFile}, 0, []string{"node-0"}, nil},
		"token file missing": {url, "", []string{"nodes", "--token-file=/nowhere/token"}, 2, nil, []string{"/nowhere/token"}},
		"tools":              {url, "good", []string{"tools"}, 0, []string{"TOOL", "list_nodes", "reads"}, nil},
		"tools in full":      {url, "good", []string{"tools", "--list"}, 0, []string{"Which question starts with which tool", "list_nodes", "Use it to", "limit", "integer", "max_bytes", "required"}, nil},
		"tools as JSON":      {url, "good", []string{"tools", "--json"}, 0, []string{`"inputSchema"`}, nil},
		"call":               {url, "good", []string{"call", "list_nodes", "{}"}, 0, []string{"node-0", "online"}, nil},
		"call, flags last":   {"", "", []string{"call", "list_nodes", "--url", url, "--token-file", tokenFile}, 0, []string{"node-0"}, nil},
		"tool error":         {url, "good", []string{"call", "list_nodes", `{"limit":"x"}`}, 1, nil, []string{"limit"}},
		"tool panics":        {url, "good", []string{"call", "get_node", `{"node":"panic"}`}, 1, nil, []string{"reference id"}},
		"unknown tool":       {url, "good", []string{"call", "no_such_tool"}, 1, nil, []string{"unknown tool", "telltale tools", "reference id"}},
		"no tool":            {url, "good", []string{"call"}, 2, nil, []string{"name of a tool"}},
		"no JSON":            {url, "good", []string{"call", "list_nodes", "{limit:1}"}, 2, nil, []string{"not a JSON object"}},
		"JSON list":          {url, "good", []string{"call", "list_nodes", "[]"}, 2, nil, []string{"not a JSON object"}},
		"unquoted JSON":      {url, "good", []string{"call", "list_nodes", "{", "}"}, 2, nil, []string{"quote"}},
		"server away":        {nobody, "good", []string{"call", "list_nodes"}, 3, nil, []string{"no answer from " + nobody, "refused"}},
		"expired token":      {url, "old", []string{"nodes"}, 1, nil, []string{"401", "expired", "reference id"}},
		"other tenant":       {strings.Replace(url, "acme", "globex", 1), "good", []string{"nodes"}, 1, nil, []string{"401", "reference id"}},
		"scope missing":      {url, "blind", []string{"call", "list_nodes"}, 1, nil, []string{"403", "telltale:read", "reference id"}},
		"wrong path":         {strings.Replace(url, "/t/acme", "/elsewhere", 1), "good", []string{"nodes"}, 1, nil, []string{"404", "TELLTALE_URL"}},
		"bridge without URL": {"", "good", []string{"mcp"}, 2, nil, []string{"TELLTALE_URL"}},
		"validate":           {url, "good", []string{"mcp", "--validate"}, 0, nil, []string{"2026-07-28 and 2025-11-25", " tools"}},
		"validate, away":     {nobody, "good", []string{"mcp", "--validate"}, 3, nil, []string{"no answer"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := cli(t, c.url, c.token, "", c.args...)
			if r.code != c.code {
				t.Errorf("exit %d, want %d", r.code, c.code)
			}
			check := func(what, got string, want []string) {
				if len(want) == 0 && got != "" {
					t.Errorf("%s is not empty: %s", what, got)
				}
				for _, w := range want {
					if !strings.Contains(got, w) {
						t.Errorf("%s lacks %q: %s", what, w, got)
					}
				}
				if strings.Contains(got, "\x1b") {
					t.Errorf("%s is coloured although it is no terminal", what)
				}
			}
			check("stdout", r.out, c.out)
			check("stderr", r.err, c.err)
			if strings.Contains(r.out+r.err, "Bearer") || c.token == "good" && strings.Contains(r.err, "good") {
				t.Errorf("the token leaks: %s", r.err)
			}
		})
	}
}

func TestTableIsAligned(t *testing.T) {
	r := cli(t, serve(t), "good", "", "nodes")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if len(lines) != 8 {
		t.Fatalf("%d lines: %s", len(lines), r.out)
	}
	at := strings.Index(lines[0], "STATUS")
	for _, l := range lines[1:] {
		if !strings.HasPrefix(l[at:], "online") && !strings.HasPrefix(l[at:], "offline") {
			t.Errorf("not aligned: %s", l)
		}
	}
}

func TestRedirectIsNotFollowed(t *testing.T) {
	var leaked string
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { leaked = r.Header.Get("Authorization") }))
	t.Cleanup(other.Close)
	first := httptest.NewServer(http.RedirectHandler(other.URL+"/t/acme/mcp", http.StatusPermanentRedirect))
	t.Cleanup(first.Close)
	r := cli(t, first.URL+"/t/acme/mcp", "good", "", "nodes")
	if r.code != 1 || leaked != "" || !strings.Contains(r.err, other.URL) {
		t.Errorf("exit %d, leaked %q, %s", r.code, leaked, r.err)
	}
}

func TestCallReadsStandardInput(t *testing.T) {
	if r := cli(t, serve(t), "good", `{"limit":2}`, "call", "list_nodes", "-"); r.code != 0 || !strings.Contains(r.out, "node-1") {
		t.Errorf("exit %d %s%s", r.code, r.out, r.err)
	}
}

func TestLinksNoServerOrAgentPackage(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(dep, "github.com/telltale-dev/telltale/") && dep != "github.com/telltale-dev/telltale/cmd/telltale" && dep != "github.com/telltale-dev/telltale/cmd/telltale/login" {
			t.Errorf("links %s", dep)
		}
		for _, heavy := range []string{"google.golang.org/grpc", "github.com/jackc/pgx", "github.com/cilium/ebpf"} {
			if strings.HasPrefix(dep, heavy) {
				t.Errorf("links %s", dep)
			}
		}
	}
}

// messages reads bridge output; every line must be a JSON-RPC message.
func messages(t *testing.T, out string) []map[string]json.RawMessage {
	t.Helper()
	var list []map[string]json.RawMessage
	for l := range strings.SplitSeq(strings.TrimSuffix(out, "\n"), "\n") {
		if l == "" {
			continue
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal([]byte(l), &m); err != nil || string(m["jsonrpc"]) != `"2.0"` {
			t.Fatalf("not JSON-RPC on stdout: %q", l)
		}
		list = append(list, m)
	}
	return list
}
