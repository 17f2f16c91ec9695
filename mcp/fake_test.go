package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// fakeNode is one machine of the fakes. Its words may reach only those who see
// it.
type fakeNode struct {
	id, name, role, tenant string
	offline                bool
}

// The nodes of both tenants have the same shape.
func fakeNodes() []fakeNode {
	out := []fakeNode{}
	for _, tenant := range []string{"acme", "globex"} {
		for i, n := range []struct {
			name, role string
			off        bool
		}{{"db1", "db", false}, {"web1", "web", false}, {"web2", "web", false}, {"old1", "old", true}} {
			out = append(out, fakeNode{fmt.Sprintf("0195a%d00-0000-7000-8000-00000000000%d", len(tenant), i), tenant + "-" + n.name, n.role, tenant, n.off})
		}
	}
	return out
}

func (n fakeNode) nodeID() tenants.NodeID {
	id, err := tenants.ParseNodeID(n.id)
	if err != nil {
		panic(err)
	}
	return id
}

// backend stands for tenants/tasks and tenants/events: both tenants hold data,
// and what a scope does not reach is not found.
type backend struct {
	mu      sync.Mutex
	reg     *inspector.Registry
	nodes   []fakeNode
	slugs   map[tenants.TenantID]string
	tasks   map[tasks.ID]*fakeTask
	events  map[events.ID]*fakeEvent
	watch   map[tasks.ID][]chan struct{}
	hear    map[tenants.TenantID][]chan events.Change
	serial  int
	started int
	hold    chan struct{} // a short task waits for it, if it is there
	ended   chan tasks.ID // gets tasks that were cancelled with their call
	result  func(kind string, n fakeNode) *inspector.TaskResult
}

type fakeTask struct {
	tasks.Task
	tenant string
}

type fakeEvent struct {
	events.Detail
	tenant string
	role   string
}

func fullRegistry() *inspector.Registry {
	r := &inspector.Registry{}
	all.Register(r)
	return r
}

func newBackend() *backend {
	b := &backend{reg: fullRegistry(), nodes: fakeNodes(), tasks: map[tasks.ID]*fakeTask{}, events: map[events.ID]*fakeEvent{}, watch: map[tasks.ID][]chan struct{}{},
		hear: map[tenants.TenantID][]chan events.Change{}, ended: make(chan tasks.ID, 16)}
	b.result = evidenceOf
	for _, n := range b.nodes {
		b.plant(n, "retransmit_burst", map[string]string{"remote": n.name + "-peer"})
	}
	return b
}

func (b *backend) own(acme, globex tenants.TenantID) {
	b.slugs = map[tenants.TenantID]string{acme: "acme", globex: "globex"}
}

// withBackend gives a world everything that is optional.
func withBackend(b *backend) func(*Config) {
	return func(c *Config) {
		c.Services.Tasks, c.Services.Events, c.Services.Explain, c.Services.Registry = fakeTasks{b}, fakeEvents{b}, fakeExplain{b}, b.reg
		c.ListenPace = time.Millisecond
	}
}

func (b *backend) nextID() uuid.UUID {
	b.serial++
	return uuid.MustParse(fmt.Sprintf("0195c000-0000-7000-8000-%012d", b.serial))
}

func (b *backend) sees(s tenants.Scope, n fakeNode) bool {
	return b.slugs[s.Tenant] == n.tenant && s.Nodes.Matches(n.nodeID(), map[string]string{"role": n.role})
}

