package ingest

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// Waits and bounds of one stream.
const (
	helloTimeout = 15 * time.Second
	callTimeout  = 10 * time.Second // one call of a service for one frame
	flushTimeout = 5 * time.Second  // after the agent closed its side
	drainGrace   = 30 * time.Second // to leave after the stream's age is over
	maxDigest    = 32               // bytes of a configuration's digest
	maxPending   = 32               // frames waiting to be sent, beside acknowledgements
)

// stream is one node's report stream. Its handler goroutine alone sends, its
// reader goroutine alone receives and judges; the batcher and the hub reach it
// through settled, broke, cut, control and drain, which do not block.
type stream struct {
	s       *Server
	scope   tenants.Scope
	node    tenants.NodeID
	remote  string // the connection: its task channel comes over the same one
	session fleet.SessionID
	grpc    grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]
	slots   chan struct{} // one taken a report between arrival and commit
	notify  chan struct{} // one token: there is something to send
	ended   chan struct{} // closed by cut
	gone    chan struct{} // closed by left
	failed  atomic.Bool

	// The reader's own.
	epoch     uint64
	expected  uint64
	rewinding bool // a Rewind is out; what comes before its start is ignored
	skew      skew
	asked     map[inspector.LayoutHash]int     // how often an unknown layout was asked for
	refused   map[inspector.LayoutHash]refusal // layouts that were refused
	layouts   int                              // definitions received

	mu       sync.Mutex
	acked    uint64
	ackDue   bool
	pending  []*pb.ServerFrame
	off      []string // modules last told to be off
	offKnown bool
	reason   string // why cut was called, or why the stream ended
	err      error
	echo     int64 // wall_ns of the agent's latest frame, and when it came
	echoAt   time.Time
}

// Report runs one stream to its end.
func (a agent) Report(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
	c, ok := callerOf(g.Context())
	if !ok {
		return errProtocol("no caller")
	}
	s := a.s
	st := &stream{
		s: s, scope: c.scope, node: c.node, remote: c.remote, grpc: g, slots: make(chan struct{}, s.cfg.MaxInFlight),
		notify: make(chan struct{}, 1), ended: make(chan struct{}), gone: make(chan struct{}),
	}
	first := make(chan *pb.AgentFrame, 1)
	opened := make(chan struct{})
	read := make(chan error, 1)
	s.readers.Go(func() { read <- st.read(g.Context(), first, opened) })

	late := time.NewTimer(helloTimeout)
	defer late.Stop()
	var hello *pb.AgentFrame
	select {
	case hello = <-first:
	case err := <-read:
		return err
	case <-late.C:
		return fault.New(fault.Deadline, "no_hello", "the stream did not begin with a hello in time")
	}
	reason, err := "refused", st.open(g.Context(), c, hello)
	if err == nil {
		if err = s.hub.add(st); err == nil {
			close(opened)
			reason, err = st.serve(c, read)
			s.hub.remove(st)
			st.left(reason)
		}
	}
	st.failed.Store(true) // queued reports of a stream that is gone need no commit
	if st.session != (fleet.SessionID{}) {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(g.Context()), callTimeout)
		defer cancel()
		if cerr := s.deps.Sessions.SessionClosed(cctx, c.scope, st.session, reason); cerr != nil {
			s.log.Warn("cannot record the end of a stream", "node", c.node, "error", cerr)
		}
	}
	return err
}

// open takes the hello and answers with a welcome.
func (st *stream) open(ctx context.Context, c caller, f *pb.AgentFrame) error {
	h := f.GetHello()
	if h == nil {
		return errProtocol("the first frame is no hello")
	}
	s, facts := st.s, factsOf(h.Facts)
	octx, opening := context.WithTimeout(ctx, callTimeout)
	defer opening()
	opened, err := s.deps.Sessions.SessionOpened(octx, st.scope, fleet.SessionFacts{
		Remote: hostOf(c.remote), MachineID: facts.MachineID, BootID: facts.BootID, AgentVersion: facts.AgentVersion,
		Kernel: facts.Kernel, OS: facts.OS, Arch: facts.Arch, StartedNS: h.StartedAtNs, CertNotAfter: c.cert.NotAfter,
		ConfigDigest: hex.EncodeToString(h.ConfigDigest[:min(len(h.ConfigDigest), maxDigest)]),
	})
	if err != nil {
		return retryable{err, retryAfter()}
	}
	st.session = opened.ID
	// Two lives count in one epoch: numbers of its own keep this one's data
	// apart from the other's.
	own := opened.Duplicate
	if opened.Rival {
		dead, err := st.park(ctx)
		if err != nil {
			return err
		}
		own = own || !dead
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.deps.Nodes.RecordFacts(ctx, st.scope, facts); err != nil {
		return retryable{err, retryAfter()}
	}
	pos, err := st.position(ctx, h, own, opened.Changed)
	if err != nil {
		return retryable{err, retryAfter()}
	}
	st.epoch, st.acked, st.expected = pos.Epoch, pos.HighSeq, pos.HighSeq+1
	if pos.Epoch == h.Epoch {
		st.expected = max(st.expected, h.NextSeq)
		if h.NextSeq > 0 && h.NextSeq <= pos.HighSeq {
			s.count.settled.Add(pos.HighSeq - h.NextSeq + 1)
		}
	}
	welcome := &pb.Welcome{
		Epoch: pos.Epoch, HighSeq: pos.HighSeq, WindowMs: tenants.WindowLength.Milliseconds(),
		MaxInFlight: uint32(s.cfg.MaxInFlight), MaxMessageBytes: tenants.MaxAgentMessage, CertExpiresNs: c.cert.NotAfter.UnixNano(),
	}
	if welcome.NeedLayouts, err = st.need(ctx, h.Layouts); err != nil {
		return retryable{err, retryAfter()}
	}
	st.heard(f)
	st.push(&pb.ServerFrame{Kind: &pb.ServerFrame_Welcome{Welcome: welcome}})
	st.control(opened.Off)
	return nil
}

// serve sends until the stream ends and says why.
func (st *stream) serve(c caller, read <-chan error) (reason string, err error) {
	s := st.s
	expiry := time.NewTimer(c.cert.NotAfter.Sub(s.cfg.Now()))
	defer expiry.Stop()
	age := time.NewTimer(s.cfg.MaxAge*3/4 + rand.N(s.cfg.MaxAge/2))
	defer age.Stop()
	var grace <-chan time.Time
	for {
		select {
		case <-st.notify:
			if err := st.flush(); err != nil {
				return "broken", err
			}
		case err := <-read:
			if errors.Is(err, io.EOF) {
				return "eof", st.finish()
			}
			if status.Code(err) == codes.Canceled || status.Code(err) == codes.Unavailable {
				return "broken", err
			}
			return "refused", err
		case <-st.ended:
			st.mu.Lock()
			reason := st.reason
			st.mu.Unlock()
			return reason, st.cause()
		case <-expiry.C:
			s.count.cut.Add(1)
			return "expired", fault.New(fault.Unauthorized, "certificate_expired", "the node's certificate has expired").
				Do("the agent renews in time when its clock and connection are sound; else enrol the machine anew")
		case <-age.C:
			st.drain(0)
			grace = time.After(drainGrace)
		case <-grace:
			return "drained", fault.New(fault.Unavailable, "stream_age", "the stream has reached its age").Do("connect again")
		}
	}
}

// finish lets what has arrived commit and acknowledges it, after the agent
// closed its side.
func (st *stream) finish() error {
	deadline := time.NewTimer(flushTimeout)
	defer deadline.Stop()
	for {
		if err := st.flush(); err != nil || len(st.slots) == 0 && !st.due() {
			return err
		}
		select {
		case <-st.notify:
		case <-st.ended:
			return nil
		case <-deadline.C:
			return nil
		}
	}
}

func (st *stream) due() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.ackDue || len(st.pending) > 0
}

