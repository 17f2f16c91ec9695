package events

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const nearby = 5 * time.Minute

// Get answers one event whole. It needs telltale:read.
func (s *Service) Get(ctx context.Context, scope tenants.Scope, id ID) (Detail, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Detail{}, err
	}
	d := Detail{Evidence: []inspector.EventSample{}, Contexts: []Context{}, Nearby: []Event{}}
	t, ts := uid(scope.Tenant), timeOf(id)
	q := newStatement(sqlOne, t, ts, uid(id)).in(scope.Nodes)
	var samples []byte
	found := false
	var b pgx.Batch
	b.Queue(q.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		d.Event, err = pgx.CollectOneRow(rows, func(r pgx.CollectableRow) (Event, error) { return s.scanEvent(r, &samples) })
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		found = err == nil
		return err
	})
	// What is around it is read along and dropped with an event that the caller
	// must not know of.
	b.Queue(sqlContexts, t, ts, uid(id)).Query(func(rows pgx.Rows) (err error) {
		d.Contexts, err = pgx.AppendRows(d.Contexts, rows, scanContext)
		return err
	})
	b.Queue(sqlNearby, t, ts, ts.Add(-nearby), ts.Add(nearby), uid(id)).Query(func(rows pgx.Rows) (err error) {
		d.Nearby, err = pgx.AppendRows(d.Nearby, rows, s.scanListed)
		return err
	})
	if err := s.db.ReadKept(ctx, scope.Tenant, &b); err != nil {
		return Detail{}, err
	}
	if !found {
		return Detail{}, fault.New(fault.NotFound, "unknown_event", "no event with this id, or it is no longer kept").Do("take the id from list_events")
	}
	if err := json.Unmarshal(samples, &d.Evidence); err != nil {
		return Detail{}, err
	}
	d.Help = s.help(d.Kind)
	return d, nil
}

// help is what a kind means, in trusted words.
func (s *Service) help(kind string) string {
	if k, ok := s.reg.Event(kind); ok {
		return k.Help
	}
	if k, ok := s.reg.Task(kind); ok {
		return "A finding of this task that somebody kept. " + k.Help
	}
	return ""
}

func scanContext(r pgx.CollectableRow) (c Context, err error) {
	var parts [3][]byte
	if err = r.Scan(&c.Why, &c.At, &c.Status, &c.Reason, &parts[0], &parts[1], &parts[2]); err != nil {
		return c, err
	}
	c.At = c.At.UTC()
	for i, p := range []*[]ContextValue{&c.Before, &c.During, &c.After} {
		if err = json.Unmarshal(parts[i], p); err != nil {
			return c, err
		}
	}
	return c, nil
}
