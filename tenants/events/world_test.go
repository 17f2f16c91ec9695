package events

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// world is two tenants with a node each that carry the same name, services on
// a clock that tests move, and a superuser's connection to arrange and check
// with.
type world struct {
	t       testing.TB
	db      *tenantdb.DB
	s       *Service
	metrics *metrics.Service
	conn    *pgx.Conn
	clock   atomic.Int64
	a, b    tenants.TenantID
	n1, n2  tenants.Scope // of a: env=prod, env=test
	other   tenants.Scope // of b, called n1 too
}

var start = time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)

func newWorld(t testing.TB) *world {
	t.Helper()
	dsn := dbtest.DSN(t)
	w := &world{t: t, db: dbtest.Open(t, tenantdb.Config{DSN: dsn}), conn: dbtest.Connect(t, dsn)}
	w.clock.Store(start.UnixNano())
	w.metrics = metrics.New(w.db, testRegistry(), metrics.Config{Now: w.now}, quiet())
	w.s = w.service(nil, Config{})
	w.a, w.b = w.tenant("acme"), w.tenant("globex")
	w.n1, w.n2, w.other = w.node(w.a, "n1", "prod"), w.node(w.a, "n2", "test"), w.node(w.b, "n1", "prod")
	return w
}

// service makes one more server replica on the same database.
func (w *world) service(bus Bus, cfg Config) *Service {
	cfg.Now = w.now
	return New(w.db, testRegistry(), directory.New(w.db, quiet(), directory.Config{}), w.metrics, bus, cfg, quiet())
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func (w *world) now() time.Time          { return time.Unix(0, w.clock.Load()).UTC() }
func (w *world) advance(d time.Duration) { w.clock.Add(int64(d)) }

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.conn.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) count(sql string, args ...any) (n int64) {
	w.t.Helper()
	if err := w.conn.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (w *world) tenant(slug string) tenants.TenantID {
	id := tenants.NewTenantID()
	w.exec(`insert into tenant (tenant_id, slug, name, created_at) values ($1, $2, $2, $3)`, uid(id), slug, start)
	return id
}

// node enrols a node that is online and returns its own scope.
func (w *world) node(tenant tenants.TenantID, name, env string) tenants.Scope {
	id := tenants.NewNodeID()
	w.exec(`insert into node (tenant_id, node_id, name, enrol_token, enrolled_at) values ($1, $2, $3, 't', $4)`, uid(tenant), uid(id), name, start.Add(-day))
	w.exec(`insert into node_label (tenant_id, node_id, key, value) values ($1, $2, 'env', $3)`, uid(tenant), uid(id), env)
	w.exec(`insert into node_session (tenant_id, node_id, session_id, replica, remote, machine_id, boot_id, agent_version, kernel, os, arch, connected_at, last_seen)
		values ($1, $2, $3, 'r', '', '', '', '', '', '', '', $4, $4)`, uid(tenant), uid(id), uid(tenants.NewNodeID()), w.now())
	return tenants.Scope{Tenant: tenant, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: id.String()}, Nodes: tenants.Selector{IDs: []tenants.NodeID{id}}}
}

func idOf(node tenants.Scope) tenants.NodeID {
	id, err := tenants.ParseNodeID(node.Principal.ID)
	if err != nil {
		panic(err)
	}
	return id
}

func reader(tenant tenants.TenantID) tenants.Scope {
	return tenants.Scope{Tenant: tenant, Granted: tenants.Read, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "t"}}
}

// limited sees the nodes of the environment test only.
func limited(tenant tenants.TenantID) tenants.Scope {
	s := reader(tenant)
	s.Granted, s.Nodes = tenants.Diagnose, tenants.Selector{Labels: map[string]string{"env": "test"}}
	return s
}

