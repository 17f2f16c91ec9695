package uplink

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// executor is a TaskHandler that notes what it is told.
type executor struct {
	mu        sync.Mutex
	orders    []inspector.TaskOrder
	cancelled []inspector.TaskID
	taken     []inspector.TaskID
	ends      []inspector.TaskUpdate
	fresh     int
	ready     chan struct{}
}

func newExecutor() *executor { return &executor{ready: make(chan struct{}, 1)} }

func (e *executor) Hello() ([]inspector.TaskID, []string) {
	return []inspector.TaskID{{7}}, []string{"trace_slow_io"}
}

func (e *executor) Start(o inspector.TaskOrder) *inspector.Refusal {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.orders = append(e.orders, o)
	// The news of it are there before the answer is.
	e.ends = append(e.ends, inspector.TaskUpdate{ID: o.ID, End: &inspector.TaskEnd{Outcome: inspector.TaskCompleted, Result: bytes.Repeat([]byte("r"), 200_000)}})
	e.ready <- struct{}{}
	return nil
}

func (e *executor) Cancel(id inspector.TaskID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cancelled = append(e.cancelled, id)
}

func (e *executor) Taken(id inspector.TaskID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken = append(e.taken, id)
}

func (e *executor) Ready() <-chan struct{} { return e.ready }

func (e *executor) Updates(fresh bool) []inspector.TaskUpdate {
	e.mu.Lock()
	defer e.mu.Unlock()
	if fresh {
		e.fresh++
	}
	return e.ends
}

func (e *executor) has(f func() bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return f()
}

// acking is a report stream that acknowledges all.
func acking(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
	if err := welcome(g, &pb.Welcome{Epoch: 1}); err != nil {
		return err
	}
	for {
		f, err := g.Recv()
		if err != nil {
			return nil
		}
		if r := f.GetReport(); r != nil {
			if err := g.Send(&pb.ServerFrame{Kind: &pb.ServerFrame_Ack{Ack: &pb.Ack{Seq: r.Seq}}}); err != nil {
				return err
			}
		}
	}
}

