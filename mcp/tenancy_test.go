package mcp

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/tenants"
)

func TestRealServices(t *testing.T) {
	s := newSystem(t)
	c := connect(t, s.url("acme"), s.token("acme", tenants.Read, tenants.Selector{}), "")
	for _, q := range []struct {
		tool, args string
		words      []string
	}{
		{"fleet_overview", "{}", []string{"3 nodes", "3 online", "3 of 3 nodes answered", "network/tcp", "degraded"}},
		{"list_nodes", "{}", []string{"acme-node-0", "acme-node-2", "role=db", "online"}},
		{"list_nodes", `{"labels":{"role":"db"}}`, []string{"acme-node-2"}},
		{"list_nodes", `{"limit":1}`, []string{"acme-node-0", "next_cursor"}},
		{"get_node", `{"node":"acme-node-1"}`, []string{"acme-node-1", "network/tcp", "proc", "no BTF", "acme-node-1-kernel"}},
		{"metrics_summary", `{"module":"network"}`, []string{"network.opens", "30/s", "network.drops", "acme-node-0-reason", "3 of 3 nodes answered"}},
		{"metrics_summary", `{"module":"network","node":"acme-node-2","from":"1m","format":"detailed"}`, []string{"network.opens", "acme-node-2-reason", "10/s"}},
		{"query_metrics", `{"metrics":["network.opens"]}`, []string{"network.opens", "acme-node-0", "rate_per_s", "10/s"}},
		{"query_metrics", `{"metrics":["network.drops"],"top":2,"by":"max"}`, []string{"network.drops", "reason=acme-node", "2/s"}},
		{"query_metrics", `{"metrics":["network.opens"],"group":"role"}`, []string{"role=db", "role=web"}},
		{"list_events", `{}`, []string{"3 events", "acme-node-0", "retransmit_burst", "remote=acme-node-2-peer", "3 (2 counted only)", "3 of 3 nodes answered"}},
		{"list_events", `{"node":"acme-node-1","limit":1}`, []string{"1 event", "acme-node-1-peer"}},
	} {
		res := call(t, c, q.tool, q.args)
		text := textOf(t, res)
		for _, w := range q.words {
			if res.IsError || !strings.Contains(text, w) {
				t.Errorf("%s %s lacks %q:\n%s", q.tool, q.args, w, text)
			}
		}
		tools := toolTable(Services{Registry: networkRegistry(), Tasks: s.tasks, Events: s.events})
		i := slices.IndexFunc(tools, func(x Tool) bool { return x.Name == q.tool })
		raw, err := json.Marshal(res.StructuredContent)
		s.must(err)
		conforms(t, q.tool, outputSchema(tools[i].Output), raw)
	}
}

func TestForeignTokenAndForeignNode(t *testing.T) {
	s := newSystem(t)
	acme := s.token("acme", tenants.Read, tenants.Selector{})
	if r := send(t, http.MethodPost, s.url("globex"), acme, listCall); r.status != http.StatusUnauthorized || !strings.Contains(r.header.Get("WWW-Authenticate"), `error="invalid_token"`) || r.header.Get("Telltale-Reference") == "" {
		t.Errorf("acme's token at globex: %d %v", r.status, r.header)
	}
	theirs := s.nodes["globex"][0]
	for _, ref := range []string{theirs.id, theirs.name} {
		for _, c := range []string{toolCall("get_node", `{"node":"`+ref+`"}`), toolCall("metrics_summary", `{"module":"network","node":"`+ref+`"}`), toolCall("query_metrics", `{"metrics":["network.opens"],"node":"`+ref+`"}`)} {
			if r := send(t, http.MethodPost, s.url("acme"), acme, c); r.status != 200 || !strings.Contains(r.body, "NOT_FOUND") {
				t.Errorf("%s: %d %s", c, r.status, r.body)
			}
		}
	}
	s.must(s.directory.SetMCP(t.Context(), "acme", false))
	if r := send(t, http.MethodPost, s.url("acme"), acme, listCall); r.status != http.StatusForbidden || !strings.Contains(r.body, "mcp_disabled_tenant") {
		t.Errorf("switched off: %d %s", r.status, r.body)
	}
	if r := send(t, http.MethodPost, s.url("globex"), s.token("globex", tenants.Read, tenants.Selector{}), listCall); r.status != 200 {
		t.Errorf("the other tenant: %d", r.status)
	}
}

