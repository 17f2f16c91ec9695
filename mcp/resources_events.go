package mcp

import (
	"context"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

const (
	eventPrefix   = "telltale://events/"
	eventSuffix   = "/context"
	recentURI     = eventPrefix + "recent"
	ticketPrefix  = "telltale://tasks/"
	recentRows    = 50
	recentDetails = 40 // lists of one event's context, cut to this many rows together when it is large
)

// resourceKind tells the resources that change while one watches.
type resourceKind int

const (
	otherResource resourceKind = iota
	recentEvents
	eventContext
	taskResult
)

// splitURI reads the URI of a resource that changes.
func splitURI(uri string) (resourceKind, events.ID, tasks.ID) {
	if uri == recentURI {
		return recentEvents, events.ID{}, tasks.ID{}
	}
	if rest, ok := strings.CutPrefix(uri, eventPrefix); ok {
		if id, ok := strings.CutSuffix(rest, eventSuffix); ok {
			if got, err := events.ParseID(id); err == nil {
				return eventContext, got, tasks.ID{}
			}
		}
	}
	if rest, ok := strings.CutPrefix(uri, ticketPrefix); ok {
		if got, err := tasks.ParseID(rest); err == nil {
			return taskResult, events.ID{}, got
		}
	}
	return otherResource, events.ID{}, tasks.ID{}
}

// recent is what the events resource answers.
type recent struct {
	At time.Time `json:"at"` // the list is as of this moment
	events.Page
}

// addEventResources registers events and tasks, each the same as a tool.
func (h *Handler) addEventResources(s *sdk.Server) {
	svc := h.cfg.Services
	if svc.Events != nil {
		s.AddResource(&sdk.Resource{URI: recentURI, Name: "events-recent", Title: "Recent events", MIMEType: "application/json",
			Description: "The youngest events of the last 24 hours on all nodes; the same as list_events. Can be subscribed to."}, h.reader(
			func(ctx context.Context, scope tenants.Scope, _ string) (any, error) {
				page, err := svc.Events.List(ctx, scope, events.ListQuery{Limit: recentRows})
				return recent{h.now().UTC(), page}, err
			}))
		s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: eventPrefix + "{event_id}" + eventSuffix, Name: "event-context", Title: "Event with its context", MIMEType: "application/json",
			Description: "One event with samples, context snapshots and nearby events; the same as get_event. Can be subscribed to."}, h.reader(
			func(ctx context.Context, scope tenants.Scope, uri string) (any, error) {
				kind, id, _ := splitURI(uri)
				if kind != eventContext {
					return nil, fault.New(fault.NotFound, "unknown_event", "no such event")
				}
				d, err := svc.Events.Get(ctx, scope, id)
				if err != nil {
					return nil, err
				}
				return svc.describeEvent(d, Call{Scope: scope, Now: h.now()}, recentDetails), nil
			}))
	}
	if svc.Tasks != nil {
		s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: ticketPrefix + "{ticket_id}", Name: "task", Title: "Task", MIMEType: "application/json",
			Description: "How a task stands and what it found; the same as check_task_result. Can be subscribed to."}, h.reader(
			func(ctx context.Context, scope tenants.Scope, uri string) (any, error) {
				kind, _, id := splitURI(uri)
				if kind != taskResult {
					return nil, fault.New(fault.NotFound, "unknown_task", "no such task")
				}
				t, err := svc.Tasks.Get(ctx, scope, id)
				if err != nil {
					return nil, err
				}
				body := describe(t, concise, h.now())
				body.Next = svc.steps(t, Call{Scope: scope, Now: h.now()})
				return body, nil
			}))
	}
}
