package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// Tasks starts and follows bounded work on nodes.
type Tasks interface {
	Do(ctx context.Context, scope tenants.Scope, req tasks.Request, opt tasks.DoOptions) (tasks.Task, error)
	Get(ctx context.Context, scope tenants.Scope, id tasks.ID) (tasks.Task, error)
	Cancel(ctx context.Context, scope tenants.Scope, id tasks.ID) (tasks.Task, error)
	List(ctx context.Context, scope tenants.Scope, q tasks.ListQuery) (tasks.Page, error)
	// Subscribe hands out a hint whenever a task moved, until the function it
	// returns is called.
	Subscribe(tenant tenants.TenantID, id tasks.ID) (<-chan struct{}, func())
}

// taskTimeout is the longest that the start of a task takes: the nodes'
// answers, a short task's duration, and what its end needs.
const taskTimeout = tasks.ShortTask + tasks.StartWithin + tasks.RunGrace + tasks.DeadlineGrace + 2*time.Second

// accepted is the first status of a ticket whose task goes on.
const accepted tasks.State = "ACCEPTED"

type taskRequest struct {
	Kind      string            `json:"kind" audit:"value"`
	Node      string            `json:"node,omitempty" audit:"value"`
	Labels    map[string]string `json:"labels,omitempty"`
	Arguments map[string]any    `json:"arguments,omitempty"`
}

// startTask answers 200 with the end of a short task, and 202 with the ticket
// of one that goes on.
func (s *Server) startTask(w http.ResponseWriter, r *http.Request) {
	scope, _ := auth.ScopeFrom(r.Context())
	task, err := s.start(w, r, scope)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if task.Status.Terminal() {
		s.write(w, r, http.StatusOK, task)
		return
	}
	w.Header().Set("Location", "/t/"+scope.Slug+"/api/v1/tasks/"+task.Ticket)
	task.Status = accepted
	s.write(w, r, http.StatusAccepted, task)
}

func (s *Server) start(w http.ResponseWriter, r *http.Request, scope tenants.Scope) (tasks.Task, error) {
	var in taskRequest
	if err := parseParams(r.URL.RawQuery).done(); err != nil {
		return tasks.Task{}, err
	}
	if err := s.decode(w, r, &in); err != nil {
		return tasks.Task{}, err
	}
	switch {
	case in.Kind == "":
		return tasks.Task{}, badBody("kind", "the kind of task is missing").Do("tasks are named as the tools, for example trace_network_drops")
	case (in.Node == "") == (len(in.Labels) == 0):
		return tasks.Task{}, badBody("node", "give either node or labels").Do("node is an id or a unique name; labels select up to 50 nodes")
	}
	if k, known := s.cfg.Registry.Task(in.Kind); known && k.Scope != inspector.ScopeDiagnose && k.Scope != inspector.ScopeRead {
		return tasks.Task{}, fault.Newf(fault.Denied, "not_over_rest", "%s is not offered over REST", in.Kind).Do("use the tool of the same name over MCP")
	}
	return s.cfg.Tasks.Do(r.Context(), scope, tasks.Request{Kind: in.Kind, Args: in.Arguments, Node: in.Node, Labels: in.Labels}, tasks.DoOptions{CancelWhenAbandoned: true})
}

func (s *Server) listTasks(c *call) (any, error) {
	q := tasks.ListQuery{
		Active: c.query.oneOf("state", "active", "any") == "active",
		Kind:   c.query.text("kind"),
		Limit:  c.query.limit(),
		Cursor: c.query.cursor(),
	}
	if err := c.query.done(); err != nil {
		return nil, err
	}
	page, err := s.cfg.Tasks.List(c.r.Context(), c.scope, q)
	a := taskPage{Page: page, Notes: c.query.notes}
	if page.Truncated != nil {
		a.NextCursor = page.Truncated.NextCursor
	}
	return a, err
}

// taskPage is a page of tasks with what the address adds to it.
type taskPage struct {
	tasks.Page
	NextCursor string   `json:"next_cursor,omitempty"`
	Notes      []string `json:"notes,omitempty"`
}

func (s *Server) getTask(c *call) (any, error) {
	id, err := ticketOf(c)
	if err != nil {
		return nil, err
	}
	return s.cfg.Tasks.Get(c.r.Context(), c.scope, id)
}

func (s *Server) cancelTask(c *call) (any, error) {
	id, err := ticketOf(c)
	if err != nil {
		return nil, err
	}
	return s.cfg.Tasks.Cancel(c.r.Context(), c.scope, id)
}

// taskStream sends the task as it is, and again whenever it moved, until it
// is terminal.
func (s *Server) taskStream(c *call, out *sse) error {
	id, err := ticketOf(c)
	if err != nil {
		return err
	}
	moved, stop := s.cfg.Tasks.Subscribe(c.scope.Tenant, id)
	defer stop()
	task, err := s.cfg.Tasks.Get(c.r.Context(), c.scope, id)
	if err != nil {
		return err
	}
	sent := []byte(nil)
	return out.run(c.r.Context(), func(ctx context.Context) error {
		now, err := json.Marshal(task)
		if err != nil {
			return err
		}
		if !bytes.Equal(now, sent) {
			sent = now
			if err := out.send("task", "", json.RawMessage(now)); err != nil {
				return err
			}
		}
		if task.Status.Terminal() {
			return errStreamEnd
		}
		wait := error(nil)
		select {
		case <-ctx.Done():
			wait = ctx.Err() // look all the same: a hint can be lost
		case <-moved:
		}
		if task, err = s.cfg.Tasks.Get(c.r.Context(), c.scope, id); err != nil {
			return err
		}
		return wait
	})
}

// ticketOf reads the path's ticket and refuses any query parameter.
func ticketOf(c *call) (tasks.ID, error) {
	if err := c.query.done(); err != nil {
		return tasks.ID{}, err
	}
	return tasks.ParseID(c.r.PathValue("ticket"))
}
