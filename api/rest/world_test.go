package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tasks"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// world is the real server side without a network: two tenants with nodes and
// numbers, and a token of every sort.
type world struct {
	t       testing.TB
	fleet   *fleet.Service
	metrics *metrics.Service
	events  *events.Service
	tasks   *tasks.Service
	audit   *audit.Service
	dir     *directory.Service
	cfg     Config
	srv     *Server
	log     *logLines
	access  *access.Service
	acme    tenants.Scope   // the operator of the server, in acme
	other   tenants.Scope   // the same in globex
	issuer  *tenants.Issuer // acme's, once a test asked for it
	made    int             // names what tests make

	web, db    tenants.NodeID // acme's nodes; the restricted token sees db alone
	foreign    tenants.NodeID // globex's node
	event      string         // of db
	hidden     []string       // events of web and of globex, tasks of them
	ticket     string         // of a finished task on db
	read       string         // acme, telltale:read
	admin      string         // acme, telltale:admin
	hollow     string         // acme, telltale:payloads, which grants nothing alone
	restricted string         // acme, telltale:admin, only nodes with role=db
	expired    string         // acme, of the past
	globex     string         // globex, telltale:admin
}

const origin = "http://127.0.0.1:8400"

func registry() *inspector.Registry {
	r := &inspector.Registry{}
	r.Add(inspector.Component{Name: "network", Title: "Network", Probe: true, Signals: []string{"tcp"}, Metrics: []inspector.Metric{
		{Name: "network.opens", Kind: inspector.Delta, Unit: inspector.Count, Help: "opens", Signal: "tcp", Headline: true},
		{Name: "network.active", Kind: inspector.Gauge, Unit: inspector.Count, Help: "active", Headline: true},
		{Name: "network.drops", Kind: inspector.Delta, Unit: inspector.Count, Help: "drops", Labels: []string{"reason"}},
		{Name: "network.rtt", Kind: inspector.Histogram, Unit: inspector.Nanoseconds, Help: "rtt"},
	}, Tasks: []inspector.TaskKind{
		{Name: "trace_opens", Title: "Trace opens", Help: "Who opens.", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Args: inspector.TraceArgs(60), Signals: []string{"tcp"}},
		{Name: "run_thing", Title: "Run", Help: "Runs.", Scope: inspector.ScopeAct, Cost: inspector.CostQuery},
	}})
	r.Add(inspector.Component{Name: "storage", Title: "Storage", Probe: true, Signals: []string{"io"}, Metrics: []inspector.Metric{
		{Name: "storage.reads", Kind: inspector.Delta, Unit: inspector.Count, Help: "reads", Labels: []string{"device"}},
	}, Events: []inspector.EventKind{
		{Name: "slow_io", Title: "Slow I/O", Help: "A request took long.", Severity: inspector.Warning, Immediate: true, Labels: []string{"device"}, Related: []string{"storage.reads"}},
	}})
	return r
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, log: &logLines{}}
	log := slog.New(slog.NewJSONHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	db := dbtest.New(t)
	reg := registry()
	w.dir = directory.New(db, quiet, directory.Config{TenantTTL: time.Millisecond, Quotas: quotasOf{w}})
	acc := access.New(db, quiet, access.Config{Sealer: openSeal{}})
	w.access = acc
	w.fleet = fleet.New(db, reg, fleet.Config{Replica: "test"}, quiet)
	w.metrics = metrics.New(db, reg, metrics.Config{}, quiet)

	w.tasks = tasks.New(db, reg, w.fleet, nil, tasks.Config{Replica: "test"}, quiet)
	w.events = events.New(db, reg, w.dir, w.metrics, nil, events.Config{}, quiet)
	w.audit = audit.New(db, audit.Config{Replica: "test"}, quiet)
	w.run(w.audit.Run)
	w.run(w.tasks.Run)
	w.run(w.events.Run)

	site, err := auth.NewSite(auth.SiteConfig{PublicURL: origin, AllowedHosts: []string{"example.com"}, AllowedOrigins: []string{"https://inspector.example.org"}})
	w.must(err)
	tokens := auth.NewOperatorTokens(acc, nil, auth.OperatorConfig{TTL: time.Millisecond})
	verifier := auth.NewVerifier(w.dir, tokens)
	sessions := auth.NewSessions(site, verifier, tokens, acc, nil, time.Millisecond)
	challenger := auth.NewChallenger(site, w.dir, nil, log).Reporting(w.audit)
	w.cfg = Config{
		Log:    log,
		Guards: Guards{Gate: auth.NewGate(site, verifier, sessions, challenger), Fence: auth.NewFence(site), Sessions: sessions, Challenger: challenger},
		Nodes:  w.fleet, Fleet: w.fleet, Metrics: w.metrics, Events: w.events, Tasks: w.tasks, Audit: w.audit, Door: w.audit, Tenants: w.dir, Lifecycle: w.dir, Trusts: acc, Site: site, Registry: reg, StreamLife: 50 * time.Millisecond,
		Tokens: acc, EnrolTokens: w.dir, Issuers: acc, IssuerTest: stepsOf{}, Members: acc, Policies: acc,
		Usage:   UsageSources{Credentials: acc, Enrolment: w.dir, ActiveTasks: fixed(3), Day: failing{}},
		Ready:   []Check{{Name: "database", Ask: func(context.Context) error { return nil }}},
		Version: Version{Version: "0.1.0", Commit: "abcdef", Go: "go1.26"},
		Own:     prometheus.NewRegistry(),
		Dashboard: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "page")
		}),
	}
	w.srv = New(w.cfg)

	acme, globex := w.tenant("acme"), w.tenant("globex")
	w.acme, w.other = auth.Local(acme, "test", tenants.Admin), auth.Local(globex, "test", tenants.Admin)
	_, err = acc.SetPolicy(context.Background(), w.acme, tenants.Policy{MaxIssuers: 100}, nil)
	w.must(err)
	w.web = w.node(acme, "web-1", map[string]string{"role": "web"})
	w.db = w.node(acme, "db-1", map[string]string{"role": "db"})
	w.foreign = w.node(globex, "secret-host", map[string]string{"role": "db"})
	mint := func(tn tenants.Tenant, spec access.TokenSpec) string {
		secret, _, err := acc.CreateToken(context.Background(), auth.Local(tn, "test", tenants.Admin), spec)
		w.must(err)
		return secret
	}
	w.read = mint(acme, access.TokenSpec{Name: "reader", Scopes: tenants.Read})
	w.admin = mint(acme, access.TokenSpec{Name: "admin", Scopes: tenants.Admin | tenants.Diagnose})
	w.hollow = mint(acme, access.TokenSpec{Name: "hollow", Scopes: tenants.Payloads})
	w.restricted = mint(acme, access.TokenSpec{Name: "restricted", Scopes: tenants.Admin | tenants.Diagnose, Nodes: tenants.Selector{Labels: map[string]string{"role": "db"}}})
	w.globex = mint(globex, access.TokenSpec{Name: "globex", Scopes: tenants.Admin | tenants.Diagnose})
	past := access.New(db, quiet, access.Config{Now: func() time.Time { return time.Now().Add(-48 * time.Hour) }})
	yesterday := time.Now().Add(-24 * time.Hour)
	secret, _, err := past.CreateToken(context.Background(), auth.Local(acme, "test", tenants.Admin), access.TokenSpec{Name: "old", Scopes: tenants.Read, ExpiresAt: &yesterday})
	w.must(err)
	w.expired = secret
	w.evidence(acme, globex)
	return w
}

