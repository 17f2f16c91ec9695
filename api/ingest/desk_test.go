package ingest

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/uplink"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// desk is a tasks service that remembers what it is told. A task belongs to
// the tenant and node for which it was made.
type desk struct {
	mu       sync.Mutex
	owner    map[tasks.ID]nodeKey
	channels []*deskChannel
	accepted map[tasks.ID]int
	rejected map[tasks.ID]inspector.Refusal
	progress map[tasks.ID]tasks.Progress
	ends     map[tasks.ID][]tasks.Outcome
	away     int // calls of Finished that fail from now on
}

type deskChannel struct {
	d       *desk
	scope   tenants.Scope
	hello   tasks.Hello
	out     tasks.Outbox
	closed  int
	planned bool
}

func newDesk() *desk {
	return &desk{owner: map[tasks.ID]nodeKey{}, accepted: map[tasks.ID]int{}, rejected: map[tasks.ID]inspector.Refusal{},
		progress: map[tasks.ID]tasks.Progress{}, ends: map[tasks.ID][]tasks.Outcome{}}
}

func (d *desk) use(deps *Deps) { deps.Tasks = TasksOf(d.ChannelOpened) }

func (d *desk) ChannelOpened(_ context.Context, scope tenants.Scope, h tasks.Hello, out tasks.Outbox) (*deskChannel, []tasks.ID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ch := &deskChannel{d: d, scope: scope, hello: h, out: out}
	d.channels = append(d.channels, ch)
	var cancel []tasks.ID
	for _, id := range h.Running {
		if _, ok := d.owner[id]; !ok {
			cancel = append(cancel, id)
		}
	}
	return ch, cancel, nil
}

func (c *deskChannel) mine(id tasks.ID) error {
	node, _ := tenants.ParseNodeID(c.scope.Principal.ID)
	if c.d.owner[id] != (nodeKey{c.scope.Tenant, node}) {
		return fault.New(fault.NotFound, "unknown_ticket", "no such task of this node")
	}
	return nil
}

func (c *deskChannel) Accepted(_ context.Context, id tasks.ID) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if err := c.mine(id); err != nil {
		return err
	}
	c.d.accepted[id]++
	return nil
}

func (c *deskChannel) Rejected(_ context.Context, id tasks.ID, r inspector.Refusal) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.rejected[id] = r
	return c.mine(id)
}

func (c *deskChannel) Progress(_ context.Context, id tasks.ID, p tasks.Progress) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if err := c.mine(id); err != nil {
		return err
	}
	c.d.progress[id] = p
	return nil
}

func (c *deskChannel) Finished(_ context.Context, id tasks.ID, o tasks.Outcome) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	if err := c.mine(id); err != nil {
		return err
	}
	if c.d.away > 0 {
		c.d.away--
		return fault.New(fault.Unavailable, "database_unavailable", "the database is away")
	}
	c.d.ends[id] = append(c.d.ends[id], o)
	return nil
}

func (c *deskChannel) Closed(_ context.Context, planned bool) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.closed++
	c.planned = planned
}

// of returns the channels that a node opened, the oldest first, as they are.
func (d *desk) of(node tenants.NodeID) (out []deskChannel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.channels {
		if c.scope.Principal.ID == node.String() {
			out = append(out, *c)
		}
	}
	return out
}

// open waits for a node's channel number n.
func (r *rig) channel(d *desk, node tenants.NodeID, n int) deskChannel {
	r.t.Helper()
	r.eventually("the task channel is open", func() bool { return len(d.of(node)) >= n })
	return d.of(node)[n-1]
}

// ask makes a task of a node and sends it there.
func (d *desk) ask(t *testing.T, c deskChannel, kind string) tasks.ID {
	t.Helper()
	id := tasks.ID(uuid.Must(uuid.NewV7()))
	node, _ := tenants.ParseNodeID(c.scope.Principal.ID)
	d.mu.Lock()
	d.owner[id] = nodeKey{c.scope.Tenant, node}
	d.mu.Unlock()
	now := time.Now()
	if !c.out.Dispatch(tasks.Dispatch{
		ID: id, Kind: kind, Args: []byte(`{"duration_s":1}`), Principal: tenants.Principal{Kind: "operator", ID: "anna"},
		Scopes: []string{"telltale:diagnose"}, StartBefore: now.Add(5 * time.Second), Deadline: now.Add(30 * time.Second),
	}) {
		t.Fatal("the outbox took no order")
	}
	return id
}

