package e2e_test

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// propertyFor bounds the random walk.
const propertyFor = 12 * time.Second

// party is a tenant with what its people know.
type party struct {
	tenant
	mark string
	who  []cred
	ids  map[string][]string // of its objects, by path parameter
	word []string            // what its people look for: ids and names
}

// nothingOfOthers lets random callers of random tenants ask random routes and
// tools, each with random words of anybody's, and looks for the marks of other
// tenants in everything that comes back. TELLTALE_TEST_SEED repeats a run.
func nothingOfOthers(t *testing.T, r *replicas) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("TELLTALE_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var all []*party
	for i := range 4 {
		all = append(all, newParty(t, r, fmt.Sprintf("prop%d", i), random))
	}
	for _, p := range all {
		p.fill(t)
	}
	routes := tenantRoutes(t)
	var asked, answered atomic.Int64
	var work []func()
	stop := time.Now().Add(propertyFor)
	for n := range 4 {
		random := rand.New(rand.NewPCG(seed, uint64(n)+1))
		work = append(work, func() {
			for time.Now().Before(stop) && !t.Failed() {
				me, at := all[random.IntN(len(all))], all[random.IntN(len(all))]
				if random.IntN(3) > 0 {
					at = me
				}
				s := []*server{r.a, r.b}[random.IntN(2)]
				asked.Add(1)
				if me.asks(t, random, s, at, all, routes) {
					answered.Add(1)
				}
			}
		})
	}
	for _, p := range all { // whoever listens hears only its own
		work = append(work, func() {
			body := fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["telltale://events/recent","telltale://health","telltale://nodes/%s"]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, all[0].ids["node"][0])
			a := listen(t, http.MethodPost, r.b.at(p.tenant).MCPURL, p.Tokens["read"], body, propertyFor, append([]string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen"}, mcpHeaders...)...)
			p.only(t, "updates", a, "", all)
			b := listen(t, http.MethodGet, r.a.at(p.tenant).RESTURL+"/events/stream", p.Tokens["read"], "", time.Second)
			p.only(t, "events", b, "", all)
			if !strings.Contains(a.body, "notifications/resources/updated") {
				t.Errorf("%s hears nothing: %d %.300s", p.Slug, a.status, a.body)
			}
		})
	}
	together(work...)
	t.Logf("%d requests, %d of them answered with success", asked.Load(), answered.Load())
	if !t.Failed() && answered.Load() < 200 {
		t.Errorf("only %d of %d requests succeeded: that proves little", answered.Load(), asked.Load())
	}
}

// newParty makes a tenant with nodes and callers, all named with its mark.
func newParty(t *testing.T, r *replicas, slug string, random *rand.Rand) *party {
	t.Helper()
	p := &party{mark: fmt.Sprintf("mk%08xz", random.Uint32()), ids: map[string][]string{}}
	p.tenant = r.a.tenant(slug, "team="+p.mark+",site=a")
	p.Tokens["admin"] = r.a.admin("token", "create", "--tenant", slug, "--name", p.mark+"-admin", "--scopes", "read,diagnose,admin")
	simulateAt(t, r.a, p.tenant, p.mark+"-")
	issuer := trustSigner(t, p.tenant, r.signer, map[string]any{"name": p.mark + " people"})
	p.ids["issuer"] = []string{issuer}
	mint := func(body string) string {
		a := r.do(t, r.a, p.tenant, "POST", "/tokens", body)
		p.ids["token"] = append(p.ids["token"], idPattern.FindStringSubmatch(a.body)[1])
		return regexp.MustCompile(`"secret":"([^"]+)"`).FindStringSubmatch(a.body)[1]
	}
	scopes := []string{"telltale:read", "telltale:diagnose", "telltale:act", "telltale:admin"}
	for n := range 3 {
		labels := []string{"a", "none"}[random.IntN(2)]
		p.who = append(p.who, cred{bearer: mint(fmt.Sprintf(`{"name":"%s-%d","scopes":["telltale:read",%q],"nodes":{"labels":{"site":%q}}}`, p.mark, n, scopes[random.IntN(len(scopes))], labels))})
	}
	for _, group := range []string{"sre", "viewers", "admins", "none", "sre"} {
		p.who = append(p.who, cred{bearer: r.jwt(t, p.tenant, fmt.Sprintf("u%d", random.IntN(3)), slug+"-"+group)})
	}
	other := r.jwt(t, p.tenant, "nobody", "prop0-sre", "prop1-admins") // groups of others as well
	p.who = append(p.who, cred{bearer: other}, cred{bearer: p.Tokens["read"]}, cred{bearer: p.Tokens["diagnose"]}, cred{bearer: p.Tokens["admin"]}, cred{header: session(t, p.tenant, "admin")})
	for n := range 2 {
		a := r.do(t, r.a, p.tenant, "POST", "/members", fmt.Sprintf(`{"issuer_id":%q,"subject":"%s-%d","name":"%s","scopes":["telltale:read"]}`, issuer, p.mark, n, p.mark))
		p.ids["member"] = append(p.ids["member"], idPattern.FindStringSubmatch(a.body)[1])
		a = r.do(t, r.a, p.tenant, "POST", "/enrol-tokens", fmt.Sprintf(`{"labels":{"team":%q}}`, p.mark))
		p.ids["enrol_token"] = append(p.ids["enrol_token"], idPattern.FindStringSubmatch(a.body)[1])
	}
	return p
}

// fill waits for the nodes, and makes tasks, events and audit of them.
func (p *party) fill(t *testing.T) {
	t.Helper()
	connected(t, p.tenant, 2)
	for _, n := range nodes(t, p.tenant) {
		p.ids["node"] = append(p.ids["node"], n.Node)
	}
	poll(t, 30*time.Second, "a task of "+p.Slug, func() bool {
		_, doc := startTask(t, p.tenant, "trace_slow_io", p.mark+"-0001", map[string]any{"duration_s": 1})
		p.ids["ticket"] = []string{doc.Ticket}
		return doc.Ticket != ""
	})
	poll(t, 30*time.Second, "events of "+p.Slug, func() bool {
		var page struct{ Events []eventDoc }
		rest(t, p.tenant, "read", http.MethodGet, "/events?limit=5", nil, &page)
		p.ids["event"] = nil
		for _, e := range page.Events {
			p.ids["event"] = append(p.ids["event"], e.ID)
		}
		return len(page.Events) > 1
	})
	tool(t, p.tenant, "admin", "search", map[string]any{"query": p.mark}) // the audit holds arguments
	for _, ids := range p.ids {
		p.word = append(p.word, ids...)
	}
	p.word = append(p.word, "nobody", "", "AAAA", "zz")
	for _, list := range []string{"nodes", "events", "tasks", "audit", "tokens", "members", "enrol-tokens"} {
		a := call(t, http.MethodGet, p.RESTURL+"/"+list+"?limit=1", p.Tokens["admin"], "")
		if m := regexp.MustCompile(`"next_cursor":"([^"]+)"`).FindStringSubmatch(a.body); m != nil {
			p.word = append(p.word, m[1])
		}
	}
}

// asks makes one random request as one of this party's at a tenant's door.
func (p *party) asks(t *testing.T, random *rand.Rand, s *server, at *party, all []*party, routes []route) bool {
	c := p.who[random.IntN(len(p.who))]
	from := all[random.IntN(len(all))] // whose words are sent
	word := func() string { return from.word[random.IntN(len(from.word))] }
	x := s.at(at.tenant)
	var a answer
	var sent string
	if c.bearer != "" && random.IntN(2) == 0 {
		names := []string{"fleet_overview", "list_nodes", "get_node", "metrics_summary", "query_metrics", "list_events", "get_event", "explain", "search", "fetch", "check_task_result", "list_tokens", "audit_recent", "tenant_usage", "promote_evidence", "no_such_tool"}
		args := map[string]any{}
		for name, v := range map[string]any{"node": word(), "event_id": word(), "ticket_id": word(), "query": word(), "id": word(), "cursor": word(), "search": word(), "module": "network",
			"metrics": []string{"network.tcp_closes"}, "labels": map[string]string{"site": "a"}, "limit": 1 + random.IntN(3), "principal": word(), "title": "x"} {
			if random.IntN(4) == 0 {
				args[name] = v
			}
		}
		name := names[random.IntN(len(names))]
		if needs := map[string]string{"get_node": "node", "get_event": "event_id", "fetch": "id", "search": "query", "check_task_result": "ticket_id"}[name]; needs != "" {
			args = map[string]any{needs: word()}
		} else if random.IntN(2) == 0 {
			args = map[string]any{}
		}
		sent = rpc(t, "tools/call", map[string]any{"name": name, "arguments": args})
		switch random.IntN(8) {
		case 0:
			sent = rpc(t, "resources/read", map[string]any{"uri": []string{"telltale://nodes/", "telltale://tasks/", "telltale://health?", "telltale://events/"}[random.IntN(4)] + word()})
		case 1:
			sent = rpc(t, "resources/read", map[string]any{"uri": []string{"telltale://health", "telltale://events/recent"}[random.IntN(2)]})
		}
		a = call(t, http.MethodPost, x.MCPURL, c.bearer, sent, mcpHeaders...)
	} else {
		r := routes[random.IntN(len(routes))]
		if strings.HasSuffix(r.path, "/stream") || from == at && p == at && r.method != http.MethodGet || r.method != http.MethodGet && p == at && strings.Count(r.path, "{") == 1 {
			return false // streams are listened to elsewhere, and nobody spoils its own
		}
		path := r.path
		for name, ids := range from.ids {
			path = strings.ReplaceAll(path, "{"+name+"}", ids[random.IntN(len(ids))])
		}
		q := url.Values{}
		for _, name := range r.query {
			if random.IntN(3) == 0 {
				q.Set(name, word())
			}
		}
		for _, need := range r.needs {
			name, v, _ := strings.Cut(need, "=")
			q.Set(name, v)
		}
		sent = path + "?" + q.Encode()
		a = call(t, r.method, "http://"+s.http+strings.Replace(sent, "{tenant}", at.Slug, 1), c.bearer, strings.ReplaceAll(r.body, "null", "{}"), append([]string{"Content-Type", "application/json"}, c.header...)...)
	}
	what := fmt.Sprintf("%s at %s: %s", p.Slug, at.Slug, sent)
	if p != at && a.status != http.StatusUnauthorized {
		t.Errorf("%s: %d, want 401: %.300s", what, a.status, a.body)
	}
	if a.status >= 500 {
		t.Errorf("%s: %d %.300s", what, a.status, a.body)
	}
	p.only(t, what, a, sent, all)
	return a.status/100 == 2
}

var coded = regexp.MustCompile(`[A-Za-z0-9_-]{16,}`)

// only looks that nothing of the other parties is in an answer: their marks
// nowhere, in no coding; their ids only where they were asked for, or in the
// asker's own record.
func (p *party) only(t *testing.T, what string, a answer, sent string, all []*party) {
	t.Helper()
	text := a.body + fmt.Sprint(a.header)
	record := strings.Contains(what, "audit") || strings.Contains(what, "export") || strings.Contains(what, "connect") // of what was asked, cursors too
	for _, w := range coded.FindAllString(text, -1) {
		if raw, err := base64.RawURLEncoding.DecodeString(w); err == nil && !record && !strings.Contains(sent, w) { // an answer may repeat a cursor that it was sent
			text += string(raw)
		}
	}
	for _, o := range all {
		if o == p {
			continue
		}
		if strings.Contains(text, o.mark) {
			t.Errorf("%s shows %s of %s: %.600s", what, o.mark, o.Slug, a.body)
		}
		for _, ids := range o.ids {
			for _, id := range ids {
				if !record && !strings.Contains(sent, id) && strings.Contains(text, id) {
					t.Errorf("%s shows %s of %s: %.600s", what, id, o.Slug, a.body)
				}
			}
		}
	}
}
