package e2e_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// route is one operation of the OpenAPI file.
type route struct{ method, path string }

// tenantRoutes reads every operation below a tenant from the contract, so that
// a new one is walked without being listed here.
func tenantRoutes(t *testing.T) []route {
	t.Helper()
	b, err := os.ReadFile("../../api/rest/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	var out []route
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		if !strings.HasPrefix(path, "/t/{tenant}/") {
			continue
		}
		for _, m := range []string{"get", "post", "put", "delete", "patch"} {
			if doc.Paths[path][m] != nil {
				out = append(out, route{strings.ToUpper(m), path})
			}
		}
	}
	if len(out) < 8 {
		t.Fatalf("only %d routes in the contract: is this the right file?", len(out))
	}
	return out
}

// tenantsNeverMeet walks every route and every tool with globex's credentials:
// at acme's addresses they are worth nothing, and acme's ids do not exist
// under globex's own.
func tenantsNeverMeet(t *testing.T, s *stack, acme, globex tenant) {
	secretWords := []*regexp.Regexp{}
	for _, n := range nodes(t, acme) {
		for _, w := range []string{n.Node, n.Name} {
			secretWords = append(secretWords, regexp.MustCompile(`\b`+regexp.QuoteMeta(w)+`\b`))
		}
	}
	own := nodes(t, globex)
	if len(own) != 1 {
		t.Errorf("globex sees %d nodes, want its one simulated node", len(own))
	}
	target := nodes(t, acme)[0]
	clean := func(what string, a answer, asked ...string) {
		t.Helper()
		text := a.body + fmt.Sprint(a.header)
		for _, w := range asked { // an answer may repeat what it was asked
			text = strings.ReplaceAll(text, w, "")
		}
		for _, w := range secretWords {
			if w.MatchString(text) {
				t.Errorf("%s shows %s of acme: %s", what, w, a.body)
			}
		}
	}

	for _, r := range tenantRoutes(t) {
		path := strings.ReplaceAll(r.path, "{node}", target.Node)
		query, body := "", ""
		switch {
		case strings.HasSuffix(path, "/metrics/summary"):
			query = "?module=network&node=" + target.Node
		case strings.HasSuffix(path, "/metrics/query"):
			query = "?metrics=network.tcp_closes&node=" + target.Node
		case r.method == http.MethodPut:
			body = `{"off":["network"]}`
		case r.method == http.MethodPost:
			body = fmt.Sprintf(`{"token":%q}`, globex.Tokens["admin"])
		}
		for kind, token := range globex.Tokens {
			at := s.BaseURL + strings.Replace(path, "{tenant}", "acme", 1) + query
			a := call(t, r.method, at, token, body, "Content-Type", "application/json")
			if a.status != http.StatusUnauthorized {
				t.Errorf("%s %s with globex's %s token: %d, want 401: %s", r.method, at, kind, a.status, a.body)
			}
			clean(r.method+" "+at, a, target.Node)
			if !strings.Contains(r.path, "{node}") && query == "" {
				continue
			}
			at = s.BaseURL + strings.Replace(path, "{tenant}", "globex", 1) + query
			a = call(t, r.method, at, token, body, "Content-Type", "application/json")
			if want := http.StatusNotFound; a.status != want && (a.status != http.StatusForbidden || kind == "admin") {
				t.Errorf("%s %s with globex's %s token: %d, want %d: %s", r.method, at, kind, a.status, want, a.body)
			}
			clean(r.method+" "+at, a, target.Node)
		}
	}

	for kind, token := range globex.Tokens {
		a := call(t, "POST", acme.MCPURL, token, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcpHeaders...)
		if a.status != http.StatusUnauthorized {
			t.Errorf("MCP of acme with globex's %s token: %d, want 401", kind, a.status)
		}
		clean("MCP of acme", a)
	}
	names := tools(t, globex)
	random := rand.New(rand.NewPCG(1, 2))
	arguments := []map[string]any{
		{"node": target.Node}, {"node": target.Name}, {"selector": map[string]string{"environment": "dev"}}, {},
		{"cursor": "AAAA"}, {"search": target.Name[:1]}, {"limit": 1_000_000_000},
	}
	for _, name := range names {
		for range 20 {
			args := map[string]any{"module": "network", "metrics": []string{"network.tcp_closes"}}
			maps.Copy(args, arguments[random.IntN(len(arguments))])
			// Keep what the tool knows, so that some calls get far.
			for _, drop := range [][]string{nil, {"module"}, {"metrics"}, {"module", "metrics"}} {
				trial := maps.Clone(args)
				for _, d := range drop {
					delete(trial, d)
				}
				raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{"name": name, "arguments": trial}})
				if err != nil {
					t.Fatal(err)
				}
				a := call(t, "POST", globex.MCPURL, globex.Tokens["read"], string(raw), mcpHeaders...)
				clean("tool "+name, a, target.Node, target.Name)
				if a.status >= 500 {
					t.Errorf("tool %s with %v: %d %s", name, trial, a.status, a.body)
				}
			}
		}
	}
	out, code := telltale(t, globex, "read", "call", "get_node", fmt.Sprintf(`{"node":%q}`, target.Node))
	if code != 1 || !strings.Contains(out, "NOT_FOUND") && !strings.Contains(out, "no node") {
		t.Errorf("get_node of acme's node as globex: exit %d: %s", code, out)
	}
}

var mcpHeaders = []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}

// tools lists the names that a tenant's read token sees.
func tools(t *testing.T, x tenant) []string {
	t.Helper()
	a := call(t, "POST", x.MCPURL, x.Tokens["read"], `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcpHeaders...)
	_, data, ok := strings.Cut(a.body, "data: ")
	if !ok {
		data = a.body
	}
	var got struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(strings.TrimSpace(data)), &got); err != nil {
		t.Fatalf("tools/list: %d %v: %s", a.status, err, a.body)
	}
	names := []string{}
	for _, x := range got.Result.Tools {
		names = append(names, x.Name)
	}
	if len(names) < 5 {
		t.Fatalf("tools: %v", names)
	}
	return names
}
