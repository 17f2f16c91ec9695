package ingest

import (
	"context"
	"fmt"
	"regexp"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// Bounds of what a task frame may carry.
const (
	maxHelloTasks = 256 // running tasks, and such as wait to be taken
	maxHelloKinds = 256 // kinds of task
	maxRefusal    = 500 // bytes of a refusal's message or next step
)

func taskHelloOf(m *pb.TaskHello) (h tasks.Hello, err error) {
	switch {
	case m == nil:
		return h, errProtocol("the first frame of the task channel is no hello")
	case len(m.Running) > maxHelloTasks:
		return h, errProtocol(fmt.Sprintf("a hello with %d running tasks", len(m.Running)))
	case len(m.Kinds) > maxHelloKinds:
		return h, errProtocol(fmt.Sprintf("a hello with %d kinds of task", len(m.Kinds)))
	}
	h.StartedNS = m.StartedAtNs
	for _, raw := range m.Running {
		id, err := taskID(raw)
		if err != nil {
			return h, err
		}
		h.Running = append(h.Running, id)
	}
	for _, k := range m.Kinds {
		if word.Match(k) {
			h.Kinds = append(h.Kinds, string(k))
		}
	}
	return h, nil
}

var word = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)

func taskID(raw []byte) (id tasks.ID, err error) {
	if len(raw) != len(id) {
		return id, errProtocol(fmt.Sprintf("a task id of %d bytes", len(raw)))
	}
	return tasks.ID(raw), nil
}

// handle judges one frame of the task channel. An error ends the channel.
func (t *taskStream) handle(ctx context.Context, f *pb.TaskFrame) error {
	t.heard(f.Clock)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch k := f.Kind.(type) {
	case *pb.TaskFrame_Answer:
		return t.answer(ctx, k.Answer)
	case *pb.TaskFrame_Progress:
		return t.progress(ctx, k.Progress)
	case *pb.TaskFrame_Chunk:
		return t.chunk(ctx, k.Chunk)
	case *pb.TaskFrame_Hello:
		return errProtocol("a second hello")
	}
	t.s.tally.add(t.scope, t.node, "unknown_frame", "")
	return nil // of a newer agent
}

func (t *taskStream) answer(ctx context.Context, m *pb.TaskAnswer) error {
	id, err := taskID(m.GetTask())
	if err != nil {
		return err
	}
	t.s.count.answers.Add(1)
	if m.Refusal == nil {
		return t.accounted(ctx, id, true, patiently(ctx, func() error { return t.ch.Accepted(ctx, id) }))
	}
	r := refusalOf(m.Refusal)
	return t.accounted(ctx, id, false, patiently(ctx, func() error { return t.ch.Rejected(ctx, id, *r) }))
}

func (t *taskStream) progress(ctx context.Context, m *pb.TaskProgress) error {
	id, err := taskID(m.GetTask())
	if err != nil {
		return err
	}
	p := tasks.Progress{Permille: min(m.Permille, 1000)}
	if len(m.Partial) > 0 {
		t.s.count.taskBytes.Add(uint64(len(m.Partial)))
		if len(m.Partial) > inspector.MaxPartialBytes {
			t.refused("partial_too_large", fmt.Sprintf("a partial result of %d bytes", len(m.Partial)))
		} else if p.Partial, err = resultOf(m.Partial); err != nil {
			t.refused("malformed_result", err.Error())
		}
	}
	if err = t.ch.Progress(ctx, id, p); err == nil || away(err) {
		return nil // the next one says it anew
	}
	return t.accounted(ctx, id, true, err)
}

// chunk takes a part of a task's end. The last part makes the end known, and
// once it is stored the node may forget it.
func (t *taskStream) chunk(ctx context.Context, m *pb.TaskChunk) error {
	id, err := taskID(m.GetTask())
	if err != nil {
		return err
	}
	t.s.count.taskBytes.Add(uint64(len(m.Data)))
	data, whole, err := t.parts.add(id, m)
	if err != nil || !whole {
		return err
	}
	o, err := t.outcome(m, data)
	if err != nil {
		return err
	}
	err = patiently(ctx, func() error { return t.ch.Finished(ctx, id, o) })
	switch {
	case err == nil:
		t.s.count.results.Add(1)
	case away(err) || ctx.Err() != nil || fault.Is(err, fault.Internal):
		return t.accounted(ctx, id, false, err)
	default: // nobody waits for it, nor ever will
		if err := t.accounted(ctx, id, false, err); err != nil {
			return err
		}
	}
	return t.box.put(ctx, takenOrder(id))
}

// outcome reads the last chunk and the result. A result that is malformed or
// missing ends the task as failed, with the reason.
func (t *taskStream) outcome(m *pb.TaskChunk, data []byte) (o tasks.Outcome, err error) {
	switch inspector.TaskOutcome(m.Outcome) {
	case inspector.TaskCompleted:
		o.State = tasks.Completed
	case inspector.TaskFailed:
		o.State = tasks.Failed
	case inspector.TaskCancelled:
		o.State = tasks.Cancelled
	default:
		return o, errProtocol(fmt.Sprintf("an outcome %.20q", m.Outcome))
	}
	if m.Refusal != nil && o.State != tasks.Completed {
		o.Refusal = refusalOf(m.Refusal)
	}
	if len(data) > 0 {
		o.Result, err = resultOf(data)
	} else if o.State == tasks.Completed {
		err = fmt.Errorf("completed without a result")
	}
	if err != nil {
		t.refused("malformed_result", err.Error())
		if o.State == tasks.Completed {
			o.State = tasks.Failed
			o.Refusal = &inspector.Refusal{
				Kind: fault.Internal.String(), Reason: "malformed_result", Msg: "the node's result does not have the form of one",
				Next: "update the node's agent to the server's version, then start the task again",
			}
		}
	}
	return o, nil
}

// accounted judges a service's answer about one task. What the service refuses
// is counted and does not harm the channel; a task that it does not want to run
// is stopped on the node. A service that is away ends the channel: the node
// says it again on the next one.
func (t *taskStream) accounted(ctx context.Context, id tasks.ID, runs bool, err error) error {
	f := fault.Of(err)
	switch {
	case err == nil:
		return nil
	case away(err) || ctx.Err() != nil:
		return retryable{err, soonAgain()}
	case f.Kind == fault.Internal:
		t.s.log.Error("a node's word on a task could not be taken in", "node", t.node, "task", id, "error", err)
		return nil
	}
	t.refused(f.Reason, "task "+id.String())
	if runs {
		return t.box.put(ctx, cancelOrder(id))
	}
	return nil
}

func (t *taskStream) refused(reason, example string) {
	t.s.count.taskRefused.Add(1)
	t.s.tally.add(t.scope, t.node, reason, example)
}

// refusalOf reads why a node does not do a task, cleaned and within bounds.
func refusalOf(m *pb.TaskRefusal) *inspector.Refusal {
	r := &inspector.Refusal{Kind: textOf(m.Kind, 40), Reason: string(m.Reason), Msg: textOf(m.Message, maxRefusal), Next: textOf(m.Next, maxRefusal)}
	if !word.Match(m.Reason) {
		r.Reason = inspector.ReasonTaskFailed
	}
	if word.Match(m.Arg) {
		r.Arg = string(m.Arg)
	}
	return r
}
