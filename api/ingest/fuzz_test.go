package ingest

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// memory is a Windows and Sessions that decodes as the real one does and
// keeps nothing.
type memory struct {
	store
	layouts map[inspector.LayoutHash]*inspector.Layout
}

func (m *memory) Skip(context.Context, tenants.Scope, uint64, uint64) error { return nil }

func (m *memory) OpenStream(context.Context, tenants.Scope, uint64, uint64) (metrics.Position, error) {
	return metrics.Position{Epoch: 1}, nil
}

func (m *memory) PutLayout(_ context.Context, _ tenants.Scope, b []byte) (inspector.LayoutHash, error) {
	l, err := inspector.DecodeLayout(b)
	if err == nil {
		err = l.Check()
	}
	if err != nil {
		return inspector.LayoutHash{}, fault.New(fault.Invalid, "bad_layout", err.Error())
	}
	m.layouts[l.Hash] = l
	return l.Hash, nil
}

func (m *memory) UnknownLayouts(_ context.Context, _ tenants.Scope, h []inspector.LayoutHash) ([]inspector.LayoutHash, error) {
	return h, nil
}

func (m *memory) Check(_ context.Context, _ tenants.Scope, r metrics.Report, _ time.Duration) (metrics.Checked, error) {
	l := m.layouts[r.Layout]
	if l == nil {
		return metrics.Checked{}, fault.New(fault.Precondition, "unknown_layout", "")
	}
	if _, _, err := inspector.DecodeValues(r.Packed, l.Series); err != nil {
		return metrics.Checked{}, fault.New(fault.Invalid, "malformed", err.Error())
	}
	return metrics.Checked{}, nil
}

func (m *memory) Advance(tenants.Scope, uint64, uint64) (metrics.Checked, error) {
	return metrics.Checked{}, nil
}

func (m *memory) SessionOpened(context.Context, tenants.Scope, fleet.SessionFacts) (fleet.Opened, error) {
	return fleet.Opened{}, nil
}

func (m *memory) SessionClosed(context.Context, tenants.Scope, fleet.SessionID, string) error {
	return nil
}
func (m *memory) Rivals(context.Context, tenants.Scope, fleet.SessionID) (fleet.Rivals, error) {
	return fleet.Rivals{}, nil
}

func (m *memory) SessionAdmitted(context.Context, tenants.Scope, fleet.SessionID) error { return nil }

func (m *memory) Seen(tenants.Scope, fleet.SessionID, fleet.Sighting) {}
func (m *memory) RecordCapabilities(context.Context, tenants.Scope, []inspector.Capability) error {
	return nil
}

func (m *memory) Quarantine(context.Context, tenants.Scope, string, string, int64) error { return nil }

func (m *memory) SwitchedOff(context.Context, map[tenants.TenantID][]tenants.NodeID) (map[tenants.NodeID][]string, error) {
	return nil, nil
}

// noStream is the transport of a stream that nobody reads.
type noStream struct {
	grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]
	ctx context.Context
}

func (n noStream) Context() context.Context { return n.ctx }

// FuzzFrame gives a stream arbitrary frames: it may refuse them or end, and
// keeps its sequence and its bounds.
func FuzzFrame(f *testing.F) {
	seed := func(frames ...*pb.AgentFrame) {
		var b []byte
		for _, fr := range frames {
			raw, _ := proto.Marshal(fr)
			b = append(b, byte(len(raw)), byte(len(raw)>>8))
			b = append(b, raw...)
		}
		f.Add(b)
	}
	w := func(seq uint64, p *pb.Window) *pb.AgentFrame {
		return &pb.AgentFrame{Clock: &pb.Clock{WallNs: 1}, Kind: &pb.AgentFrame_Report{Report: &pb.Report{Seq: seq, Body: &pb.Report_Window{Window: p}}}}
	}
	layout := &pb.AgentFrame{Kind: &pb.AgentFrame_Layout{Layout: &pb.LayoutDef{Encoded: testLayout.AppendBinary(nil)}}}
	good := wire(windowAt(testLayout, time.Unix(1_800_000_000, 0), 7))
	seed(layout, w(1, good), w(3, good), w(2, good))
	seed(w(1, good), layout, w(1, &pb.Window{LayoutHash: []byte("x")}))
	seed(&pb.AgentFrame{Kind: &pb.AgentFrame_Report{Report: &pb.Report{Seq: 1, Body: &pb.Report_Loss{Loss: &pb.Loss{Items: []*pb.LostComponent{{Component: []byte("\xff"), FromNs: -1 << 63}}}}}}},
		&pb.AgentFrame{Kind: &pb.AgentFrame_Report{Report: &pb.Report{Seq: 2, Body: &pb.Report_Capabilities{Capabilities: &pb.Capabilities{Items: []*pb.Capability{nil, {}}}}}}})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &memory{layouts: map[inspector.LayoutHash]*inspector.Layout{}}
		s := New(Config{QueueItems: 64, Writers: 1, MaxInFlight: 64}, Deps{Sessions: m, Windows: m}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		st := &stream{s: s, node: tenants.NewNodeID(), grpc: noStream{ctx: t.Context()}, epoch: 1, expected: 1,
			slots: make(chan struct{}, 64), notify: make(chan struct{}, 1), ended: make(chan struct{})}
		for n := 0; len(b) >= 2 && n < 60; n++ {
			size := min(int(b[0])|int(b[1])<<8, len(b)-2)
			var fr pb.AgentFrame
			if proto.Unmarshal(b[2:2+size], &fr) == nil {
				before := st.expected
				err := st.handle(t.Context(), &fr)
				if st.expected < before || st.expected > before+1 {
					t.Fatalf("expected went from %d to %d", before, st.expected)
				}
				if err != nil {
					break
				}
			}
			b = b[2+size:]
		}
		if len(st.pending) > maxPending || len(st.refused) > maxRefused || len(st.asked) > maxHelloLayouts+1 || uint64(len(st.slots)) != st.expected-1 {
			t.Fatalf("bounds: %d pending, %d refused, %d asked, %d slots for %d", len(st.pending), len(st.refused), len(st.asked), len(st.slots), st.expected)
		}
	})
}