// look reads what the desk knows, under its lock.
func look[T any](d *desk, f func() T) T {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f()
}

func (d *desk) ended(id tasks.ID) int { return look(d, func() int { return len(d.ends[id]) }) }

// hand is an agent's executor that does what a test says.
type hand struct {
	mu        sync.Mutex
	running   []inspector.TaskID
	orders    []inspector.TaskOrder
	cancelled []inspector.TaskID
	taken     []inspector.TaskID
	news      []inspector.TaskUpdate
	ends      []inspector.TaskUpdate // not taken
	refuse    *inspector.Refusal
	ready     chan struct{}
}

func newHand() *hand { return &hand{ready: make(chan struct{}, 1)} }

func (h *hand) Hello() ([]inspector.TaskID, []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := slices.Clone(h.running)
	for _, e := range h.ends {
		out = append(out, e.ID)
	}
	return out, []string{"trace_network_drops", "Bad Kind"}
}

func (h *hand) Start(o inspector.TaskOrder) *inspector.Refusal {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.orders = append(h.orders, o)
	if h.refuse != nil {
		return h.refuse
	}
	h.running = append(h.running, o.ID)
	return nil
}

func (h *hand) Cancel(id inspector.TaskID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancelled = append(h.cancelled, id)
}

func (h *hand) Taken(id inspector.TaskID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken = append(h.taken, id)
	h.ends = slices.DeleteFunc(h.ends, func(u inspector.TaskUpdate) bool { return u.ID == id })
}

func (h *hand) Ready() <-chan struct{} { return h.ready }

func (h *hand) Updates(fresh bool) []inspector.TaskUpdate {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.news
	h.news = nil
	if fresh {
		out = slices.DeleteFunc(out, func(u inspector.TaskUpdate) bool { return u.End != nil })
		out = append(out, h.ends...)
	}
	return out
}

func (h *hand) say(u inspector.TaskUpdate) {
	h.mu.Lock()
	if u.End != nil {
		h.ends = append(h.ends, u)
		h.running = slices.DeleteFunc(h.running, func(id inspector.TaskID) bool { return id == u.ID })
	}
	h.news = append(h.news, u)
	h.mu.Unlock()
	select {
	case h.ready <- struct{}{}:
	default:
	}
}

func (h *hand) end(id tasks.ID, o inspector.TaskOutcome, result []byte) {
	e := &inspector.TaskEnd{Outcome: o, Result: result}
	if o != inspector.TaskCompleted {
		e.Refusal = &inspector.Refusal{Kind: "INTERNAL", Reason: inspector.ReasonTaskFailed, Msg: "as the test wants it", Next: "nothing"}
	}
	h.say(inspector.TaskUpdate{ID: inspector.TaskID(id), End: e})
}

func seen[T any](h *hand, f func() T) T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return f()
}

func (h *hand) takenNow() int { return seen(h, func() int { return len(h.taken) }) }

// result is a task result of about so many bytes.
func result(bytes int) []byte {
	r := inspector.TaskResult{From: time.Now(), To: time.Now(), Totals: map[string]uint64{"packets": 7}}
	for n := 0; n < bytes; n += 4200 {
		row := inspector.ResultRow{Labels: map[string]string{"reason": "NO_SOCKET"}, Count: 1}
		for len(row.Stack) < 40 && n+100*len(row.Stack) < bytes {
			row.Stack = append(row.Stack, long(100))
		}
		r.Rows = append(r.Rows, row)
	}
	raw, _ := json.Marshal(r)
	return raw
}

// worker enrols a node that takes tasks and connects it.
func (r *rig) worker(tn tenants.Tenant, name string) (*hand, *uplink.Uplink, tenants.NodeID) {
	r.t.Helper()
	id, node := r.enrol(tn, name)
	h := newHand()
	u := uplink.New(uplink.Config{Facts: facts(name), Tasks: h}, id, testLog(r.t))
	r.run(u)
	return h, u, node
}
