package tasks

import (
	"context"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Channel is one node's open task channel on this replica. What the node says
// of one task must come in order; otherwise its methods are safe for
// concurrent use. A word on a task that ended already changes nothing and is no
// error.
type Channel struct {
	s     *Service
	key   nodeKey
	life  int64
	out   Outbox
	ready bool   // its former runs are settled; guarded by s.mu
	name  string // its key in s.byName; guarded by s.mu

	mu      sync.Mutex
	closed  bool
	runs    map[ID]*held
	strays  map[ID]struct{} // looked up since strayed
	strayed time.Time
}

// held is an active run on an open channel, with what is not written yet.
type held struct {
	deadline time.Time
	alone    bool       // known to be the only run of its task
	sent     time.Time  // zero: on a channel before this one, and it is not known when
	began    *time.Time // the node accepted it
	permille uint32
	partial  []byte
	dirty    bool
}

func (c *Channel) run(id ID) runKey { return runKey{taskKey{c.key.tenant, id}, c.key.node} }

// take closes the channel and answers what it held.
func (c *Channel) take() map[ID]*held {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs := c.runs
	c.closed, c.runs = true, map[ID]*held{}
	return runs
}

// send gives a request to the node. false: it did not go out.
func (c *Channel) send(d Dispatch) bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	c.runs[d.ID] = &held{deadline: d.Deadline, alone: d.Alone, sent: c.s.clock()}
	c.mu.Unlock()
	if c.out.Dispatch(d) { // without the lock: the answer may come at once
		return true
	}
	c.drop(d.ID)
	return false
}

func (c *Channel) drop(id ID) (h *held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h = c.runs[id]
	delete(c.runs, id)
	return h
}

func (c *Channel) held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.runs)
}

// ran is when a run was at work until now.
func (c *Channel) ran(id ID) span {
	now := c.s.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.runs[id]; h != nil && !h.sent.IsZero() {
		return span{h.sent, now}
	}
	return span{now.Add(-longestRun), now}
}

// Accepted says that the node has begun a task. It is written off the node's
// path; a task that has ended meanwhile is cancelled on the node.
func (c *Channel) Accepted(ctx context.Context, id ID) error {
	return c.note(ctx, id, func(h *held) {})
}

// Progress takes a node's word on a running task. It is written every half
// second, the latest alone; a partial result over inspector.MaxPartialBytes is
// left out.
func (c *Channel) Progress(ctx context.Context, id ID, p Progress) error {
	var body []byte
	if p.Partial != nil {
		if _, b, err := encode(p.Partial, inspector.MaxPartialBytes, c.ran(id)); err == nil {
			body = b
		}
	}
	return c.note(ctx, id, func(h *held) {
		h.permille = max(h.permille, min(p.Permille, 1000))
		if body != nil {
			h.partial = body
		}
	})
}

// note changes a run that is held. The first word on it is written at once,
// later ones with the next tick.
func (c *Channel) note(ctx context.Context, id ID, change func(*held)) error {
	c.mu.Lock()
	h := c.runs[id]
	if h == nil {
		c.mu.Unlock()
		return c.stray(ctx, id)
	}
	first := h.began == nil
	if first {
		now := c.s.clock()
		h.began = &now
	}
	change(h)
	h.dirty = true
	c.mu.Unlock()
	c.s.dirty(c, first)
	return nil
}

// maxStrays is how many strays of one channel are looked up in a second. Few
// runs ever stray; a node that makes tasks up costs no more than this.
const maxStrays = 8

// toLookUp reports whether a stray is looked up: once in a second, and
// maxStrays of them.
func (c *Channel) toLookUp(id ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.s.clock(); c.strays == nil || now.Sub(c.strayed).Abs() >= time.Second {
		c.strays, c.strayed = map[ID]struct{}{}, now
	}
	if _, known := c.strays[id]; known || len(c.strays) >= maxStrays {
		return false
	}
	c.strays[id] = struct{}{}
	return true
}

