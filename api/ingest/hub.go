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

// lookBack is how far before the last look changes are looked for again: the
// replicas that wrote them have clocks of their own.
const lookBack = 30 * time.Second

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

	mu      sync.Mutex
	streams map[nodeKey]*stream
	closing bool

	stopping chan struct{} // closed when drain begins
}

type nodeKey struct {
	tenant tenants.TenantID
	node   tenants.NodeID
}

func newHub(d Deps, c Config, count *counters, log *slog.Logger) *hub {
	return &hub{deps: d, cfg: c, count: count, log: log, streams: map[nodeKey]*stream{}, stopping: make(chan struct{})}
}

var errStopping = fault.New(fault.Unavailable, "server_stopping", "this server is stopping").Do("connect again")

// rival reports whether the node's identity is live here on another machine
// or boot.
func (h *hub) rival(st *stream) bool {
	old := h.get(st.scope.Tenant, st.node)
	return old != nil && (old.machine != st.machine || old.boot != st.boot)
}

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

// tenants lists whose nodes are connected here.
func (h *hub) tenants() []tenants.TenantID {
	seen := map[tenants.TenantID]bool{}
	var out []tenants.TenantID
	for _, st := range h.all() {
		if !seen[st.scope.Tenant] {
			seen[st.scope.Tenant] = true
			out = append(out, st.scope.Tenant)
		}
	}
	return out
}

// run looks for changes every Recheck until ctx ends.
func (h *hub) run(ctx context.Context) error {
	revoked, switched := h.cfg.Now(), h.cfg.Now()
	tick := time.NewTicker(h.cfg.Recheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		ids := h.tenants()
		if len(ids) == 0 {
			revoked, switched = h.cfg.Now(), h.cfg.Now()
			continue
		}
		// Each look has its own time: while one fails, its span grows.
		now := h.cfg.Now()
		if err := h.cutRevoked(ctx, ids, revoked.Add(-lookBack)); err != nil {
			h.log.Warn("cannot look for revocations", "error", err)
		} else {
			revoked = now
		}
		if err := h.tellSwitches(ctx, ids, switched.Add(-lookBack)); err != nil {
			h.log.Warn("cannot look for module switches", "error", err)
		} else {
			switched = now
		}
	}
}

func (h *hub) cutRevoked(ctx context.Context, ids []tenants.TenantID, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	nodes, suspended, err := h.deps.Nodes.RevokedSince(ctx, ids, since)
	if err != nil || len(nodes)+len(suspended) == 0 {
		return err
	}
	for _, st := range h.all() {
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

func (h *hub) tellSwitches(ctx context.Context, ids []tenants.TenantID, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	changed, err := h.deps.Sessions.SwitchedSince(ctx, ids, since)
	for _, c := range changed {
		if st := h.get(c.Tenant, c.Node); st != nil {
			st.control(c.Off)
		}
	}
	return err
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
