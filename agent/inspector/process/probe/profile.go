package probe

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
	"github.com/telltale-dev/telltale/agent/symbols"
)

// profiler does profile_on_cpu.
type profiler struct {
	cfg Config
	log *slog.Logger
}

// Times of one profile.
const (
	lookEvery    = 100 * time.Millisecond // for processes that are new among the samples
	refreshEvery = time.Second            // of their mappings, and of what is told meanwhile
)

// maxNotes is how many notes a result may have.
const maxNotes = 10

// run samples the target for a while and then names what was found.
func (p *profiler) run(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	files := symbols.NewFiles(p.cfg.Proc)
	defer files.Close()
	t, err := p.target(args, files)
	if err != nil {
		return nil, err
	}
	hz := uint64(args.Int(process.ArgHz))
	s, err := p.sample(t, hz)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	w := &watch{files: files, target: t.process, seen: s.set.Map(profileMapSeen), known: map[profileProcessKey]*symbols.Process{}}
	looking, stop := context.WithTimeout(ctx, time.Duration(args.Int(inspector.ArgDuration))*time.Second)
	defer stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	refreshed, ended := time.Now(), false
loop:
	for {
		select {
		case <-looking.Done():
			break loop
		case <-look.C:
		}
		if ended = t.process != nil && t.process.Alive() != nil; ended {
			break
		}
		w.look(looking)
		if time.Since(refreshed) >= refreshEvery {
			refreshed = time.Now()
			s.wait(t)
			w.refresh(looking)
			if partial != nil {
				partial(s.sofar())
			}
		}
	}
	s.wait(t)
	s.stop()
	naming, stop := symbols.Until(ctx)
	defer stop()
	w.look(naming)
	w.refresh(naming)
	res, err := s.report(naming, t, w.known)
	if err != nil {
		return nil, fmt.Errorf("read the profile: %w", err)
	}
	if files.Spent() {
		res.Notes = append(res.Notes, "The files of the target have larger tables of symbols than are read: what has no name here may have one.")
	}
	if ended {
		res.Notes = append(res.Notes, fmt.Sprintf("The process ended %.1f s after the profile began; what was seen until then is here.", res.Profile.Seconds))
	}
	if naming.Err() != nil {
		res.Notes = append(res.Notes, "The time for naming ran out: what has no name here may have one.")
	}
	for _, note := range []string{bpfload.Slow("Loading the program", s.set.Took()), bpfload.Slow("Naming the functions", time.Since(s.to))} {
		if note != "" {
			res.Notes = append(res.Notes, note)
		}
	}
	res.Notes = res.Notes[:min(len(res.Notes), maxNotes)]
	return res, ctx.Err()
}

// sampling is the kernel's part while it runs.
type sampling struct {
	set    *bpfload.Set
	events *perfEvents
	hz     uint64
	from   time.Time
	to     time.Time
	proc   string

	before    waits // of the target process when it began
	waited    time.Duration
	waitKnown bool
}

// sample begins to sample every CPU that is online.
func (p *profiler) sample(t *target, hz uint64) (*sampling, error) {
	spec, err := loadProfile()
	if err != nil {
		return nil, fmt.Errorf("read the profile's program: %w", err)
	}
	if err := t.set(spec); err != nil {
		return nil, err
	}
	s := &sampling{hz: hz, proc: p.cfg.Proc}
	s.set = p.cfg.Kernel.Open(spec, []bpfload.Program{{Name: profileProgTakeSample, Attach: func(prog *ebpf.Program) (io.Closer, error) {
		var err error
		s.events, err = openPerfEvents(p.cfg.Sys, prog, hz)
		return s.events, err
	}}}, nil, p.log)
	if f := s.set.Failure(profileProgTakeSample); f != nil {
		_ = s.set.Close()
		return nil, &inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: inspector.ReasonFeatureOff, Msg: "this node cannot profile: " + f.Reason,
			Next: "Look at the node's capabilities (get_node); metrics_summary for process and host works without it."}
	}
	if t.process != nil {
		s.before = readWaits(p.cfg.Proc, t.process.Pid)
	}
	s.from = time.Now()
	if err := s.events.enable(); err != nil {
		_ = s.set.Close()
		return nil, fmt.Errorf("start sampling: %w", err)
	}
	return s, nil
}

// wait looks how long the target has waited for CPUs so far.
func (s *sampling) wait(t *target) {
	if t.process == nil {
		return
	}
	if d, ok := readWaits(s.proc, t.process.Pid).since(s.before); ok {
		s.waited, s.waitKnown = d, true
	}
}

// stop ends the sampling; what was counted stays.
func (s *sampling) stop() {
	if s.to.IsZero() {
		s.to = time.Now()
		_ = s.events.Close()
	}
}

// Close unloads the program.
func (s *sampling) Close() {
	s.stop()
	_ = s.set.Close()
}

// totals adds up what the CPUs counted.
func (s *sampling) totals() (sum profileProfileTotals, err error) {
	per, err := bpfload.Values[profileProfileTotals](s.set.Map(profileMapProfileTotals), uint32(0))
	for _, v := range per {
		sum.Runs += v.Runs
		sum.Samples += v.Samples
		sum.Kernel += v.Kernel
		sum.LeftOut += v.LeftOut
		sum.StacksLost += v.StacksLost
	}
	return sum, err
}

// sofar is what is known before anything is named.
func (s *sampling) sofar() *inspector.TaskResult {
	sum, err := s.totals()
	if err != nil {
		return nil
	}
	now := time.Now()
	return &inspector.TaskResult{From: s.from, To: now, Totals: s.counts(sum, now.Sub(s.from)), Rows: []inspector.ResultRow{}}
}

// counts are a result's totals.
func (s *sampling) counts(sum profileProfileTotals, took time.Duration) map[string]uint64 {
	return map[string]uint64{
		"samples":          sum.Samples,
		"kernel_samples":   sum.Kernel,
		"possible_samples": uint64(float64(s.hz) * float64(s.events.cpus()) * took.Seconds()),
		"taken_samples":    sum.Runs,
	}
}
