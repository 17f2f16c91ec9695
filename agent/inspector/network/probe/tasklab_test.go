package probe

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// runningTask is a task of a test that counts now.
type runningTask struct {
	t      *testing.T
	stop   context.CancelFunc
	parts  chan *inspector.TaskResult
	result *inspector.TaskResult
	err    error
	done   chan struct{}
}

// kindOf finds a task kind by its words.
func kindOf(t *testing.T, name string) inspector.TaskKind {
	t.Helper()
	var words inspector.Registry
	network.Register(&words)
	k, ok := words.Task(name)
	if !ok {
		t.Fatalf("no task %s", name)
	}
	return k
}

// start begins a task and returns when its programs count. Its time is long;
// end ends it. A kernel that provably lacks a hook skips.
func start(t *testing.T, cfg Config, kind string, raw map[string]any) *runningTask {
	t.Helper()
	cfg.Kernel = labKernel
	return startWith(t, newTracer(cfg, slog.New(slog.NewTextHandler(t.Output(), nil))), kind, raw)
}

func startWith(t *testing.T, tracer *tracer, kind string, raw map[string]any) *runningTask {
	t.Helper()
	if raw[inspector.ArgDuration] == nil {
		raw[inspector.ArgDuration] = 60
	}
	args, err := kindOf(t, kind).Check(raw)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &runningTask{t: t, stop: cancel, parts: make(chan *inspector.TaskResult, 100), done: make(chan struct{})}
	run := map[string]inspector.TaskRun{network.TraceDrops: tracer.drops, network.TraceRetransmits: tracer.retransmits, network.MonitorTCP: tracer.connections, network.MonitorInterface: tracer.traffic}[kind]
	go func() {
		defer close(r.done)
		r.result, r.err = run(ctx, args, func(res *inspector.TaskResult) {
			select {
			case r.parts <- res:
			default:
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	select {
	case <-r.parts:
	case <-r.done:
		var refusal *inspector.Refusal
		if errors.As(r.err, &refusal) && refusal.Reason == inspector.ReasonFeatureOff && strings.Contains(refusal.Msg, "lacks") {
			t.Skipf("this kernel cannot do %s: %s", kind, refusal.Msg)
		}
		t.Fatalf("%s did not start: %v", kind, r.err)
	}
	return r
}

// end ends the task and returns what it found.
func (r *runningTask) end() *inspector.TaskResult {
	r.t.Helper()
	r.stop()
	<-r.done
	if !errors.Is(r.err, context.Canceled) || r.result == nil {
		r.t.Fatalf("the cancelled task returned %v, %v", r.result, r.err)
	}
	if len(r.result.Rows) > inspector.MaxResultRows || len(r.result.Samples) > inspector.MaxResultSamples || len(r.result.Notes) > 10 || len(r.result.Next) > 3 {
		r.t.Errorf("the result is over its bounds: %d rows, %d samples", len(r.result.Rows), len(r.result.Samples))
	}
	return r.result
}

// sum adds up the rows that have these labels.
func sum(r *inspector.TaskResult, labels map[string]string) (n uint64) {
	for _, row := range rowsWith(r, labels) {
		n += row.Count
	}
	return n
}

func rowsWith(r *inspector.TaskResult, labels map[string]string) (out []inspector.ResultRow) {
next:
	for _, row := range r.Rows {
		for k, v := range labels {
			if row.Labels[k] != v {
				continue next
			}
		}
		out = append(out, row)
	}
	return out
}

// nft is a packet counter of the rule that follows a comment in a namespace.
func (n *netns) filtered() uint64 {
	n.t.Helper()
	m := packets.FindStringSubmatch(n.run("nft", "list", "table", "inet", "lab"))
	if m == nil {
		n.t.Fatal("nft shows no counter")
	}
	var v uint64
	for _, c := range m[1] {
		v = v*10 + uint64(c-'0')
	}
	return v
}

// calm ends a task at a moment when the namespace's counters do not move: what
// is compared then belongs to one moment. They are given as increases.
func calm(t *testing.T, n *netns, task *runningTask, before map[string]uint64) (*inspector.TaskResult, map[string]uint64) {
	t.Helper()
	first, still := n.fields(), 0
	until(t, "the kernel's counters rest", func() bool {
		now := n.fields()
		if still++; !sameFields(first, now) {
			first, still = now, 0
		}
		return still >= 40
	})
	r := task.end()
	after := n.fields()
	if !sameFields(first, after) {
		t.Fatal("the kernel's counters moved while the task ended; the lab is not quiet")
	}
	return r, sub(after, before)
}