// run runs a part until the test ends.
func (w *world) run(part func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	w.t.Cleanup(func() {
		stop()
		<-done
	})
}

// evidence gives every node an event and a finished task.
func (w *world) evidence(acme, globex tenants.Tenant) {
	w.t.Helper()
	ctx := context.Background()
	for _, n := range []struct {
		tn tenants.Tenant
		id tenants.NodeID
	}{{acme, w.web}, {acme, w.db}, {globex, w.foreign}} {
		sc := nodeScope(n.tn, n.id)
		at := time.Now().Add(-time.Second)
		labels := map[string]string{"device": "sda"}
		w.must(w.events.Record(ctx, sc, inspector.EventReport{Kind: "slow_io", Fingerprint: inspector.FingerprintOf("slow_io", labels), Begun: at, Last: at, Severity: inspector.Warning,
			State: inspector.EventOpen, Labels: labels, SampleCount: 1, Samples: []inspector.EventSample{{At: at, Labels: map[string]string{"pid": "7"}, Values: map[string]float64{"latency_ms": 900}}}}, 0))
		node := &answering{w: w}
		ch, _, err := w.tasks.ChannelOpened(ctx, sc, tasks.Hello{StartedNS: 1, Kinds: []string{"trace_opens"}}, node)
		w.must(err)
		node.ch = ch
		caller := auth.Local(n.tn, "test", tenants.Diagnose)
		task, err := w.tasks.Do(ctx, caller, tasks.Request{Kind: "trace_opens", Node: n.id.String(), Args: map[string]any{"duration_s": 1}}, tasks.DoOptions{})
		w.must(err)
		page, err := w.events.List(ctx, caller, events.ListQuery{Node: n.id.String()})
		w.must(err)
		if len(page.Events) != 1 {
			w.t.Fatalf("%d events of a node that had one", len(page.Events))
		}
		if n.id == w.db {
			w.event, w.ticket = page.Events[0].ID, task.Ticket
		} else {
			w.hidden = append(w.hidden, "/events/"+page.Events[0].ID, "/tasks/"+task.Ticket, "/tasks/"+task.Ticket+"/stream")
		}
	}
}

