package ingest

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// lookTimeout bounds one look.
const lookTimeout = 3 * time.Second

// hub knows the live streams of this replica, one a node, and carries to them
// what changes elsewhere: revocations, module switches, the server's end.
// Safe for concurrent use.
type hub struct {
	deps  Deps
	cfg   Config
	count *counters
	log   *slog.Logger

	mu       sync.Mutex
	streams  map[nodeKey]*stream
	channels map[nodeKey]*taskStream // task channels, also such as are ending
	closing  bool

	stopping chan struct{} // closed when drain begins
}

type nodeKey struct {
	tenant tenants.TenantID
	node   tenants.NodeID
}

func newHub(d Deps, c Config, count *counters, log *slog.Logger) *hub {
	return &hub{deps: d, cfg: c, count: count, log: log, streams: map[nodeKey]*stream{}, channels: map[nodeKey]*taskStream{}, stopping: make(chan struct{})}
}

var errStopping = fault.New(fault.Unavailable, "server_stopping", "this server is stopping").Do("connect again")

// add makes st the live stream of its node. An older one of the same node is
// closed: its connection is dead, or its agent has moved on.
func (h *hub) add(st *stream) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return errStopping
	}
	k := nodeKey{st.scope.Tenant, st.node}
	if old := h.streams[k]; old != nil {
		h.count.replaced.Add(1)
		old.cut("replaced", fault.New(fault.Conflict, "replaced", "a younger stream of this node took over"))
	}
	h.streams[k] = st
	h.count.streams.Add(1)
	return nil
}

func (h *hub) remove(st *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := (nodeKey{st.scope.Tenant, st.node}); h.streams[k] == st {
		delete(h.streams, k)
	}
}

// open makes t the task channel of its node, which must hold its report
// stream here and over the same connection. It returns the one before, which
// may have ended already.
func (h *hub) open(t *taskStream, remote string) (former *taskStream, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing {
		return nil, retryable{errStopping, retryAfter()}
	}
	k := nodeKey{t.scope.Tenant, t.node}
	if t.report = h.streams[k]; t.report == nil || t.report.remote != remote {
		return nil, retryable{fault.New(fault.Precondition, "no_report_stream", "this connection does not carry the node's report stream").
			Do("open the report stream first, then the task channel over the same connection"), soonAgain()}
	}
	former = h.channels[k]
	h.channels[k] = t
	return former, nil
}

// shut forgets a task channel.
func (h *hub) shut(t *taskStream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k := (nodeKey{t.scope.Tenant, t.node}); h.channels[k] == t {
		delete(h.channels, k)
	}
}

// taskChannels returns how many are open.
func (h *hub) taskChannels() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.channels)
}

func (h *hub) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.streams)
}

func (h *hub) get(t tenants.TenantID, n tenants.NodeID) *stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.streams[nodeKey{t, n}]
}

func (h *hub) all() []*stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*stream, 0, len(h.streams))
	for _, st := range h.streams {
		out = append(out, st)
	}
	return out
}

// run looks for changes every Recheck until ctx ends.
func (h *hub) run(ctx context.Context) error {
	tick := time.NewTicker(h.cfg.Recheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		list := h.all() // before the look: a younger stream read a younger state
		if len(list) == 0 {
			continue
		}
		live := map[tenants.TenantID][]tenants.NodeID{}
		for _, st := range list {
			live[st.scope.Tenant] = append(live[st.scope.Tenant], st.node)
		}
		if err := h.cutGone(ctx, list, live); err != nil {
			h.log.Warn("cannot look for revocations", "error", err)
		}
		if err := h.tellSwitches(ctx, list, live); err != nil {
			h.log.Warn("cannot look for module switches", "error", err)
		}
	}
}

func (h *hub) cutGone(ctx context.Context, list []*stream, live map[tenants.TenantID][]tenants.NodeID) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	nodes, suspended, err := h.deps.Nodes.Gone(ctx, live)
	if err != nil || len(nodes)+len(suspended) == 0 {
		return err
	}
	for _, st := range list {
		switch {
		case slices.Contains(nodes, st.node):
			h.count.cut.Add(1)
			st.cut("revoked", fault.New(fault.Unauthorized, "node_revoked", "the identity of this node was revoked").
				Do("ask an administrator of the tenant; to come back, the machine enrols anew"))
		case slices.Contains(suspended, st.scope.Tenant):
			h.count.cut.Add(1)
			st.cut("suspended", fault.New(fault.Denied, "tenant_suspended", "the tenant is suspended").Do("ask the operator of this server"))
		}
	}
	return nil
}

func (h *hub) tellSwitches(ctx context.Context, list []*stream, live map[tenants.TenantID][]tenants.NodeID) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	off, err := h.deps.Sessions.SwitchedOff(ctx, live)
	if err != nil {
		return err
	}
	for _, st := range list {
		st.control(off[st.node])
	}
	return nil
}

// drain asks all streams to leave, waits for them up to the drain time-out,
// and closes the rest.
func (h *hub) drain() {
	h.mu.Lock()
	h.closing = true
	h.mu.Unlock()
	close(h.stopping)
	deadline := time.NewTimer(h.cfg.DrainTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, st := range h.all() {
		st.drain(h.cfg.DrainTimeout / 3)
	}
	for h.size() > 0 {
		select {
		case <-tick.C:
		case <-deadline.C:
			for _, st := range h.all() {
				st.cut("stopping", errStopping)
			}
			return
		}
	}
}
