package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

var start = time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)

// world is two replicas on one database and one clock that tests move, two
// tenants with nodes, and a superuser's connection to arrange and check with.
// Neither replica runs unless run is called: tests take each step themselves.
type world struct {
	t      testing.TB
	dsn    string
	s, s2  *Service
	conn   *pgx.Conn
	clock  atomic.Int64
	a, b   tenants.TenantID
	fleet  *fakeFleet
	n1, n2 *node // of a; n2 bears env=prod
	other  *node // of b
}

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOn(t, dbtest.DSN(t))
}

func newWorldOn(t testing.TB, dsn string) *world {
	t.Helper()
	w := &world{t: t, dsn: dsn, fleet: &fakeFleet{}}
	w.conn = dbtest.Connect(t, w.dsn)
	w.clock.Store(start.UnixNano())
	db := dbtest.Open(t, tenantdb.Config{DSN: w.dsn, AppConns: 8, IngestConns: 4})
	w.s, w.s2 = w.service(db, "r1", nil), w.service(db, "r2", nil)
	w.a, w.b = w.tenant("acme"), w.tenant("globex")
	w.n1, w.n2 = w.node(w.a, "n1", map[string]string{"env": "test"}), w.node(w.a, "n2", map[string]string{"env": "prod"})
	w.other = w.node(w.b, "n1", map[string]string{"env": "test"})
	return w
}

func (w *world) service(db *tenantdb.DB, replica string, bus Bus) *Service {
	return New(db, testRegistry(), w.fleet, bus, Config{Replica: replica, Now: w.now}, slog.New(slog.DiscardHandler))
}

func testRegistry() *inspector.Registry {
	r := &inspector.Registry{}
	r.Add(inspector.Component{Name: "network", Title: "Network", Probe: true, Signals: []string{"drops"}, Tasks: []inspector.TaskKind{
		{Name: "trace_drops", Title: "Drops", Help: "drops", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{"drops"},
			Args: inspector.TraceArgs(60)},
		{Name: "profile", Title: "Profile", Help: "profile", Scope: inspector.ScopeDiagnose, Cost: inspector.CostHeavy, Targets: []string{"pid"},
			Args: append(inspector.TraceArgs(60), inspector.Arg{Name: "pid", Kind: inspector.IntArg, Min: 1, Max: 4194304})},
		{Name: "peek", Title: "Peek", Help: "peek", Scope: inspector.ScopeRead, Cost: inspector.CostQuery},
	}})
	return r
}

// run runs a service until the test ends.
func (w *world) run(list ...*Service) {
	for _, s := range list {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		w.t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Error(err)
			}
		})
	}
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

// node is a machine of the test: its own scope, how the fleet sees it, and the
// outbox of whatever channel it has.
type node struct {
	w      *world
	scope  tenants.Scope
	id     tenants.NodeID
	labels map[string]string
	target tenants.Target

	mu     sync.Mutex
	deaf   bool
	orders chan Dispatch
	stops  chan ID
}

func (w *world) node(tenant tenants.TenantID, name string, labels map[string]string) *node {
	n := &node{w: w, id: tenants.NewNodeID(), labels: labels, orders: make(chan Dispatch, 1000), stops: make(chan ID, 1000)}
	n.scope = tenants.Scope{Tenant: tenant, Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: n.id.String()}}
	n.target = tenants.Target{Node: n.id, Name: name, Status: "online", Replica: "r1"}
	w.exec(`insert into node (tenant_id, node_id, name, enrol_token, enrolled_at) values ($1, $2, $3, 't', $4)`, [16]byte(tenant), [16]byte(n.id), name, start)
	for k, v := range labels {
		w.exec(`insert into node_label (tenant_id, node_id, key, value) values ($1, $2, $3, $4)`, [16]byte(tenant), [16]byte(n.id), k, v)
	}
	w.fleet.add(n)
	return n
}

func (n *node) Dispatch(d Dispatch) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.deaf {
		return false
	}
	n.orders <- d
	return true
}

func (n *node) Cancel(id ID) bool { n.stops <- id; return true }

// open opens the node's channel on a replica.
func (n *node) open(s *Service, life int64, running ...ID) (*Channel, []ID) {
	n.w.t.Helper()
	ch, cancel, err := s.ChannelOpened(context.Background(), n.scope, Hello{StartedNS: life, Running: running}, n)
	if err != nil {
		n.w.t.Fatalf("open: %v", err)
	}
	n.w.fleet.mu.Lock()
	n.target.Replica = s.replica
	n.w.fleet.mu.Unlock()
	return ch, cancel
}

// order waits for the next request.
func (n *node) order() Dispatch {
	n.w.t.Helper()
	select {
	case d := <-n.orders:
		return d
	case <-time.After(20 * time.Second):
		n.w.t.Fatal("no request came to the node")
		return Dispatch{}
	}
}

