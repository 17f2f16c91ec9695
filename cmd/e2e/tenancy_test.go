package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
			op, ok := doc.Paths[path][m].(map[string]any)
			if _, open := op["security"]; ok && !open { // one that is open to all names no credential
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
	ticket, event := acmeEvidence(t, s, acme)
	for _, w := range []string{ticket, event} {
		secretWords = append(secretWords, regexp.MustCompile(`\b`+w+`\b`))
	}
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

	fill := strings.NewReplacer("{node}", target.Node, "{ticket}", ticket, "{event}", event)
	for _, r := range tenantRoutes(t) {
		path := fill.Replace(r.path)
		query, body, needed := "", "", ""
		switch {
		case strings.HasSuffix(path, "/metrics/summary"):
			query = "?module=network&node=" + target.Node
		case strings.HasSuffix(path, "/metrics/query"):
			query = "?metrics=network.tcp_closes&node=" + target.Node
		case strings.HasSuffix(path, "/events"):
			query = "?node=" + target.Node
		case r.method == http.MethodPost && strings.HasSuffix(path, "/tasks"):
			needed, body = "diagnose", fmt.Sprintf(`{"kind":"trace_slow_io","node":%q,"arguments":{"duration_s":1}}`, target.Node)
		case r.method == http.MethodDelete && r.path != path:
			needed = "diagnose"
		case r.method == http.MethodPut:
			needed, body = "admin", `{"off":["network"]}`
		case r.method == http.MethodPost:
			body = fmt.Sprintf(`{"token":%q}`, globex.Tokens["admin"])
		}
		for kind, token := range globex.Tokens {
			at := s.BaseURL + strings.Replace(path, "{tenant}", "acme", 1) + query
			a := call(t, r.method, at, token, body, "Content-Type", "application/json")
			if a.status != http.StatusUnauthorized {
				t.Errorf("%s %s with globex's %s token: %d, want 401: %s", r.method, at, kind, a.status, a.body)
			}
			clean(r.method+" "+at, a, target.Node, ticket, event)
			if r.path == path && query == "" && needed == "" {
				continue
			}
			at = s.BaseURL + strings.Replace(path, "{tenant}", "globex", 1) + query
			a = call(t, r.method, at, token, body, "Content-Type", "application/json")
			if want := http.StatusNotFound; a.status != want && (a.status != http.StatusForbidden || needed == "" || kind == needed) {
				t.Errorf("%s %s with globex's %s token: %d, want %d: %s", r.method, at, kind, a.status, want, a.body)
			}
			clean(r.method+" "+at, a, target.Node, ticket, event)
		}
	}
	for _, path := range []string{"/overview", "/nodes", "/events", "/tasks"} {
		clean(path, call(t, "GET", globex.RESTURL+path, globex.Tokens["read"], ""))
	}
	if stream := listen(t, globex, 1500*time.Millisecond); strings.Contains(stream.body, "event: event") {
		t.Errorf("globex has no events, and its stream shows: %s", stream.body)
	}

	for kind, token := range globex.Tokens {
		a := call(t, "POST", acme.MCPURL, token, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcpHeaders...)
		if a.status != http.StatusUnauthorized {
			t.Errorf("MCP of acme with globex's %s token: %d, want 401", kind, a.status)
		}
		clean("MCP of acme", a)
	}
	names := tools(t, globex, "read")
	random := rand.New(rand.NewPCG(1, 2))
	arguments := []map[string]any{
		{"node": target.Node}, {"node": target.Name}, {"selector": map[string]string{"environment": "dev"}}, {},
		{"event_id": event}, {"ticket_id": ticket}, {"refusal": "feature_off", "node": target.Node},
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
				clean("tool "+name, a, target.Node, target.Name, event, ticket)
				if a.status >= 500 {
					t.Errorf("tool %s with %v: %d %s", name, trial, a.status, a.body)
				}
			}
		}
	}
	foreignEvidence(t, globex, target, ticket, event, clean)
	out, code := telltale(t, globex, "read", "call", "get_node", fmt.Sprintf(`{"node":%q}`, target.Node))
	if code != 1 || !strings.Contains(out, "NOT_FOUND") && !strings.Contains(out, "no node") {
		t.Errorf("get_node of acme's node as globex: exit %d: %s", code, out)
	}
}

var mcpHeaders = []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}

// acmeEvidence makes a task and an event of acme's that globex must not see,
// and more events for as long as the test lasts.
func acmeEvidence(t *testing.T, s *stack, acme tenant) (ticket, event string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "telltale-agent"), "simulate", "--n", "1", "--prefix", "secret-", "--events-per-min", "300",
		"--server", s.GRPCAddr, "--ca", s.CAFile, "--token", acme.EnrolToken, "--dir", t.TempDir())
	start(t, cmd)
	s.await(30*time.Second, "a task of acme's", func() bool {
		_, doc := startTask(t, acme, "trace_slow_io", "secret-0001", map[string]any{"duration_s": 1})
		ticket = doc.Ticket
		return doc.Status == "COMPLETED"
	})
	s.await(20*time.Second, "an event of acme's", func() bool {
		var page struct{ Events []eventDoc }
		rest(t, acme, "read", http.MethodGet, "/events?limit=1&node=secret-0001", nil, &page)
		if len(page.Events) == 1 {
			event = page.Events[0].ID
		}
		return event != ""
	})
	return ticket, event
}

// listen reads a tenant's stream of events for a while.
func listen(t *testing.T, x tenant, lasts time.Duration) (a answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, x.RESTURL+"/events/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+x.Tokens["read"])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body) // until the time is over
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the stream of events: %d %s", resp.StatusCode, b)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

// foreignEvidence asks with globex's strongest hand for what is acme's: every
// diagnose tool, every resource.
func foreignEvidence(t *testing.T, globex tenant, target node, ticket, event string, clean func(string, answer, ...string)) {
	read := tools(t, globex, "read")
	checks := []func(){}
	for _, name := range tools(t, globex, "diagnose") {
		if slices.Contains(read, name) {
			continue
		}
		checks = append(checks, func() {
			for _, args := range []map[string]any{
				{"node": target.Node, "duration_s": 1}, {"node": target.Name}, {"ticket_id": ticket},
				{"ticket_id": ticket, "row": 0, "kind": "slow_io"}, {"selector": map[string]string{"environment": "dev"}, "duration_s": 1},
			} {
				a := tool(t, globex, "diagnose", name, args)
				clean("tool "+name, answer{a.status, nil, a.text + sprintJSON(a.body)}, target.Node, target.Name, ticket)
				if !a.isError && args["selector"] == nil {
					t.Errorf("%s with %v succeeds for globex: %s", name, args, a.text)
				}
			}
		})
	}
	if len(checks) < 8 {
		t.Errorf("globex has only %d diagnose tools", len(checks))
	}
	together(checks...)
	for _, uri := range []string{"telltale://nodes/" + target.Node, "telltale://tasks/" + ticket, "telltale://events/" + event + "/context", "telltale://events/recent", "telltale://health"} {
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":%q}}`, uri)
		clean(uri, call(t, http.MethodPost, globex.MCPURL, globex.Tokens["diagnose"], body, mcpHeaders...), target.Node, ticket, event)
	}
}

// tools lists the names that a tenant's token of one kind sees.
func tools(t *testing.T, x tenant, kind string) []string {
	t.Helper()
	a := call(t, "POST", x.MCPURL, x.Tokens[kind], `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, mcpHeaders...)
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
