package ingest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// Bounds of what one stream may make the server keep or do.
const (
	maxHelloLayouts = 128  // hashes looked up at once
	maxLayoutDefs   = 1024 // definitions a stream may send
	maxRefused      = 128  // refused layouts remembered
	refusedFor      = 24 * time.Hour
	exhaustedFor    = 10 * time.Minute // then a layout that was one too many is asked for again
	maxAsks         = 3                // times one unknown layout is asked for
	maxCapabilities = 512
	maxReason       = 300 // bytes of a capability's reason
	maxCounters     = 15  // loss counters handed on
)

// read takes frames until the stream ends. It hands the first one over and
// waits for opened before it goes on.
func (st *stream) read(ctx context.Context, first chan<- *pb.AgentFrame, opened <-chan struct{}) error {
	f, err := st.grpc.Recv()
	if err != nil {
		return st.s.unread(st.scope, st.node, err)
	}
	first <- f
	select {
	case <-opened:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		f, err := st.grpc.Recv()
		if err != nil {
			return st.s.unread(st.scope, st.node, err)
		}
		if st.failed.Load() {
			return status.Error(codes.Canceled, "the stream was ended")
		}
		if err := st.handle(ctx, f); err != nil {
			return err
		}
	}
}

// unread counts what gRPC itself refused. Its own status is on its way to the
// peer already.
func (s *Server) unread(scope tenants.Scope, node tenants.NodeID, err error) error {
	switch status.Code(err) {
	case codes.ResourceExhausted:
		s.count.oversized.Add(1)
		s.tally.add(scope, node, "oversized", status.Convert(err).Message())
	case codes.Internal, codes.InvalidArgument:
		s.tally.add(scope, node, "undecodable", status.Convert(err).Message())
	}
	return err
}

// heard takes the clock stamp of a frame.
func (st *stream) heard(f *pb.AgentFrame) {
	now := st.s.cfg.Now()
	st.skew.observe(f.Clock, now)
	if f.Clock != nil {
		st.mu.Lock()
		st.echo, st.echoAt = f.Clock.WallNs, time.Now()
		st.mu.Unlock()
	}
	st.s.deps.Sessions.Seen(st.scope, st.session, st.sighting())
}

func (st *stream) sighting() fleet.Sighting {
	if !st.skew.known {
		return fleet.Sighting{}
	}
	v := st.skew.value
	return fleet.Sighting{Skew: &v}
}

// handle judges one frame. An error ends the stream.
func (st *stream) handle(ctx context.Context, f *pb.AgentFrame) error {
	st.heard(f)
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch k := f.Kind.(type) {
	case *pb.AgentFrame_Report:
		return st.report(ctx, k.Report)
	case *pb.AgentFrame_Layout:
		return st.layout(ctx, k.Layout.Encoded)
	case *pb.AgentFrame_Ping:
		st.push(&pb.ServerFrame{Kind: &pb.ServerFrame_Pong{Pong: &pb.Pong{}}})
		return nil
	case *pb.AgentFrame_Hello:
		return errProtocol("a second hello")
	}
	st.s.tally.add(st.scope, st.node, "unknown_frame", "")
	return nil // of a newer agent
}

// report keeps the sequence and hands the body on.
func (st *stream) report(ctx context.Context, r *pb.Report) error {
	c := &st.s.count
	c.reports.Add(1)
	switch {
	case r.Seq < st.expected: // committed, or on its way to it
		c.replays.Add(1)
		st.mu.Lock()
		st.ackDue = true
		st.mu.Unlock()
		st.wake()
		return nil
	case r.Seq > st.expected:
		c.gaps.Add(1)
		if !st.rewinding {
			st.rewind("gap")
		}
		return nil
	}
	st.rewinding = false
	switch b := r.Body.(type) {
	case *pb.Report_Window:
		return st.window(ctx, r.Seq, b.Window)
	case *pb.Report_Capabilities:
		return st.capabilities(ctx, r.Seq, b.Capabilities)
	case *pb.Report_Loss:
		return st.loss(ctx, r.Seq, b.Loss)
	case *pb.Report_Event:
		return st.event(ctx, r.Seq, b.Event)
	}
	return st.refuse(ctx, r.Seq, "unknown_report", "a body that this server does not know")
}