// stop waits for the next order to end a task.
func (n *node) stop() ID {
	n.w.t.Helper()
	select {
	case id := <-n.stops:
		return id
	case <-time.After(20 * time.Second):
		n.w.t.Fatal("no cancel came to the node")
		return ID{}
	}
}

// fakeFleet answers what the fleet slice would.
type fakeFleet struct {
	mu     sync.Mutex
	nodes  []*node
	looked int // calls of Targets
}

func (f *fakeFleet) add(n *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes = append(f.nodes, n)
}

func (f *fakeFleet) Targets(_ context.Context, scope tenants.Scope, q tenants.TargetQuery) ([]tenants.Target, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked++
	return f.find(scope, q)
}

// find is Targets without counting. f.mu is held.
func (f *fakeFleet) find(scope tenants.Scope, q tenants.TargetQuery) ([]tenants.Target, error) {
	var out []tenants.Target
	for _, n := range f.nodes {
		if n.scope.Tenant != scope.Tenant || !scope.Nodes.Matches(n.id, n.labels) {
			continue
		}
		if q.Node == n.target.Name || q.Node == n.id.String() || q.Node == "" && (tenants.Selector{Labels: q.Labels}).Matches(n.id, n.labels) {
			out = append(out, n.target)
		}
	}
	if q.Node != "" && len(out) == 0 {
		return nil, fault.New(fault.NotFound, "unknown_node", "no such node").Do("list the nodes")
	}
	matched := len(out)
	out = out[:min(len(out), q.Limit)]
	for i := range out {
		out[i].Matched = matched
	}
	return out, nil
}

// QueueTarget says what Targets would, as the fleet's statement does.
func (f *fakeFleet) QueueTarget(b *pgx.Batch, scope tenants.Scope, q tenants.TargetQuery) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := ""
	if list, err := f.find(scope, q); err == nil && len(list) == 1 && list[0].Status == "online" && list[0].Off == "" {
		key = list[0].Key()
	}
	b.Queue(`select set_config('telltale.found', $1, true)`, key)
	return nil
}

func caller(tenant tenants.TenantID, granted tenants.Scopes, sel tenants.Selector) tenants.Scope {
	return tenants.Scope{Tenant: tenant, Granted: granted, Nodes: sel, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "t", Name: "ci"}}
}

func (w *world) me() tenants.Scope { return caller(w.a, tenants.Diagnose, tenants.Selector{}) }

func drops(node string, seconds int) Request {
	return Request{Kind: "trace_drops", Node: node, Args: map[string]any{"duration_s": seconds}}
}

// began starts a task without waiting for it.
func (w *world) began(s *Service, scope tenants.Scope, req Request) ID {
	w.t.Helper()
	ctx := context.Background()
	p, err := s.plan(scope, req)
	if err == nil {
		err = s.begin(ctx, p)
	}
	if err != nil {
		w.t.Fatalf("start: %v", err)
	}
	s.send(ctx, p)
	return p.key.task
}

type answer struct {
	t   Task
	err error
}

// do starts a task and waits for it beside the test.
func (w *world) do(ctx context.Context, s *Service, scope tenants.Scope, req Request, opts DoOptions) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		t, err := s.Do(ctx, scope, req, opts)
		out <- answer{t, err}
	}()
	return out
}

func (w *world) wait(c <-chan answer) answer {
	w.t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(30 * time.Second):
		w.t.Fatal("no answer came")
		return answer{}
	}
}

func (w *world) get(s *Service, id ID) Task {
	w.t.Helper()
	t, err := s.Get(context.Background(), w.me(), id)
	if err != nil {
		w.t.Fatalf("get: %v", err)
	}
	return t
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// check compares a run with what it should be.
func (w *world) check(when string, t Task, want State, reason string) {
	w.t.Helper()
	if len(t.Runs) != 1 || t.Runs[0].Status != want || t.Status != want || t.Runs[0].Reason != reason || want.Terminal() != (t.EndedAt != nil) {
		w.t.Errorf("%s: %s %+v; want %s %s", when, t.Status, t.Runs, want, reason)
	}
}

func result(count uint64) *inspector.TaskResult {
	return &inspector.TaskResult{From: start, To: start.Add(time.Second), Totals: map[string]uint64{"drops": count},
		Rows: []inspector.ResultRow{{Labels: map[string]string{"reason": "X"}, Count: count}}}
}

func done(count uint64) Outcome { return Outcome{State: Completed, Result: result(count)} }

func tickets(list []Summary) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.Ticket)
	}
	slices.Sort(out)
	return out
}

func ofError(err error) string {
	f := fault.Of(err)
	if f == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s %s", f.Kind, f.Reason, f.Field)
}