// evidenceOf is a plausible finding of each kind.
func evidenceOf(kind string, n fakeNode) *inspector.TaskResult {
	r := &inspector.TaskResult{From: noon, To: noon.Add(5 * time.Second), Totals: map[string]uint64{"segments": 42}, Lost: 2, OtherRows: 3, OtherCount: 5, Truncated: 7,
		Rows: []inspector.ResultRow{
			{Labels: map[string]string{"tuple": "10.0.0.1:443>" + n.name + ":5000", "process": "curl"}, Count: 31, Values: map[string]float64{"rtt_us": 12000, "bytes": 4096}, Stack: []string{"tcp_retransmit_skb", "tcp_retransmit_timer", "tcp_write_timer"}},
			{Labels: map[string]string{"tuple": "10.0.0.1:22>" + n.name + ":9", "process": "sshd"}, Count: 6},
			{Labels: map[string]string{"reason": "TCP_CLOSE"}, Count: 90, Benign: true},
		},
		Samples: []inspector.ResultSample{{At: noon.Add(time.Second), Labels: map[string]string{"tuple": "10.0.0.1:443>" + n.name + ":5000", "process": "curl", "state": "ESTABLISHED"}, Values: map[string]float64{"rtt_us": 11000}}},
		Notes:   []string{"one note of the node"},
		Next:    []inspector.NextStep{{Tool: "trace_network_drops", Args: map[string]any{"port": 443.0, "node": "somewhere else"}, Why: "the same port"}, {Tool: "rm_everything", Why: "no"}}}
	if kind == "profile_on_cpu" {
		r.Rows, r.Samples, r.Next, r.Totals = nil, nil, nil, map[string]uint64{}
		p := &inspector.Profile{Hz: 99, CPUs: 4, Seconds: 5, Samples: 500, Kernel: 50, Unnamed: 3, LeftOut: 1}
		for i := range 60 {
			p.Top = append(p.Top, inspector.ProfileFrame{Function: fmt.Sprintf("main.spin%d", i), Module: "/usr/bin/" + n.name, Self: uint64(200 / (i + 1)), Total: 300, Share: 0.4 / float64(i+1)})
			p.Folded = append(p.Folded, inspector.FoldedStack{Stack: fmt.Sprintf("main.main;main.run;main.spin%d", i), Count: uint64(200 / (i + 1))})
		}
		r.Profile = p
	}
	return r
}

type fakeTasks struct{ *backend }

func (f fakeTasks) Do(ctx context.Context, scope tenants.Scope, req tasks.Request, opts tasks.DoOptions) (tasks.Task, error) {
	if err := scope.Require(tenants.Diagnose); err != nil {
		return tasks.Task{}, err
	}
	kind, ok := f.reg.Task(req.Kind)
	if !ok {
		return tasks.Task{}, fault.New(fault.Invalid, "unknown_task", "no such task")
	}
	args, err := kind.Check(req.Args)
	if err != nil {
		return tasks.Task{}, fault.Bad("arguments", "%v", err)
	}
	f.mu.Lock()
	t := &fakeTask{tenant: f.slugs[scope.Tenant]}
	t.Task = tasks.Task{Kind: req.Kind, Status: tasks.Running, Args: args, By: "token:" + scope.Principal.ID, CreatedAt: noon, Deadline: noon.Add(time.Minute), ExpiresAt: noon.Add(tasks.TicketLife), Fanout: req.Node == ""}
	t.Coverage.NotCovered = []tenants.NotCovered{}
	for _, n := range f.nodes {
		if !f.sees(scope, n) || req.Node != "" && req.Node != n.id && req.Node != n.name || req.Node == "" && req.Labels["role"] != n.role && req.Labels["all"] == "" {
			continue
		}
		t.Coverage.Asked++
		switch {
		case !n.offline:
			t.Runs = append(t.Runs, tasks.Run{Node: n.id, Name: n.name, Status: tasks.Running, StartedAt: ptr(noon), Progress: 0.5})
		case req.Node != "":
			f.mu.Unlock()
			return tasks.Task{}, fault.Newf(fault.Unavailable, "node_offline", "%s is offline", n.name).Do("call get_node to see since when")
		default:
			t.Coverage.Miss(tenants.NotCovered{Node: n.id, Name: n.name, Reason: "offline"})
		}
	}
	if t.Coverage.Asked == 0 {
		f.mu.Unlock()
		if req.Node != "" {
			return tasks.Task{}, fault.Newf(fault.NotFound, "unknown_node", "no node %.80q", req.Node).Do("list the nodes to see their ids and names")
		}
		return tasks.Task{}, fault.New(fault.NotFound, "no_nodes", "no node carries these labels").Do("call list_nodes")
	}
	if device := args.Text("device"); device == "nosuch" {
		f.mu.Unlock()
		return tasks.Task{}, &fault.Error{Kind: fault.NotFound, Reason: inspector.ReasonUnknownDevice, Field: "device", Msg: "no such block device", Next: "call metrics_summary for storage to see the devices"}
	}
	id := tasks.ID(f.nextID())
	t.Ticket = id.String()
	f.tasks[id] = t
	f.started++
	hold := f.hold
	shot := f.copy(t)
	f.mu.Unlock()
	if args.Int(inspector.ArgDuration) > int64(tasks.ShortTask/time.Second) {
		return shot, nil
	}
	if opts.Progress != nil {
		for _, p := range []float64{0.25, 0.25, 0.75} {
			shot.Runs[0].Progress = p
			opts.Progress(shot)
		}
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			if opts.CancelWhenAbandoned {
				f.end(id, tasks.Cancelled)
				f.ended <- id
			}
			return tasks.Task{}, ctx.Err()
		}
	}
	return f.end(id, tasks.Completed), nil
}

