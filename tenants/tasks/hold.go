package tasks

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// What this replica writes about the runs on its open channels, in batches
// over all nodes and tenants: progress and leases.

const (
	writeEvery  = 500 * time.Millisecond
	writeLinger = 3 * time.Millisecond // a run that ends within it is written once
	writeRows   = 500                  // of one transaction
)

// columns are rows of runs as arrays for unnest.
type columns struct{ tenants, tasks, nodes [][16]byte }

func (c *columns) add(k runKey) {
	c.tenants, c.tasks, c.nodes = append(c.tenants, k.tenant), append(c.tasks, k.task), append(c.nodes, k.node)
}

func columnsOf(keys []runKey) (c columns) {
	for _, k := range keys {
		c.add(k)
	}
	return c
}

func scanKey(k *runKey) []any {
	return []any{(*[16]byte)(&k.tenant), (*[16]byte)(&k.task), (*[16]byte)(&k.node)}
}

func ofTenant(k runKey) tenants.TenantID { return k.tenant }

// open lists the channels of this replica.
func (s *Service) open() []*Channel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.channels))
}

// dirty notes that a channel has something to write.
func (s *Service) dirty(c *Channel, soon bool) {
	s.mu.Lock()
	s.dirt[c] = struct{}{}
	s.mu.Unlock()
	if soon {
		token(s.toWrite)
	}
}

// news is a run's progress on its way into the database.
type news struct {
	run      runKey
	c        *Channel
	began    *time.Time
	permille uint32
	partial  []byte
}

// take empties the channels' news.
func (s *Service) takeNews() (out []news) {
	s.mu.Lock()
	channels := slices.Collect(maps.Keys(s.dirt))
	clear(s.dirt)
	s.mu.Unlock()
	for _, c := range channels {
		c.mu.Lock()
		for id, h := range c.runs {
			if h.dirty {
				out = append(out, news{c.run(id), c, h.began, h.permille, h.partial})
				h.dirty, h.partial = false, nil
			}
		}
		c.mu.Unlock()
	}
	return out
}

// putBack keeps news that could not be written for the next time.
func (s *Service) putBack(list []news) {
	for _, n := range list {
		n.c.mu.Lock()
		if h := n.c.runs[n.run.task]; h != nil {
			h.dirty = true
			if h.partial == nil {
				h.partial = n.partial
			}
			s.mu.Lock()
			s.dirt[n.c] = struct{}{}
			s.mu.Unlock()
		}
		n.c.mu.Unlock()
	}
}

// write records accepted runs and their progress.
func (s *Service) write(ctx context.Context) error {
	linger := time.NewTimer(writeLinger)
	defer linger.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-linger.C:
	}
	var late error
	for part := range slices.Chunk(s.takeNews(), writeRows) {
		written, err := s.writeSome(ctx, part)
		if err != nil {
			s.putBack(part)
			late = err
			continue
		}
		var left []news
		told := map[taskKey]bool{}
		for _, n := range part {
			if !written[n.run] {
				left = append(left, n)
			} else if !told[n.run.taskKey] {
				told[n.run.taskKey] = true
				s.goesOn(n.run.taskKey)
			}
		}
		s.strays(ctx, left)
	}
	return late
}

func (s *Service) writeSome(ctx context.Context, part []news) (written map[runKey]bool, err error) {
	var list []tenants.TenantID
	var at columns
	began, permille := make([]*time.Time, len(part)), make([]int32, len(part))
	for i, n := range part {
		list = append(list, n.run.tenant)
		at.add(n.run)
		began[i], permille[i] = n.began, int32(n.permille)
	}
	err = s.db.InTenants(ctx, list, func(ctx context.Context, tx pgx.Tx) error {
		written = map[runKey]bool{}
		rows, err := tx.Query(ctx, sqlProgress, at.tenants, at.tasks, at.nodes, began, permille, progressed.from(Running), string(Running))
		if err != nil {
			return err
		}
		var k runKey
		if _, err = pgx.ForEachRow(rows, scanKey(&k), func() error { written[k] = true; return nil }); err != nil {
			return err
		}
		var to columns
		var bodies [][]byte
		for _, n := range part {
			if n.partial != nil && written[n.run] {
				to.add(n.run)
				bodies = append(bodies, n.partial)
			}
		}
		if len(bodies) == 0 {
			return nil
		}
		_, err = tx.Exec(ctx, sqlPutPartials, to.tenants, to.tasks, to.nodes, bodies)
		return err
	})
	return written, tenantdb.Fault(err)
}

