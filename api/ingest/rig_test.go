package ingest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/uplink"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// rig is a server on a real database, with two tenants.
type rig struct {
	t       *testing.T
	dsn     string
	db      *tenantdb.DB
	dir     *directory.Service
	fleet   *fleet.Service
	metrics *metrics.Service
	ca      *auth.NodeCA
	caFile  []byte
	cert    *auth.ServerCert
	acme    tenants.Tenant
	globex  tenants.Tenant
	srv     *Server
	addr    string
	stop    func()
}

func testRegistry() *inspector.Registry {
	var reg inspector.Registry
	reg.Add(inspector.Component{Name: "network", Title: "Network", Probe: true, Signals: []string{"tcp"}, Metrics: []inspector.Metric{
		{Name: "network.opened", Kind: inspector.Delta, Unit: inspector.Count, Help: "Connections opened.", Signal: "tcp", Headline: true},
		{Name: "network.drops", Kind: inspector.Delta, Unit: inspector.Count, Help: "Drops.", Signal: "tcp", Labels: []string{"reason"}},
		{Name: "network.load", Kind: inspector.Gauge, Unit: inspector.Ratio, Help: "Load."},
	}, Tasks: []inspector.TaskKind{
		{Name: "trace_network_drops", Title: "Drops", Help: "Drops.", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Args: inspector.TraceArgs(60)},
	}, Events: []inspector.EventKind{
		{Name: "slow_io", Title: "Slow", Help: "Slow.", Severity: inspector.Warning, Immediate: true, Labels: []string{"device"}},
	}})
	return &reg
}

func newRig(t *testing.T, cfg Config) *rig { return newRigWith(t, cfg, nil) }

// newRigWith starts a server; wrap may put something before its services.
func newRigWith(t *testing.T, cfg Config, wrap func(*Deps)) *rig {
	t.Helper()
	r := &rig{t: t, dsn: dbtest.DSN(t)}
	r.db = dbtest.Open(t, tenantdb.Config{DSN: r.dsn})
	log := testLog(t)
	reg := testRegistry()
	r.dir = directory.New(r.db, log, directory.Config{})
	r.fleet = fleet.New(r.db, reg, fleet.Config{Replica: "test"}, log)
	r.metrics = metrics.New(r.db, reg, metrics.Config{}, log)
	ctx := t.Context()
	must(t, r.metrics.EnsurePartitions(ctx))
	var err error
	r.acme, err = r.dir.CreateTenant(ctx, "acme", "Acme")
	must(t, err)
	r.globex, err = r.dir.CreateTenant(ctx, "globex", "Globex")
	must(t, err)
	key := make([]byte, 32)
	rand.Read(key)
	sealer, err := auth.NewSealer(key)
	must(t, err)
	r.ca, err = auth.NewNodeCA(r.dir, r.dir, sealer, log, auth.NodeCAConfig{TrustDomain: "telltale.test"})
	must(t, err)
	files, err := auth.EnsureLocalTLS(t.TempDir(), []string{"127.0.0.1"})
	must(t, err)
	r.caFile, err = os.ReadFile(files.CAFile)
	must(t, err)
	r.cert, err = auth.NewServerCert(files.CertFile, files.KeyFile, log)
	must(t, err)
	r.start(cfg, wrap, "127.0.0.1:0")
	return r
}

// start runs a server on the rig's services.
func (r *rig) start(cfg Config, wrap func(*Deps), addr string) {
	r.t.Helper()
	deps := Deps{Authority: r.ca, Enroller: r.dir, Nodes: r.dir, Sessions: r.fleet, Windows: r.metrics}
	if wrap != nil {
		wrap(&deps)
	}
	r.srv = New(cfg, deps, testLog(r.t))
	lis, err := net.Listen("tcp", addr)
	must(r.t, err)
	r.addr = lis.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.srv.Run(ctx, lis, r.cert.GetCertificate) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				r.t.Errorf("server ended with %v", err)
			}
		case <-time.After(20 * time.Second):
			r.t.Error("server did not stop")
		}
	})
	r.t.Cleanup(func() { r.stop() })
}

// admin is a full scope of a tenant, limited a scope that sees only nodes.
func admin(t tenants.Tenant) tenants.Scope { return auth.Local(t, "test", tenants.Admin) }

func limited(t tenants.Tenant, nodes ...tenants.NodeID) tenants.Scope {
	s := auth.Local(t, "limited", tenants.Read)
	s.Nodes = tenants.Selector{IDs: nodes}
	return s
}

// token makes an enrolment token of a tenant.
func (r *rig) token(tn tenants.Tenant, uses int) string {
	r.t.Helper()
	secret, _, err := r.dir.CreateEnrolToken(r.t.Context(), admin(tn), directory.EnrolTokenSpec{Uses: uses})
	must(r.t, err)
	return secret
}

func facts(name string) uplink.Facts {
	return uplink.Facts{MachineID: "m-" + name, BootID: "b-" + name, Hostname: name, Kernel: "6.1", OS: "Debian", Arch: "amd64", AgentVersion: "test"}
}