// rewind asks for everything from the expected report on.
func (st *stream) rewind(reason string, need ...inspector.LayoutHash) {
	st.rewinding = true
	st.s.count.rewinds.Add(1)
	r := &pb.Rewind{FromSeq: st.expected, Reason: reason}
	for _, h := range need {
		r.NeedLayouts = append(r.NeedLayouts, h[:])
	}
	st.push(&pb.ServerFrame{Kind: &pb.ServerFrame_Rewind{Rewind: r}})
}

func (st *stream) window(ctx context.Context, seq uint64, w *pb.Window) error {
	if len(w.LayoutHash) != sha256.Size {
		return st.refuse(ctx, seq, "malformed", fmt.Sprintf("a layout hash of %d bytes", len(w.LayoutHash)))
	}
	hash := inspector.LayoutHash(w.LayoutHash)
	if r, bad := st.refused[hash]; bad && time.Now().Before(r.until) {
		return st.refuse(ctx, seq, r.reason, "a window of refused layout "+hash.String())
	}
	checked, err := st.s.deps.Windows.Check(ctx, st.scope, metrics.Report{
		Epoch: st.epoch, Seq: seq, Layout: hash, Start: time.Unix(0, w.StartNs), End: time.Unix(0, w.EndNs),
		Packed: w.Packed, Samples: w.Samples, Lost: w.Lost, Truncated: w.Truncated,
	}, st.skew.value)
	if err == nil {
		delete(st.asked, hash)
		return st.submit(ctx, checked)
	}
	switch f := fault.Of(err); {
	case f.Reason == "unknown_layout":
		if st.asked == nil {
			st.asked = map[inspector.LayoutHash]int{}
		}
		if st.asked[hash]++; st.asked[hash] > maxAsks || len(st.asked) > maxHelloLayouts {
			delete(st.asked, hash)
			return st.refuse(ctx, seq, "unknown_layout", "never told: "+hash.String())
		}
		st.s.count.layoutAsks.Add(1)
		st.rewind("unknown_layout", hash)
		return nil
	case f.Kind == fault.Invalid:
		return st.refuse(ctx, seq, f.Reason, f.Msg)
	}
	return err
}

// refuse keeps a report out: its number is consumed, the node is told, and it
// is counted under the reason.
func (st *stream) refuse(ctx context.Context, seq uint64, reason, example string) error {
	st.s.tally.add(st.scope, st.node, reason, example)
	st.push(&pb.ServerFrame{Kind: &pb.ServerFrame_Quarantined{Quarantined: &pb.Quarantined{Seq: seq, Reason: reason}}})
	return st.advance(ctx, seq)
}

func (st *stream) advance(ctx context.Context, seq uint64) error {
	checked, err := st.s.deps.Windows.Advance(st.scope, st.epoch, seq)
	if err != nil {
		return err
	}
	return st.submit(ctx, checked)
}

