package uplink

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// Waits of one stream. Each ends in a new connection or in a clean stop.
const (
	openTimeout     = 20 * time.Second // connect, Hello, Welcome
	ackTimeout      = time.Minute      // the oldest report without an acknowledgement, or one blocked send
	flushTimeout    = 2 * time.Second  // after the agent was told to stop
	handoverTimeout = 5 * time.Second  // to get acknowledged what is on the wire before a planned reconnect
	byeTimeout      = time.Second      // for the server's own end of the stream
	pingEvery       = 30 * time.Second // silence after which a clock exchange is made
	checkEvery      = 15 * time.Second
	defaultInFlight = 64
)

// errHandover ends a stream on purpose: connect again at once.
var errHandover = errors.New("planned reconnect")

var errStalled = errors.New("the server acknowledges nothing; connecting again")

// session is one stream from Hello to its end. Only its own goroutine sends.
type session struct {
	u        *Uplink
	conn     *grpc.ClientConn
	at       place
	stream   grpc.BidiStreamingClient[pb.AgentFrame, pb.ServerFrame]
	cancel   context.CancelFunc
	clock    clock
	inFlight int
	lastSent time.Time
	watch    *time.Timer // cancels the stream when one send blocks too long
	second   *second     // the task channel; nil: the node takes no tasks

	rewinds chan *pb.Rewind
	drain   chan time.Duration
	ended   chan error // the reader's last word
}

func (u *Uplink) session(ctx context.Context) error {
	way := &path{}
	conn, err := u.dial(way)
	if err != nil {
		return err
	}
	defer conn.Close()
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s := &session{
		u: u, conn: conn, at: place{u.cfg.Server, u.id.dir, way}, cancel: cancel,
		rewinds: make(chan *pb.Rewind, 16), drain: make(chan time.Duration, 1), ended: make(chan error, 1),
	}
	// Until Welcome, a stop and the open time-out both cut the stream.
	late := time.AfterFunc(openTimeout, cancel)
	stop := context.AfterFunc(ctx, cancel)
	err = s.open(sctx)
	stop()
	if !late.Stop() {
		err = context.DeadlineExceeded // which is also why a call ended
	}
	if err != nil {
		return s.at.refusal(err)
	}
	s.watch = time.AfterFunc(ackTimeout, cancel)
	s.watch.Stop()
	u.counts.connects.Add(1)
	u.offline.Store(0)
	u.troubles.end()
	u.log.Info("connected", "server", u.cfg.Server, "node", u.id.Node)
	go s.read(sctx)
	if u.cfg.Tasks != nil {
		s.second = startSecond(sctx, s)
	}
	err = s.loop(ctx)
	cancel()
	<-s.ended
	s.second.wait()
	return err
}

// open says Hello and takes Welcome in.
func (s *session) open(ctx context.Context) (err error) {
	u := s.u
	if s.stream, err = pb.NewAgentClient(s.conn).Report(ctx); err != nil {
		return err
	}
	oldest, _, busy := u.queue.oldest()
	epoch, next := u.pos.at(!busy)
	if busy {
		next = oldest
	}
	hello := &pb.Hello{Facts: u.cfg.Facts.Proto(), StartedAtNs: u.cfg.StartedAt.UnixNano(), Epoch: epoch, NextSeq: next, ConfigDigest: u.cfg.ConfigDigest}
	u.mu.Lock()
	for _, h := range u.layouts.order {
		hello.Layouts = append(hello.Layouts, h[:])
	}
	u.mu.Unlock()
	for _, m := range u.cfg.Disabled {
		hello.DisabledModules = append(hello.DisabledModules, []byte(m))
	}
	// A failed send shows its cause in Recv.
	if err := s.stream.Send(&pb.AgentFrame{Clock: s.clock.stamp(time.Now()), Kind: &pb.AgentFrame_Hello{Hello: hello}}); err != nil && err != io.EOF {
		return err
	}
	frame, err := s.stream.Recv()
	if err != nil {
		return err
	}
	s.clock.observe(frame.Clock, time.Now())
	w := frame.GetWelcome()
	if w == nil || w.Epoch == 0 {
		return status.Error(codes.Internal, "the server's first frame is no welcome")
	}
	s.inFlight = defaultInFlight
	if w.MaxInFlight > 0 {
		s.inFlight = int(min(w.MaxInFlight, 1024))
	}
	if w.Epoch != epoch {
		u.pos.begin(w.Epoch, u.queue.renumber())
	} else {
		u.acked(w.HighSeq)
		u.pos.skip(w.HighSeq)
	}
	u.queue.rewind(0)
	if len(w.NeedLayouts) > 0 {
		s.rewinds <- &pb.Rewind{NeedLayouts: w.NeedLayouts}
	}
	return nil
}

