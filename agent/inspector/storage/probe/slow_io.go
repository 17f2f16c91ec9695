package probe

import (
	"context"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/cgroups"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

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
	tr, err := openTracer(t.cfg.Kernel, w, t.ring, pidNamespace(t.cfg.Proc), t.log)
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
		Why: "the greatest group of slow requests is on this device: see its load, queue and errors"})
	if pid, ok := busiest(r.Rows); ok {
		next = append(next, inspector.NextStep{Tool: storage.MonitorProcessIO, Args: map[string]any{storage.ArgPid: pid},
			Why: "no process has a greater group of slow requests"})
	}
	return next
}
