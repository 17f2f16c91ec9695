package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// What the nodes of a tenant run is asked with every call of a model, so it is
// answered from memory for runningLife, and for longer where reading it takes
// long: never more than a small part of the time goes into it.
const (
	runningLife  = 3 * time.Second
	runningShare = 20 // times as long as the last look took
	runningWait  = 2 * time.Second
	maxRunning   = 4096 // tenants remembered
)

// sqlRunning looks for each component for one node that has it, and ("") for
// one that has said anything. The limits make it stop at the first one; the
// order leads to the index capability_running.
// Its parameters: $1 tenant, $2 components.
const sqlRunning = `
select c.name from unnest($2::text[]) as c (name), lateral (
  select 1 from capability k
   where k.tenant_id = $1 and k.component = c.name and k.level <> 'off' and` + sqlTrusted + ` order by k.node_id limit 1) as found
union all
select '' where exists (select 1 from capability k where k.tenant_id = $1 and` + sqlTrusted + `)`

const sqlTrusted = `
     exists (select 1 from node n where n.tenant_id = $1 and n.node_id = k.node_id and n.revoked_at is null)`

// Running tells which components the nodes of each tenant run. It is safe for
// concurrent use and starts nothing.
type Running struct {
	db    *tenantdb.DB
	names []string

	mu   sync.Mutex
	seen map[tenants.TenantID]*running
}

type running struct {
	list  []string
	known bool
	until time.Time
	busy  chan struct{} // closed when the look that is under way ends; nil: none is
	err   error         // of the last look
	ever  bool          // one look succeeded
}

// NewRunning makes a Running over the components of a registry.
func NewRunning(db *tenantdb.DB, reg *inspector.Registry) *Running {
	r := &Running{db: db, seen: map[tenants.TenantID]*running{}}
	for _, c := range reg.Components() {
		r.names = append(r.names, c.Name)
	}
	return r
}

// Components lists, in the order of the registry, the components of which at
// least one signal works on at least one node of the tenant that is not
// revoked, wherever the caller's selector ends. known is false when no such
// node has ever said what it can do. The answer is a few seconds old at most;
// while the database is away it is the last one. The caller must not change
// the list.
func (r *Running) Components(ctx context.Context, tenant tenants.TenantID) (list []string, known bool, err error) {
	r.mu.Lock()
	e := r.entry(tenant)
	switch now := time.Now(); {
	case now.Before(e.until) || e.busy != nil && e.ever:
		defer r.mu.Unlock()
		return e.list, e.known, nil
	case e.busy != nil: // the first look of this tenant is under way
		busy := e.busy
		r.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return e.list, e.known, e.failed()
	}
	e.busy = make(chan struct{})
	r.mu.Unlock()
	start := time.Now()
	list, known, err = r.look(ctx, tenant)
	r.mu.Lock()
	defer r.mu.Unlock()
	close(e.busy)
	e.busy, e.err, e.until = nil, err, time.Now().Add(max(runningLife, runningShare*time.Since(start)))
	if err == nil {
		e.list, e.known, e.ever = list, known, true
	}
	return e.list, e.known, e.failed()
}

// failed is the error of a tenant of which nothing was ever known.
func (e *running) failed() error {
	if e.ever {
		return nil
	}
	return e.err
}

// entry is the memory of a tenant. The lock is held. In a full memory the one
// looked at longest ago makes room; whoever holds it ends with it.
func (r *Running) entry(tenant tenants.TenantID) *running {
	if e, ok := r.seen[tenant]; ok {
		return e
	}
	if len(r.seen) >= maxRunning {
		var oldest tenants.TenantID
		var until time.Time
		for id, e := range r.seen {
			if until.IsZero() || e.until.Before(until) {
				oldest, until = id, e.until
			}
		}
		delete(r.seen, oldest)
	}
	e := &running{}
	r.seen[tenant] = e
	return e
}

// look reads. One look is for many callers: it outlives the one that began it.
func (r *Running) look(ctx context.Context, tenant tenants.TenantID) (list []string, known bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), runningWait)
	defer cancel()
	found, err := tenantdb.Query(ctx, r.db, tenant, sqlRunning, []any{[16]byte(tenant), r.names}, pgx.RowTo[string])
	for _, name := range r.names {
		if slices.Contains(found, name) {
			list = append(list, name)
		}
	}
	return list, slices.Contains(found, ""), err
}
