package rest

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
)

// Events reads the anomalies of the fleet.
type Events interface {
	List(ctx context.Context, scope tenants.Scope, q events.ListQuery) (events.Page, error)
	Get(ctx context.Context, scope tenants.Scope, id events.ID) (events.Detail, error)
	// Subscribe hands out hints of what is new or moved on in a tenant, until
	// the function it returns is called.
	Subscribe(tenant tenants.TenantID) (<-chan events.Change, func())
}

func (s *Server) listEvents(c *call) (any, error) {
	now := s.cfg.Now()
	q := events.ListQuery{
		Node:        c.query.text("node"),
		Labels:      c.query.labels("labels"),
		Kinds:       c.query.words("kinds"),
		MinSeverity: inspector.Severity(c.query.oneOf("min_severity", string(inspector.Info), string(inspector.Warning), string(inspector.Critical))),
		State:       inspector.EventState(c.query.oneOf("state", string(inspector.EventOpen), string(inspector.EventFlapping), string(inspector.EventEnded))),
		Origin:      events.Origin(c.query.oneOf("origin", string(events.FromProbe), string(events.FromTask))),
		From:        c.query.moment("from", now),
		To:          c.query.moment("to", now),
		Limit:       c.query.limit(),
		Cursor:      c.query.cursor(),
	}
	if err := c.query.done(); err != nil {
		return nil, err
	}
	page, err := s.cfg.Events.List(c.r.Context(), c.scope, q)
	page.Notes = append(c.query.notes, page.Notes...)
	a := eventPage{Page: page}
	if page.Truncated != nil {
		a.NextCursor = page.Truncated.NextCursor
	}
	return a, err
}

// eventPage is a page of events with what the address adds to it.
type eventPage struct {
	events.Page
	NextCursor string `json:"next_cursor,omitempty"`
}

func (s *Server) getEvent(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	id, err := events.ParseID(c.r.PathValue("event"))
	if err != nil {
		return nil, err
	}
	return s.cfg.Events.Get(c.r.Context(), c.scope, id)
}

// eventPace is the shortest time between two looks of one stream: a storm in a
// large tenant must not become a storm of queries.
const eventPace = 100 * time.Millisecond

// eventStream sends every event that is new or moved on. It sends no history:
// a reader lists the events first, or again after a gap.
func (s *Server) eventStream(c *call, out *sse) error {
	if err := c.query.done(); err != nil {
		return err
	}
	changes, stop := s.cfg.Events.Subscribe(c.scope.Tenant)
	defer stop()
	seen, err := s.newest(c.r.Context(), c.scope)
	if err != nil {
		return err
	}
	pace := time.NewTicker(eventPace)
	defer pace.Stop()
	return out.run(c.r.Context(), func(ctx context.Context) error {
		var ch events.Change
		select {
		case <-ctx.Done():
			return ctx.Err()
		case ch = <-changes:
		}
		if ch.Event == (events.ID{}) { // hints were lost: the reader looks for itself, if it may see any of it
			now, err := s.newest(ctx, c.scope)
			if err != nil || now == seen && !c.scope.Nodes.All() {
				return err
			}
			seen = now
			return out.send("reload", "", struct{}{})
		}
		detail, err := s.cfg.Events.Get(ctx, c.scope, ch.Event)
		if err == nil {
			err = out.send("event", detail.ID, detail.Event)
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
		return skipMissing(err) // of a node that this caller may not see
	})
}

// newest tells one state of a caller's events from another.
func (s *Server) newest(ctx context.Context, scope tenants.Scope) (string, error) {
	page, err := s.cfg.Events.List(ctx, scope, events.ListQuery{Limit: 1})
	if err != nil || len(page.Events) == 0 {
		return "", err
	}
	e := page.Events[0]
	return e.ID + e.Last.String(), nil
}
