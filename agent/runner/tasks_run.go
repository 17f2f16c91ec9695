package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// errCancelled is the cause when the server cancels a task.
var errCancelled = errors.New("cancelled")

// answer is what a TaskRun came back with.
type answer struct {
	result []byte
	err    error
	panic  any
}

// supervise sees one task to its end, which comes a stated time after its
// deadline at the latest, whether its code returns or not.
func (t *Tasks) supervise(x *task, run inspector.TaskRun) {
	defer t.ending.Done()
	ctx, stop := context.WithDeadline(x.ctx, x.deadline)
	defer x.cancel(nil)
	defer stop()
	back := make(chan answer, 1)
	go func() {
		a := t.call(ctx, x, run)
		t.release(x)
		back <- a
	}()
	tick := time.NewTicker(partialEvery)
	defer tick.Stop()
	for {
		select {
		case a := <-back:
			t.finish(x, endOf(context.Cause(ctx), a))
			return
		case now := <-tick.C:
			if x.ending(now) {
				continue
			}
			t.mu.Lock()
			x.news = true
			t.mu.Unlock()
			token(t.ready)
			continue
		case <-ctx.Done():
		}
		break
	}
	late := time.NewTimer(abandonAfter)
	defer late.Stop()
	select {
	case a := <-back:
		t.finish(x, endOf(context.Cause(ctx), a))
		return
	case <-late.C:
	case <-t.halted:
	}
	select {
	case a := <-back: // both came at once
		t.finish(x, endOf(context.Cause(ctx), a))
		return
	default:
	}
	t.log.Error("task does not stop; its place stays taken", "task", x.id, "kind", x.kind.Name, "since", x.deadline)
	why := refuse("INTERNAL", inspector.ReasonTaskFailed, fmt.Sprintf("%s did not stop within %v of its end; its place on the node stays taken until it does", x.kind.Name, abandonAfter), "ask another node, or restart this node's agent")
	if r, ok := errors.AsType[*inspector.Refusal](context.Cause(ctx)); ok {
		why = r
	}
	t.finish(x, &inspector.TaskEnd{Outcome: inspector.TaskFailed, Refusal: why})
}

// call runs the module's code. A panic ends the task and not the agent.
func (t *Tasks) call(ctx context.Context, x *task, run inspector.TaskRun) (a answer) {
	defer func() {
		if v := recover(); v != nil {
			t.log.Error("task panicked", "task", x.id, "kind", x.kind.Name, "panic", v, "stack", clip(string(debug.Stack()), 4096))
			a = answer{panic: v}
		}
	}()
	result, err := run(ctx, x.args, func(r *inspector.TaskResult) { t.keepPartial(x, r) })
	a.err = err
	if result != nil {
		var cut error
		if a.result, cut = encodeResult(result, inspector.MaxResultBytes); cut != nil && err == nil {
			a.err = cut
		}
	}
	return a
}

func (t *Tasks) keepPartial(x *task, r *inspector.TaskResult) {
	now := time.Now()
	t.mu.Lock()
	early := now.Sub(x.encoded) < partialEvery || x.end != nil || x.ending(now)
	if !early {
		x.encoded = now
	}
	t.mu.Unlock()
	if early || r == nil {
		return
	}
	raw, err := encodeResult(r, inspector.MaxPartialBytes)
	if err != nil {
		return // the whole result has more room
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.end == nil {
		x.partial, x.news, x.newPartial = raw, true, true
		token(t.ready)
	}
}

// ending reports whether a task's own time ends about now. News would leave
// right before its end, which says more and would have to wait for it.
func (x *task) ending(now time.Time) bool {
	return x.lasts > 0 && (now.Sub(x.began)-x.lasts).Abs() < partialEvery/4
}

// release gives a task's place back, once its code has returned.
func (t *Tasks) release(x *task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots[x.kind.Cost]--
	if t.working[x.kind.Name]--; t.working[x.kind.Name] == 0 {
		delete(t.working, x.kind.Name)
	}
	if x.end != nil {
		t.log.Warn("task that was given up has stopped", "task", x.id, "kind", x.kind.Name)
	}
}

// endOf says how a task ended that came back. cause is why its context ended,
// nil when it did not.
func endOf(cause error, a answer) *inspector.TaskEnd {
	failed := func(r *inspector.Refusal) *inspector.TaskEnd {
		return &inspector.TaskEnd{Outcome: inspector.TaskFailed, Result: a.result, Refusal: r}
	}
	told, wasTold := errors.AsType[*inspector.Refusal](cause)
	own, refused := errors.AsType[*inspector.Refusal](a.err)
	switch {
	case a.panic != nil:
		return failed(refuse("INTERNAL", inspector.ReasonTaskPanicked, fmt.Sprintf("the task panicked on the node: %v", a.panic), "ask another node; the node's log has more"))
	case errors.Is(cause, errCancelled):
		r := refuse("FAILED_PRECONDITION", "cancelled", "the task was cancelled", "start it again if it is still wanted")
		return &inspector.TaskEnd{Outcome: inspector.TaskCancelled, Result: a.result, Refusal: r}
	case wasTold:
		return failed(told)
	case refused:
		return failed(tidy(*own))
	case cause != nil && a.err != nil: // its own time is over
		return failed(refuse("DEADLINE_EXCEEDED", inspector.ReasonTaskFailed, "the task did not end by its deadline", "ask for a shorter one"))
	case a.err != nil:
		return failed(refuse("INTERNAL", inspector.ReasonTaskFailed, "the task failed on the node: "+a.err.Error(), "ask again, or ask another node"))
	case a.result == nil:
		return failed(refuse("INTERNAL", inspector.ReasonTaskFailed, "the task came back without a result", "ask again, or ask another node"))
	}
	return &inspector.TaskEnd{Outcome: inspector.TaskCompleted, Result: a.result}
}

// finish keeps an end until it is taken.
func (t *Tasks) finish(x *task, end *inspector.TaskEnd) {
	now := time.Now()
	reason := ""
	if end.Refusal != nil {
		reason = end.Refusal.Reason
	}
	t.log.Info("task ended", "task", x.id, "kind", x.kind.Name, "outcome", end.Outcome, "reason", reason, "bytes", len(end.Result), "took", now.Sub(x.began).Round(time.Millisecond))
	t.mu.Lock()
	x.end, x.ended, x.news, x.partial = end, now, true, nil
	t.prune(now)
	t.mu.Unlock()
	token(t.ready)
}

// prune holds the ends that nobody takes within their bounds, the oldest
// first: too many bytes cost a result, too many ends or too long a wait the
// whole.
func (t *Tasks) prune(now time.Time) {
	var ends []*task
	size := 0
	for _, x := range t.inOrder() {
		if x.end != nil {
			ends = append(ends, x)
			size += len(x.end.Result)
		}
	}
	for i, x := range ends {
		if len(ends)-i > maxEnds || now.Sub(x.ended) > endLife {
			t.log.Warn("nobody took the end of a task; it is forgotten", "task", x.id, "kind", x.kind.Name)
			delete(t.tasks, x.id)
			size -= len(x.end.Result)
		}
	}
	for _, x := range ends {
		if size <= maxEndBytes {
			return
		}
		if t.tasks[x.id] == x && len(x.end.Result) > 0 {
			size -= len(x.end.Result)
			x.end = &inspector.TaskEnd{Outcome: inspector.TaskFailed, Refusal: refuse("RESOURCE_EXHAUSTED", inspector.ReasonMemory,
				fmt.Sprintf("the result could not be delivered, and the agent keeps at most %d MiB of results", maxEndBytes>>20), "ask again")}
		}
	}
}
