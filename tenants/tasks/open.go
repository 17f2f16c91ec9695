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

// maxRunning bounds what a node may say it runs; the rest is to be stopped.
const maxRunning = 256

// ChannelOpened takes the task channel of the node that scope is in, in the
// place of any former one. Runs of another life of the agent end as
// agent_restarted, runs that this life does not know as not_delivered; what it
// still has goes on here. cancel lists the tasks of hello.Running that the
// node shall stop and forget. Requests come through out from then on.
func (s *Service) ChannelOpened(ctx context.Context, scope tenants.Scope, hello Hello, out Outbox) (ch *Channel, cancel []ID, err error) {
	node, err := nodeOf(scope)
	if err != nil {
		return nil, nil, err
	}
	c := &Channel{s: s, key: nodeKey{scope.Tenant, node}, life: hello.StartedNS, out: out, runs: map[ID]*held{}}
	s.mu.Lock()
	former := s.channels[c.key]
	s.channels[c.key] = c
	s.mu.Unlock()
	if former != nil {
		former.take()
	}
	var f found
	err = again(func() error {
		f = found{}
		return s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
			return c.settle(ctx, tx, hello, &f)
		})
	})
	if err != nil {
		s.forget(c)
		return nil, nil, tenantdb.Fault(err)
	}
	c.mu.Lock()
	if !c.closed {
		maps.Copy(c.runs, f.adopted)
	}
	c.mu.Unlock()
	s.mu.Lock()
	c.ready = true
	s.mu.Unlock()
	for id := range f.adopted {
		s.moved(taskKey{c.key.tenant, id})
	}
	for _, id := range f.waiting {
		s.queueClaim(c.run(id))
	}
	s.afterEnds(f.ends)
	return c, f.cancel, nil
}

// found is what a node's runs are when its channel opens.
type found struct {
	adopted map[ID]*held
	waiting []ID
	ends    []*ending
	cancel  []ID
}

// settle compares what the node says it runs with what it should. A channel
// whose place was taken meanwhile knows less than its successor: it is refused.
func (c *Channel) settle(ctx context.Context, tx pgx.Tx, hello Hello, f *found) error {
	if _, err := tx.Exec(ctx, sqlTurn, c.key.node.String()); err != nil {
		return err
	}
	c.s.mu.Lock()
	replaced := c.s.channels[c.key] != c
	c.s.mu.Unlock()
	if replaced {
		return fault.New(fault.Unavailable, "channel_replaced", "another channel of this node took its place").Do("close this one")
	}
	now := c.s.clock()
	named := make([][16]byte, 0, len(hello.Running))
	for _, id := range hello.Running[:min(len(hello.Running), maxRunning)] {
		named = append(named, id)
	}
	rows, err := tx.Query(ctx, sqlOfNode, [16]byte(c.key.tenant), [16]byte(c.key.node), named)
	if err != nil {
		return err
	}
	f.adopted = map[ID]*held{}
	var (
		id       ID
		state    State
		life     int64
		asked    bool
		began    *time.Time
		deadline time.Time
		keep     [][16]byte
		stop     []ID // adopted, to be cancelled
	)
	_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&id), (*string)(&state), &life, &asked, &began, &deadline}, func() error {
		switch {
		case state.Terminal():
		case state == Created:
			f.waiting = append(f.waiting, id)
		case life != c.life:
			f.ends = append(f.ends, ended(c.run(id), state, restarted, now))
		case !slices.Contains(named, [16]byte(id)):
			f.ends = append(f.ends, ended(c.run(id), state, undelivered, now))
		default:
			h := &held{deadline: deadline, began: began}
			if began != nil {
				h.sent = *began
			}
			f.adopted[id] = h
			keep = append(keep, id)
			if asked {
				stop = append(stop, id)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	f.cancel = stop
	for _, id := range hello.Running {
		if f.adopted[id] == nil {
			f.cancel = append(f.cancel, id)
		}
	}
	b := &pgx.Batch{}
	queueEnds(b, f.ends)
	if len(keep) > 0 {
		b.Queue(sqlAdopt, [16]byte(c.key.tenant), [16]byte(c.key.node), keep, string(Running), now, c.s.replica, now.Add(RunLease), resumed.from(Running))
	}
	return tx.SendBatch(ctx, b).Close()
}

// nodeOf returns the node that a scope is.
func nodeOf(scope tenants.Scope) (tenants.NodeID, error) {
	id, err := tenants.ParseNodeID(scope.Principal.ID)
	if err != nil || scope.Tenant.IsZero() || scope.Principal.Kind != tenants.NodePrincipal {
		return tenants.NodeID{}, fault.New(fault.Denied, "not_a_node", "only an enrolled node opens a task channel").Do("use the node's client certificate")
	}
	return id, nil
}
