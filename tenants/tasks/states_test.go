package tasks

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/agent/inspector"
)

func allStates() []State {
	return []State{Created, Dispatched, Running, Completed, Failed, Cancelled, TimedOut, Disconnected, Expired}
}

// The table itself: terminal states have no way out, and every active one is
// ended by time.
func TestTransitions(t *testing.T) {
	for m, moves := range transitions {
		for from, to := range moves {
			if from.Terminal() {
				t.Errorf("message %d leads out of %s", m, from)
			}
			if to == Created || to == Dispatched && m != claimed && from != Dispatched {
				t.Errorf("message %d leads back from %s to %s", m, from, to)
			}
		}
	}
	for _, s := range []State{Created, Dispatched, Running} {
		if to, moves := next(s, deadlineOver); !moves || !to.Terminal() {
			t.Errorf("time does not end %s", s)
		}
	}
	for m := claimed; m <= deadlineOver; m++ {
		for _, s := range allStates() {
			if to, moves := next(s, m); moves && to.Terminal() && to != Completed && m != rejected && m != failed && m.why(s) == nil {
				t.Errorf("%s ended by message %d has no reason", s, m)
			}
		}
	}
	for _, c := range []struct {
		runs []State
		want State
	}{
		{nil, Failed}, {[]State{Dispatched}, Dispatched}, {[]State{Created, Completed}, Running},
		{[]State{Failed, Completed, TimedOut}, Completed}, {[]State{Expired, Failed}, Failed}, {[]State{Expired, Expired}, Expired},
	} {
		if got := sum(c.runs); got != c.want {
			t.Errorf("%v: %s, want %s", c.runs, got, c.want)
		}
	}
}

// scene is one run in one state on an open channel.
type scene struct {
	w     *world
	n     *node
	ch    *Channel
	id    ID
	state State
}

// put makes a run that stands in a state.
func put(w *world, state State) *scene {
	w.t.Helper()
	w.exec(`delete from task_run`)
	w.exec(`delete from task_result`)
	w.exec(`delete from task`)
	ch, _ := w.n1.open(w.s, 1)
	id := w.began(w.s, w.me(), drops("n1", 5))
	w.n1.order()
	switch {
	case state == Created:
		ch.drop(id)
		w.exec(`update task_run set state = 'CREATED', dispatched_at = null, lease_until = null, replica = '', started_ns = 0`)
	case state == Running:
		w.must(ch.Accepted(context.Background(), id))
		w.must(w.s.write(context.Background()))
	case state.Terminal():
		ch.drop(id)
		w.exec(`update task_run set state = $1, ended_at = $2, lease_until = null`, string(state), w.now().Add(-time.Second))
		w.exec(`update task set state = $1, ended_at = $2`, string(state), w.now())
	}
	for len(w.n1.stops) > 0 {
		<-w.n1.stops
	}
	return &scene{w, w.n1, ch, id, state}
}

// due makes one moment of the run the only one that is past.
func (c *scene) due(column string, grace time.Duration) error {
	far := c.w.now().Add(time.Hour)
	c.w.exec(`update task_run set start_before = $1, deadline_at = $1, cancel_at = null, lease_until = case when state in ('DISPATCHED', 'RUNNING') then $1::timestamptz end`, far)
	c.w.exec(`update task_run set `+column+` = $1`, c.w.now().Add(-grace))
	return c.w.s.Sweep(context.Background())
}