func testRegistry() *inspector.Registry {
	r := &inspector.Registry{}
	r.Add(inspector.Component{Name: "network", Title: "Network", Probe: true, Signals: []string{"tcp"}, Metrics: []inspector.Metric{
		{Name: "network.opens", Kind: inspector.Delta, Unit: inspector.Count, Help: "opens", Signal: "tcp", Headline: true},
		{Name: "network.active", Kind: inspector.Gauge, Unit: inspector.Count, Help: "active", Headline: true},
	}, Tasks: []inspector.TaskKind{
		{Name: "trace_drops", Title: "Trace drops", Help: "Where packets go.", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace},
	}, Events: []inspector.EventKind{
		{Name: "drop_burst", Title: "Packets dropped", Help: "Packets were dropped.", Severity: inspector.Warning, Labels: []string{"interface"},
			Rule: &inspector.Rule{Metric: "network.opens", Stat: inspector.StatRate, K: 1, N: 1}, Related: []string{"network.opens", "network.active"}, Tool: "trace_drops"},
		{Name: "slow_io", Title: "Slow I/O", Help: "A request took long.", Severity: inspector.Warning, Immediate: true, Labels: []string{"device"}, Related: []string{"network.active"}},
		{Name: "new_exec", Title: "New executable", Help: "A file was run for the first time.", Severity: inspector.Info, Immediate: true, Labels: []string{"exe"}},
	}})
	return r
}

// report is one sighting of a drop burst n seconds before now.
func (w *world) report(label string, ago time.Duration) inspector.EventReport {
	return w.reportOf("drop_burst", map[string]string{"interface": label}, ago)
}

func (w *world) reportOf(kind string, labels map[string]string, ago time.Duration) inspector.EventReport {
	at := w.now().Add(-ago)
	return inspector.EventReport{Kind: kind, Fingerprint: inspector.FingerprintOf(kind, labels), Begun: at, Last: at, Severity: "", State: inspector.EventOpen,
		Labels: labels, SampleCount: 1, Samples: []inspector.EventSample{{At: at, Labels: map[string]string{"pid": "7"}, Values: map[string]float64{"ms": 3}}}}
}

func (w *world) record(node tenants.Scope, r inspector.EventReport) {
	w.t.Helper()
	if err := w.s.Record(context.Background(), node, r, 0); err != nil {
		w.t.Fatalf("record: %v", err)
	}
}

func (w *world) list(scope tenants.Scope, q ListQuery) Page {
	w.t.Helper()
	p, err := w.s.List(context.Background(), scope, q)
	if err != nil {
		w.t.Fatalf("list %+v: %v", q, err)
	}
	return p
}

func (w *world) get(scope tenants.Scope, id string) Detail {
	w.t.Helper()
	eid, err := ParseID(id)
	if err != nil {
		w.t.Fatal(err)
	}
	d, err := w.s.Get(context.Background(), scope, eid)
	if err != nil {
		w.t.Fatalf("get: %v", err)
	}
	return d
}

// windows stores n windows of a node, the last one ending now.
func (w *world) windows(node tenants.Scope, n int, v uint64) {
	w.t.Helper()
	ctx := context.Background()
	l := inspector.NewLayout("network", []inspector.Series{
		{Metric: "network.active", Kind: inspector.Gauge, Unit: inspector.Count}, {Metric: "network.opens", Kind: inspector.Delta, Unit: inspector.Count}})
	if _, err := w.metrics.PutLayout(ctx, node, l.AppendBinary(nil)); err != nil {
		w.t.Fatal(err)
	}
	p, err := w.metrics.OpenStream(ctx, node, 0, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	var batch []metrics.Checked
	for i := range n {
		end := w.now().Add(-time.Duration(n-1-i) * tenants.WindowLength)
		c, err := w.metrics.Check(ctx, node, metrics.Report{Epoch: p.Epoch, Seq: p.HighSeq + uint64(i+1), Layout: l.Hash, Start: end.Add(-tenants.WindowLength), End: end,
			Packed: inspector.AppendValues(nil, l.Series, []inspector.Value{{OK: true, Gauge: float64(v)}, {OK: true, Delta: v}}), Samples: 1}, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		batch = append(batch, c)
	}
	if _, err := w.metrics.Write(ctx, batch); err != nil {
		w.t.Fatal(err)
	}
}

// until polls a condition that other goroutines bring about.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain for %s", what)
		}
		w.count(`select 1 from pg_sleep(0.005)`)
	}
}
