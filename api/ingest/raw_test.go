package ingest

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
)

// raw is a hand-driven agent that may misbehave.
type raw struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[pb.AgentFrame, pb.ServerFrame]
	clock  time.Duration // how far its clock is ahead
	epoch  uint64
}

func (r *rig) dial(cert *tls.Certificate) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.addr, grpc.WithTransportCredentials(credentials.NewTLS(r.clientTLS(cert))),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	must(r.t, err)
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

// connect opens a stream for a fresh node and waits for the welcome.
func (r *rig) connect(tn tenants.Tenant, name string, clock time.Duration) (*raw, tenants.NodeID) {
	r.t.Helper()
	id, node := r.enrol(tn, name)
	c := r.open(id.TLS())
	c.clock = clock
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{Facts: facts(name).Proto(), NextSeq: 1}}})
	w := c.recv().GetWelcome()
	if w == nil || w.Epoch == 0 {
		r.t.Fatalf("no welcome: %v", w)
	}
	c.epoch = w.Epoch
	return c, node
}

// open opens a stream without a word.
func (r *rig) open(cert *tls.Certificate) *raw {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	r.t.Cleanup(cancel)
	stream, err := pb.NewAgentClient(r.dial(cert)).Report(ctx)
	must(r.t, err)
	return &raw{t: r.t, stream: stream}
}

func (c *raw) send(f *pb.AgentFrame) {
	c.t.Helper()
	f.Clock = &pb.Clock{WallNs: time.Now().Add(c.clock).UnixNano()}
	if err := c.stream.Send(f); err != nil {
		_, err = c.stream.Recv()
		c.t.Fatalf("send: %v", err)
	}
}

// recv returns the next frame that is no control message.
func (c *raw) recv() *pb.ServerFrame {
	c.t.Helper()
	for {
		f, err := c.stream.Recv()
		if err != nil {
			c.t.Fatalf("recv: %v", err)
		}
		if f.GetControl() == nil {
			return f
		}
	}
}

// acked reads frames until everything up to seq is acknowledged, and returns
// the reasons of quarantine on the way.
func (c *raw) acked(seq uint64) (reasons []string) {
	c.t.Helper()
	for {
		f := c.recv()
		if q := f.GetQuarantined(); q != nil {
			reasons = append(reasons, q.Reason)
		}
		if rw := f.GetRewind(); rw != nil {
			c.t.Fatalf("an unexpected rewind: %v", rw)
		}
		if a := f.GetAck(); a != nil && a.Seq >= seq {
			return reasons
		}
	}
}

// fails reads to the end and returns the fault's reason.
func (c *raw) fails() (reason string, st *status.Status) {
	c.t.Helper()
	for {
		if _, err := c.stream.Recv(); err != nil {
			return faultOf(err).GetReason(), status.Convert(err)
		}
	}
}

func faultOf(err error) *pb.Fault {
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*pb.Fault); ok {
			return f
		}
	}
	return nil
}

func (c *raw) layout(l *inspector.Layout) {
	c.t.Helper()
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Layout{Layout: &pb.LayoutDef{Encoded: l.AppendBinary(nil)}}})
}

func (c *raw) report(seq uint64, w *pb.Window) {
	c.t.Helper()
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Report{Report: &pb.Report{Seq: seq, Body: &pb.Report_Window{Window: w}}}})
}

func (c *raw) window(seq uint64, w *inspector.Window) {
	c.t.Helper()
	c.report(seq, wire(w))
}

func wire(w *inspector.Window) *pb.Window {
	return &pb.Window{
		LayoutHash: w.Layout.Hash[:], StartNs: w.Start.UnixNano(), EndNs: w.End.UnixNano(),
		Packed: inspector.AppendValues(nil, w.Layout.Series, w.Values), Samples: w.Samples, Lost: w.Lost,
	}
}