// strays are runs that could not be moved: those that ended elsewhere are
// stopped on their nodes, the others were locked for a moment.
func (s *Service) strays(ctx context.Context, left []news) {
	for _, n := range left {
		over, err := s.areOver(ctx, n.run.tenant, []runKey{n.run})
		if err != nil || !over[n.run] {
			s.putBack([]news{n})
			continue
		}
		if n.c.drop(n.run.task) != nil {
			s.counts.add(&s.counts.late)
			n.c.out.Cancel(n.run.task)
		}
	}
}

// areOver says which runs of a tenant have ended or do not exist.
func (s *Service) areOver(ctx context.Context, tenant tenants.TenantID, keys []runKey) (over map[runKey]bool, err error) {
	at := columnsOf(keys)
	err = s.db.InTenants(ctx, []tenants.TenantID{tenant}, func(ctx context.Context, tx pgx.Tx) error {
		over = map[runKey]bool{}
		for _, k := range keys {
			over[k] = true
		}
		rows, err := tx.Query(ctx, sqlEnded, at.tenants, at.tasks, at.nodes)
		if err != nil {
			return err
		}
		var k runKey
		var is bool
		_, err = pgx.ForEachRow(rows, append(scanKey(&k), &is), func() error { over[k] = is; return nil })
		return err
	})
	return over, tenantdb.Fault(err)
}

// renew prolongs the leases of all runs on this replica's channels, and
// forgets those whose end must have been told by now.
func (s *Service) renew(ctx context.Context) error {
	now := s.clock()
	var keys []runKey
	for _, c := range s.open() {
		c.mu.Lock()
		for id, h := range c.runs {
			if now.After(h.deadline.Add(2*DeadlineGrace + RunLease)) {
				delete(c.runs, id)
				continue
			}
			keys = append(keys, c.run(id))
		}
		c.mu.Unlock()
	}
	return inChunks(keys, ofTenant, func(list []tenants.TenantID, part []runKey) error {
		at := columnsOf(part)
		return tenantdb.Fault(s.db.InTenants(ctx, list, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sqlRenew, at.tenants, at.tasks, at.nodes, s.replica, now.Add(RunLease), reasonLost)
			return err
		}))
	})
}

// letGo gives the runs of a closed channel a lease within which some channel
// of the node takes them up again.
func (s *Service) letGo(ctx context.Context, c *Channel, runs map[ID]*held, planned bool) error {
	by, lease, reason := connectionLost, ResumeLease, reasonLost
	if planned {
		by, lease, reason = handedOver, RunLease, ""
	}
	var begun, permille = []*time.Time{}, []int32{}
	var at columns
	var ids [][16]byte
	for id, h := range runs {
		ids = append(ids, id)
		if h.began != nil {
			at.add(c.run(id))
			begun, permille = append(begun, h.began), append(permille, int32(h.permille))
		}
	}
	from := slices.Concat(by.from(Dispatched), by.from(Running))
	return again(func() error {
		return s.db.InTenants(ctx, []tenants.TenantID{c.key.tenant}, func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			if len(begun) > 0 {
				b.Queue(sqlProgress, at.tenants, at.tasks, at.nodes, begun, permille, progressed.from(Running), string(Running))
			}
			b.Queue(sqlLetGo, [16]byte(c.key.tenant), [16]byte(c.key.node), ids, s.replica, s.clock().Add(lease), reason, from)
			return tx.SendBatch(ctx, b).Close()
		})
	})
}

// again tries a transaction of more than one lock a few times: two of them may
// stand in each other's way.
func again(do func() error) (err error) {
	for range 4 {
		if err = do(); err == nil || fault.Of(tenantdb.Fault(err)).Reason != "database_busy" {
			return err
		}
	}
	return err
}
