package tasks

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// watches are the tasks that somebody here waits for. A waiter costs a channel
// and no goroutine: hints wake it, and one query a second for all of them
// finds what hints missed.
type watches struct {
	mu sync.Mutex
	m  map[taskKey]*watched
}

type watched struct {
	signature int64                  // of the runs at the last look
	waiters   map[chan struct{}]bool // patient: for the answer of a short task alone
	wanted    bool                   // an end is kept for a waiter who can take it as it is
	end       *ending                // stored by this replica
}

func (w *watches) add(k taskKey, patient bool) (moved chan struct{}, stop func()) {
	moved = make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.m[k]
	if t == nil {
		t = &watched{waiters: map[chan struct{}]bool{}}
		w.m[k] = t
	}
	t.waiters[moved] = patient
	return moved, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(t.waiters, moved)
		if len(t.waiters) == 0 && w.m[k] == t {
			delete(w.m, k)
		}
	}
}

// want keeps the end of a task of one node, should this replica store it.
func (w *watches) want(k taskKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.m[k]; t != nil {
		t.wanted = true
	}
}

// ended takes an end that is stored.
func (w *watches) ended(e *ending) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.m[e.run.taskKey]; t != nil && t.wanted {
		t.end = e
	}
}

// known is the stored end of a wanted task; nil: it is to be read.
func (w *watches) known(k taskKey) *ending {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.m[k]; t != nil {
		return t.end
	}
	return nil
}

// wake tells all who wait for a task, or, when its runs only go on, those who
// want to know that: a thousand who wait for an end are not to read a thousand
// rows each time a node says how far it is. It answers whether somebody waits.
func (w *watches) wake(k taskKey, goesOn bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.m[k].wake(goesOn)
	return w.m[k] != nil
}

func (t *watched) wake(goesOn bool) {
	if t == nil {
		return
	}
	for c, patient := range t.waiters {
		if !goesOn || !patient {
			token(c)
		}
	}
}

func (w *watches) keys() []taskKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.m))
}

// looked takes the runs of a task as they were seen; over: none of them is to
// be waited for.
func (w *watches) looked(k taskKey, signature int64, over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.m[k]; t != nil && (over || t.signature != signature) {
		t.signature = signature
		t.wake(!over)
	}
}

// Subscribe answers a hint each time the task may have moved, on any replica,
// until cancel is called. Hints are coalesced and say nothing by themselves:
// read the task with Get, which also says whether it is there for the caller.
func (s *Service) Subscribe(tenant tenants.TenantID, id ID) (moved <-chan struct{}, cancel func()) {
	return s.watches.add(taskKey{tenant, id}, false)
}

// lookAtWatched wakes whom no hint reached.
func (s *Service) lookAtWatched(ctx context.Context) error {
	return inChunks(s.watches.keys(), func(k taskKey) tenants.TenantID { return k.tenant }, func(list []tenants.TenantID, part []taskKey) error {
		ts, ks := make([][16]byte, len(part)), make([][16]byte, len(part))
		for i, k := range part {
			ts[i], ks[i] = k.tenant, k.task
		}
		return tenantdb.Fault(s.db.InTenants(ctx, list, func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, sqlSignatures, ts, ks, reasonLost)
			if err != nil {
				return err
			}
			var k taskKey
			var signature int64
			var over bool
			_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&k.tenant), (*[16]byte)(&k.task), &signature, &over}, func() error {
				s.watches.looked(k, signature, over)
				return nil
			})
			return err
		}))
	})
}

// inChunks hands rows of many tenants on in parts that one transaction may
// span. The first error ends it.
func inChunks[K any](keys []K, tenant func(K) tenants.TenantID, do func([]tenants.TenantID, []K) error) error {
	for part := range slices.Chunk(keys, tenantdb.MaxTenants) {
		list := make([]tenants.TenantID, len(part))
		for i, k := range part {
			list[i] = tenant(k)
		}
		if err := do(list, part); err != nil {
			return err
		}
	}
	return nil
}