// enrol makes a node and returns its identity and id.
func (r *rig) enrol(tn tenants.Tenant, name string) (*uplink.Identity, tenants.NodeID) {
	r.t.Helper()
	id, err := uplink.Enrol(r.t.Context(), uplink.Enrolment{
		Server: r.addr, CA: r.caFile, Token: r.token(tn, 1), Dir: filepath.Join(r.t.TempDir(), name), Name: name, Facts: facts(name),
	})
	must(r.t, err)
	node, err := tenants.ParseNodeID(id.Node)
	must(r.t, err)
	return id, node
}

// run keeps an uplink going until the returned function is called, or the
// test ends.
func (r *rig) run(u *uplink.Uplink) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				r.t.Errorf("uplink ended with %v", err)
			}
		case <-time.After(10 * time.Second):
			r.t.Error("uplink did not stop")
		}
	})
	r.t.Cleanup(stop)
	return stop
}

// agent enrols a node and connects it.
func (r *rig) agent(tn tenants.Tenant, name string) (*uplink.Uplink, tenants.NodeID) {
	r.t.Helper()
	id, node := r.enrol(tn, name)
	u := uplink.New(uplink.Config{Facts: facts(name)}, id, testLog(r.t))
	r.run(u)
	return u, node
}

var testLayout = inspector.NewLayout("network", []inspector.Series{
	{Metric: "network.opened", Kind: inspector.Delta, Unit: inspector.Count},
	{Metric: "network.drops", Kind: inspector.Delta, Unit: inspector.Count, Labels: []inspector.Label{{Key: "reason", Value: "NO_SOCKET"}}},
	{Metric: "network.load", Kind: inspector.Gauge, Unit: inspector.Ratio},
})

// window is number i of a series of ten-second windows that ends now.
func window(i int) *inspector.Window {
	end := time.Now().Add(-time.Hour).Add(time.Duration(i) * 10 * time.Second)
	return windowAt(testLayout, end, uint64(i+1))
}

func windowAt(l *inspector.Layout, end time.Time, opened uint64) *inspector.Window {
	w := &inspector.Window{Layout: l, Start: end.Add(-10 * time.Second), End: end, Samples: 10, Values: make([]inspector.Value, len(l.Series))}
	for j, s := range l.Series {
		switch s.Kind {
		case inspector.Delta:
			w.Values[j] = inspector.Value{OK: true, Delta: opened}
		case inspector.Gauge:
			w.Values[j] = inspector.Value{OK: true, Gauge: 0.5}
		}
	}
	return w
}

// rows reads a node's stored windows past every policy: (seq, opened) in order.
type winRow struct {
	Seq    int64
	Opened uint64
}

func (r *rig) rows(node tenants.NodeID) []winRow {
	r.t.Helper()
	conn := dbtest.Connect(r.t, r.dsn)
	defer conn.Close(context.Background())
	rows, err := conn.Query(r.t.Context(), `select seq, samples, vals from win where node_id = $1 order by ts, seq`, [16]byte(node))
	must(r.t, err)
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (w winRow, err error) {
		var samples int64
		var vals []byte
		if err = row.Scan(&w.Seq, &samples, &vals); err != nil {
			return w, err
		}
		values, _, err := inspector.DecodeValues(vals, testLayout.Series)
		if err == nil {
			w.Opened = values[testLayout.Find(inspector.Series{Metric: "network.opened"})].Delta
		}
		return w, err
	})
	must(r.t, err)
	return out
}

// opened lists the rows' values in order.
func opened(rows []winRow) []uint64 {
	var out []uint64
	for _, r := range rows {
		out = append(out, r.Opened)
	}
	return out
}

func upTo(n int) []uint64 {
	var out []uint64
	for i := range n {
		out = append(out, uint64(i+1))
	}
	return out
}

func (r *rig) wantRows(node tenants.NodeID, n int) {
	r.t.Helper()
	r.eventually("every window is stored once, in order", func() bool { return len(r.rows(node)) >= n })
	if got := opened(r.rows(node)); !slices.Equal(got, upTo(n)) {
		r.t.Errorf("stored windows: %v, want 1 to %d", got, n)
	}
}

// quarantine reads how often a reason was counted for a node, in either slice.
func (r *rig) quarantine(tn tenants.Tenant, node tenants.NodeID, reason string) int64 {
	r.t.Helper()
	d, err := r.fleet.Get(r.t.Context(), limited(tn, node), node.String())
	must(r.t, err)
	for _, q := range d.Quarantine {
		if q.Reason == reason {
			return q.Count
		}
	}
	return 0
}

// eventually polls a condition for up to ten seconds.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	within(r.t, 10*time.Second, what, ok)
}

func within(t *testing.T, d time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(d)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testLog writes to the test's log while the test runs.
func testLog(t testing.TB) *slog.Logger {
	w := &logWriter{t: t}
	t.Cleanup(func() { w.mu.Lock(); w.t = nil; w.mu.Unlock() })
	return slog.New(slog.NewTextHandler(w, nil))
}

type logWriter struct {
	mu sync.Mutex
	t  testing.TB
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(string(bytes.TrimSpace(p)))
	}
	return len(p), nil
}

// clientTLS is a client's side with a certificate, or without.
func (r *rig) clientTLS(cert *tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(r.caFile)
	c := &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"}
	if cert != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	return c
}

func long(n int) string { return strings.Repeat("x", n) }
