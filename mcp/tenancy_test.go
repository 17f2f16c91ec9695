package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tasks"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// system is the whole way of a call: real authentication, the handler, real
// services on a real database, two tenants with the same shape of data.
type system struct {
	*httptest.Server
	t         *testing.T
	directory *directory.Service
	access    *access.Service
	fleet     *fleet.Service
	metrics   *metrics.Service
	events    *events.Service
	tasks     *tasks.Service
	tokens    *auth.OperatorTokens
	nodes     map[string][]planted // by slug
	tenants   map[string]tenants.Tenant
}

// planted is one node with the words that only its own readers may see.
type planted struct {
	scope tenants.Scope
	id    string
	name  string
	role  string
	words []string
}

func newSystem(t *testing.T) *system {
	t.Helper()
	now := time.Now().UTC().Truncate(time.Second)
	clock := func() time.Time { return now }
	log := slog.New(slog.DiscardHandler)
	db := dbtest.New(t)
	reg := networkRegistry()
	s := &system{t: t, nodes: map[string][]planted{}, tenants: map[string]tenants.Tenant{},
		directory: directory.New(db, log, directory.Config{Now: clock}), access: access.New(db, log, clock),
		fleet: fleet.New(db, reg, fleet.Config{Replica: "r1", Now: clock}, log), metrics: metrics.New(db, reg, metrics.Config{Now: clock}, log)}
	s.events = events.New(db, reg, s.directory, s.metrics, nil, events.Config{Now: clock}, log)
	s.tasks = tasks.New(db, reg, s.fleet, nil, tasks.Config{Replica: "r1", Now: clock}, log)
	s.run(s.events.Run, s.tasks.Run)
	for _, slug := range []string{"acme", "globex"} {
		tenant, err := s.directory.CreateTenant(t.Context(), slug, "The "+slug+" company")
		s.must(err)
		s.tenants[slug] = tenant
	}
	s.must(s.metrics.EnsurePartitions(t.Context()))
	for slug := range s.tenants {
		for i, role := range []string{"web", "web", "db"} {
			s.plant(slug, i, role, now)
		}
	}
	s.serve(reg, log)
	return s
}

// run runs parts until the test ends.
func (s *system) run(parts ...func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, part := range parts {
		wg.Go(func() { _ = part(ctx) })
	}
	s.t.Cleanup(func() { cancel(); wg.Wait() })
}

func (s *system) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func networkRegistry() *inspector.Registry {
	r := &inspector.Registry{}
	r.Add(inspector.Component{Name: "network", Title: "Network", Probe: true, Signals: []string{"tcp"}, Tasks: []inspector.TaskKind{
		{Name: "trace_tcp_retransmits", Title: "Trace", Help: "Which connections send again. Use when one is slow.", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{"tcp"}, Args: inspector.TraceArgs(300)},
	}, Events: []inspector.EventKind{
		{Name: "retransmit_burst", Title: "Burst", Help: "Segments are sent again.", Severity: inspector.Warning, Rule: &inspector.Rule{Metric: "network.opens", Stat: inspector.StatRate, K: 1, N: 1},
			Labels: []string{"remote"}, Related: []string{"network.opens"}, Tool: "trace_tcp_retransmits"},
	}, Metrics: []inspector.Metric{
		{Name: "network.opens", Kind: inspector.Delta, Unit: inspector.Count, Help: "connections opened", Signal: "tcp", Headline: true},
		{Name: "network.drops", Kind: inspector.Delta, Unit: inspector.Count, Help: "packets dropped", Labels: []string{"reason"}},
	}})
	return r
}

