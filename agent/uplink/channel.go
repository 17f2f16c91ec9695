package uplink

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// Bounds of one task channel.
const (
	maxOrders       = 64               // orders that wait while a send is blocked
	taskSendTimeout = 30 * time.Second // one blocked send
)

// channel is one task channel from TaskHello to its end. Its own goroutine
// alone sends, and starts tasks, so that the answer to a request is on the
// wire before any news of its task; its reader alone receives.
type channel struct {
	s      *session
	h      TaskHandler
	stream grpc.BidiStreamingClient[pb.TaskFrame, pb.TaskOrder]
	watch  *time.Timer // cancels the channel when one send blocks too long
	orders chan *pb.TaskOrder
	ended  chan error // the reader's last word
}

// channel opens a task channel and serves it until it ends; errLeft means
// that the session wants it so.
func (c *second) channel(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ch := &channel{s: c.s, h: c.s.u.cfg.Tasks, orders: make(chan *pb.TaskOrder, maxOrders), ended: make(chan error, 1)}
	late := time.AfterFunc(openTimeout, cancel)
	err := ch.open(ctx)
	if !late.Stop() && err != nil {
		err = context.DeadlineExceeded // which is also why a call ended
	}
	if err != nil {
		return err
	}
	u := c.s.u
	u.counts.channels.Add(1)
	u.counts.channelOpen.Store(true)
	u.refusals.end()
	defer u.counts.channelOpen.Store(false)
	ch.watch = time.AfterFunc(taskSendTimeout, cancel)
	ch.watch.Stop()
	go ch.read(ctx)
	err = ch.serve(c.leaving)
	cancel()
	end := <-ch.ended // its status says more than a failed send
	if err == io.EOF {
		err = end
	}
	return err
}

// open says TaskHello and does what TaskWelcome asks.
func (c *channel) open(ctx context.Context) (err error) {
	if c.stream, err = pb.NewAgentClient(c.s.conn).Tasks(ctx); err != nil {
		return err
	}
	running, kinds := c.h.Hello()
	hello := &pb.TaskHello{StartedAtNs: c.s.u.cfg.StartedAt.UnixNano()}
	for _, id := range running {
		hello.Running = append(hello.Running, id[:])
	}
	for _, k := range kinds {
		hello.Kinds = append(hello.Kinds, []byte(k))
	}
	// A failed send shows its cause in Recv.
	if err := c.send(&pb.TaskFrame{Kind: &pb.TaskFrame_Hello{Hello: hello}}); err != nil && err != io.EOF {
		return err
	}
	f, err := c.stream.Recv()
	if err != nil {
		return err
	}
	c.s.clock.observe(f.Clock, time.Now())
	w := f.GetWelcome()
	if w == nil {
		return status.Error(codes.Internal, "the first frame of the task channel is no welcome")
	}
	for _, raw := range w.Cancel {
		if id, ok := taskID(raw); ok {
			c.h.Cancel(id)
		}
	}
	return nil
}

// serve sends until the channel ends.
func (c *channel) serve(leaving <-chan struct{}) error {
	if err := c.tell(true); err != nil {
		return err
	}
	for {
		select {
		case o := <-c.orders:
			if err := c.obey(o); err != nil {
				return err
			}
		case <-c.h.Ready():
			if err := c.tell(false); err != nil {
				return err
			}
		case err := <-c.ended:
			c.ended <- err
			return err
		case <-leaving:
			return c.leave()
		}
	}
}

// leave sends what is left and lets the server end the channel.
func (c *channel) leave() error {
	if err := c.tell(false); err != nil {
		return errLeft
	}
	_ = c.stream.CloseSend()
	late := time.NewTimer(byeTimeout)
	defer late.Stop()
	for {
		select {
		case o := <-c.orders:
			if id, ok := taskID(o.GetRequest().GetTask()); ok {
				c.h.Start(c.order(id, o.GetRequest())) // the next channel tells of it
			}
		case err := <-c.ended:
			c.ended <- err
			return errLeft
		case <-late.C:
			return errLeft
		}
	}
}

// tell sends the news of all tasks.
func (c *channel) tell(fresh bool) error {
	for _, u := range c.h.Updates(fresh) {
		if u.End == nil {
			if err := c.send(progressFrame(u)); err != nil {
				return err
			}
			continue
		}
		for _, f := range endFrames(u.ID, u.End) {
			if err := c.send(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// obey does one order and answers.
func (c *channel) obey(o *pb.TaskOrder) error {
	switch k := o.Kind.(type) {
	case *pb.TaskOrder_Request:
		c.s.u.counts.orders.Add(1)
		id, ok := taskID(k.Request.Task)
		if !ok {
			c.s.u.log.Debug("a request without a task id")
			return nil
		}
		return c.send(answerFrame(id, c.h.Start(c.order(id, k.Request))))
	case *pb.TaskOrder_Cancel:
		if id, ok := taskID(k.Cancel.Task); ok {
			c.h.Cancel(id)
		}
	}
	return nil
}

// order is a request in this machine's terms.
func (c *channel) order(id inspector.TaskID, r *pb.TaskRequest) inspector.TaskOrder {
	now := time.Now()
	by, _ := inspector.CleanLabel(string(r.PrincipalKind) + ":" + string(r.Principal))
	return inspector.TaskOrder{
		ID: id, Kind: string(r.Kind), Args: r.Args, Principal: by, Scopes: r.Scopes,
		StartBefore: c.s.clock.local(time.Unix(0, r.StartBeforeNs), now), Deadline: c.s.clock.local(time.Unix(0, r.DeadlineNs), now),
	}
}

func (c *channel) send(f *pb.TaskFrame) error {
	f.Clock = c.s.clock.stamp(time.Now())
	if c.watch != nil {
		c.watch.Reset(taskSendTimeout)
		defer c.watch.Stop()
	}
	return c.stream.Send(f)
}

// read takes orders until the channel ends. A cancel is also obeyed at once:
// the one in the queue is for a request that waits before it.
func (c *channel) read(ctx context.Context) {
	for {
		o, err := c.stream.Recv()
		if err != nil {
			if err == io.EOF {
				err = status.Error(codes.Unavailable, "the server ended the task channel")
			}
			c.ended <- err
			return
		}
		c.s.clock.observe(o.Clock, time.Now())
		switch k := o.Kind.(type) {
		case *pb.TaskOrder_Taken:
			if id, ok := taskID(k.Taken.Task); ok {
				c.h.Taken(id)
			}
			continue
		case *pb.TaskOrder_Cancel:
			if id, ok := taskID(k.Cancel.Task); ok {
				c.h.Cancel(id)
			}
		}
		select {
		case c.orders <- o:
		case <-ctx.Done():
		}
	}
}
