package tasks

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// cancelWait is how long Cancel waits for the nodes to end.
const cancelWait = 2 * time.Second

// Cancel ends a task: what was not sent at once, the rest by an order to its
// nodes, whose partial results are kept. It waits a moment for them and
// answers the task as it stands then. A task that has ended is answered as it
// is, however often. A principal who may see only some nodes cancels the runs
// on those. It needs what starting the task needs.
func (s *Service) Cancel(ctx context.Context, scope tenants.Scope, id ID) (Task, error) {
	t, err := s.Get(ctx, scope, id)
	if err != nil {
		return Task{}, err
	}
	want := tenants.Diagnose
	if kind, ok := s.reg.Task(t.Kind); ok {
		want = needs(kind)
	}
	if err := scope.Require(want); err != nil {
		return Task{}, err
	}
	var nodes []tenants.NodeID
	for _, r := range t.Runs {
		if !r.Status.Terminal() {
			n, err := tenants.ParseNodeID(r.Node)
			if err != nil {
				return Task{}, err
			}
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return t, nil
	}
	key := taskKey{scope.Tenant, id}
	moved, stop := s.watches.add(key, false)
	defer stop()
	if err := s.cancelRuns(ctx, key, nodes); err != nil {
		return Task{}, err
	}
	limit := time.NewTimer(cancelWait)
	defer limit.Stop()
	for {
		if t, err = s.Get(ctx, scope, id); err != nil || !slices.ContainsFunc(t.Runs, func(r Run) bool { return !r.Status.Terminal() }) {
			return t, err
		}
		select {
		case <-ctx.Done():
			return t, nil // the order is out
		case <-limit.C:
			return t, nil
		case <-moved:
		}
	}
}

// cancelRuns ends a task's runs on some nodes; nil: on all.
func (s *Service) cancelRuns(ctx context.Context, key taskKey, nodes []tenants.NodeID) error {
	if nodes == nil {
		list, err := tenantdb.Query(ctx, s.db, key.tenant, sqlNodesOf, []any{[16]byte(key.tenant), [16]byte(key.task)}, pgx.RowTo[[16]byte])
		if err != nil {
			return err
		}
		for _, n := range list {
			nodes = append(nodes, n)
		}
	}
	raw := make([][16]byte, len(nodes))
	for i, n := range nodes {
		raw[i] = n
	}
	var ends []*ending
	orders := map[runKey]string{}
	err := again(func() error {
		ends = nil
		clear(orders)
		now := s.clock()
		return s.db.InTenant(ctx, key.tenant, func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			for _, n := range nodes {
				ends = append(ends, ended(runKey{key, n}, Created, withdrawn, now))
			}
			queueEnds(b, ends)
			from := slices.Concat(cancelAsked.from(Dispatched), cancelAsked.from(Running))
			b.Queue(sqlAskCancel, [16]byte(key.tenant), [16]byte(key.task), now, raw, from).Query(func(rows pgx.Rows) error {
				var node tenants.NodeID
				var replica string
				_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&node), &replica}, func() error {
					orders[runKey{key, node}] = replica
					return nil
				})
				return err
			})
			return tx.SendBatch(ctx, b).Close()
		})
	})
	if err != nil {
		return tenantdb.Fault(err)
	}
	s.afterEnds(ends)
	for run, replica := range orders {
		s.routeCancel(run, replica)
	}
	return nil
}