// plant enrols a node and stores capabilities and six windows of it.
func (s *system) plant(slug string, i int, role string, now time.Time) {
	s.t.Helper()
	ctx, tenant := s.t.Context(), s.tenants[slug]
	secret, _, err := s.directory.CreateEnrolToken(ctx, auth.Local(tenant, "test", tenants.Admin), directory.EnrolTokenSpec{Labels: map[string]string{"role": role, "owner": slug + "-owner"}})
	s.must(err)
	name := fmt.Sprintf("%s-node-%d", slug, i)
	_, id, err := s.directory.RedeemEnrolToken(ctx, secret, directory.NodeFacts{Name: name, MachineID: name + "-machine", Kernel: name + "-kernel", AgentVersion: "1.0"})
	s.must(err)
	n := planted{id: id.String(), name: name, role: role, words: []string{id.String(), name, name + "-peer", name + "-comm", slug + "-owner"},
		scope: tenants.Scope{Tenant: tenant.ID, Slug: slug, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: id.String()}, Nodes: tenants.Selector{IDs: []tenants.NodeID{id}}}}
	_, err = s.fleet.SessionOpened(ctx, n.scope, fleet.SessionFacts{Remote: "192.0.2.7:1", MachineID: name + "-machine", BootID: name + "-boot", AgentVersion: "1.0", Kernel: name + "-kernel"})
	s.must(err)
	s.must(s.fleet.RecordCapabilities(ctx, n.scope, []inspector.Capability{{Component: "network", Signal: "tcp", Level: inspector.Degraded, Source: inspector.SourceProc, Reason: name + " has no BTF"}}))
	layout := inspector.NewLayout("network", []inspector.Series{ // in the order that a layout keeps
		{Metric: "network.drops", Kind: inspector.Delta, Unit: inspector.Count, Labels: []inspector.Label{{Key: "reason", Value: name + "-reason"}}},
		{Metric: "network.opens", Kind: inspector.Delta, Unit: inspector.Count},
	})
	_, err = s.metrics.PutLayout(ctx, n.scope, layout.AppendBinary(nil))
	s.must(err)
	pos, err := s.metrics.OpenStream(ctx, n.scope, 0, 0)
	s.must(err)
	var batch []metrics.Checked
	for seq := range uint64(6) {
		end := now.Add(-time.Duration(5-seq) * tenants.WindowLength)
		c, err := s.metrics.Check(ctx, n.scope, metrics.Report{Epoch: pos.Epoch, Seq: seq + 1, Layout: layout.Hash, Start: end.Add(-tenants.WindowLength), End: end, Samples: 10,
			Packed: inspector.AppendValues(nil, layout.Series, []inspector.Value{{OK: true, Delta: 20}, {OK: true, Delta: 100}})}, 0)
		s.must(err)
		batch = append(batch, c)
	}
	_, err = s.metrics.Write(ctx, batch)
	s.must(err)
	labels := map[string]string{"remote": name + "-peer"}
	s.must(s.events.Record(ctx, n.scope, inspector.EventReport{Kind: "retransmit_burst", Fingerprint: inspector.FingerprintOf("retransmit_burst", labels), Begun: now.Add(-time.Minute), Last: now, State: inspector.EventOpen,
		Labels: labels, SampleCount: 1, Truncated: 2, Samples: []inspector.EventSample{{At: now, Labels: map[string]string{"comm": name + "-comm"}}}}, 0))
	out := &outbox{name: name, now: now, orders: make(chan tasks.Dispatch, 64)}
	ch, _, err := s.tasks.ChannelOpened(ctx, n.scope, tasks.Hello{StartedNS: 1, Kinds: []string{"trace_tcp_retransmits"}}, out)
	s.must(err)
	s.run(func(ctx context.Context) error { return out.work(ctx, ch) })
	s.nodes[slug] = append(s.nodes[slug], n)
}

// outbox is a node that does what it is asked: a short task at once, a long one
// until it is cancelled.
type outbox struct {
	name   string
	now    time.Time
	orders chan tasks.Dispatch
}

func (o *outbox) Dispatch(d tasks.Dispatch) bool {
	select {
	case o.orders <- d:
		return true
	default:
		return false
	}
}

func (o *outbox) Cancel(tasks.ID) bool { return true }