// flush sends what waits. Acknowledgements fold into the latest one.
func (st *stream) flush() error {
	st.mu.Lock()
	frames := st.pending
	st.pending = nil
	if st.ackDue {
		st.ackDue = false
		frames = append(frames, &pb.ServerFrame{Kind: &pb.ServerFrame_Ack{Ack: &pb.Ack{Seq: st.acked}}})
	}
	echo, at := st.echo, st.echoAt
	st.mu.Unlock()
	for _, f := range frames {
		f.Clock = &pb.Clock{WallNs: st.s.cfg.Now().UnixNano(), EchoNs: echo, HeldNs: int64(time.Since(at))}
		if err := st.grpc.Send(f); err != nil {
			return err
		}
	}
	return nil
}

func (st *stream) wake() {
	select {
	case st.notify <- struct{}{}:
	default:
	}
}

// push queues a frame. A peer that does not take its frames in loses notices,
// never acknowledgements.
func (st *stream) push(f *pb.ServerFrame) {
	st.mu.Lock()
	if len(st.pending) < maxPending {
		st.pending = append(st.pending, f)
	}
	st.mu.Unlock()
	st.wake()
}

// settled is the batcher's word that a report is final.
func (st *stream) settled(o metrics.Outcome) {
	<-st.slots
	c := &st.s.count
	switch o.Status {
	case metrics.Stored, metrics.Expired:
		c.stored.Add(1)
	case metrics.Replayed:
		c.replays.Add(1)
	case metrics.Quarantined:
		c.quarantined.Add(1)
		st.push(&pb.ServerFrame{Kind: &pb.ServerFrame_Quarantined{Quarantined: &pb.Quarantined{Seq: o.Seq, Reason: o.Reason}}})
	}
	st.mu.Lock()
	st.acked, st.ackDue = max(st.acked, o.Seq), true
	st.mu.Unlock()
	st.wake()
}

// broke is the batcher's word that a report was not stored.
func (st *stream) broke(err error) {
	<-st.slots
	st.cut("not_stored", err)
}

func (st *stream) broken() bool { return st.failed.Load() }

// cut ends the stream with a status; the first reason counts.
func (st *stream) cut(reason string, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.reason == "" {
		st.reason, st.err = reason, err
		st.failed.Store(true)
		close(st.ended)
	}
}

// cause is the error of cut.
func (st *stream) cause() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return retryable{st.err, retryAfter()}
}

// left says that the stream is over; its task channel ends too.
func (st *stream) left(reason string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.reason == "" {
		st.reason = reason
	}
	close(st.gone)
}

// planned reports, of a stream that is over, whether its node goes on on
// another one or was asked to leave.
func (st *stream) planned() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch st.reason {
	case "eof", "drained", "replaced", "stopping":
		return true
	}
	return false
}

// control tells the node which modules are off, when it does not know yet.
func (st *stream) control(off []string) {
	st.mu.Lock()
	same := st.offKnown && slices.Equal(st.off, off)
	st.off, st.offKnown = off, true
	st.mu.Unlock()
	if !same {
		st.push(&pb.ServerFrame{Kind: &pb.ServerFrame_Control{Control: &pb.Control{DisabledModules: off}}})
	}
}

// drain asks the node to connect again within spread.
func (st *stream) drain(spread time.Duration) {
	st.s.count.drained.Add(1)
	st.push(&pb.ServerFrame{Kind: &pb.ServerFrame_Drain{Drain: &pb.Drain{SpreadMs: uint32(spread.Milliseconds())}}})
}