// loop sends until the stream ends; see session.
func (s *session) loop(ctx context.Context) error {
	var (
		stopping = ctx.Done()
		leaving  bool             // nothing new is sent any more
		deadline <-chan time.Time // end of waiting while leaving
		goal     = errHandover    // what to return when everything is acknowledged
		check    = time.NewTimer(s.untilCheck())
		drain    <-chan time.Time
	)
	defer check.Stop()
	leave := func(d time.Duration) { leaving, deadline = true, time.After(d) }
	for {
		limit := s.inFlight
		if leaving && goal != nil {
			limit = 0
		}
		if err := s.pump(limit); err != nil {
			return s.cause(err)
		}
		if _, _, busy := s.u.queue.oldest(); leaving && !busy && (goal != nil || s.u.queue.empty()) {
			return s.bye(goal)
		}
		select {
		case <-s.u.queue.ready:
		case r := <-s.rewinds:
			if err := s.rewind(r); err != nil {
				return s.cause(err)
			}
		case spread := <-s.drain:
			drain = time.After(rand.N(spread + 1))
		case <-drain:
			leave(handoverTimeout)
		case <-check.C:
			if _, sent, ok := s.u.queue.oldest(); ok && time.Since(sent) > ackTimeout {
				return errStalled
			}
			if !leaving && !s.clock.server(time.Now()).Before(s.u.id.RenewAt()) {
				if s.renew(ctx) {
					leave(handoverTimeout)
				}
			}
			if !leaving && s.u.pos.spent() {
				leave(handoverTimeout) // the next stream gets a new epoch
			}
			if time.Since(s.lastSent) > pingEvery {
				if err := s.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Ping{Ping: &pb.Ping{}}}); err != nil {
					return s.cause(err)
				}
			}
			check.Reset(s.untilCheck())
		case <-stopping:
			stopping, goal = nil, nil
			leave(flushTimeout)
			cut := time.AfterFunc(flushTimeout+byeTimeout, s.cancel) // a send may be blocked
			defer cut.Stop()
		case <-deadline:
			return s.bye(goal)
		case err := <-s.ended:
			s.ended <- err
			return s.at.refusal(err)
		}
	}
}

// bye closes the sending side and lets the server end the stream, so that
// both sides see a clean end. The task channel goes first: it ends with the
// report stream.
func (s *session) bye(result error) error {
	s.second.bye()
	_ = s.stream.CloseSend() // the connection goes away next, whatever it says
	late := time.NewTimer(byeTimeout)
	defer late.Stop()
	select {
	case err := <-s.ended:
		s.ended <- err
	case <-late.C:
	}
	return result
}

// cause prefers the status that the reader got over a failed send.
func (s *session) cause(err error) error {
	s.cancel()
	end := <-s.ended
	s.ended <- end
	if status.Code(end) != codes.Canceled && end != nil {
		return s.at.refusal(end)
	}
	return s.at.refusal(err)
}

// untilCheck is the time to the next housekeeping: renewal due, or checkEvery.
func (s *session) untilCheck() time.Duration {
	due := s.u.id.RenewAt().Sub(s.clock.server(time.Now()))
	if due <= 0 { // a renewal just failed
		left := s.u.id.Certificate().NotAfter.Sub(s.clock.server(time.Now()))
		due = min(max(left/10, time.Second), checkEvery)
	}
	return min(due, checkEvery)
}

// pump sends everything that may be sent now.
func (s *session) pump(limit int) error {
	for {
		select {
		case r := <-s.rewinds:
			if err := s.rewind(r); err != nil {
				return err
			}
		default:
		}
		r := s.u.queue.next(limit, time.Now(), s.u.pos.take)
		if r == nil {
			return nil
		}
		s.u.counts.sent.Add(1)
		if err := s.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Report{Report: r.pb}}); err != nil {
			return err
		}
	}
}

func (s *session) send(f *pb.AgentFrame) error {
	now := time.Now()
	f.Clock = s.clock.stamp(now)
	s.lastSent = now
	if s.watch != nil {
		s.watch.Reset(ackTimeout)
		defer s.watch.Stop()
	}
	return s.stream.Send(f)
}

// rewind sends the layouts asked for and goes back to where the server wants
// to continue.
func (s *session) rewind(r *pb.Rewind) error {
	for _, h := range r.NeedLayouts {
		if len(h) != len(inspector.LayoutHash{}) {
			continue
		}
		s.u.mu.Lock()
		l := s.u.layouts.byHash[inspector.LayoutHash(h)]
		s.u.mu.Unlock()
		if l == nil {
			l = s.u.queue.layout(inspector.LayoutHash(h))
		}
		if l == nil {
			continue
		}
		def := &pb.LayoutDef{Encoded: l.AppendBinary(nil)}
		if err := s.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Layout{Layout: def}}); err != nil {
			return err
		}
	}
	if r.FromSeq > 0 {
		s.u.counts.rewinds.Add(1)
		s.u.queue.rewind(r.FromSeq)
	}
	return nil
}

// read takes the server's frames until the stream ends.
func (s *session) read(ctx context.Context) {
	for {
		f, err := s.stream.Recv()
		if err != nil {
			s.ended <- err
			return
		}
		s.clock.observe(f.Clock, time.Now())
		switch k := f.Kind.(type) {
		case *pb.ServerFrame_Ack:
			s.u.acked(k.Ack.Seq)
		case *pb.ServerFrame_Rewind:
			select {
			case s.rewinds <- k.Rewind:
			case <-ctx.Done():
			}
		case *pb.ServerFrame_Control:
			if s.u.cfg.Control != nil {
				s.u.cfg.Control(k.Control.DisabledModules)
			}
		case *pb.ServerFrame_Quarantined:
			s.u.counts.quarantined.Add(1)
			s.u.notice(k.Quarantined.Reason, k.Quarantined.Seq)
		case *pb.ServerFrame_Drain:
			select {
			case s.drain <- min(time.Duration(k.Drain.SpreadMs)*time.Millisecond, maxHint):
			default:
			}
		}
	}
}
