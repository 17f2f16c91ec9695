package mcp

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

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
	audit     *audit.Service
	running   *fleet.Running
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
		directory: directory.New(db, log, directory.Config{Now: clock}), access: access.New(db, log, access.Config{Now: clock}),
		fleet: fleet.New(db, reg, fleet.Config{Replica: "r1", Now: clock}, log), metrics: metrics.New(db, reg, metrics.Config{Now: clock}, log)}
	s.events = events.New(db, reg, s.directory, s.metrics, nil, events.Config{Now: clock}, log)
	s.tasks = tasks.New(db, reg, s.fleet, nil, tasks.Config{Replica: "r1", Now: clock}, log)
	s.audit = audit.New(db, audit.Config{Now: clock}, log)
	s.running = fleet.NewRunning(db, reg)
	s.run(s.events.Run, s.tasks.Run, s.audit.Run)
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
	name := fmt.Sprintf("%s-node-%d", slug, i)
	id := s.enrol(slug, name, role)
	n := planted{id: id.String(), name: name, role: role, words: []string{id.String(), name, name + "-peer", name + "-comm", slug + "-owner"},
		scope: tenants.Scope{Tenant: tenant.ID, Slug: slug, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: id.String()}, Nodes: tenants.Selector{IDs: []tenants.NodeID{id}}}}
	_, err := s.fleet.SessionOpened(ctx, n.scope, fleet.SessionFacts{Remote: "192.0.2.7:1", MachineID: name + "-machine", BootID: name + "-boot", AgentVersion: "1.0", Kernel: name + "-kernel"})
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
	s.audit.Note(audit.Entry{Tenant: tenant.ID, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: name + "-caller"}, Surface: "mcp", Action: "get_node", Arguments: "{node=" + name + "}", Outcome: audit.OK, Reference: name + "-ref"})
}

// enrol makes a node that never said anything.
func (s *system) enrol(slug, name, role string) tenants.NodeID {
	s.t.Helper()
	secret, _, err := s.directory.CreateEnrolToken(s.t.Context(), auth.Local(s.tenants[slug], "test", tenants.Admin), directory.EnrolTokenSpec{Labels: map[string]string{"role": role, "owner": slug + "-owner"}})
	s.must(err)
	_, id, err := s.directory.RedeemEnrolToken(s.t.Context(), secret, directory.NodeFacts{Name: name, MachineID: name + "-machine", Kernel: name + "-kernel", AgentVersion: "1.0"})
	s.must(err)
	return id
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
	services := Services{Fleet: s.fleet, Metrics: s.metrics, Tasks: s.tasks, Events: s.events, Registry: reg, Tokens: s.access, Audit: s.audit, Running: s.running}
	h := gate.Bearer(New(Config{Challenger: challenger, Tenants: s.directory, Services: services, Log: log, ToolSets: ToolSets(),
		Dashboard: func(slug string) string { return "https://telltale.example/t/" + slug + "/ui" }}))
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