// end moves all runs of a task to their end and tells who watches.
func (b *backend) end(id tasks.ID, state tasks.State) tasks.Task {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.tasks[id]
	t.Status, t.EndedAt = state, ptr(noon.Add(5*time.Second))
	for i := range t.Runs {
		r := &t.Runs[i]
		r.Status, r.Progress, r.EndedAt, r.Partial = state, 1, t.EndedAt, false
		if state == tasks.Completed {
			n := b.nodes[slices.IndexFunc(b.nodes, func(n fakeNode) bool { return n.id == r.Node })]
			r.Result = b.result(t.Kind, n)
			t.Coverage.Answered++
		}
	}
	for _, ch := range b.watch[id] {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
	return b.copy(t)
}

func (b *backend) copy(t *fakeTask) tasks.Task {
	c := t.Task
	c.Runs, c.Args = slices.Clone(t.Runs), maps.Clone(t.Args)
	return c
}

func (f fakeTasks) Get(_ context.Context, scope tenants.Scope, id tasks.ID) (tasks.Task, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.tasks[id]
	visible := func(r tasks.Run) bool {
		return slices.ContainsFunc(f.nodes, func(n fakeNode) bool { return n.id == r.Node && f.sees(scope, n) })
	}
	if !ok || t.tenant != f.slugs[scope.Tenant] || !slices.ContainsFunc(t.Runs, visible) {
		return tasks.Task{}, fault.New(fault.NotFound, "unknown_ticket", "no such ticket").Do("use the ticket_id that the task's first answer gave")
	}
	c := f.copy(t)
	c.Runs = slices.DeleteFunc(c.Runs, func(r tasks.Run) bool { return !visible(r) })
	return c, nil
}

func (f fakeTasks) Cancel(ctx context.Context, scope tenants.Scope, id tasks.ID) (tasks.Task, error) {
	if err := scope.Require(tenants.Diagnose); err != nil {
		return tasks.Task{}, err
	}
	t, err := f.Get(ctx, scope, id)
	if err != nil || t.Status.Terminal() {
		return t, err
	}
	return f.end(id, tasks.Cancelled), nil
}

func (f fakeTasks) Subscribe(_ tenants.TenantID, id tasks.ID) (<-chan struct{}, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan struct{}, 1)
	f.watch[id] = append(f.watch[id], ch)
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watch[id] = slices.DeleteFunc(f.watch[id], func(c chan struct{}) bool { return c == ch })
	}
}

// bodyOf decodes structured content.
func bodyOf(t *testing.T, structured any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(structured)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}