func (o *outbox) work(ctx context.Context, ch *tasks.Channel) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case d := <-o.orders:
			_ = ch.Accepted(ctx, d.ID)
			r := &inspector.TaskResult{From: o.now.Add(-5 * time.Second), To: o.now, Totals: map[string]uint64{"segments": 42},
				Rows: []inspector.ResultRow{{Labels: map[string]string{"remote": o.name + "-peer"}, Count: 31}, {Labels: map[string]string{"remote": o.name + "-other"}, Count: 11}}}
			if strings.Contains(string(d.Args), `"duration_s":300`) {
				ch.Progress(ctx, d.ID, tasks.Progress{Permille: 500, Partial: r})
				continue
			}
			_ = ch.Finished(ctx, d.ID, tasks.Outcome{State: tasks.Completed, Result: r})
		}
	}
}

func (s *system) serve(reg *inspector.Registry, log *slog.Logger) {
	site, err := auth.NewSite(auth.SiteConfig{PublicURL: "http://127.0.0.1:8400"})
	s.must(err)
	s.tokens = auth.NewOperatorTokens(s.access, nil, auth.OperatorConfig{})
	challenger := auth.NewChallenger(site, s.directory, nil, log)
	gate := auth.NewGate(site, auth.NewVerifier(s.directory, s.tokens), nil, challenger)
	h := gate.Bearer(New(Config{Challenger: challenger, Tenants: s.directory, Services: Services{Fleet: s.fleet, Metrics: s.metrics, Tasks: s.tasks, Events: s.events, Registry: reg}, Log: log}))
	mux := http.NewServeMux()
	mux.Handle("/t/{tenant}/mcp", h)
	mux.Handle("/t/{tenant}/mcp/", h)
	s.Server = httptest.NewServer(mux)
	s.t.Cleanup(s.Close)
}

func (s *system) token(slug string, granted tenants.Scopes, sel tenants.Selector) string {
	s.t.Helper()
	secret, _, err := s.access.CreateToken(s.t.Context(), auth.Local(s.tenants[slug], "test", tenants.Admin), access.TokenSpec{Name: "t", Scopes: granted, Nodes: sel})
	s.must(err)
	return secret
}

func (s *system) url(slug string) string { return s.URL + "/t/" + slug + "/mcp" }

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
	for slug := range s.tenants {
		mine := func(n planted) bool { return n.scope.Slug == slug }
		only := s.nodes[slug][1]
		onlyID, err := tenants.ParseNodeID(only.id)
		s.must(err)
		callers = append(callers,
			principal{slug, s.token(slug, tenants.Read, tenants.Selector{}), mine},
			principal{slug, s.token(slug, tenants.Admin|tenants.Diagnose, tenants.Selector{}), mine},
			principal{slug, s.token(slug, tenants.Read, tenants.Selector{Labels: map[string]string{"role": "db"}}), func(n planted) bool { return mine(n) && n.role == "db" }},
			principal{slug, s.token(slug, tenants.Read, tenants.Selector{IDs: []tenants.NodeID{onlyID}}), func(n planted) bool { return n.id == only.id }},
			principal{slug, s.token(slug, tenants.Payloads, tenants.Selector{}), func(planted) bool { return false }},
		)
	}
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var cursors []string
	answered := map[string]int{}
	for range 600 {
		c := callers[r.IntN(len(callers))]
		n := all[r.IntN(len(all))]
		ref := pick(n.id, n.name, strings.ToUpper(n.name), n.name[:4], "")
		cursor := ""
		if len(cursors) > 0 {
			cursor = pick(cursors...)
		}
		args := map[string]any{}
		tool := pick("fleet_overview", "list_nodes", "get_node", "metrics_summary", "query_metrics")
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
		}
		raw, err := json.Marshal(args)
		s.must(err)
		body := toolCall(tool, string(raw))
		if r.IntN(5) == 0 {
			uri := pick("telltale://health", "telltale://metrics/summary", "telltale://metrics/network", nodePrefix+ref)
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
			if other.scope.Slug != c.slug && strings.Contains(rest, other.scope.Tenant.String()) {
				t.Fatalf("%s saw the tenant id of %s", c.slug, other.scope.Slug)
			}
		}
	}
	for _, tool := range []string{"fleet_overview", "list_nodes", "get_node", "metrics_summary", "query_metrics", "resource", "completion"} {
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