// answering is a node that accepts and ends every task at once, except those
// of more than eight seconds, which it only accepts.
type answering struct {
	w  *world
	ch *tasks.Channel
}

func (a *answering) Dispatch(d tasks.Dispatch) bool {
	done := make(chan struct{})
	a.w.t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		ctx := context.Background()
		if a.ch.Accepted(ctx, d.ID) != nil || strings.Contains(string(d.Args), `"duration_s":20`) {
			return
		}
		now := time.Now()
		_ = a.ch.Finished(ctx, d.ID, tasks.Outcome{State: tasks.Completed, Result: &inspector.TaskResult{From: now, To: now, Totals: map[string]uint64{"opens": 3},
			Rows:    []inspector.ResultRow{{Labels: map[string]string{"remote": "10.0.0.1:80"}, Count: 3, Values: map[string]float64{"srtt_us": 5}, Stack: []string{"tcp_connect"}}},
			Samples: []inspector.ResultSample{{At: now, Labels: map[string]string{"comm": "curl"}}},
			Profile: &inspector.Profile{Hz: 99, CPUs: 2, Seconds: 1, Samples: 1, Top: []inspector.ProfileFrame{{Function: "main", Self: 1, Total: 1, Share: 1}}, Folded: []inspector.FoldedStack{{Stack: "main", Count: 1}}},
			Next:    []inspector.NextStep{{Tool: "metrics_summary", Args: map[string]any{"module": "network"}, Why: "to see the course"}}}})
	}()
	return true
}

func (a *answering) Cancel(id tasks.ID) bool {
	go func() { _ = a.ch.Finished(context.Background(), id, tasks.Outcome{State: tasks.Cancelled}) }()
	return true
}

func nodeScope(tn tenants.Tenant, id tenants.NodeID) tenants.Scope {
	return tenants.Scope{Tenant: tn.ID, Slug: tn.Slug, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: id.String()}, Nodes: tenants.Selector{IDs: []tenants.NodeID{id}}}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tenant(slug string) tenants.Tenant {
	w.t.Helper()
	tn, err := w.dir.CreateTenant(context.Background(), slug, slug)
	w.must(err)
	return tn
}

// node enrols a node, opens its stream, and stores two windows of it.
func (w *world) node(tn tenants.Tenant, name string, labels map[string]string) tenants.NodeID {
	w.t.Helper()
	ctx := context.Background()
	secret, _, err := w.dir.CreateEnrolToken(ctx, auth.Local(tn, "test", tenants.Admin), directory.EnrolTokenSpec{Labels: labels})
	w.must(err)
	_, id, err := w.dir.RedeemEnrolToken(ctx, secret, directory.NodeFacts{Name: name, MachineID: "m-" + name, BootID: "b", OS: "linux", Arch: "amd64", Kernel: "6.18", AgentVersion: "0.1.0"})
	w.must(err)
	sc := nodeScope(tn, id)
	_, err = w.fleet.SessionOpened(ctx, sc, fleet.SessionFacts{Remote: "192.0.2.1:1", MachineID: "m-" + name, BootID: "b", AgentVersion: "0.1.0", Kernel: "6.18", OS: "linux", Arch: "amd64"})
	w.must(err)
	w.must(w.fleet.RecordCapabilities(ctx, sc, []inspector.Capability{
		{Component: "network", Signal: "tcp", Level: inspector.Full, Source: inspector.SourceBPF},
		{Component: "storage", Signal: "io", Level: inspector.Off, Reason: "no block devices"},
	}))
	w.must(w.fleet.Quarantine(ctx, sc, "malformed", "an example", 2))
	w.windows(sc)
	return id
}

