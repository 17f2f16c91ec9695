package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/telltale-dev/telltale/tenants"
)

// fakeRunning says what the fleets run.
type fakeRunning struct {
	mu     sync.Mutex
	fleets map[string][]string // by slug; missing: nobody said anything
	b      *backend
	err    error
}

func (f *fakeRunning) Components(_ context.Context, t tenants.TenantID) ([]string, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	list, known := f.fleets[f.b.slugs[t]]
	return list, known, f.err
}

func (f *fakeRunning) set(slug string, list ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fleets[slug] = list
}

func (w *world) names(t *testing.T, bearer, query string) []string {
	t.Helper()
	var list struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	if err := json.Unmarshal(toolList(t, w, bearer, query), &list); err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, tool := range list.Tools {
		out = append(out, tool.Name)
	}
	return out
}

// TestServerSettingsAreAnUpperBound: no URL lifts what the server leaves out.
func TestServerSettingsAreAnUpperBound(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(*Config)
		there, gone []string
		query       string
	}{
		"sets":              {func(c *Config) { c.ToolSets = []string{observeSet} }, []string{"list_nodes", checkTask}, []string{"trace_slow_io", cancelTask, "list_tokens"}, ""},
		"sets, wider URL":   {func(c *Config) { c.ToolSets = []string{observeSet} }, []string{"list_nodes"}, []string{"trace_slow_io", "list_tokens"}, "?toolsets=observe,diagnose,admin"},
		"admin alone":       {func(c *Config) { c.ToolSets = []string{adminSet} }, []string{"list_tokens"}, []string{"list_nodes"}, ""},
		"read-only":         {func(c *Config) { c.ToolSets, c.ReadOnly = ToolSets(), true }, []string{"trace_slow_io", "list_tokens"}, []string{cancelTask, promote}, "?readonly=0"},
		"read-only by URL":  {func(c *Config) { c.ToolSets = ToolSets() }, []string{"trace_slow_io"}, []string{cancelTask, promote}, "?readonly=0&readonly=1"},
		"excluded tool":     {func(c *Config) { c.ToolSets, c.Exclude = ToolSets(), []string{"trace_slow_io"} }, []string{"trace_network_drops"}, []string{"trace_slow_io"}, "?toolsets=diagnose"},
		"excluded set wins": {func(c *Config) { c.ToolSets, c.Exclude = ToolSets(), []string{diagnoseSet} }, []string{"list_nodes"}, []string{"trace_slow_io", cancelTask}, ""},
		"default":           {func(c *Config) { c.ToolSets = nil }, []string{"list_nodes", "trace_slow_io"}, []string{"list_tokens", "audit_recent", "tenant_usage"}, "?toolsets=observe,diagnose,admin"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, stub{}, func(cfg *Config) { withEverything(newBackend())(cfg); c.change(cfg) })
			got := w.names(t, everyScope, c.query)
			for _, n := range c.there {
				if !slices.Contains(got, n) {
					t.Errorf("%s is missing in %v", n, got)
				}
			}
			for _, n := range c.gone {
				if slices.Contains(got, n) {
					t.Errorf("%s is listed", n)
				}
				// Neither with the scope nor without it: no step-up leads there.
				for _, bearer := range []string{everyScope, "read"} {
					r := w.post(t, bearer, c.query, toolCall(n, "{}"))
					if code, msg := rpcError(t, r); r.status != 200 || code != -32602 || !strings.Contains(msg, "unknown tool") {
						t.Errorf("%s for %s: %d %s", n, bearer, r.status, r.body)
					}
				}
			}
		})
	}
}

func TestCheckFindsTypingErrors(t *testing.T) {
	b := newBackend()
	good := Config{Services: Services{Registry: b.reg, Tasks: fakeTasks{b}, Events: fakeEvents{b}}, ToolSets: []string{"observe", "jobs", "maintain"}, Exclude: []string{"diagnose", "get_event"}}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Config){func(c *Config) { c.ToolSets = []string{"obserev"} }, func(c *Config) { c.Exclude = []string{"get_evnet"} }, func(c *Config) { c.Exclude = []string{""} }} {
		bad := good
		change(&bad)
		if err := bad.Check(); err == nil || !strings.Contains(err.Error(), "known") {
			t.Errorf("%v", err)
		}
	}
}

