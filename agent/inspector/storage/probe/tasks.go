package probe

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/cgroups"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// Tasks lists what the module does on request, by task kind. Each task loads
// its own programs and unloads them when it ends.
func Tasks(cfg Config, log *slog.Logger) map[string]inspector.TaskRun {
	cfg = cfg.withRoots()
	t := &tasks{cfg: cfg, log: log}
	return map[string]inspector.TaskRun{
		storage.TraceSlowIO:      t.slowIO,
		storage.MonitorProcessIO: t.processIO,
		storage.MonitorDeviceIO:  t.deviceIO,
	}
}

type tasks struct {
	cfg  Config
	log  *slog.Logger
	ring uint32 // bytes of a task's ring; 0: as in trace.bpf.c
}

// allowed refuses a task whose signal the node's configuration keeps off.
func (t *tasks) allowed(signal string) error {
	if !slices.Contains(t.cfg.Disable, signal) {
		return nil
	}
	return &inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: inspector.ReasonFeatureOff,
		Msg: "storage " + signal + " is " + switchedOff, Next: "ask whoever runs the node to switch it on"}
}

// sampling are the arguments of every trace.
func sampling(args inspector.Args) wanted {
	return wanted{op: -1, every: uint32(max(args.Int(inspector.ArgSampleRate), 1)), most: uint32(args.Int(inspector.ArgMaxEvents))}
}

// partialEvery is how often a running task tells what it has.
const partialEvery = time.Second

// watch lets a tracer run for the task's duration. report makes the result of
// what was counted so far; with final set the programs have stopped and the
// records are all there. ended, if not nil, ends the task early.
func (t *tasks) watch(ctx context.Context, tr *tracer, args inspector.Args, partial func(*inspector.TaskResult),
	report func(s *seen, final bool) *inspector.TaskResult, ended func() bool) (*inspector.TaskResult, error) {
	defer func() {
		if err := tr.set.Close(); err != nil {
			t.log.Warn("a task's programs closed badly", "error", err)
		}
	}()
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- tr.records(reading) }()

	err := tr.wait(ctx, time.Duration(args.Int(inspector.ArgDuration))*time.Second, func() bool {
		if ended != nil && ended() {
			return true
		}
		if s, err := tr.look(); err == nil {
			partial(short(report(s, false)))
		}
		return false
	})
	if detached := tr.detach(); detached != nil {
		t.log.Warn("a task's programs stopped badly", "error", detached)
	}
	stop()
	if read := <-done; read != nil {
		return nil, read
	}
	s, looked := tr.look()
	if looked != nil {
		return nil, errors.Join(err, looked)
	}
	return report(s, true), err
}

// partialRows keeps a partial result far below inspector.MaxPartialBytes.
const partialRows = 30

func short(r *inspector.TaskResult) *inspector.TaskResult {
	for _, row := range r.Rows[min(partialRows, len(r.Rows)):] {
		r.OtherRows++
		r.OtherCount += row.Count
	}
	r.Rows = r.Rows[:min(partialRows, len(r.Rows))]
	return r
}

// wait calls tick once in partialEvery until the time is over, tick says
// that it is, or ctx ends.
func (tr *tracer) wait(ctx context.Context, d time.Duration, tick func() bool) error {
	over := time.NewTimer(d)
	defer over.Stop()
	every := time.NewTicker(partialEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return nil
		case <-every.C:
			if tick() {
				return nil
			}
		}
	}
}