// Every state times every message: what the table says happens, and nothing
// else; a second time changes nothing.
func TestEveryStateTimesEveryMessage(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	messages := []struct {
		name string
		m    message
		do   func(*scene) error
	}{
		{"claimed", claimed, func(c *scene) error { w.s.queueClaim(c.ch.run(c.id)); return w.s.claim(ctx) }},
		{"accepted", accepted, func(c *scene) error {
			if err := c.ch.Accepted(ctx, c.id); err != nil {
				return err
			}
			return w.s.write(ctx)
		}},
		{"rejected", rejected, func(c *scene) error {
			return c.ch.Rejected(ctx, c.id, inspector.Refusal{Kind: "NOT_FOUND", Reason: "pid_gone", Arg: "pid", Msg: "gone", Next: "look"})
		}},
		{"progress", progressed, func(c *scene) error {
			if err := c.ch.Progress(ctx, c.id, Progress{Permille: 500, Partial: result(1)}); err != nil {
				return err
			}
			return w.s.write(ctx)
		}},
		{"completed", completed, func(c *scene) error { return c.ch.Finished(ctx, c.id, done(7)) }},
		{"failed", failed, func(c *scene) error {
			return c.ch.Finished(ctx, c.id, Outcome{State: Failed, Refusal: &inspector.Refusal{Kind: "INTERNAL", Reason: "task_panicked"}})
		}},
		{"cancelled", cancelled, func(c *scene) error {
			return c.ch.Finished(ctx, c.id, Outcome{State: Cancelled, Result: result(2)})
		}},
		{"cancel", cancelAsked, func(c *scene) error { return w.s.cancelRuns(ctx, taskKey{w.a, c.id}, nil) }},
		{"closed", connectionLost, func(c *scene) error { c.ch.Closed(ctx, false); return nil }},
		{"drained", handedOver, func(c *scene) error { c.ch.Closed(ctx, true); return nil }},
		{"reopened, has it", resumed, func(c *scene) error { w.n1.open(w.s2, 1, c.id); return nil }},
		{"reopened, has it not", undelivered, func(c *scene) error { w.n1.open(w.s2, 1); return nil }},
		{"reopened, another life", restarted, func(c *scene) error { w.n1.open(w.s2, 2, c.id); return nil }},
		{"lease over", leaseOver, func(c *scene) error { return c.due("lease_until", 0) }},
		{"start over", startOver, func(c *scene) error { return c.due("start_before", answerGrace) }},
		{"deadline over", deadlineOver, func(c *scene) error { return c.due("deadline_at", DeadlineGrace) }},
		{"cancel over", cancelOver, func(c *scene) error { return c.due("cancel_at", DeadlineGrace) }},
	}
	for _, state := range allStates() {
		for _, m := range messages {
			t.Run(fmt.Sprintf("%s, %s", state, m.name), func(t *testing.T) {
				w.t = t
				c := put(w, state)
				want, moves := next(state, m.m)
				switch {
				case m.m == cancelAsked && state == Created:
					want, moves = Cancelled, true // withdrawn
				case m.m == deadlineOver && state == Created, m.m == leaseOver && state == Created:
					want, moves = Created, false // its start is what time decides by
				}
				ended := state.Terminal()
				for range 2 {
					if err := m.do(c); err != nil {
						t.Fatal(err)
					}
					got := w.get(w.s, c.id)
					if got.Status != want || got.Runs[0].Status != want || want.Terminal() != (got.EndedAt != nil) {
						t.Fatalf("%+v, want %s", got, want)
					}
					r := got.Runs[0]
					if moves && want.Terminal() && want != Completed && (r.Reason == "" || r.Message == "") {
						t.Errorf("no reason: %+v", r)
					}
					if kept := r.Result != nil && !r.Partial; kept != (want == Completed && moves) {
						t.Errorf("result kept: %v", kept)
					}
				}
				if ended && (m.m == accepted || m.m == progressed) && w.n1.stop() != c.id {
					t.Error("a late word was not answered with cancel")
				}
				if (m.m == startOver || m.m == leaseOver || m.m == deadlineOver || m.m == cancelOver) && moves && state != Created && w.n1.stop() != c.id {
					t.Error("the node was not told to stop")
				}
				if n := len(w.n1.orders); n > 1 || n == 1 && m.m != claimed && state != Created {
					t.Errorf("%d requests went out", n)
				}
				for len(w.n1.orders) > 0 {
					<-w.n1.orders
				}
			})
		}
	}
	w.t = t
}

// A node that speaks of tasks that it makes up is not looked up word by word,
// and another node's stray is.
func TestStraysAreBounded(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	foreign, _ := w.other.open(w.s, 1)
	stops := func(n *node) (out int) {
		for {
			select {
			case <-n.stops:
				out++
			default:
				return out
			}
		}
	}
	one := ID(uuid.Must(uuid.NewV7()))
	for range 100 {
		w.must(ch.Progress(ctx, one, Progress{Permille: 1}))
	}
	if n := stops(w.n1); n != 1 {
		t.Errorf("one unknown task was looked up %d times", n)
	}
	for range 100 {
		w.must(ch.Accepted(ctx, ID(uuid.Must(uuid.NewV7()))))
	}
	if n := stops(w.n1); n != maxStrays-1 {
		t.Errorf("%d of a hundred unknown tasks were looked up, want %d more", n, maxStrays-1)
	}
	w.must(foreign.Progress(ctx, one, Progress{}))
	if n := stops(w.other); n != 1 {
		t.Errorf("another node's word was looked up %d times", n)
	}
	if late := w.s.Stats().Late; late != 201 {
		t.Errorf("%d words counted", late)
	}
	// A run that strayed is held once a later word on it is looked up.
	id := w.began(w.s, w.me(), drops("n1", 5))
	ch.drop(id)
	w.must(ch.Progress(ctx, id, Progress{}))
	w.advance(time.Second)
	w.must(ch.Progress(ctx, id, Progress{}))
	w.must(w.s.write(ctx))
	w.check("held again", w.get(w.s, id), Running, "")
}
