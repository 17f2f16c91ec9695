package ingest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

type rawTasks = grpc.BidiStreamingClient[pb.TaskFrame, pb.TaskOrder]

// rawChannel opens a report stream and a task channel for a fresh node, by
// hand. The task channel has said nothing yet.
func (r *rig) rawChannel(tn tenants.Tenant, name string) (rawTasks, tenants.NodeID) {
	r.t.Helper()
	id, node := r.enrol(tn, name)
	conn := r.dial(id.TLS())
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Second)
	r.t.Cleanup(cancel)
	s, err := pb.NewAgentClient(conn).Report(ctx)
	must(r.t, err)
	c := &raw{t: r.t, stream: s}
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{Facts: facts(name).Proto(), NextSeq: 1}}})
	if c.recv().GetWelcome() == nil {
		r.t.Fatal("no welcome")
	}
	ts, err := pb.NewAgentClient(conn).Tasks(ctx)
	must(r.t, err)
	return ts, node
}

func helloFrame() *pb.TaskFrame {
	return &pb.TaskFrame{Kind: &pb.TaskFrame_Hello{Hello: &pb.TaskHello{StartedAtNs: 1}}}
}

func chunkFrame(c *pb.TaskChunk) *pb.TaskFrame {
	return &pb.TaskFrame{Kind: &pb.TaskFrame_Chunk{Chunk: c}}
}

func newID() []byte { id := uuid.Must(uuid.NewV7()); return id[:] }

// Frames that no agent sends end the channel with a status, and nothing else.
func TestTaskFramesThatEndTheChannel(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	other := r.witness()
	id := newID()
	full := bytes.Repeat([]byte("x"), maxChunk)
	cases := map[string][]*pb.TaskFrame{
		"a chunk before the hello":  {chunkFrame(&pb.TaskChunk{Task: id})},
		"many running tasks":        {{Kind: &pb.TaskFrame_Hello{Hello: &pb.TaskHello{Running: make([][]byte, 1000)}}}},
		"a running task of 3 bytes": {{Kind: &pb.TaskFrame_Hello{Hello: &pb.TaskHello{Running: [][]byte{[]byte("abc")}}}}},
		"two hellos":                {helloFrame(), helloFrame()},
		"an answer without a task":  {helloFrame(), {Kind: &pb.TaskFrame_Answer{Answer: &pb.TaskAnswer{}}}},
		"progress without a task":   {helloFrame(), {Kind: &pb.TaskFrame_Progress{Progress: &pb.TaskProgress{}}}},
		"a chunk without a task":    {helloFrame(), chunkFrame(&pb.TaskChunk{})},
		"the second chunk first":    {helloFrame(), chunkFrame(&pb.TaskChunk{Task: id, Index: 1, Last: true, Outcome: []byte("completed")})},
		"the first chunk twice":     {helloFrame(), chunkFrame(&pb.TaskChunk{Task: id, Data: []byte("{")}), chunkFrame(&pb.TaskChunk{Task: id, Data: []byte("}")})},
		"an empty chunk":            {helloFrame(), chunkFrame(&pb.TaskChunk{Task: id})},
		"a large chunk":             {helloFrame(), chunkFrame(&pb.TaskChunk{Task: id, Data: append(full, 'x'), Last: true})},
		"an outcome of its own":     {helloFrame(), chunkFrame(&pb.TaskChunk{Task: id, Last: true, Outcome: []byte("splendid")})},
	}
	tooMuch := []*pb.TaskFrame{helloFrame()}
	for i := range inspector.MaxResultBytes/maxChunk + 1 {
		tooMuch = append(tooMuch, chunkFrame(&pb.TaskChunk{Task: id, Index: uint32(i), Data: full}))
	}
	cases["a result above the limit"] = tooMuch
	many := []*pb.TaskFrame{helloFrame()}
	for range maxAssembly + 1 {
		many = append(many, chunkFrame(&pb.TaskChunk{Task: newID(), Data: []byte("{")}))
	}
	cases["many results at once"] = many
	for name, frames := range cases {
		s, _ := r.rawChannel(r.acme, "web-"+name)
		for _, f := range frames {
			if s.Send(f) != nil {
				break // it has ended already
			}
		}
		var err error
		for err == nil {
			_, err = s.Recv()
		}
		if f := faultOf(err); status.Code(err) != codes.InvalidArgument || f.GetReason() != "protocol" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if st := r.srv.Stats(); st.Panics != 0 || st.TaskResults != 0 || st.Live < len(cases) {
		t.Errorf("server %+v", st)
	}
	other.fine()
}

// Results on their way in are bounded over all channels, and what a channel
// leaves unfinished is given back.
func TestAssemblyIsBoundedOverAllChannels(t *testing.T) {
	var held atomic.Int64
	full := bytes.Repeat([]byte("x"), maxChunk)
	channels := make([]assembly, maxAssembling/inspector.MaxResultBytes)
	for i := range channels {
		channels[i].held = &held
		for n := range uint32(inspector.MaxResultBytes / maxChunk) {
			if _, whole, err := channels[i].add(tasks.ID{1}, &pb.TaskChunk{Index: n, Data: full}); err != nil || whole {
				t.Fatalf("channel %d, chunk %d: %v, %v", i, n, whole, err)
			}
		}
	}
	late := assembly{held: &held}
	if _, _, err := late.add(tasks.ID{1}, &pb.TaskChunk{Data: full}); fault.Of(err).Reason != "too_many_results" {
		t.Errorf("one too many: %v", err)
	}
	if data, whole, err := channels[0].add(tasks.ID{1}, &pb.TaskChunk{Index: 8, Last: true}); err != nil || !whole || len(data) != inspector.MaxResultBytes {
		t.Errorf("%d bytes, %v, %v", len(data), whole, err)
	}
	for i := range channels {
		channels[i].close()
	}
	if held.Load() != 0 {
		t.Errorf("%d bytes are left in the account", held.Load())
	}
}

// A channel that opens while another one of the node is open takes its place,
// and the service hears of the first one's end before the second.
func TestSecondTaskChannelTakesOver(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	id, node := r.enrol(r.acme, "web-1")
	conn := r.dial(id.TLS())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	report, err := pb.NewAgentClient(conn).Report(ctx)
	must(t, err)
	c := &raw{t: t, stream: report}
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{Facts: facts("web-1").Proto(), NextSeq: 1}}})
	c.recv()
	open := func() rawTasks {
		s, err := pb.NewAgentClient(conn).Tasks(ctx)
		must(t, err)
		must(t, s.Send(helloFrame()))
		o, err := s.Recv()
		must(t, err)
		if o.GetWelcome() == nil || o.GetClock() == nil {
			t.Fatalf("no welcome: %v", o)
		}
		return s
	}
	first := open()
	second := open()
	if _, err := first.Recv(); faultOf(err).GetReason() != "replaced" {
		t.Errorf("the first one ends with %v", err)
	}
	if list := d.of(node); len(list) != 2 || list[0].closed != 1 || !list[0].planned || list[1].closed != 0 {
		t.Errorf("channels %+v", list)
	}
	must(t, report.CloseSend()) // and it ends with its report stream
	if _, err := second.Recv(); faultOf(err).GetReason() != "report_stream_ended" {
		t.Errorf("the second one ends with %v", err)
	}
	r.eventually("a planned end", func() bool { c := d.of(node)[1]; return c.closed == 1 && c.planned })
}