// slowIO does trace_slow_io.
func (t *tasks) slowIO(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	if err := t.allowed(storage.SignalLatency); err != nil {
		return nil, err
	}
	w := sampling(args)
	w.byProcess, w.threshold = true, time.Duration(args.Int(storage.ArgThreshold))*time.Millisecond
	var err error
	if args.Has(storage.ArgDevice) {
		if w.device, err = findDisk(t.cfg.Sys, args.Text(storage.ArgDevice)); err != nil {
			return nil, err
		}
		if err := w.device.requestless(); err != nil {
			return nil, err
		}
	}
	if args.Has(storage.ArgPid) {
		if w.process, err = findProcess(t.cfg.Proc, args.Int(storage.ArgPid)); err != nil {
			return nil, err
		}
	}
	if args.Has(storage.ArgOperation) {
		w.op = slices.Index(storage.Operations[:], args.Text(storage.ArgOperation))
	}
	if err := t.inCgroup(&w, args); err != nil {
		return nil, err
	}
	tr, err := openTracer(w, t.ring, t.log)
	if err != nil {
		return nil, err
	}
	n := newNamer(t.cfg.Sys)
	return t.watch(ctx, tr, args, partial, func(s *seen, final bool) *inspector.TaskResult {
		return t.slowResult(tr, s, n, final)
	}, nil)
}

// inCgroup takes the cgroup or container that the task asks for.
func (t *tasks) inCgroup(w *wanted, args inspector.Args) error {
	var target cgroups.Target
	var err error
	arg := storage.ArgCgroup
	switch {
	case args.Has(storage.ArgCgroup) && args.Has(storage.ArgContainer):
		return &inspector.Refusal{Kind: "INVALID_ARGUMENT", Reason: inspector.ReasonInvalidArgument, Arg: storage.ArgContainer,
			Msg: "cgroup and container are two ways to say the same", Next: "give one of them"}
	case args.Has(storage.ArgCgroup):
		target, err = cgroups.Resolve(t.cfg.Proc, t.cfg.Sys, args.Text(storage.ArgCgroup))
	case args.Has(storage.ArgContainer):
		arg = storage.ArgContainer
		target, err = cgroups.Container(t.cfg.Proc, t.cfg.Sys, args.Text(storage.ArgContainer))
	default:
		return nil
	}
	if err != nil {
		return err
	}
	w.blkio, w.v2, w.memory = target.V1["blkio"], target.V2, target.V1["memory"]
	if w.blkio|w.v2|w.memory == 0 {
		return &inspector.Refusal{Kind: "NOT_FOUND", Reason: inspector.ReasonUnknownCgroup, Arg: arg,
			Msg: "the cgroup is in none of the hierarchies that tell whose I/O is: version 2, blkio, memory", Next: "give a cgroup of one of these"}
	}
	return nil
}

func (t *tasks) slowResult(tr *tracer, s *seen, n *namer, final bool) *inspector.TaskResult {
	r := &inspector.TaskResult{Totals: map[string]uint64{}}
	var sum traceTotals
	for i := range s.all {
		sum.plus(&s.all[i])
	}
	r.Totals["requests"], r.Totals["bytes"], r.Totals["slow_requests"] = sum.Requests, sum.Bytes, s.counts[countReached]
	r.Totals["errors"] = sum.Errors
	sum.histogram(func(name string, n uint64) { r.Totals[name] = n })
	tr.top(r, s, n, "", inspector.MaxResultRows)
	tr.account(r, s)
	if tr.wanted.process.pid != 0 && !tr.wanted.process.alive(t.cfg.Proc) {
		r.Notes = append(r.Notes, "The process ended meanwhile; a new one with its pid is not counted.")
	}
	if final {
		tr.samples(r, n)
		r.Next = slowNext(r)
	}
	return r
}

func slowNext(r *inspector.TaskResult) []inspector.NextStep {
	if len(r.Rows) == 0 {
		return []inspector.NextStep{{Tool: "metrics_summary", Args: map[string]any{"module": storage.Name},
			Why: "no request reached the threshold: see whether the latency of any device rose at all"}}
	}
	var next []inspector.NextStep
	next = append(next, inspector.NextStep{Tool: storage.MonitorDeviceIO, Args: map[string]any{storage.ArgDevice: r.Rows[0].Labels[labelDevice]},
		Why: "most slow requests are on this device: see its load, queue and errors"})
	if pid, ok := busiest(r.Rows); ok {
		next = append(next, inspector.NextStep{Tool: storage.MonitorProcessIO, Args: map[string]any{storage.ArgPid: pid},
			Why: "this process waits for most of the slow requests"})
	}
	return next
}
