package probe

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/bpfload"
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
	r := report(s, true)
	for _, slow := range []string{bpfload.Slow("Loading the programs", tr.set.Took()), bpfload.Slow("Reading what was found", time.Since(s.at))} {
		if slow != "" {
			r.Notes = append(r.Notes, slow)
		}
	}
	return r, err
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

// wait calls tick at once and then once in partialEvery until the time is over, tick says
// that it is, or ctx ends.
func (tr *tracer) wait(ctx context.Context, d time.Duration, tick func() bool) error {
	over := time.NewTimer(d)
	defer over.Stop()
	every := time.NewTicker(partialEvery)
	defer every.Stop()
	for !tick() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return nil
		case <-every.C:
		}
	}
	return nil
}