// stray answers a word on a task that this channel does not hold: one that
// has ended is to be stopped, another one is held from now on. A word too many
// is counted and nothing else; the node's next one is looked at again.
func (c *Channel) stray(ctx context.Context, id ID) error {
	if !c.toLookUp(id) {
		c.s.counts.add(&c.s.counts.late)
		return nil
	}
	over, err := c.s.areOver(ctx, c.key.tenant, []runKey{c.run(id)})
	if err != nil {
		return err
	}
	if over[c.run(id)] {
		c.s.counts.add(&c.s.counts.late)
		c.out.Cancel(id)
		return nil
	}
	// It was sent on a channel of this node that was open before.
	c.mu.Lock()
	if !c.closed && c.runs[id] == nil {
		now := c.s.clock()
		c.runs[id] = &held{deadline: now.Add(inspector.MaxTaskSeconds * time.Second), began: &now, dirty: true}
	}
	c.mu.Unlock()
	c.s.dirty(c, true)
	return nil
}

// Rejected says that the node refused a task.
func (c *Channel) Rejected(ctx context.Context, id ID, r inspector.Refusal) error {
	return c.end(ctx, &ending{run: c.run(id), by: rejected, to: Failed, why: &r})
}

// Finished takes the end of a run, whose result is stored in the same
// transaction. After nil the node may forget it. A result that is over
// inspector.MaxResultBytes makes it FAILED, result_too_large.
func (c *Channel) Finished(ctx context.Context, id ID, o Outcome) error {
	by, to, why := failed, Failed, o.Refusal
	switch o.State {
	case Completed:
		by, to = completed, Completed
	case Cancelled:
		by, to = cancelled, Cancelled
		if why == nil {
			why = cancelled.why(Running)
		}
	}
	var body []byte
	var found *inspector.TaskResult
	if o.Result != nil {
		r, b, err := encode(o.Result, inspector.MaxResultBytes, c.ran(id))
		if err != nil {
			by, to, why = failed, Failed, err
		} else {
			found, body = r, b
		}
	}
	if to == Completed && body == nil {
		by, to, why = failed, Failed, &inspector.Refusal{Kind: fault.Internal.String(), Reason: inspector.ReasonTaskFailed, Msg: "the node said that it completed the task and gave no result"}
	}
	return c.end(ctx, &ending{run: c.run(id), by: by, to: to, why: why, result: body, found: found})
}

// end stores an end by a node's word.
func (c *Channel) end(ctx context.Context, e *ending) error {
	e.why, e.at = cleanRefusal(e.why), c.s.clock()
	c.mu.Lock()
	if h := c.runs[e.run.task]; h != nil {
		e.began, e.alone = h.began, h.alone
	}
	c.mu.Unlock()
	if err := c.s.endRuns(ctx, c.key.tenant, []*ending{e}); err != nil {
		return err
	}
	c.drop(e.run.task)
	if !e.done { // ended otherwise, or lost: who waits is to look
		c.s.counts.add(&c.s.counts.late)
		c.s.watches.wake(e.run.taskKey, false)
	}
	return nil
}

// Closed says that the channel is gone. planned: this replica sent the node
// away, so that its runs are soon held by another one; otherwise those who
// wait are told at once and the node has ResumeLease to come back. It is
// called once, last.
func (c *Channel) Closed(ctx context.Context, planned bool) {
	c.s.forget(c)
	runs := c.take()
	if len(runs) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := c.s.letGo(ctx, c, runs, planned); err != nil {
		c.s.log.Warn("tasks: runs of a closed channel were not let go; their leases end them", "error", err)
	}
	for id := range runs {
		if !planned {
			c.s.moved(taskKey{c.key.tenant, id})
		}
	}
}

// forget takes a channel out, unless another one has taken its place.
func (s *Service) forget(c *Channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.channels[c.key] == c {
		delete(s.channels, c.key)
	}
	s.unname(c)
	delete(s.dirt, c)
}