// TestNothingForeignInAnyByte is the property: whatever a caller asks, with
// whatever it may have learnt of others, no answer holds a word that belongs
// to a node outside its tenant and selector, but for what it sent itself.
func TestNothingForeignInAnyByte(t *testing.T) {
	s := newSystem(t)
	all := slices.Concat(s.nodes["acme"], s.nodes["globex"])
	type principal struct {
		slug, secret string
		sees         func(planted) bool
	}
	var callers []principal
	r := rand.New(rand.NewPCG(1, 2))
	for _, slug := range []string{"acme", "globex"} {
		mine := func(n planted) bool { return n.scope.Slug == slug }
		only := s.nodes[slug][1]
		onlyID, err := tenants.ParseNodeID(only.id)
		s.must(err)
		callers = append(callers,
			principal{slug, s.token(slug, tenants.Read, tenants.Selector{}), mine},
			principal{slug, s.token(slug, tenants.Admin|tenants.Diagnose, tenants.Selector{}), mine},
			principal{slug, s.token(slug, tenants.Read, tenants.Selector{Labels: map[string]string{"role": "db"}}), func(n planted) bool { return mine(n) && n.role == "db" }},
			principal{slug, s.token(slug, tenants.Admin|tenants.Diagnose, tenants.Selector{Labels: map[string]string{"role": "web"}}), func(n planted) bool { return mine(n) && n.role == "web" }},
			principal{slug, s.token(slug, tenants.Read, tenants.Selector{IDs: []tenants.NodeID{onlyID}}), func(n planted) bool { return n.id == only.id }},
			principal{slug, s.token(slug, tenants.Payloads, tenants.Selector{}), func(planted) bool { return false }},
		)
		for range 4 { // any scopes, any nodes
			granted, sees := tenants.Scopes(1+r.IntN(int(tenants.EveryScope))), mine
			sel := tenants.Selector{}
			if r.IntN(2) == 0 {
				role := []string{"db", "web", "none"}[r.IntN(3)]
				sel.Labels, sees = map[string]string{"role": role}, func(n planted) bool { return mine(n) && n.role == role }
			}
			if !granted.Has(tenants.Read) {
				sees = func(planted) bool { return false }
			}
			callers = append(callers, principal{slug, s.token(slug, granted, sel), sees})
		}
	}
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var cursors, ids []string
	owner := map[string]string{} // of an id, the tenant that told it
	id := func() string {
		if len(ids) == 0 {
			return "0195ffff-0000-7000-8000-000000000000"
		}
		return pick(ids...)
	}
	answered := map[string]int{}
	for range 1500 {
		c := callers[r.IntN(len(callers))]
		n := all[r.IntN(len(all))]
		ref := pick(n.id, n.name, strings.ToUpper(n.name), n.name[:4], "")
		cursor := ""
		if len(cursors) > 0 {
			cursor = pick(cursors...)
		}
		args := map[string]any{}
		tool := pick("fleet_overview", "list_nodes", "get_node", "metrics_summary", "query_metrics", "list_events", "get_event", "check_task_result", "search", "fetch", "list_tokens", "audit_recent", "trace_tcp_retransmits")
		add := func(k string, v any) {
			if r.IntN(3) == 0 {
				args[k] = v
			}
		}
		switch tool {
		case "list_nodes":
			add("search", ref)
			add("cursor", cursor)
			add("limit", 1+r.IntN(3))
			add("labels", map[string]string{"owner": pick("acme-owner", "globex-owner")})
		case "get_node":
			args["node"] = ref
		case "metrics_summary":
			args["module"] = "network"
			add("node", ref)
			add("labels", map[string]string{"role": "db"})
			add("format", "detailed")
		case "query_metrics":
			args["metrics"] = []string{pick("network.opens", "network.drops")}
			add("node", ref)
			add("group", pick("role", "owner"))
			add("labels", map[string]string{"reason": n.name + "-reason"})
			add("top", 3)
			add("limit", 1)
			add("cursor", cursor)
		case "list_events":
			add("node", ref)
			add("limit", 1)
			add("cursor", cursor)
		case "get_event":
			args["event_id"] = id()
		case "check_task_result":
			args["ticket_id"] = id()
		case "search":
			args["query"] = pick(ref, "node", "owner="+pick("acme-owner", "globex-owner"), "role=db offline", n.name+"-peer", "retransmit burst "+n.name, id(), "event:"+id(), "slow trace", "acme globex")
		case "fetch":
			args["id"] = pick("node:"+ref, "event:"+id(), "task:"+id(), "tool:list_tokens", "tool:search", id())
		case "list_tokens":
			add("limit", 1)
			add("cursor", cursor)
		case "audit_recent":
			add("reference_id", n.name+"-ref")
			add("principal", n.name+"-caller")
			add("cursor", cursor)
		case "trace_tcp_retransmits":
			add("node", ref)
			if args["node"] == nil {
				args["selector"] = map[string]string{"role": pick("db", "web")}
			}
		}
		raw, err := json.Marshal(args)
		s.must(err)
		body := toolCall(tool, string(raw))
		if r.IntN(5) == 0 {
			uri := pick("telltale://health", "telltale://metrics/summary", "telltale://metrics/network", nodePrefix+ref, recentURI, eventPrefix+id()+eventSuffix, ticketPrefix+id())
			body = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":%q}}`, uri)
			tool = "resource"
		} else if r.IntN(8) == 0 {
			body = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"telltale://nodes/{node}"},"argument":{"name":"node","value":%q}}}`, pick("", "a", "g", n.name[:5]))
			tool = "completion"
		}
		reply := send(t, http.MethodPost, s.url(c.slug), c.secret, body)
		if reply.status == 200 && !strings.Contains(reply.body, `"isError":true`) {
			answered[tool]++
		}
		if cur := between(reply.body, `"next_cursor":"`, `"`); cur != "" {
			cursors = append(cursors, cur)
		}
		for _, key := range []string{`"event_id":"`, `"ticket_id":"`, `"id":"event:`, `"token_id":"`} { // what one caller learnt, others may ask for
			if learnt := between(reply.body, key, `"`); learnt != "" && len(ids) < 400 && !slices.Contains(ids, learnt) {
				ids = append(ids, learnt)
				owner[learnt] = c.slug
			}
		}
		rest := fmt.Sprint(reply.header) + reply.body
		for _, sent := range []string{n.name + "-reason", n.name, strings.ToUpper(n.name), n.id, "acme-owner", "globex-owner"} {
			if strings.Contains(body, sent) && (tool == "get_node" || tool == "resource" || strings.Contains(reply.body, "no node")) {
				rest = strings.ReplaceAll(rest, sent, "(sent)")
			}
		}
		for _, other := range all {
			if c.sees(other) {
				continue
			}
			for _, w := range other.words {
				// The owner label is the same on all nodes of one tenant.
				if other.scope.Slug == c.slug && strings.HasSuffix(w, "-owner") {
					continue
				}
				if strings.Contains(rest, w) {
					t.Fatalf("%s of %s (tenant %s) saw %q of %s\nasked %s\ngot %s", tool, c.slug, c.slug, w, other.name, body, reply.body)
				}
			}
			for learnt, slug := range owner {
				if slug != c.slug && !strings.Contains(body, learnt) && strings.Contains(rest, learnt) {
					t.Fatalf("%s of %s saw the id %s of %s\nasked %s\ngot %s", tool, c.slug, learnt, slug, body, reply.body)
				}
			}
			if other.scope.Slug != c.slug && strings.Contains(rest, other.scope.Tenant.String()) {
				t.Fatalf("%s saw the tenant id of %s", c.slug, other.scope.Slug)
			}
		}
	}
	for _, tool := range []string{"fleet_overview", "list_nodes", "get_node", "metrics_summary", "query_metrics", "list_events", "get_event", "check_task_result", "search", "fetch", "list_tokens", "audit_recent", "trace_tcp_retransmits", "resource", "completion"} {
		if answered[tool] == 0 {
			t.Errorf("%s never answered: the property proved nothing of it", tool)
		}
	}
}

func between(s, after, before string) string {
	_, s, ok := strings.Cut(s, after)
	if !ok {
		return ""
	}
	s, _, _ = strings.Cut(s, before)
	return s
}
