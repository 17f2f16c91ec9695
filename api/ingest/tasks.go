package ingest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// Tasks takes a node's task channel in and says which of the tasks in its
// hello the node shall stop. Nil: this server gives no tasks.
type Tasks func(ctx context.Context, scope tenants.Scope, hello tasks.Hello, out tasks.Outbox) (TaskChannel, []tasks.ID, error)

// TaskChannel is what a node says over its task channel. Calls for one channel
// do not overlap, but for Closed, which is the last one.
type TaskChannel interface {
	Accepted(ctx context.Context, id tasks.ID) error
	Rejected(ctx context.Context, id tasks.ID, r inspector.Refusal) error
	Progress(ctx context.Context, id tasks.ID, p tasks.Progress) error
	Finished(ctx context.Context, id tasks.ID, o tasks.Outcome) error
	Closed(ctx context.Context, planned bool)
}

// TasksOf makes Tasks of a service's ChannelOpened.
func TasksOf[C TaskChannel](open func(context.Context, tenants.Scope, tasks.Hello, tasks.Outbox) (C, []tasks.ID, error)) Tasks {
	return func(ctx context.Context, scope tenants.Scope, hello tasks.Hello, out tasks.Outbox) (TaskChannel, []tasks.ID, error) {
		ch, cancel, err := open(ctx, scope, hello, out)
		if err != nil {
			return nil, nil, err
		}
		return ch, cancel, nil
	}
}

// Waits and bounds of one task channel.
const (
	maxOrders     = 64               // orders waiting to be sent
	orderTimeout  = 10 * time.Second // one blocked send
	formerTimeout = 5 * time.Second  // for a replaced channel of the same node to be over
	framesPerSec  = 100              // judged of one channel; an agent sends one a second and task, and results
	frameBurst    = 300
)

// taskStream is one node's task channel. It stands on the node's report
// stream and ends with it. Its handler goroutine ends it, its reader goroutine
// alone receives and judges; sends happen one after the other on behalf of the
// handler, so that one which blocks does not hold up the end.
type taskStream struct {
	s      *Server
	scope  tenants.Scope
	node   tenants.NodeID
	report *stream
	grpc   grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]
	box    *outbox
	ch     TaskChannel // once opened
	ended  chan struct{}
	end    func() // closes ended: a younger channel takes over
	closed chan struct{}

	parts assembly // the reader's own
	pace  *rate.Limiter
	work  sync.Mutex // held while a frame is judged
	over  atomic.Bool

	mu     sync.Mutex
	echo   int64 // wall_ns of the agent's latest frame, and when it came
	echoAt time.Time
}

// Tasks runs one task channel to its end.
func (a agent) Tasks(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error {
	c, ok := callerOf(g.Context())
	if !ok {
		return errProtocol("no caller")
	}
	s := a.s
	if s.deps.Tasks == nil {
		return fault.New(fault.Precondition, inspector.ReasonFeatureOff, "this server gives no tasks")
	}
	t := &taskStream{
		s: s, scope: c.scope, node: c.node, grpc: g, box: newOutbox(&s.count),
		ended: make(chan struct{}), closed: make(chan struct{}),
		parts: assembly{held: &s.assembling}, pace: rate.NewLimiter(framesPerSec, frameBurst),
	}
	t.end = sync.OnceFunc(func() { close(t.ended) })
	s.readers.Add(1) // a handler that the transport no longer waits for
	defer s.readers.Done()
	former, err := s.hub.open(t, c.remote)
	if err != nil {
		return err
	}
	defer close(t.closed)
	defer s.hub.shut(t)
	defer t.box.close()
	if err := t.supersede(former); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(g.Context())
	defer stop()
	first, opened, read := make(chan *pb.TaskFrame, 1), make(chan struct{}), make(chan error, 1)
	s.readers.Go(func() {
		defer t.parts.close()
		read <- t.read(ctx, first, opened)
	})
	late := time.NewTimer(helloTimeout)
	defer late.Stop()
	select {
	case f := <-first:
		err = t.open(ctx, f)
	case err = <-read:
	case <-t.report.ended:
		err = t.report.cause()
	case <-t.report.gone:
		err = errStreamGone
	case <-late.C:
		err = fault.New(fault.Deadline, "no_hello", "the task channel did not begin with a hello in time")
	}
	if err != nil {
		return err
	}
	close(opened)
	planned, err := t.serve(read)
	t.over.Store(true)
	stop()
	t.work.Lock() // what is being judged comes before the end
	defer t.work.Unlock()
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	t.ch.Closed(cctx, planned)
	return err
}

// supersede ends an older channel of the same node and waits until the service
// knows of its end.
func (t *taskStream) supersede(former *taskStream) error {
	if former == nil {
		return nil
	}
	t.s.count.channelsReplaced.Add(1)
	former.end()
	late := time.NewTimer(formerTimeout)
	defer late.Stop()
	select {
	case <-former.closed:
		return nil
	case <-t.grpc.Context().Done():
		return t.grpc.Context().Err()
	case <-t.report.ended:
		return t.report.cause()
	case <-t.ended:
	case <-late.C:
	}
	return retryable{errReplaced, soonAgain()}
}

// soonAgain is the hint for a task channel whose report stream lives: its tasks
// have tasks.ResumeLease to be heard of again.
func soonAgain() time.Duration { return 200*time.Millisecond + rand.N(800*time.Millisecond) }

var (
	errReplaced = fault.New(fault.Conflict, "replaced", "another task channel of this node is in the way")
	errSlow     = fault.New(fault.Deadline, "slow_node", "the node takes no orders in").Do("connect again")
)

// open takes the hello and answers with a welcome.
func (t *taskStream) open(ctx context.Context, f *pb.TaskFrame) error {
	hello, err := taskHelloOf(f.GetHello())
	if err != nil {
		return err
	}
	t.heard(f.Clock)
	octx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var stop []tasks.ID
	if t.ch, stop, err = t.s.deps.Tasks(octx, t.scope, hello, t.box); err != nil {
		return retryable{err, soonAgain()}
	}
	t.s.count.channels.Add(1)
	w := &pb.TaskWelcome{}
	for _, id := range stop {
		w.Cancel = append(w.Cancel, id[:])
	}
	if err := t.send(&pb.TaskOrder{Kind: &pb.TaskOrder_Welcome{Welcome: w}}); err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		t.ch.Closed(cctx, false)
		return err
	}
	return nil
}

