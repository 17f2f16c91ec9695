package ingest

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/uplink"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// witness is a node of the other tenant that must not notice anything.
type witness struct {
	r    *rig
	u    *uplink.Uplink
	node tenants.NodeID
	n    int
}

func (r *rig) witness() *witness {
	r.t.Helper()
	u, node := r.agent(r.globex, "witness")
	w := &witness{r: r, u: u, node: node}
	w.fine()
	return w
}

// fine pushes one more window and wants all of them stored, on one connection.
func (w *witness) fine() {
	w.r.t.Helper()
	w.u.Push(window(w.n))
	w.n++
	w.r.eventually("the other tenant's node is served", func() bool { return w.u.Stats().Acked == uint64(w.n) })
	w.r.wantRows(w.node, w.n)
	if st := w.u.Stats(); st.Connects != 1 || st.Quarantined != 0 {
		w.r.t.Errorf("the other tenant's node noticed: %+v", st)
	}
}

func TestSequence(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	c, node := r.connect(r.acme, "web-1", 0)
	c.layout(testLayout)
	c.window(1, window(0))
	c.window(2, window(1))
	c.acked(2)
	c.window(1, window(0)) // a replay is acknowledged again, silently
	c.acked(2)
	c.window(5, window(4)) // a gap is asked for once, however much follows
	c.window(6, window(5))
	if rw := c.recv().GetRewind(); rw == nil || rw.FromSeq != 3 || len(rw.NeedLayouts) != 0 {
		t.Fatalf("after a gap: %v, want a rewind to 3", rw)
	}
	for i := 2; i < 6; i++ {
		c.window(uint64(i+1), window(i))
	}
	c.acked(6)
	r.wantRows(node, 6)
	if st := r.srv.Stats(); st.Replays != 1 || st.Gaps != 2 {
		t.Errorf("replays %d, gaps %d", st.Replays, st.Gaps)
	}
	other.fine()
}

// Replays over streams are refused by the stored position.
func TestReplayOnANewStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	for round := range 3 {
		c := r.open(id.TLS())
		h := &pb.Hello{Facts: facts("web-1").Proto(), NextSeq: 1}
		if round > 0 {
			h.Epoch = 1
		}
		c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: h}})
		if w := c.recv().GetWelcome(); w.GetEpoch() != 1 || w.GetHighSeq() != uint64(3*min(round, 1)) {
			t.Fatalf("round %d: welcome %v", round, w)
		}
		c.layout(testLayout)
		for i := range 3 {
			c.window(uint64(i+1), window(i))
		}
		c.acked(3)
		must(t, c.stream.CloseSend())
	}
	r.wantRows(node, 3)
	other.fine()
}

func TestUnknownLayout(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	c, node := r.connect(r.acme, "web-1", 0)
	for range maxAsks { // it is asked for, and never told
		c.window(1, window(0))
		rw := c.recv().GetRewind()
		if rw == nil || rw.FromSeq != 1 || len(rw.NeedLayouts) != 1 || inspector.LayoutHash(rw.NeedLayouts[0]) != testLayout.Hash {
			t.Fatalf("rewind: %v", rw)
		}
	}
	c.window(1, window(0))
	if got := c.acked(1); !slices.Equal(got, []string{"unknown_layout"}) {
		t.Errorf("reasons: %v", got)
	}
	c.layout(testLayout)
	c.window(2, windowAt(testLayout, time.Now(), 1))
	c.acked(2)
	r.wantRows(node, 1)
	r.eventually("the refusal is counted", func() bool { return r.quarantine(r.acme, node, "unknown_layout") == 1 })
	other.fine()
}

func TestBadLayouts(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	c, node := r.connect(r.acme, "web-1", 0)
	c.layout(testLayout)
	label := func(v string) *inspector.Layout {
		return inspector.NewLayout("network", []inspector.Series{{Metric: "network.drops", Kind: inspector.Delta, Unit: inspector.Count,
			Labels: []inspector.Label{{Key: "reason", Value: v}}}})
	}
	seq := uint64(0)
	for name, l := range map[string]*inspector.Layout{
		"400 KB label": label(long(400 << 10)), "bad UTF-8": label("\xfftest"),
		"kind": inspector.NewLayout("network", []inspector.Series{{Metric: "network.drops", Kind: 9, Unit: inspector.Count}}),
	} {
		c.layout(l)
		seq++
		w := wire(windowAt(testLayout, time.Now(), 1))
		w.LayoutHash = l.Hash[:]
		c.report(seq, w)
		if got := c.acked(seq); !slices.Equal(got, []string{"bad_layout"}) {
			t.Errorf("%s: reasons %v", name, got)
		}
	}
	c.window(seq+1, windowAt(testLayout, time.Now(), 1))
	c.acked(seq + 1)
	r.wantRows(node, 1)
	r.eventually("the refusals are counted", func() bool { return r.quarantine(r.acme, node, "bad_layout") == 6 })
	other.fine()
}

