package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/agent/inspector/network"
	"github.com/telltale-dev/telltale/agent/runner"
	"github.com/telltale-dev/telltale/agent/uplink"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

const tameChild = "TELLTALE_TEST_TAME"

// The agent is an early victim when memory runs out.
func TestAgentOffersItselfToTheOOMKiller(t *testing.T) {
	if os.Getenv(tameChild) != "" {
		e, _, _ := testEnv(nil)
		c := runConfig{memoryMiB: 96, oomScore: 700}
		c.tame(e, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		raw, err := os.ReadFile("/proc/self/oom_score_adj")
		if err != nil || strings.TrimSpace(string(raw)) != "700" {
			t.Errorf("oom_score_adj is %q, %v", raw, err)
		}
		return
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestAgentOffersItselfToTheOOMKiller$", "-test.v")
	cmd.Env = append(os.Environ(), tameChild+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) || bytes.Contains(out, []byte("cannot set")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDigestOfSettings(t *testing.T) {
	of := func(args ...string) string {
		e, _, _ := testEnv(nil)
		var c runConfig
		effective, err := load(e, "telltale-agent run", args, c.settings(e))
		if err != nil {
			t.Fatal(err)
		}
		return string(digest(effective))
	}
	plain := of()
	if len(plain) != 32 || plain != of() {
		t.Error("the same settings have different digests")
	}
	if plain == of("--interval", "20s") || plain == of("--tasks-allow", "none") {
		t.Error("a change does not show")
	}
	if plain != of("--token", "secret") {
		t.Error("a secret shows")
	}
}

// taskServer is a switchboard that also orders one task, and remembers what
// comes back.
type taskServer struct {
	*switchboard
	order *pb.TaskRequest

	mu     sync.Mutex
	hello  *pb.TaskHello
	answer *pb.TaskAnswer
	data   []byte
	end    *pb.TaskChunk
	events []*pb.Event
	digest []byte
}

func (s *taskServer) Report(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
	return s.switchboard.Report(watched{g, s})
}

// watched looks at what the agent reports.
type watched struct {
	grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]
	s *taskServer
}

func (w watched) Recv() (*pb.AgentFrame, error) {
	f, err := w.BidiStreamingServer.Recv()
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if h := f.GetHello(); h != nil {
		w.s.digest = h.ConfigDigest
	}
	if e := f.GetReport().GetEvent(); e != nil {
		w.s.events = append(w.s.events, e)
	}
	return f, err
}

func (s *taskServer) Tasks(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error {
	f, err := g.Recv()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.hello = f.GetHello()
	s.mu.Unlock()
	now := time.Now()
	s.order.StartBeforeNs, s.order.DeadlineNs = now.Add(10*time.Second).UnixNano(), now.Add(time.Minute).UnixNano()
	for _, o := range []*pb.TaskOrder{{Kind: &pb.TaskOrder_Welcome{Welcome: &pb.TaskWelcome{}}}, {Kind: &pb.TaskOrder_Request{Request: s.order}}} {
		if err := g.Send(o); err != nil {
			return err
		}
	}
	for {
		f, err := g.Recv()
		if err != nil {
			return nil
		}
		s.mu.Lock()
		if a := f.GetAnswer(); a != nil {
			s.answer = a
		}
		if c := f.GetChunk(); c != nil {
			s.data = append(s.data, c.Data...)
			if c.Last {
				s.end = c
			}
		}
		ended := s.end != nil
		s.mu.Unlock()
		if ended {
			if err := g.Send(&pb.TaskOrder{Kind: &pb.TaskOrder_Taken{Taken: &pb.TaskTaken{Task: s.order.Task}}}); err != nil {
				return err
			}
		}
	}
}

func (s *taskServer) seen() (answer *pb.TaskAnswer, end *pb.TaskChunk, data string, events []*pb.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answer, s.end, string(s.data), s.events
}

// enrolled serves s and enrols an agent with it.
func enrolled(t *testing.T, s *taskServer) (dir string) {
	t.Helper()
	g := s.grpc()
	pb.RegisterAgentServer(g, s)
	pb.RegisterEnrolmentServer(g, s)
	addr, _ := listen(t, g, "127.0.0.1:0")
	dir = filepath.Join(t.TempDir(), "id")
	if _, err := uplink.Enrol(t.Context(), uplink.Enrolment{Server: addr, Dir: dir, Token: "x",
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// bootWith starts the agent of a directory with one network module.
func bootWith(t *testing.T, dir string, run inspector.TaskRun) (a *agent, p *probe, stop func()) {
	t.Helper()
	c := runConfig{interval: time.Second, queue: 16, queueMiB: 1, crashes: 3}
	c.dir = dir
	log := slog.New(slog.DiscardHandler)
	id, unlock, err := c.identity(t.Context(), uplink.Facts{}, log)
	if err != nil {
		t.Fatal(err)
	}
	p = &probe{name: network.Name}
	a = c.build(id, uplink.Facts{}, []byte("digest"), func(func(inspector.Occurrence)) []runner.Module {
		m := p.module()
		m.Tasks = map[string]inspector.TaskRun{"trace_network_drops": run}
		return []runner.Module{m}
	}, log)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.supervise(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		unlock()
	})
	t.Cleanup(stop)
	return a, p, stop
}

func dropsOrder(t *testing.T) *pb.TaskRequest {
	t.Helper()
	var words inspector.Registry
	all.Register(&words)
	k, ok := words.Task("trace_network_drops")
	if !ok {
		t.Fatal("no such task any more: choose another one for this test")
	}
	args := `{"duration_s":60}`
	if len(k.Targets) > 0 {
		args = `{"duration_s":60,"` + k.Targets[0] + `":"lo"}`
	}
	return &pb.TaskRequest{Task: bytes.Repeat([]byte{7}, 16), Kind: []byte(k.Name), Args: []byte(args), PrincipalKind: []byte("user"), Principal: []byte("u"), Scopes: []string{string(k.Scope)}}
}

// A task runs on order, and one that runs when the agent stops still tells its
// end.
func TestATaskEndsWithTheAgentAndTheServerHearsIt(t *testing.T) {
	t.Parallel()
	s := &taskServer{switchboard: newSwitchboard(t), order: dropsOrder(t)}
	started := make(chan struct{})
	_, _, stop := bootWith(t, enrolled(t, s), func(ctx context.Context, _ inspector.Args, _ func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
		close(started)
		<-ctx.Done()
		return &inspector.TaskResult{Totals: map[string]uint64{"drops": 5}}, ctx.Err()
	})
	select {
	case <-started:
	case <-time.After(30 * time.Second):
		answer, _, _, _ := s.seen()
		t.Fatalf("not started; the agent answered %v", answer)
	}
	stop()
	answer, end, data, _ := s.seen()
	if answer == nil || answer.Refusal != nil {
		t.Errorf("the answer was %v", answer)
	}
	if end == nil || string(end.Outcome) != "failed" || string(end.Refusal.GetReason()) != "agent_stopping" || !strings.Contains(data, `"drops":5`) {
		t.Errorf("ended as %v with %s", end, data)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.hello.Kinds) != 1 || string(s.digest) != "digest" {
		t.Errorf("hello %v, digest %q", s.hello, s.digest)
	}
}

// Three crashes keep the probe off, refuse its tasks, and make an event.
func TestAfterThreeCrashesTheProbeStaysOff(t *testing.T) {
	t.Parallel()
	s := &taskServer{switchboard: newSwitchboard(t), order: dropsOrder(t)}
	dir := enrolled(t, s)
	for range 3 {
		runner.OpenBreaker(dir, 3, slog.New(slog.DiscardHandler))
	}
	a, p, stop := bootWith(t, dir, func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
		t.Error("the task ran")
		return nil, nil
	})
	eventually(t, "the module is off", func() bool { return strings.Contains(reason(a, network.Name), "three crashes in ten minutes") })
	eventually(t, "the task is refused", func() bool {
		answer, _, _, _ := s.seen()
		return string(answer.GetRefusal().GetReason()) == "feature_off" && bytes.Contains(answer.Refusal.Message, []byte("three crashes"))
	})
	eventually(t, "the event is told", func() bool {
		_, _, _, events := s.seen()
		return len(events) > 0 && string(events[0].Kind) == "agent_budget" && string(events[0].Severity) == "critical" && string(events[0].Labels[0].Value) == "crashes"
	})
	stop()
	if p.opens() != 0 {
		t.Error("the probe was opened")
	}
	if state, err := runner.ReadBreaker(dir, 3); err != nil || state.Reason == "" {
		t.Errorf("after a clean stop: %+v, %v", state, err)
	}
	// The file goes: the probe is back.
	if err := os.Remove(filepath.Join(dir, "life.json")); err != nil {
		t.Fatal(err)
	}
	_, p, _ = bootWith(t, dir, nil)
	eventually(t, "the probe is opened", func() bool { return p.opens() == 1 })
}

// What the runner makes events of by name is in the words.
func TestEventsOfTheAgentItselfAreNamed(t *testing.T) {
	var words inspector.Registry
	all.Register(&words)
	for kind, label := range map[string]string{"agent_budget": "resource", "event_loss": "component", "inspector_stuck": "component"} {
		k, ok := words.Event(kind)
		if !ok || !k.Immediate || len(k.Labels) != 1 || k.Labels[0] != label {
			t.Errorf("%s: %+v", kind, k)
		}
		for _, cause := range k.CausedBy {
			if _, ok := words.Event(cause); !ok {
				t.Errorf("%s can be caused by %s, which nobody names", kind, cause)
			}
		}
		for _, m := range k.Related {
			if _, ok := words.Metric(m); !ok {
				t.Errorf("%s is related to %s, which nobody measures", kind, m)
			}
		}
	}
	if got := shedOrder(); !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(probes(&words)))) {
		t.Errorf("over the budget %v are given up, and the probe is %v", got, probes(&words))
	}
}