func (w *world) windows(sc tenants.Scope) {
	w.t.Helper()
	ctx := context.Background()
	w.must(w.metrics.EnsurePartitions(ctx))
	layout := inspector.NewLayout("network", []inspector.Series{
		{Metric: "network.opens", Kind: inspector.Delta, Unit: inspector.Count},
		{Metric: "network.active", Kind: inspector.Gauge, Unit: inspector.Count},
		{Metric: "network.drops", Kind: inspector.Delta, Unit: inspector.Count, Labels: []inspector.Label{{Key: "reason", Value: "NO_SOCKET"}}},
		{Metric: "network.rtt", Kind: inspector.Histogram, Unit: inspector.Nanoseconds},
	})
	pos, err := w.metrics.OpenStream(ctx, sc, 0, 1)
	w.must(err)
	_, err = w.metrics.PutLayout(ctx, sc, layout.AppendBinary(nil))
	w.must(err)
	end := time.Now().Truncate(10 * time.Second)
	values := make([]inspector.Value, len(layout.Series))
	for i, s := range layout.Series {
		values[i] = inspector.Value{OK: true, Gauge: 3}
		switch s.Kind {
		case inspector.Delta:
			values[i] = inspector.Value{OK: true, Delta: 1 << 55} // more than a double holds exactly
		case inspector.Histogram:
			values[i] = inspector.Value{OK: true, Sum: 1 << 56, Hist: []uint64{1, 2, 3}}
		}
	}
	var batch []metrics.Checked
	for i := range uint64(2) {
		at := end.Add(time.Duration(i) * 10 * time.Second).Add(-20 * time.Second)
		c, err := w.metrics.Check(ctx, sc, metrics.Report{Epoch: pos.Epoch, Seq: pos.HighSeq + i + 1, Layout: layout.Hash, Start: at, End: at.Add(10 * time.Second),
			Packed: inspector.AppendValues(nil, layout.Series, values), Samples: 10}, 0)
		w.must(err)
		batch = append(batch, c)
	}
	out, err := w.metrics.Write(ctx, batch)
	w.must(err)
	for _, o := range out {
		if o.Status != metrics.Stored {
			w.t.Fatalf("a window was %s %s: %v", o.Status, o.Reason, o.Err)
		}
	}
}

// reply is one answer with its body read.
type reply struct {
	*http.Response
	body []byte
}

func (r reply) problem(t testing.TB) auth.Problem {
	t.Helper()
	var p auth.Problem
	if err := json.Unmarshal(r.body, &p); err != nil || r.Header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("no problem document but %s: %q (%v)", r.Header.Get("Content-Type"), r.body, err)
	}
	return p
}

type header struct{ key, value string }

// do asks the server without a network. token "" sends none.
func (w *world) do(method, target, token, body string, headers ...header) reply {
	w.t.Helper()
	return doOn(w.srv, method, target, token, body, headers...)
}

func doOn(h http.Handler, method, target, token, body string, headers ...header) reply {
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	r := httptest.NewRequest(method, target, rd)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for _, h := range headers {
		r.Header.Set(h.key, h.value)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	res := rec.Result()
	b, _ := io.ReadAll(res.Body) // from memory
	return reply{res, b}
}

// logLines keeps what was logged.
type logLines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// find returns the last access line with the reference.
func (l *logLines) find(reference string) (map[string]any, error) {
	var found map[string]any
	for line := range strings.Lines(l.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			return nil, err
		}
		if m["msg"] == "request" && m["reference"] == reference {
			found = m
		}
	}
	if found == nil {
		return nil, errors.New("no access line with reference " + reference)
	}
	return found, nil
}

// operations lists one sound call of every operation of the API behind a
// credential.
type operation struct {
	id     string // operationId of openapi.yaml
	method string
	path   string // below /t/{tenant}/api/v1, with {node}
	body   string
	need   tenants.Scopes
	status int
}

