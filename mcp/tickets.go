package mcp

import (
	"context"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// observeTasks is the tool that looks at a ticket.
func observeTasks(s Services) []Tool {
	if s.Tasks == nil {
		return nil
	}
	return []Tool{{
		Name: checkTask, Title: "Check task result", Set: observeSet, Scope: tenants.Read,
		Description: "How a task stands and what it found; partial while RUNNING. " +
			"Use it after ACCEPTED, or to read a result again within 24 hours. Conclude nothing before the status is final.",
		Args:   []Arg{ticketArg, formatArg, maxBytes},
		Output: taskAnswer{},
		Run: func(ctx context.Context, c Call) (Answer, error) {
			id, err := tasks.ParseID(c.Args.str(ticketArg.Name))
			if err != nil {
				return Answer{}, err
			}
			t, err := s.Tasks.Get(ctx, c.Scope, id)
			if err != nil {
				return Answer{}, err
			}
			return answerTask(s, t, c, false), nil
		},
	}}
}

// diagnoseEnd is the tool that ends a task early.
func diagnoseEnd(s Services) []Tool {
	if s.Tasks == nil {
		return nil
	}
	return []Tool{{
		Name: cancelTask, Title: "Cancel task", Set: diagnoseSet, Scope: tenants.Diagnose, Writes: true, Destructive: true, Repeatable: true,
		Description: "Ends a running task; what it found stays readable. Use it when the answer is known early or the wrong thing was started.",
		Args:        []Arg{ticketArg},
		Output:      cancelAnswer{},
		Run:         func(ctx context.Context, c Call) (Answer, error) { return endTask(ctx, s, c) },
	}}
}

type cancelAnswer struct {
	Ticket string `json:"ticket_id"`
	Task   string `json:"task"`
	Status string `json:"status"`
	// Ended: the task is over; false: the nodes were told to stop.
	Ended bool   `json:"ended"`
	Note  string `json:"note"`
	Next  []Next `json:"next,omitempty"`
}

func endTask(ctx context.Context, s Services, c Call) (Answer, error) {
	id, err := tasks.ParseID(c.Args.str(ticketArg.Name))
	if err != nil {
		return Answer{}, err
	}
	t, err := s.Tasks.Cancel(ctx, c.Scope, id)
	if err != nil {
		return Answer{}, err
	}
	body := cancelAnswer{Ticket: t.Ticket, Task: t.Kind, Status: string(t.Status), Ended: t.Status.Terminal()}
	switch {
	case t.Status == tasks.Cancelled:
		body.Note = "the task is cancelled"
	case body.Ended:
		body.Note = "the task had ended before it could be cancelled"
	default:
		body.Note = "the nodes are told to stop; they may still answer"
	}
	body.Next = []Next{{checkTask, map[string]any{ticketArg.Name: t.Ticket}, "what was found until then"}}
	var p page
	p.line("%s %s: %s", t.Kind, t.Status, body.Note)
	p.next(body.Next)
	return Answer{Body: body, Text: p.String(), Task: &t}, nil
}
