package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// await waits until a task has an answer for its caller.
func (s *Service) await(ctx context.Context, scope tenants.Scope, p *plan, moved <-chan struct{}, opts DoOptions) (Task, error) {
	long := p.duration > ShortTask
	patient := StartWithin + 3*time.Second
	if !long {
		patient += p.duration + RunGrace + DeadlineGrace
	}
	limit := time.NewTimer(patient)
	defer limit.Stop()
	for first := true; ; first = false {
		late := false
		if !first || len(p.runs) > 0 {
			select {
			case <-ctx.Done():
				return s.abandoned(ctx, scope, p, opts)
			case <-limit.C:
				late = true
			case <-moved:
			}
		}
		t, ready, err := s.handed(p)
		if !ready && err == nil {
			aside(func() { t, ready, err = s.look(ctx, scope, p, long, opts.Progress != nil) })
		}
		if err == nil && s.blind.CompareAndSwap(true, false) {
			s.log.Info("tasks: waiting callers look again")
		}
		switch {
		case ctx.Err() != nil:
			return s.abandoned(ctx, scope, p, opts)
		case fault.Is(err, fault.NotFound): // see put
			return Task{}, fault.New(fault.Unavailable, "task_lost", "the task is no longer in the database: it was lost in a crash of the database, or with its tenant").
				Do("start the task again").Because(err)
		case err != nil && !late: // the database is away for a moment; the next look is in a second
			if s.blind.CompareAndSwap(false, true) { // once an outage, however many wait
				s.log.Warn("tasks: waiting callers cannot look", "task", p.key.task.String(), "error", err)
			}
		case err != nil:
			return Task{}, err
		case ready || late:
			return t, t.refused(p)
		case opts.Progress != nil:
			opts.Progress(t)
		}
	}
}

// handed answers the task of one node whose end with a result this replica has
// just stored: it is not read again.
func (s *Service) handed(p *plan) (t Task, ready bool, err error) {
	e := s.watches.known(p.key)
	if e == nil || e.found == nil {
		return Task{}, false, nil
	}
	t, err = p.ended(e, s.clock())
	return t, err == nil, err
}

// look reads a task that is waited for. ready: the caller gets it as it is.
// The whole of a fan-out is read only then, or for progress.
func (s *Service) look(ctx context.Context, scope tenants.Scope, p *plan, long, progress bool) (t Task, ready bool, err error) {
	if p.fanout() && !progress {
		states, err := tenantdb.Query(ctx, s.db, p.key.tenant, sqlStates, []any{[16]byte(p.key.tenant), [16]byte(p.key.task)}, func(r pgx.CollectableRow) (run Run, err error) {
			err = r.Scan((*string)(&run.Status), &run.Reason)
			return run, err
		})
		if err != nil {
			return Task{}, false, err
		}
		if !answered(states, long) {
			return Task{}, false, nil
		}
	}
	t, err = s.Get(ctx, scope, p.key.task)
	return t, err == nil && answered(t.Runs, long), err
}

// ended is the task of one node as its rows are after its end with a result.
func (p *plan) ended(e *ending, now time.Time) (Task, error) {
	who, why := p.scope.Principal, e.words()
	t := Task{Ticket: p.key.task.String(), Kind: p.kind.Name, By: principalText(string(who.Kind), who.ID, who.Name), CreatedAt: p.created,
		Deadline: p.deadline().Add(DeadlineGrace), ExpiresAt: p.created.Add(TicketLife), Coverage: tenants.Coverage{NotCovered: []tenants.NotCovered{}}}
	run := Run{Node: e.run.node.String(), Name: e.name, Status: e.to, Reason: why.Reason, Message: why.Msg, Next: why.Next, ErrorKind: why.Kind, Arg: why.Arg,
		StartedAt: utc(e.started), EndedAt: &e.at, Progress: float64(e.permille) / 1000, Partial: e.to != Completed, Result: e.found}
	t.Runs = []Run{run}
	if err := json.Unmarshal(p.args, &t.Args); err != nil {
		return t, err
	}
	t.complete(e.to, nil, now)
	return t, nil
}

// answered reports whether a caller need not wait longer for any of the runs:
// they have ended or lost their node for the moment, or a long one has begun.
func answered(runs []Run, long bool) bool {
	return !slices.ContainsFunc(runs, func(r Run) bool {
		return !r.Status.Terminal() && r.Reason != reasonLost && !(long && r.Status == Running)
	})
}

// refused is the error of a single node that never began.
func (t *Task) refused(p *plan) error {
	if p.fanout() || len(t.Runs) != 1 {
		return nil
	}
	r := t.Runs[0]
	if !r.Status.Terminal() || r.Status == Completed || r.Status == Cancelled || r.StartedAt != nil {
		return nil
	}
	kind, ok := fault.ParseKind(r.ErrorKind)
	if !ok {
		kind = fault.Unavailable
	}
	return &fault.Error{Kind: kind, Reason: r.Reason, Field: r.Arg, Msg: r.Message, Next: r.Next}
}

// abandoned answers a caller who went away, or whom this server leaves because
// it stops: then the task goes on.
func (s *Service) abandoned(ctx context.Context, scope tenants.Scope, p *plan, opts DoOptions) (Task, error) {
	cause, stopping := ctx.Err(), errors.Is(context.Cause(ctx), fault.ErrStopping)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	next := "fetch the result with the ticket " + p.key.task.String()
	if opts.CancelWhenAbandoned && !stopping {
		next = "the task was cancelled; start it again"
		if err := s.cancelRuns(ctx, p.key, nil); err != nil {
			s.log.Warn("tasks: an abandoned task was not cancelled", "task", p.key.task.String(), "error", err)
		}
	}
	t, err := s.Get(ctx, scope, p.key.task)
	if err != nil {
		s.log.Warn("tasks: an abandoned task was not read", "task", p.key.task.String(), "error", err)
	}
	if stopping {
		return t, fault.ErrStopping.Do(next).Because(cause)
	}
	return t, fault.New(fault.Deadline, "abandoned", "the caller went away before the task ended").Do(next).Because(cause)
}

// aside runs f on a goroutine of its own and waits for it. The stack that a
// query or a decoder makes grow goes with it: of a thousand callers who wait
// for seconds each keeps a small one. A panic of f is the caller's.
func aside(f func()) {
	var failed any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if failed = recover(); failed != nil {
				failed = fmt.Sprintf("%v\n%s", failed, debug.Stack())
			}
		}()
		f()
	}()
	<-done
	if failed != nil {
		panic(failed)
	}
}