// The answer to a request comes before any news of its task, times are this
// machine's, and a result comes in chunks.
func TestOrderAnswerAndChunks(t *testing.T) {
	t.Parallel()
	const ahead = 49 * time.Second // of the server's clock
	frames := make(chan *pb.TaskFrame, 64)
	e := newExecutor()
	var digest atomic.Value
	u := connectedWith(t, server{
		report: func(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
			f, err := g.Recv()
			if err != nil {
				return err
			}
			digest.Store(string(f.GetHello().ConfigDigest))
			_ = g.Send(&pb.ServerFrame{Kind: &pb.ServerFrame_Welcome{Welcome: &pb.Welcome{Epoch: 1}}})
			for err == nil {
				_, err = g.Recv()
			}
			return nil
		},
		tasks: func(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error {
			f, err := g.Recv()
			if err != nil {
				return err
			}
			frames <- f
			now := time.Now().Add(ahead)
			clock := &pb.Clock{WallNs: now.UnixNano(), EchoNs: f.Clock.WallNs}
			id := bytes.Repeat([]byte{1}, 16)
			for _, o := range []*pb.TaskOrder{
				{Kind: &pb.TaskOrder_Welcome{Welcome: &pb.TaskWelcome{Cancel: [][]byte{{7, 15: 0}, []byte("x")}}}},
				{Kind: &pb.TaskOrder_Request{Request: &pb.TaskRequest{Task: []byte("short")}}}, {},
				{Kind: &pb.TaskOrder_Request{Request: &pb.TaskRequest{Task: id, Kind: []byte("trace_slow_io"), PrincipalKind: []byte("op\xff"), Principal: []byte("x"),
					StartBeforeNs: now.Add(5 * time.Second).UnixNano(), DeadlineNs: now.Add(time.Minute).UnixNano()}}},
				{Kind: &pb.TaskOrder_Taken{Taken: &pb.TaskTaken{Task: id}}},
			} {
				o.Clock = clock
				if err := g.Send(o); err != nil {
					return err
				}
			}
			for {
				f, err := g.Recv()
				if err != nil {
					return nil
				}
				frames <- f
			}
		},
	}, Config{Tasks: e, ConfigDigest: []byte("digest")})
	if h := (<-frames).GetHello(); h == nil || len(h.Running) != 1 || len(h.Kinds) != 1 || h.StartedAtNs == 0 {
		t.Fatalf("hello %v", h)
	}
	if a := (<-frames).GetAnswer(); a == nil || a.Task[0] != 1 || a.Refusal != nil {
		t.Fatalf("the first word on a task is %v", a)
	}
	total := 0
	for i := range 4 {
		c := (<-frames).GetChunk()
		if c == nil || c.Index != uint32(i) || len(c.Data) > chunkBytes || c.Last != (i == 3) {
			t.Fatalf("chunk %d: index %d, %d bytes, last %v", i, c.GetIndex(), len(c.GetData()), c.GetLast())
		}
		total += len(c.Data)
	}
	if total != 200_000 {
		t.Errorf("a result of %d bytes", total)
	}
	until(t, "taken and cancelled", func() bool {
		return e.has(func() bool { return len(e.taken) == 1 && len(e.cancelled) == 1 && len(e.orders) == 1 })
	})
	o := e.orders[0]
	if d := time.Until(o.StartBefore); d < 2*time.Second || d > 6*time.Second || o.Deadline.Sub(o.StartBefore) != 55*time.Second || !strings.HasPrefix(o.Principal, "op\uFFFD") {
		t.Errorf("to start within %v, %+v", d, o)
	}
	if digest.Load() != "digest" || u.Stats().Orders != 2 {
		t.Errorf("digest %q, %+v", digest.Load(), u.Stats())
	}
}

// Whatever becomes of the task channel, the report stream lives.
func TestTaskChannelNeverHarmsTheReportStream(t *testing.T) {
	t.Parallel()
	busy, _ := status.New(codes.Unavailable, "later").WithDetails(&pb.Fault{Reason: "database_unavailable", RetryAfterMs: 1})
	for name, tc := range map[string]struct {
		tasks func(grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error
		again bool // it is opened again soon
	}{
		"an older server": {},
		"ended":           {func(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error { return nil }, true},
		"busy":            {func(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error { return busy.Err() }, true},
		"no welcome": {func(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error {
			_ = g.Send(&pb.TaskOrder{Kind: &pb.TaskOrder_Taken{Taken: &pb.TaskTaken{}}})
			_, err := g.Recv()
			return err
		}, true},
		"silent": {func(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error { <-g.Context().Done(); return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			s := server{report: acking}
			if tc.tasks != nil {
				s.tasks = func(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error { calls.Add(1); return tc.tasks(g) }
			}
			u := connectedWith(t, s, Config{Tasks: newExecutor()})
			if tc.again {
				until(t, "it is opened again", func() bool { return calls.Load() > 1 })
			}
			for i := range 5 {
				pushed(u, i)
			}
			until(t, "windows are acknowledged", func() bool { return u.Stats().Acked == 5 })
			if st := u.Stats(); st.Connects != 1 || st.Failures != 0 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// A node without an executor opens no task channel.
func TestNoTasksNoChannel(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	u := connected(t, server{report: acking, tasks: func(grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error { calls.Add(1); return io.EOF }})
	pushed(u, 0)
	until(t, "acknowledged", func() bool { return u.Stats().Acked == 1 })
	if calls.Load() != 0 {
		t.Error("a task channel was opened")
	}
}

func TestEndFrames(t *testing.T) {
	f := endFrames(inspector.TaskID{1}, &inspector.TaskEnd{Outcome: inspector.TaskCompleted, Result: make([]byte, inspector.MaxResultBytes+1)})
	if c := f[0].GetChunk(); len(f) != 1 || string(c.Outcome) != "failed" || string(c.Refusal.GetReason()) != inspector.ReasonResultTooLarge || len(c.Data) != 0 {
		t.Errorf("%v", f)
	}
	for size, want := range map[int]int{0: 1, 1: 1, chunkBytes: 1, chunkBytes + 1: 2, inspector.MaxResultBytes: 8} {
		f := endFrames(inspector.TaskID{1}, &inspector.TaskEnd{Outcome: inspector.TaskCompleted, Result: make([]byte, size)})
		if c := f[len(f)-1].GetChunk(); len(f) != want || !c.Last || string(c.Outcome) != "completed" {
			t.Errorf("%d bytes: %d frames", size, len(f))
		}
	}
	if p := progressFrame(inspector.TaskUpdate{Permille: 5000, Partial: make([]byte, inspector.MaxPartialBytes+1)}).GetProgress(); p.Permille != 1000 || p.Partial != nil {
		t.Errorf("%v", p)
	}
}
