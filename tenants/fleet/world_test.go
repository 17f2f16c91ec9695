package fleet

import (
	"context"
	"fmt"
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

// world is two tenants, a service on a clock that tests move, and a
// superuser's connection to arrange and check with.
type world struct {
	t     testing.TB
	s     *Service
	conn  *pgx.Conn
	clock atomic.Int64
	a, b  tenants.TenantID
}

var start = time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)

func newWorld(t testing.TB) *world {
	t.Helper()
	dsn := dbtest.DSN(t)
	w := &world{t: t, conn: dbtest.Connect(t, dsn)}
	w.clock.Store(start.UnixNano())
	w.s = New(dbtest.Open(t, tenantdb.Config{DSN: dsn}), testRegistry(), Config{Replica: "r1", Now: w.now}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	w.a, w.b = w.tenant("acme"), w.tenant("globex")
	return w
}

func testRegistry() *inspector.Registry {
	r := &inspector.Registry{}
	r.Add(inspector.Component{Name: "network", Title: "Network", Probe: true, Signals: []string{"tcp", "drops"}, Metrics: []inspector.Metric{
		{Name: "network.opens", Kind: inspector.Delta, Unit: inspector.Count, Help: "opens", Signal: "tcp", Headline: true},
		{Name: "network.active", Kind: inspector.Gauge, Unit: inspector.Count, Help: "active", Headline: true},
	}})
	return r
}

func (w *world) now() time.Time          { return time.Unix(0, w.clock.Load()).UTC() }
func (w *world) advance(d time.Duration) { w.clock.Add(int64(d)) }

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.conn.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
}

func (w *world) tenant(slug string) tenants.TenantID {
	id := tenants.NewTenantID()
	w.exec(`insert into tenant (tenant_id, slug, name, created_at) values ($1, $2, $2, $3)`, [16]byte(id), slug, start)
	return id
}

// node enrols a node and returns its own scope.
func (w *world) node(tenant tenants.TenantID, name string, labels ...string) tenants.Scope {
	id := tenants.NewNodeID()
	w.exec(`insert into node (tenant_id, node_id, name, machine_id, kernel, agent_version, enrol_token, enrolled_at) values ($1, $2, $3, $4, '6.1', '1.0', 't', $5)`,
		[16]byte(tenant), [16]byte(id), name, "machine of "+id.String(), start)
	for i := 0; i < len(labels); i += 2 {
		w.exec(`insert into node_label (tenant_id, node_id, key, value) values ($1, $2, $3, $4)`, [16]byte(tenant), [16]byte(id), labels[i], labels[i+1])
	}
	return tenants.Scope{Tenant: tenant, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: id.String()}}
}

func (w *world) open(node tenants.Scope, f SessionFacts) Opened {
	w.t.Helper()
	o, err := w.s.SessionOpened(context.Background(), node, f)
	if err != nil {
		w.t.Fatalf("open: %v", err)
	}
	return o
}

func (w *world) seen(node tenants.Scope, id SessionID, skew time.Duration) {
	w.t.Helper()
	w.s.Seen(node, id, Sighting{Skew: &skew, Counters: map[string]uint64{"queue_dropped": 3}})
	if err := w.s.Flush(context.Background()); err != nil {
		w.t.Fatalf("flush: %v", err)
	}
}

func (w *world) close(node tenants.Scope, id SessionID) {
	w.t.Helper()
	if err := w.s.SessionClosed(context.Background(), node, id, "eof"); err != nil {
		w.t.Fatalf("close: %v", err)
	}
}

func (w *world) get(node tenants.Scope) NodeDetail {
	w.t.Helper()
	d, err := w.s.Get(context.Background(), reader(node.Tenant, tenants.Selector{}), node.Principal.ID)
	if err != nil {
		w.t.Fatalf("get: %v", err)
	}
	return d
}

func reader(tenant tenants.TenantID, sel tenants.Selector) tenants.Scope {
	return tenants.Scope{Tenant: tenant, Granted: tenants.Read, Nodes: sel, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "t", Name: "ci"}}
}

func admin(tenant tenants.TenantID, sel tenants.Selector) tenants.Scope {
	s := reader(tenant, sel)
	s.Granted = tenants.Admin
	return s
}

func facts(machine, boot string) SessionFacts {
	return SessionFacts{Remote: "10.0.0.1:5", MachineID: machine, BootID: boot, AgentVersion: "2.0", Kernel: "6.18", OS: "linux", Arch: "amd64", CertNotAfter: start.Add(48 * time.Hour)}
}

// crowd makes n online nodes with two labels, capabilities and headlines, by
// SQL alone.
func (w *world) crowd(tenant tenants.TenantID, n int) {
	w.t.Helper()
	w.exec(`insert into node (tenant_id, node_id, name, machine_id, kernel, agent_version, enrol_token, enrolled_at)
		select $1, gen_random_uuid(), 'host-' || lpad(i::text, 5, '0'), 'm' || i, '6.' || i % 7, '1.' || i % 3, 't', $2::timestamptz from generate_series(1, $3::int) i`, [16]byte(tenant), start, n)
	w.exec(`insert into node_label select tenant_id, node_id, 'env', case when right(name, 1) < '5' then 'prod' else 'test' end from node where tenant_id = $1 and name like 'host-%'`, [16]byte(tenant))
	w.exec(`insert into node_label select tenant_id, node_id, 'zone', right(name, 1) from node where tenant_id = $1 and name like 'host-%'`, [16]byte(tenant))
	w.exec(`insert into node_session (tenant_id, node_id, session_id, replica, remote, machine_id, boot_id, agent_version, kernel, os, arch, connected_at, last_seen)
		select tenant_id, node_id, gen_random_uuid(), 'r', '', machine_id, 'b', agent_version, kernel, 'linux', 'amd64', $2::timestamptz - interval '1 h', $2
		from node where tenant_id = $1 and name like 'host-%'`, [16]byte(tenant), w.now())
	vals := "{1.5,2.5}"
	w.exec(`insert into node_head (tenant_id, node_id, epoch, seq, last_ts, head_set, vals)
		select tenant_id, node_id, 1, 5, $2, $3, array(select v + random() from unnest($4::float8[]) v) from node where tenant_id = $1 and name like 'host-%'`,
		[16]byte(tenant), w.now(), w.s.heads.set, vals)
	w.exec(`insert into capability select tenant_id, node_id, 'network', 'sig' || i, case when i < 3 then 'degraded' else 'full' end, 'bpf', '', $2
		from node, generate_series(1, 20) i where tenant_id = $1 and name like 'host-%'`, [16]byte(tenant), start)
	for _, tb := range []string{"node", "node_label", "node_session", "node_head", "capability"} {
		w.exec(fmt.Sprintf("analyze %s", tb))
	}
}