// serve sends orders until the channel ends. planned: the node goes on
// elsewhere, or was asked to.
func (t *taskStream) serve(read <-chan error) (planned bool, err error) {
	for {
		select {
		case o := <-t.box.orders:
			if err := t.send(o); err != nil {
				return false, err
			}
		case err := <-read:
			if !errors.Is(err, io.EOF) {
				return false, err
			}
			for { // what the last frames brought about
				select {
				case o := <-t.box.orders:
					if err := t.send(o); err != nil {
						return true, err
					}
				default:
					return true, nil
				}
			}
		case <-t.report.ended:
			return t.report.planned(), t.report.cause()
		case <-t.report.gone:
			return t.report.planned(), errStreamGone
		case <-t.ended:
			return true, errReplaced
		}
	}
}

// errStreamGone ends the task channel with its report stream.
var errStreamGone = fault.New(fault.Unavailable, "report_stream_ended", "the report stream of this node ended").Do("connect again")

// send sends one order, within a bound.
func (t *taskStream) send(o *pb.TaskOrder) error {
	t.mu.Lock()
	o.Clock = &pb.Clock{WallNs: t.s.cfg.Now().UnixNano(), EchoNs: t.echo, HeldNs: int64(time.Since(t.echoAt))}
	t.mu.Unlock()
	sent := make(chan error, 1)
	t.s.readers.Go(func() { sent <- t.grpc.Send(o) }) // fails when the handler has returned
	late := time.NewTimer(orderTimeout)
	defer late.Stop()
	select {
	case err := <-sent:
		return err
	case <-t.report.ended:
		return t.report.cause()
	case <-late.C:
		return errSlow
	}
}

// heard takes the clock stamp of a frame.
func (t *taskStream) heard(c *pb.Clock) {
	if c == nil {
		return
	}
	t.mu.Lock()
	t.echo, t.echoAt = c.WallNs, time.Now()
	t.mu.Unlock()
}

// read takes frames until the channel ends. It hands the first one over and
// waits for opened before it goes on.
func (t *taskStream) read(ctx context.Context, first chan<- *pb.TaskFrame, opened <-chan struct{}) error {
	f, err := t.grpc.Recv()
	if err != nil {
		return t.s.unread(t.scope, t.node, err)
	}
	first <- f
	select {
	case <-opened:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		f, err := t.grpc.Recv()
		if err != nil {
			return t.s.unread(t.scope, t.node, err)
		}
		if err := t.pace.Wait(ctx); err != nil {
			return err
		}
		if err := t.judge(ctx, f); err != nil {
			return err
		}
	}
}

func (t *taskStream) judge(ctx context.Context, f *pb.TaskFrame) error {
	t.work.Lock()
	defer t.work.Unlock()
	if t.over.Load() {
		return status.Error(codes.Canceled, "the channel was ended")
	}
	return t.handle(ctx, f)
}