// A node that makes too many layouts loses what uses them and nothing else: its
// stream goes on, and the node's page says what was kept out.
func TestTooManyLayouts(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	c, node := r.connect(r.acme, "web-1", 0)
	c.layout(testLayout)
	var last *inspector.Layout
	for i := range 300 {
		last = inspector.NewLayout("storage", []inspector.Series{{Metric: "storage.reads", Kind: inspector.Delta, Unit: inspector.Count,
			Labels: []inspector.Label{{Key: "device", Value: strconv.Itoa(i)}}}})
		c.layout(last)
	}
	c.window(1, windowAt(testLayout, time.Now(), 1))
	c.window(2, windowAt(last, time.Now(), 1))
	c.window(3, windowAt(testLayout, time.Now(), 2))
	if got := c.acked(3); !slices.Equal(got, []string{"too_many_layouts"}) {
		t.Errorf("reasons %v", got)
	}
	r.eventually("both good windows are stored", func() bool { return slices.Equal(opened(r.rows(node)), []uint64{1, 2}) })
	r.eventually("the refusals are counted", func() bool { return r.quarantine(r.acme, node, "too_many_layouts") == 300-239+1 })
	other.fine()
}

func TestBadWindows(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	c, node := r.connect(r.acme, "web-1", 0)
	c.layout(testLayout)
	now := time.Now()
	cut := wire(windowAt(testLayout, now, 1))
	cut.Packed = cut.Packed[:len(cut.Packed)-1]
	short := wire(windowAt(testLayout, now, 1))
	short.LayoutHash = short.LayoutHash[:5]
	cases := []struct {
		name, reason string
		w            *pb.Window
	}{
		{"27 h old", metrics.ReasonTooOld, wire(windowAt(testLayout, now.Add(-27*time.Hour), 1))},
		{"2 h ahead", metrics.ReasonFuture, wire(windowAt(testLayout, now.Add(2*time.Hour), 1))},
		{"cut short", metrics.ReasonMalformed, cut},
		{"no hash", "malformed", short},
		{"empty", "malformed", &pb.Window{}},
		{"far past", metrics.ReasonTooOld, &pb.Window{LayoutHash: testLayout.Hash[:], StartNs: math.MinInt64, EndNs: math.MinInt64 + 1e10, Packed: cut.Packed}},
		{"far future", metrics.ReasonFuture, &pb.Window{LayoutHash: testLayout.Hash[:], StartNs: math.MaxInt64 - 1e10, EndNs: math.MaxInt64, Packed: wire(windowAt(testLayout, now, 1)).Packed}},
		{"backwards", metrics.ReasonSpan, &pb.Window{LayoutHash: testLayout.Hash[:], StartNs: now.UnixNano(), EndNs: now.UnixNano() - 1e10, Packed: wire(windowAt(testLayout, now, 1)).Packed}},
	}
	want := map[string]int64{}
	for i, tc := range cases {
		c.report(uint64(i+1), tc.w)
		want[tc.reason]++
		if got := c.acked(uint64(i + 1)); !slices.Equal(got, []string{tc.reason}) {
			t.Errorf("%s: reasons %v, want %s", tc.name, got, tc.reason)
		}
	}
	// A report without a body, and one of a newer agent.
	next := uint64(len(cases) + 1)
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Report{Report: &pb.Report{Seq: next}}})
	if got := c.acked(next); !slices.Equal(got, []string{"unknown_report"}) {
		t.Errorf("no body: reasons %v", got)
	}
	c.send(&pb.AgentFrame{})
	// One hour old after an outage is fine; a point out of range goes alone.
	c.window(next+1, windowAt(testLayout, now.Add(-time.Hour), 1))
	c.window(next+2, windowAt(testLayout, now, 1<<63))
	if got := c.acked(next + 2); len(got) != 0 {
		t.Errorf("good windows: reasons %v", got)
	}
	r.eventually("both are stored", func() bool { return slices.Equal(opened(r.rows(node)), []uint64{1, 0}) })
	d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
	must(t, err)
	if d.Loss.RefusedPoints != 2 {
		t.Errorf("refused points: %d, want 2", d.Loss.RefusedPoints)
	}
	for reason, n := range want {
		r.eventually("counted: "+reason, func() bool { return r.quarantine(r.acme, node, reason) == n })
	}
	r.eventually("the unknown frame is counted", func() bool { return r.quarantine(r.acme, node, "unknown_frame") == 1 })
	other.fine()
}

func TestOversizedMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	c, node := r.connect(r.acme, "web-1", 0)
	_ = c.stream.Send(&pb.AgentFrame{Kind: &pb.AgentFrame_Layout{Layout: &pb.LayoutDef{Encoded: make([]byte, 5<<20)}}})
	if _, st := c.fails(); st.Code() != codes.ResourceExhausted { // gRPC answers by itself
		t.Errorf("ended with %v", st)
	}
	r.eventually("it is counted", func() bool { return r.quarantine(r.acme, node, "oversized") == 1 })
	if r.srv.Stats().Oversized != 1 {
		t.Errorf("oversized: %d", r.srv.Stats().Oversized)
	}
	other.fine()
}

func TestTextOfNodesIsCleaned(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	c := r.open(id.TLS())
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{NextSeq: 1, Facts: &pb.NodeFacts{
		MachineId: []byte("\xff\xfe\x00"), Kernel: []byte(long(400 << 10)), Os: []byte("x\u202egpj"), AgentVersion: []byte("1\n2"),
	}, Layouts: [][]byte{[]byte("short"), make([]byte, 32)}, DisabledModules: [][]byte{[]byte("\xff")}}}})
	if w := c.recv().GetWelcome(); len(w.GetNeedLayouts()) != 1 {
		t.Errorf("welcome: %v", w)
	}
	caps := &pb.Capabilities{Items: []*pb.Capability{{Component: []byte("network"), Signal: []byte("tcp"), Level: []byte("off"), Reason: []byte("\xfftest" + long(1<<20))}}}
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Report{Report: &pb.Report{Seq: 1, Body: &pb.Report_Capabilities{Capabilities: caps}}}})
	if got := c.acked(1); len(got) != 0 {
		t.Errorf("reasons: %v", got)
	}
	caps.Items[0].Level = []byte("\xff")
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Report{Report: &pb.Report{Seq: 2, Body: &pb.Report_Capabilities{Capabilities: caps}}}})
	if got := c.acked(2); !slices.Equal(got, []string{"bad_capability"}) {
		t.Errorf("reasons: %v", got)
	}
	d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
	must(t, err)
	if len(d.Capabilities) != 1 || len(d.Capabilities[0].Reason) > 600 || d.Capabilities[0].Reason[:9] != "\uFFFD\\xffte" {
		t.Errorf("capabilities: %.200v", d.Capabilities)
	}
	if len(d.Kernel) > 128 || d.AgentVersion != `1\u000a2` {
		t.Errorf("facts: %.40q, %q", d.Kernel, d.AgentVersion)
	}
	other.fine()
}

func TestSkew(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	behind, nb := r.connect(r.acme, "behind", -49*time.Second)
	far, nf := r.connect(r.acme, "far", 2*time.Hour)
	for _, c := range []*raw{behind, far} {
		c.layout(testLayout)
		c.window(1, windowAt(testLayout, time.Now().Add(c.clock), 1))
	}
	if got := behind.acked(1); len(got) != 0 {
		t.Errorf("49 s behind: %v", got)
	}
	if got := far.acked(1); !slices.Equal(got, []string{metrics.ReasonSkew}) {
		t.Errorf("2 h ahead: %v", got)
	}
	r.wantRows(nb, 1)
	must(t, r.fleet.Flush(t.Context()))
	for node, want := range map[tenants.NodeID]int64{nb: -49_000, nf: 7_200_000} {
		d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
		must(t, err)
		if d.SkewMS == nil || *d.SkewMS < want-1000 || *d.SkewMS > want+1000 {
			t.Errorf("skew is %v ms, want about %d", d.SkewMS, want)
		}
	}
	other.fine()
}

func TestProtocolErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, _ := r.enrol(r.acme, "web-1")
	c := r.open(id.TLS())
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Ping{Ping: &pb.Ping{}}})
	if reason, st := c.fails(); reason != "protocol" || st.Code() != codes.InvalidArgument {
		t.Errorf("no hello: %q, %v", reason, st)
	}
	c = r.open(id.TLS())
	hello := &pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{Epoch: math.MaxUint64, NextSeq: math.MaxUint64}}}
	c.send(hello)
	if reason, st := c.fails(); st.Code() != codes.InvalidArgument {
		t.Errorf("absurd position: %q, %v", reason, st)
	}
	d, _ := r.connect(r.acme, "web-2", 0)
	d.send(hello)
	if reason, _ := d.fails(); reason != "protocol" {
		t.Errorf("second hello: %q", reason)
	}
	other.fine()
}