func operations() []operation {
	return []operation{
		{"getOverview", "GET", "/overview", "", tenants.Read, 200},
		{"listNodes", "GET", "/nodes", "", tenants.Read, 200},
		{"getNode", "GET", "/nodes/{node}", "", tenants.Read, 200},
		{"getCapabilities", "GET", "/nodes/{node}/capabilities", "", tenants.Read, 200},
		{"setModules", "PUT", "/nodes/{node}/modules", `{"off":["storage"]}`, tenants.Admin, 200},
		{"getMetricsSummary", "GET", "/metrics/summary?module=network&node={node}", "", tenants.Read, 200},
		{"queryMetrics", "GET", "/metrics/query?metrics=network.opens,network.active,network.rtt&node={node}", "", tenants.Read, 200},
		{"listEvents", "GET", "/events?node={node}", "", tenants.Read, 200},
		{"streamEvents", "GET", "/events/stream", "", tenants.Read, 200},
		{"getEvent", "GET", "/events/{event}", "", tenants.Read, 200},
		{"listTasks", "GET", "/tasks", "", tenants.Read, 200},
		{"startTask", "POST", "/tasks", `{"kind":"trace_opens","node":"{node}","arguments":{"duration_s":1}}`, tenants.Diagnose, 200},
		{"getTask", "GET", "/tasks/{ticket}", "", tenants.Read, 200},
		{"cancelTask", "DELETE", "/tasks/{ticket}", "", tenants.Diagnose, 200},
		{"listAudit", "GET", "/audit", "", tenants.Admin, 200},
		{"listTokens", "GET", "/tokens", "", tenants.Admin, 200},
		{"createToken", "POST", "/tokens", `{"name":"t","scopes":["telltale:read"],"nodes":{"labels":{"role":"db"}}}`, tenants.Admin, 201},
		{"revokeToken", "DELETE", "/tokens/{token}", "", tenants.Admin, 204},
		{"listEnrolTokens", "GET", "/enrol-tokens", "", tenants.Admin, 200},
		{"createEnrolToken", "POST", "/enrol-tokens", `{"uses":2,"expires_s":60,"labels":{"role":"db"}}`, tenants.Admin, 201},
		{"revokeEnrolToken", "DELETE", "/enrol-tokens/{enrol_token}", "", tenants.Admin, 204},
		{"listIssuers", "GET", "/issuers", "", tenants.Admin, 200},
		{"createIssuer", "POST", "/issuers?force=true", `{"url":"https://idp.example.com/{n}","roles":[{"claim":"groups","value":"sre","scopes":["telltale:read"]}]}`, tenants.Admin, 201},
		{"getIssuer", "GET", "/issuers/{issuer}", "", tenants.Admin, 200},
		{"updateIssuer", "PUT", "/issuers/{issuer}?force=true", `{"name":"{n}","client_id":"c"}`, tenants.Admin, 200},
		{"deleteIssuer", "DELETE", "/issuers/{issuer_gone}", "", tenants.Admin, 204},
		{"testIssuer", "POST", "/issuers/{issuer}/test", "", tenants.Admin, 200},
		{"listMembers", "GET", "/members", "", tenants.Admin, 200},
		{"createMember", "POST", "/members", `{"issuer_id":"{issuer}","subject":"s{n}","scopes":["telltale:act"],"nodes":{"labels":{"role":"db"}}}`, tenants.Admin, 201},
		{"getMember", "GET", "/members/{member}", "", tenants.Admin, 200},
		{"updateMember", "PUT", "/members/{member}", `{"scopes":["telltale:read"],"nodes":{"labels":{"role":"db"}}}`, tenants.Admin, 200},
		{"deleteMember", "DELETE", "/members/{member}", "", tenants.Admin, 204},
		{"getQuotas", "GET", "/quotas", "", tenants.Admin, 200},
		{"setQuotas", "PUT", "/quotas", `{"max_issuers":100,"scopes":["telltale:read","telltale:admin"]}`, tenants.Admin, 200},
		{"getUsage", "GET", "/usage", "", tenants.Admin, 200},
		{"getTenant", "GET", "/tenant", "", tenants.Admin, 200},
		{"setTenant", "PUT", "/tenant", `{"suspended":false}`, tenants.Admin, 200},
		{"exportTenant", "GET", "/tenant/export", "", tenants.Admin, 200},
		{"deleteTenant", "DELETE", "/tenant?confirm=nobody", "", tenants.Admin, 400},
		{"streamTask", "GET", "/tasks/{ticket}/stream", "", tenants.Read, 200},
	}
}

// target is the operation's address, and its body, for a node.
func (w *world) target(o operation, tenant string, node fmt.Stringer) (target, body string) {
	fill := strings.NewReplacer(append(w.fresh(o), "{node}", node.String(), "{event}", w.event, "{ticket}", w.ticket)...)
	return "/t/" + tenant + "/api/v1" + fill.Replace(o.path), fill.Replace(o.body)
}
