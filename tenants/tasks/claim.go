package tasks

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// maxClaims bounds the runs that wait to be claimed; beyond it they are found
// by the look of every second.
const maxClaims = 10_000

// queueClaim notes a run that may wait for this replica.
func (s *Service) queueClaim(k runKey) {
	s.mu.Lock()
	if len(s.claims) < maxClaims {
		s.claims[k] = struct{}{}
	}
	s.mu.Unlock()
	token(s.toClaim)
}

// lookForClaims finds runs that wait for nodes whose channels this replica
// holds, whether a hint came or not.
func (s *Service) lookForClaims(ctx context.Context) error {
	var all []tenants.TenantID
	for _, c := range s.open() {
		all = append(all, c.key.tenant)
	}
	slices.SortFunc(all, func(a, b tenants.TenantID) int { return slices.Compare(a[:], b[:]) })
	return inChunks(slices.Compact(all), func(t tenants.TenantID) tenants.TenantID { return t }, func(list, _ []tenants.TenantID) error {
		raw := make([][16]byte, len(list))
		for i, t := range list {
			raw[i] = t
		}
		return tenantdb.Fault(s.db.InTenants(ctx, list, func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, sqlUnclaimed, raw, s.clock())
			if err != nil {
				return err
			}
			var k runKey
			_, err = pgx.ForEachRow(rows, scanKey(&k), func() error {
				if s.channel(k.onNode()) != nil {
					s.queueClaim(k)
				}
				return nil
			})
			return err
		}))
	})
}

// claim takes the waiting runs whose nodes have a channel here, each exactly
// once over all replicas, and sends them.
func (s *Service) claim(ctx context.Context) error {
	s.mu.Lock()
	var keys []runKey
	lives := map[runKey]int64{}
	for k := range s.claims {
		if c := s.channels[k.onNode()]; c != nil && c.ready {
			keys = append(keys, k)
			lives[k] = c.life
		}
	}
	clear(s.claims)
	s.mu.Unlock()
	return inChunks(keys, ofTenant, func(list []tenants.TenantID, part []runKey) error {
		return s.claimSome(ctx, list, part, lives)
	})
}

func (s *Service) claimSome(ctx context.Context, list []tenants.TenantID, part []runKey, lives map[runKey]int64) error {
	type order struct {
		run     runKey
		d       Dispatch
		created time.Time
	}
	var orders []order
	at := columnsOf(part)
	life := make([]int64, len(part))
	for i, k := range part {
		life[i] = lives[k]
	}
	err := s.db.InTenants(ctx, list, func(ctx context.Context, tx pgx.Tx) error {
		orders = nil
		now := s.clock()
		rows, err := tx.Query(ctx, sqlClaim, at.tenants, at.tasks, at.nodes, life, claimed.from(Dispatched), string(Dispatched), now, now.Add(RunLease), s.replica)
		if err != nil {
			return err
		}
		var o order
		var args string
		fields := append(scanKey(&o.run), &o.d.Kind, &args, (*string)(&o.d.Principal.Kind), &o.d.Principal.ID, &o.d.Principal.Name, &o.d.Scopes,
			&o.d.StartBefore, &o.d.Deadline, &o.d.Alone, &o.created)
		_, err = pgx.ForEachRow(rows, fields, func() error {
			o.d.ID, o.d.Args = o.run.task, []byte(args)
			o.d.Scopes = slices.Clone(o.d.Scopes)
			orders = append(orders, o)
			return nil
		})
		return err
	})
	if err != nil {
		return tenantdb.Fault(err)
	}
	for _, o := range orders {
		if err := s.dispatch(ctx, o.run, o.d, o.created); err != nil {
			s.log.Warn("tasks: a run that did not go out was not ended; its lease ends it", "error", err)
		}
	}
	return nil
}

// dispatch sends a run that is DISPATCHED in the database. What does not go
// out ends.
func (s *Service) dispatch(ctx context.Context, run runKey, d Dispatch, created time.Time) error {
	if c := s.channel(run.onNode()); c != nil && c.send(d) {
		s.counts.dispatch(s.clock().Sub(created))
		return nil
	}
	return s.endRuns(ctx, run.tenant, []*ending{ended(run, Dispatched, undelivered, s.clock())})
}

// orderCancel tells a node to end a run.
func (s *Service) orderCancel(k runKey) {
	if c := s.channel(k.onNode()); c != nil {
		c.out.Cancel(k.task)
	}
}

// routeCancel tells a node to end a run, through the replica that holds its
// channel.
func (s *Service) routeCancel(k runKey, replica string) {
	if c := s.channel(k.onNode()); c != nil {
		c.out.Cancel(k.task)
		return
	}
	if replica != "" && replica != s.replica {
		s.bus.Send(replica, tenantdb.Hint{Topic: topicCancel, Tenant: k.tenant, Key: k.words()})
	}
}