// TestStepUpOnlyWhereItLeads: a 403 is written only for what exists and the
// caller can obtain; everything else is unknown, in both eras.
func TestStepUpOnlyWhereItLeads(t *testing.T) {
	b := newBackend()
	run := &fakeRunning{fleets: map[string][]string{"acme": {"network", "host"}}, b: b}
	w := start(t, stub{nodes: stubNodes(1)}, func(c *Config) { withEverything(b)(c); c.Services.Running = run; c.Exclude = []string{promote} })
	read := func(uri string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":%q}}`, uri)
	}
	prompt := func(name string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"prompts/get","params":{"name":%q}}`, name)
	}
	for name, c := range map[string]struct {
		bearer, query, body string
		need                tenants.Scopes // zero: not found
	}{
		"missing and obtainable":   {"read~read,diagnose", "", toolCall("trace_network_drops", "{}"), tenants.Diagnose},
		"an operator token":        {"read", "", toolCall("trace_network_drops", "{}"), tenants.Diagnose},
		"never obtainable":         {"read~read,payloads", "", toolCall("trace_network_drops", "{}"), 0},
		"nothing obtainable":       {"read~", "", toolCall(cancelTask, "{}"), 0},
		"not run by the fleet":     {"read", "", toolCall("trace_slow_io", "{}"), 0},
		"excluded by the server":   {"read", "", toolCall(promote, "{}"), 0},
		"excluded by the URL":      {"read", "?exclude=trace_network_drops", toolCall("trace_network_drops", "{}"), 0},
		"of a set not in the URL":  {"read", "?toolsets=observe", toolCall("trace_network_drops", "{}"), 0},
		"hidden by read-only":      {"read", "?readonly=1", toolCall(cancelTask, "{}"), 0},
		"no such tool":             {"read", "", toolCall("trace_everything", "{}"), 0},
		"admin obtainable":         {"read", "", toolCall("list_tokens", "{}"), tenants.Admin},
		"admin beyond the role":    {"read~read,diagnose", "", toolCall("list_tokens", "{}"), 0},
		"read for payloads":        {"payloads~read", "", toolCall("list_nodes", "{}"), tenants.Read},
		"read implied by admin":    {"payloads~admin", "", toolCall("list_nodes", "{}"), tenants.Read},
		"resource":                 {"payloads", "", read("telltale://health"), tenants.Read},
		"node resource":            {"payloads", "", read("telltale://nodes/x"), tenants.Read},
		"module resource":          {"payloads", "", read("telltale://metrics/network"), tenants.Read},
		"event resource":           {"payloads", "", read(recentURI), tenants.Read},
		"no such module":           {"payloads", "", read("telltale://metrics/gpu"), 0},
		"no such resource":         {"payloads", "", read("file:///etc/passwd"), 0},
		"resource beyond the role": {"payloads~payloads", "", read("telltale://health"), 0},
		"prompt":                   {"payloads", "", prompt("system_triage"), tenants.Read},
		"no such prompt":           {"payloads", "", prompt("no_such"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := w.post(t, c.bearer, c.query, c.body)
			if c.need == 0 {
				if code, _ := rpcError(t, r); r.status == 403 || code != -32602 && code != -32601 && code != -32002 || r.header.Get("WWW-Authenticate") != "" {
					t.Errorf("want unknown, got %d %v %s", r.status, r.header, r.body)
				}
				return
			}
			granted, _, _ := strings.Cut(c.bearer, "~")
			want := `scope="` + (scopesOf(granted) | c.need).String() + `"`
			if r.status != 403 || !strings.Contains(r.header.Get("WWW-Authenticate"), want) {
				t.Errorf("want 403 with %s, got %d %v %s", want, r.status, r.header, r.body)
			}
		})
	}
	body, header := modernMeta("tools/call", `"name":"trace_slow_io"`)
	if r := w.post(t, "read", "", body, append(header, "Mcp-Name", "trace_slow_io")...); r.status != 400 || !strings.Contains(r.body, "-32602") {
		t.Errorf("a modern client: %d %s", r.status, r.body)
	}
	body, header = modernMeta("tools/call", `"name":"trace_network_drops"`)
	if r := w.post(t, "read", "", body, append(header, "Mcp-Name", "trace_network_drops")...); r.status != 403 {
		t.Errorf("a modern client: %d %s", r.status, r.body)
	}
	// Methods that the initialize era does not have lead to no step-up.
	old := `{"jsonrpc":"2.0","id":7,"method":"tasks/get","params":{"taskId":"x"}}`
	if r := w.post(t, "payloads", "", old); r.status == 403 {
		t.Errorf("tasks/get of the old era: %d %s", r.status, r.body)
	}
}

// TestListFollowsTheFleet: a component's tools are listed while a node of the
// tenant runs it. A tenant of which nothing is known sees everything.
func TestListFollowsTheFleet(t *testing.T) {
	b := newBackend()
	run := &fakeRunning{fleets: map[string][]string{"globex": {}}, b: b}
	w := start(t, stub{}, func(c *Config) { withBackend(b)(c); c.Services.Running = run })
	expect := func(bearer string, there, gone []string) {
		t.Helper()
		got := w.names(t, bearer, "")
		for _, n := range there {
			if !slices.Contains(got, n) {
				t.Errorf("%s: %s is missing", bearer, n)
			}
		}
		for _, n := range gone {
			if slices.Contains(got, n) {
				t.Errorf("%s: %s is listed", bearer, n)
			}
			if r := w.post(t, bearer, "", toolCall(n, `{"node":"x"}`)); !strings.Contains(r.body, "unknown tool") {
				t.Errorf("%s: %s answers %s", bearer, n, r.body)
			}
		}
	}
	always := []string{"fleet_overview", "list_nodes", "search", "fetch", checkTask, cancelTask}
	expect("diagnose", append([]string{"trace_slow_io", "trace_network_drops", "profile_on_cpu"}, always...), nil)
	expect("diagnose@globex", always, []string{"trace_slow_io", "trace_network_drops", "profile_on_cpu"})
	run.set("acme", "network")
	expect("diagnose", append([]string{"trace_network_drops"}, always...), []string{"trace_slow_io", "profile_on_cpu"})
	run.set("acme", "network", "storage")
	expect("diagnose", append([]string{"trace_network_drops", "trace_slow_io"}, always...), []string{"profile_on_cpu"})
	run.mu.Lock()
	run.err = context.DeadlineExceeded
	run.mu.Unlock()
	expect("diagnose", append([]string{"profile_on_cpu"}, always...), nil)
	if !strings.Contains(w.log.String(), "cannot read what the nodes of a tenant run") {
		t.Error("the failure is not in the log")
	}
}

// TestServerCacheIsBounded: 100 tenants with eight sets of scopes each are more
// than are kept.
func TestServerCacheIsBounded(t *testing.T) {
	w := start(t, stub{}, withBackend(newBackend()))
	scopes := []tenants.Scopes{tenants.Read, tenants.Diagnose, tenants.Act, tenants.Approve, tenants.Maintain, tenants.Admin, tenants.Read | tenants.Payloads, tenants.EveryScope}
	servers := map[any]bool{}
	for range 2 {
		for range 100 {
			tenant := tenants.NewTenantID()
			for _, granted := range scopes {
				c := caller{scope: tenants.Scope{Tenant: tenant, Granted: granted}}
				s := w.h.server(&c)
				if again := w.h.server(&c); again != s {
					t.Fatal("the server of one caller is made twice")
				}
				servers[s] = true
			}
		}
	}
	if len(servers) != 1600 || len(w.h.servers.entries) != 512 || w.h.Evicted() != 1600-512 {
		t.Errorf("%d servers, %d kept, %d evicted", len(servers), len(w.h.servers.entries), w.h.Evicted())
	}
}