// noTasks is the transport of a channel that nobody reads.
type noTasks struct {
	grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]
	ctx context.Context
}

func (n noTasks) Context() context.Context { return n.ctx }

// FuzzTaskFrame gives a task channel arbitrary frames: it may refuse them or
// end, and keeps its bounds; a result that comes through can be written again.
func FuzzTaskFrame(f *testing.F) {
	seed := func(frames ...*pb.TaskFrame) {
		var b []byte
		for _, fr := range frames {
			raw, _ := proto.Marshal(fr)
			b = append(append(b, byte(len(raw)), byte(len(raw)>>8)), raw...)
		}
		f.Add(b)
	}
	id := make([]byte, 16)
	seed(helloFrame(), chunkFrame(&pb.TaskChunk{Task: id, Data: result(3000), Last: true, Outcome: []byte("completed")}))
	seed(chunkFrame(&pb.TaskChunk{Task: id, Data: []byte(`{"rows":[{"labels":{"a":"\u202e"},"count":1}]`)}),
		chunkFrame(&pb.TaskChunk{Task: id, Index: 1, Data: []byte(`,"next":[{"tool":"x","arguments":{"a":[1]}}]}`), Last: true, Outcome: []byte("cancelled"), Refusal: &pb.TaskRefusal{Reason: []byte("\xff")}}))
	seed(&pb.TaskFrame{Kind: &pb.TaskFrame_Answer{Answer: &pb.TaskAnswer{Task: id, Refusal: &pb.TaskRefusal{}}}},
		&pb.TaskFrame{Kind: &pb.TaskFrame_Progress{Progress: &pb.TaskProgress{Task: id, Permille: 1 << 31, Partial: []byte(`{"profile":{"folded":[{}]}}`)}}})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newDesk()
		d.owner[tasks.ID{}] = nodeKey{}
		s := New(Config{}, Deps{Sessions: &memory{}, Windows: &memory{}}, slog.New(slog.NewTextHandler(io.Discard, nil)))
		ch := &taskStream{s: s, grpc: noTasks{ctx: t.Context()}, box: newOutbox(&s.count), ch: &deskChannel{d: d}, parts: assembly{held: &s.assembling}}
		for n := 0; len(b) >= 2 && n < 30; n++ {
			size := min(int(b[0])|int(b[1])<<8, len(b)-2)
			var fr pb.TaskFrame
			if proto.Unmarshal(b[2:2+size], &fr) == nil && ch.handle(t.Context(), &fr) != nil {
				break
			}
			b = b[2+size:]
		}
		held := 0
		for _, p := range ch.parts.open {
			held += len(p.data)
		}
		if ch.parts.close(); s.assembling.Load() != 0 {
			t.Fatalf("%d bytes are left in the account", s.assembling.Load())
		}
		if held > maxAssembly*inspector.MaxResultBytes {
			t.Fatalf("results of %d bytes are held", held)
		}
		for _, o := range d.ends[tasks.ID{}] {
			if o.Result != nil {
				checkResult(t, o.Result)
			}
		}
	})
}
