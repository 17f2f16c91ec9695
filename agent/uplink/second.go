package uplink

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// TaskHandler does the tasks that come over the task channel. Its methods do
// not block and are safe for concurrent use.
type TaskHandler interface {
	// Hello lists the tasks that run, or ended and were not taken, and the
	// kinds of task that are accepted.
	Hello() (running []inspector.TaskID, kinds []string)
	// Start begins a task, or says why not. Its times are by this machine's
	// clock.
	Start(inspector.TaskOrder) *inspector.Refusal
	// Cancel ends a task early; one that does not run is none of its business.
	Cancel(inspector.TaskID)
	// Taken says that the server holds a task's end: it is forgotten.
	Taken(inspector.TaskID)
	// Ready gives one token when Updates has something.
	Ready() <-chan struct{}
	// Updates returns the news since the last call. fresh: the channel is a new
	// one, so every end that was not taken is among them.
	Updates(fresh bool) []inspector.TaskUpdate
}

// second keeps the task channel open beside a session's report stream. It
// opens it again when it breaks alone, and ends with the session. A nil second
// does nothing.
type second struct {
	s       *session
	leaving chan struct{} // closed by bye
	done    chan struct{} // closed when all of it has ended
}

func startSecond(ctx context.Context, s *session) *second {
	c := &second{s: s, leaving: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.run(ctx)
	}()
	return c
}

// bye sends what is left, ends the channel on this side and gives the server
// a moment to take it in. It is called once at most.
func (c *second) bye() {
	if c == nil {
		return
	}
	close(c.leaving)
	late := time.NewTimer(byeTimeout)
	defer late.Stop()
	select {
	case <-c.done:
	case <-late.C:
	}
}

// wait returns when everything has ended; the session's context ends it.
func (c *second) wait() {
	if c != nil {
		<-c.done
	}
}

// errLeft ends a task channel on purpose.
var errLeft = errors.New("the session ends")

func (c *second) run(ctx context.Context) {
	u := c.s.u
	var back backoff
	for {
		began := time.Now()
		err := c.channel(ctx)
		if errors.Is(err, errLeft) || ctx.Err() != nil {
			return
		}
		if time.Since(began) > backoffMax/2 {
			back.reset()
		}
		err = c.s.at.refusal(err)
		wait := u.wait(&back, err)
		if off(err) {
			wait = back.seldom(0)
		}
		if u.refusals.begins("tasks", err) {
			u.log.Warn("no task channel to the server; trying again while the connection lives", "error", err)
		}
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case <-ctx.Done():
		case <-c.leaving:
		}
		again.Stop()
		select {
		case <-c.leaving:
			return
		default:
		}
	}
}

// off tells a server that takes no part in tasks from one in trouble.
func off(err error) bool {
	r, ok := errors.AsType[*Refusal](err)
	return ok && (r.Reason == inspector.ReasonFeatureOff || status.Code(r.Cause) == codes.Unimplemented)
}
