package metrics

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
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// world is two tenants with nodes, a service on a clock that tests move, and a
// superuser's connection to arrange and check with.
type world struct {
	t     testing.TB
	db    *tenantdb.DB
	s     *Service
	conn  *pgx.Conn
	clock atomic.Int64
	a, b  tenants.TenantID
}

var start = time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)

func newWorld(t testing.TB) *world {
	t.Helper()
	dsn := dbtest.DSN(t)
	w := &world{t: t, db: dbtest.Open(t, tenantdb.Config{DSN: dsn}), conn: dbtest.Connect(t, dsn)}
	w.set(start)
	w.s = w.service()
	w.a, w.b = w.tenant("acme"), w.tenant("globex")
	return w
}

// service makes one more server replica on the same database.
func (w *world) service() *Service {
	return New(w.db, testRegistry(), Config{Now: w.now}, slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func (w *world) set(t time.Time)         { w.clock.Store(t.UnixNano()) }
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

// node enrols a node an hour before start and returns its own scope.
func (w *world) node(tenant tenants.TenantID, name string, labels ...string) tenants.Scope {
	id := tenants.NewNodeID()
	w.exec(`insert into node (tenant_id, node_id, name, enrol_token, enrolled_at) values ($1, $2, $3, 't', $4)`,
		uid(tenant), uid(id), name, start.Add(-24*time.Hour))
	for i := 0; i < len(labels); i += 2 {
		w.exec(`insert into node_label (tenant_id, node_id, key, value) values ($1, $2, $3, $4)`, uid(tenant), uid(id), labels[i], labels[i+1])
	}
	return tenants.Scope{Tenant: tenant, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: id.String()}, Nodes: tenants.Selector{IDs: []tenants.NodeID{id}}}
}

// live gives a node an open session seen now.
func (w *world) live(node tenants.Scope) {
	w.exec(`insert into node_session (tenant_id, node_id, session_id, replica, remote, machine_id, boot_id, agent_version, kernel, os, arch, connected_at, last_seen)
		values ($1, $2, $3, 'r', '', '', '', '', '', '', '', $4, $4)`, uid(node.Tenant), uid(idOf(node)), uid(tenants.NewNodeID()), w.now())
}

func reader(tenant tenants.TenantID, sel tenants.Selector) tenants.Scope {
	return tenants.Scope{Tenant: tenant, Granted: tenants.Read, Nodes: sel, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "t"}}
}

func idOf(node tenants.Scope) tenants.NodeID {
	id, err := tenants.ParseNodeID(node.Principal.ID)
	if err != nil {
		panic(err)
	}
	return id
}

func testRegistry() *inspector.Registry {
	r := &inspector.Registry{}
	r.Add(inspector.Component{Name: "network", Title: "Network", Probe: true, Signals: []string{"tcp"}, Metrics: []inspector.Metric{
		{Name: "network.opens", Kind: inspector.Delta, Unit: inspector.Count, Help: "opens", Signal: "tcp", Headline: true},
		{Name: "network.active", Kind: inspector.Gauge, Unit: inspector.Count, Help: "active", Headline: true},
		{Name: "network.drops", Kind: inspector.Delta, Unit: inspector.Count, Help: "drops", Labels: []string{"reason"}},
		{Name: "network.rtt", Kind: inspector.Histogram, Unit: inspector.Nanoseconds, Help: "rtt"},
	}})
	r.Add(inspector.Component{Name: "storage", Title: "Storage", Probe: true, Signals: []string{"io"}, Metrics: []inspector.Metric{
		{Name: "storage.reads", Kind: inspector.Delta, Unit: inspector.Count, Help: "reads", Labels: []string{"device"}},
	}})
	return r
}

func series(metric string, kind inspector.Kind, unit inspector.Unit, labels ...string) inspector.Series {
	s := inspector.Series{Metric: metric, Kind: kind, Unit: unit}
	for i := 0; i < len(labels); i += 2 {
		s.Labels = append(s.Labels, inspector.Label{Key: labels[i], Value: labels[i+1]})
	}
	return s
}

// netLayout has, in order: active, drops{a}, drops{b}, opens, rtt.
func netLayout() *inspector.Layout {
	return inspector.NewLayout("network", []inspector.Series{
		series("network.active", inspector.Gauge, inspector.Count),
		series("network.drops", inspector.Delta, inspector.Count, "reason", "a"),
		series("network.drops", inspector.Delta, inspector.Count, "reason", "b"),
		series("network.opens", inspector.Delta, inspector.Count),
		series("network.rtt", inspector.Histogram, inspector.Nanoseconds),
	})
}

func gauge(v float64) inspector.Value { return inspector.Value{OK: true, Gauge: v} }
func delta(v uint64) inspector.Value  { return inspector.Value{OK: true, Delta: v} }
func hist(sum uint64, buckets ...uint64) inspector.Value {
	return inspector.Value{OK: true, Sum: sum, Hist: buckets}
}

// netValues are plain values for netLayout.
func netValues(n uint64) []inspector.Value {
	return []inspector.Value{gauge(float64(n)), delta(n), delta(2 * n), delta(10 * n), hist(n, 0, n)}
}

// report packs values for a window of ten seconds ending at end.
func report(epoch, seq uint64, l *inspector.Layout, end time.Time, values []inspector.Value) Report {
	return Report{Epoch: epoch, Seq: seq, Layout: l.Hash, Start: end.Add(-tenants.WindowLength), End: end,
		Packed: inspector.AppendValues(nil, l.Series, values), Samples: 1}
}

func (w *world) layout(node tenants.Scope, l *inspector.Layout) {
	w.t.Helper()
	if _, err := w.s.PutLayout(context.Background(), node, l.AppendBinary(nil)); err != nil {
		w.t.Fatalf("put layout: %v", err)
	}
}

func (w *world) open(node tenants.Scope) Position {
	w.t.Helper()
	p, err := w.s.OpenStream(context.Background(), node, 0, 0)
	if err != nil {
		w.t.Fatalf("open stream: %v", err)
	}
	return p
}

func (w *world) check(node tenants.Scope, r Report) Checked {
	w.t.Helper()
	c, err := w.s.Check(context.Background(), node, r, 0)
	if err != nil {
		w.t.Fatalf("check seq %d: %v", r.Seq, err)
	}
	return c
}

func (w *world) write(batch ...Checked) []Outcome {
	w.t.Helper()
	out, err := w.s.Write(context.Background(), batch)
	if err != nil {
		w.t.Fatalf("write: %v", err)
	}
	return out
}

// fill stores n network windows ending at now, now-10s, … with value v.
func (w *world) fill(node tenants.Scope, n int, v uint64) {
	w.t.Helper()
	l := netLayout()
	w.layout(node, l)
	p := w.open(node)
	var batch []Checked
	for i := range n {
		end := w.now().Add(-time.Duration(n-1-i) * tenants.WindowLength)
		batch = append(batch, w.check(node, report(p.Epoch, uint64(i+1), l, end, netValues(v))))
		if len(batch) == MaxBatch || i == n-1 {
			for _, o := range w.write(batch...) {
				if o.Status != Stored && o.Status != Expired {
					w.t.Fatalf("fill: %+v", o)
				}
			}
			batch = nil
		}
	}
}