// submit hands a report to the batcher and expects the next. It waits for
// room in the stream's and the server's bounds, however long the database
// takes: that is the back-pressure, and the end of the stream ends it.
func (st *stream) submit(_ context.Context, checked metrics.Checked) error {
	ctx := st.grpc.Context()
	select {
	case st.slots <- struct{}{}:
	case <-st.ended:
		return status.Error(codes.Canceled, "the stream was ended")
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := st.s.batch.submit(ctx, st.node, item{checked, st}); err != nil {
		<-st.slots
		return err
	}
	st.expected++
	return nil
}

// refusal says why a layout was refused, and until when that holds.
type refusal struct {
	reason string
	until  time.Time
}

// layout takes a definition in. A refused one is remembered, so that windows
// which use it are kept out instead of asked for again.
func (st *stream) layout(ctx context.Context, encoded []byte) error {
	if st.layouts++; st.layouts > maxLayoutDefs {
		st.s.tally.add(st.scope, st.node, "too_many_layouts", "")
		return nil
	}
	hash := inspector.LayoutHash(sha256.Sum256(encoded))
	_, err := st.s.deps.Windows.PutLayout(ctx, st.scope, encoded)
	if err == nil {
		delete(st.refused, hash)
		return nil
	}
	f := fault.Of(err)
	again := refusedFor
	switch {
	case f.Kind == fault.Invalid, f.Reason == "layout_collision": // will not change
	case f.Kind == fault.Exhausted: // of this node's own; its other layouts and windows go on
		again = exhaustedFor
	default:
		return err
	}
	if st.refused == nil {
		st.refused = map[inspector.LayoutHash]refusal{}
	}
	now := time.Now()
	maps.DeleteFunc(st.refused, func(_ inspector.LayoutHash, r refusal) bool { return !now.Before(r.until) })
	if len(st.refused) < maxRefused {
		st.refused[hash] = refusal{f.Reason, now.Add(again)}
	}
	st.s.tally.add(st.scope, st.node, f.Reason, f.Msg)
	return nil
}

// need returns which of the hashes of a hello are to be asked for.
func (st *stream) need(ctx context.Context, hashes [][]byte) ([][]byte, error) {
	var ask []inspector.LayoutHash
	for _, h := range hashes[:min(len(hashes), maxHelloLayouts)] {
		if len(h) == sha256.Size {
			ask = append(ask, inspector.LayoutHash(h))
		}
	}
	if len(ask) == 0 {
		return nil, nil
	}
	unknown, err := st.s.deps.Windows.UnknownLayouts(ctx, st.scope, ask)
	var out [][]byte
	for _, h := range unknown {
		out = append(out, h[:])
	}
	return out, err
}

func (st *stream) capabilities(ctx context.Context, seq uint64, m *pb.Capabilities) error {
	if len(m.Items) > maxCapabilities {
		return st.refuse(ctx, seq, "too_many_capabilities", fmt.Sprintf("%d capabilities", len(m.Items)))
	}
	caps := make([]inspector.Capability, 0, len(m.Items))
	for _, it := range m.Items {
		c := inspector.Capability{Level: inspector.Level(it.Level), Source: inspector.Source(it.Source)}
		c.Component, _ = inspector.CleanLabel(string(it.Component))
		c.Signal, _ = inspector.CleanLabel(string(it.Signal))
		c.Reason = inspector.CleanText(string(it.Reason[:min(len(it.Reason), maxReason)]))
		known := c.Level == inspector.Full || c.Level == inspector.Degraded || c.Level == inspector.Off
		if !known || c.Component == "" || c.Signal == "" ||
			c.Source != inspector.SourceBPF && c.Source != inspector.SourceProc && c.Source != inspector.SourceNone {
			return st.refuse(ctx, seq, "bad_capability", fmt.Sprintf("%.40s %.40s %.20q %.20q", c.Component, c.Signal, it.Level, it.Source))
		}
		caps = append(caps, c)
	}
	if err := st.s.deps.Sessions.RecordCapabilities(ctx, st.scope, caps); err != nil {
		if f := fault.Of(err); f.Kind == fault.Invalid {
			return st.refuse(ctx, seq, f.Reason, f.Msg)
		}
		return err
	}
	return st.advance(ctx, seq)
}

// loss hands the node's own loss counters on: per component how many windows
// since its start, and of the latest spell from when to when.
func (st *stream) loss(ctx context.Context, seq uint64, m *pb.Loss) error {
	counters := map[string]uint64{}
	for _, it := range m.Items {
		name, _ := inspector.CleanLabel(string(it.Component[:min(len(it.Component), 64)]))
		if name == "" || len(counters) >= maxCounters {
			continue
		}
		counters["lost_windows_"+name] = it.Windows
		counters["lost_from_unix_s_"+name] = uint64(max(it.FromNs, 0)) / 1e9
		counters["lost_to_unix_s_"+name] = uint64(max(it.ToNs, 0)) / 1e9
	}
	g := st.sighting()
	g.Counters = counters
	st.s.deps.Sessions.Seen(st.scope, st.session, g)
	return st.advance(ctx, seq)
}
