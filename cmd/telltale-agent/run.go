package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/collectors"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/agent/inspector/network"
	"github.com/telltale-dev/telltale/agent/inspector/process"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
	"github.com/telltale-dev/telltale/agent/runner"
	"github.com/telltale-dev/telltale/agent/uplink"
)

// The stop takes this long at most: the collectors close and the tasks end,
// then what is queued gets its chance to arrive.
const (
	stopWork = 2200 * time.Millisecond
	stopAll  = 4800 * time.Millisecond
)

// runConfig is the configuration of `telltale-agent run`.
type runConfig struct {
	admission
	interval   time.Duration
	off        []string // modules
	signalsOff []string // "component.signal"
	proc, sys  string
	queue      int
	queueMiB   int
	memoryMiB  int
	cpuPercent int
	crashes    int
	allow      []string // task kinds
	oomScore   int
	logLevel   string
}

func (c *runConfig) settings(e env) []setting {
	return append(c.admission.settings(e), []setting{
		{name: "interval", kind: "DURATION", def: "10s", help: "length of a window", set: span(&c.interval, time.Second, time.Minute)},
		{name: "modules-off", kind: "LIST", help: "modules to keep off, with commas", set: words(&c.off)},
		{name: "signals-off", kind: "LIST", help: "single signals to keep off as COMPONENT.SIGNAL, with commas", set: words(&c.signalsOff)},
		{name: "proc", kind: "DIR", def: "/proc", help: "where procfs is mounted", set: text(&c.proc)},
		{name: "sys", kind: "DIR", def: "/sys", help: "where sysfs is mounted", set: text(&c.sys)},
		{name: "queue", kind: "N", def: strconv.Itoa(uplink.DefaultQueueItems), help: "windows kept at most while the server is away", set: number(&c.queue, 16, 1_000_000)},
		{name: "queue-mib", kind: "N", def: "8", help: "MiB of memory these may take", set: number(&c.queueMiB, 1, 1024)},
		{name: "tasks-allow", kind: "LIST", help: "task kinds that this node does on request, with commas; none forbids every task (default all that only look, as `telltale-agent check` lists them)", set: words(&c.allow)},
		{name: "cpu-percent", kind: "N", def: "20", help: "the agent's budget of CPU, in percent of one core over 30 s; above it the agent gives up traces, then the modules process, network and storage, and an event says so", set: number(&c.cpuPercent, 1, 10_000)},
		{name: "memory-mib", kind: "N", def: "96", help: "the agent's budget of memory in MiB; at 80 % it leaves a heap snapshot in its directory, above it gives up work as for CPU. Go collects garbage to stay below two thirds (GOMEMLIMIT wins)", set: number(&c.memoryMiB, 24, 65536)},
		{name: "crashes", kind: "N", def: strconv.Itoa(runner.DefaultCrashes), help: "after how many crashes within ten minutes the agent starts without its probe for half an hour; 0 means never", set: number(&c.crashes, 0, 100)},
		{name: "oom-score-adj", kind: "N", def: "500", help: "makes the agent an early victim when the machine runs out of memory", set: number(&c.oomScore, 0, 1000)},
		{name: "log-level", kind: "LEVEL", def: "info", help: "debug, info, warn or error", set: text(&c.logLevel)},
	}...)
}

// check holds module and signal names against the registry.
func (c *runConfig) check() (map[string][]string, error) {
	var reg inspector.Registry
	all.Register(&reg)
	var wrong []error
	for _, m := range c.off {
		if _, ok := reg.Component(m); !ok {
			wrong = append(wrong, fmt.Errorf("modules-off: no module %q", m))
		}
	}
	disable := map[string][]string{}
	for _, s := range c.signalsOff {
		component, signal, _ := strings.Cut(s, ".")
		comp, ok := reg.Component(component)
		known := false
		for _, have := range comp.Signals {
			known = known || have == signal
		}
		if !ok || !known {
			wrong = append(wrong, fmt.Errorf("signals-off: no signal %q; see `telltale-agent check`", s))
			continue
		}
		disable[component] = append(disable[component], signal)
	}
	for _, k := range c.allow {
		if _, ok := reg.Task(k); !ok && k != runner.AllowNone {
			wrong = append(wrong, fmt.Errorf("tasks-allow: no task %q; see `telltale-agent check`", k))
		}
	}
	if len(wrong) > 0 {
		return nil, &usageError{errors.Join(wrong...)}
	}
	return disable, nil
}

// run is `telltale-agent run`.
func run(ctx context.Context, e env, args []string) error {
	var c runConfig
	effective, err := load(e, "telltale-agent run", args, c.settings(e))
	if err != nil {
		return err
	}
	log, err := logger(e, c.logLevel)
	if err != nil {
		return err
	}
	disable, err := c.check()
	if err != nil {
		return err
	}
	log.LogAttrs(ctx, slog.LevelInfo, "starting "+version, effective...)
	c.tame(e, log)
	facts := uplink.ReadFacts(version)
	id, unlock, err := c.identity(ctx, facts, log)
	if err != nil {
		return err
	}
	defer unlock()
	list := func(emit func(inspector.Occurrence)) []runner.Module {
		return collectors.List(collectors.Config{Proc: c.proc, Sys: c.sys, Disable: disable, Emit: emit, StateDir: c.dir}, log)
	}
	return c.build(id, facts, digest(effective), list, log).supervise(ctx)
}

// digest is a hash of the settings in effect. Secrets are left out.
func digest(effective []slog.Attr) []byte {
	h := sha256.New()
	for _, a := range effective {
		if a.Value.String() != hiddenValue {
			fmt.Fprintf(h, "%s=%q\n", a.Key, a.Value.String())
		}
	}
	return h.Sum(nil)
}

// tame bounds what the agent takes from its machine.
func (c *runConfig) tame(e env, log *slog.Logger) {
	if _, ok := e.getenv("GOMEMLIMIT"); !ok {
		debug.SetMemoryLimit(int64(c.memoryMiB) << 20 * 2 / 3) // the rest is for code and maps, which Go does not count
	}
	score := []byte(strconv.Itoa(c.oomScore))
	if err := os.WriteFile("/proc/self/oom_score_adj", score, 0o644); err != nil {
		log.Warn("cannot set oom_score_adj", "error", err)
	}
}

// identity opens the identity directory for this process alone, and enrols
// first when it is empty and a token was given.
func (c *runConfig) identity(ctx context.Context, facts uplink.Facts, log *slog.Logger) (*uplink.Identity, func(), error) {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("identity directory: %w", err)
	}
	unlock, err := uplink.Lock(c.dir)
	if err != nil {
		return nil, nil, err
	}
	id, err := c.open(c.dir)
	if id != nil && errors.Is(err, uplink.ErrNotSaved) {
		log.Warn("the server's CA given now is used, but cannot be kept", "error", err)
		err = nil
	}
	secret, serr := c.secret()
	if errors.Is(err, uplink.ErrNotEnrolled) && secret != "" {
		var enr uplink.Enrolment
		if enr, err = c.enrolment(c.dir, c.name, facts); err == nil {
			if id, err = enrolPatiently(ctx, enr, time.Minute, log); err == nil {
				log.Info("enrolled", "node", id.Node, "tenant", id.Tenant)
			}
		}
	} else if errors.Is(err, uplink.ErrNotEnrolled) && serr != nil {
		err = errors.Join(err, serr)
	}
	if err != nil {
		unlock()
		return nil, nil, fmt.Errorf("%s: %w", c.dir, err)
	}
	return id, unlock, nil
}

// sink hands the collectors' windows to the uplink, where a full queue is
// counted and reported, and to the rules of events.
type sink struct {
	link   *uplink.Uplink
	events *runner.Events
}

func (s sink) Push(w *inspector.Window) {
	s.link.Push(w)
	s.events.Observe(w)
}

// agent is the parts of a running agent.
type agent struct {
	link     *uplink.Uplink
	collect  *runner.Runner
	tasks    *runner.Tasks
	events   *runner.Events
	budget   *runner.Budget
	breaker  *runner.Breaker
	switches *uplink.Switches
	told     chan struct{} // closed when the server has said what is to be off
	log      *slog.Logger
}

// shedOrder is what the agent gives up after its traces when it is over its
// budget, the dearest first. The host inspector stays.
func shedOrder() []string { return []string{process.Name, network.Name, storage.Name} }

// build wires the parts. What the server wanted off the last time is off
// before anything is opened.
func (c *runConfig) build(id *uplink.Identity, facts uplink.Facts, digest []byte, list func(emit func(inspector.Occurrence)) []runner.Module, log *slog.Logger) *agent {
	a := &agent{switches: uplink.NewSwitches(id, log), told: make(chan struct{}), log: log}
	tell := sync.OnceFunc(func() { close(a.told) })
	var words inspector.Registry
	all.Register(&words)
	a.events = runner.NewEvents(runner.EventConfig{Dir: c.dir}, &words, func(e inspector.EventReport, done func()) bool { return a.link.PushEvent(e, done) }, log)
	modules := list(a.events.Emit)
	a.tasks = runner.NewTasks(runner.TaskConfig{
		Allow: c.allow, Off: func(component string, signals []string) string { return a.collect.Off(component, signals) },
	}, &words, modules, log)
	a.link = uplink.New(uplink.Config{
		Server: c.server, Facts: facts, Disabled: c.off, QueueItems: c.queue, QueueBytes: c.queueMiB << 20, ConfigDigest: digest, Tasks: a.tasks,
		Control: func(off []string) {
			if len(off) > 0 {
				log.Info("the server keeps modules off", "modules", off)
			}
			a.collect.SetOff(off)
			a.switches.Set(off)
			tell()
		},
	}, id, log)
	a.collect = runner.New(runner.Config{
		Interval: c.interval, Offset: offset(id.Node, c.interval), Off: c.off, OnCapabilities: a.link.SetCapabilities, OnStuck: a.stuck,
	}, modules, sink{a.link, a.events}, log)
	a.budget = runner.NewBudget(runner.BudgetConfig{CPUPercent: c.cpuPercent, MemoryMiB: c.memoryMiB, Order: shedOrder(), Dir: c.dir}, a.tasks, a.collect, a.events.Set, log)
	a.breaker = runner.OpenBreaker(c.dir, c.crashes, log)
	if why := a.breaker.Reason(); why != "" {
		log.Error("the probe stays off", "why", why)
		a.trip(probes(&words), why)
	}
	off, err := a.switches.Saved()
	switch {
	case err != nil:
		log.Error("which modules the server keeps off is not known: all stay off until it says so", "error", err)
		a.collect.Hold("off until the server says which modules are to be off: " + err.Error())
	case len(off) > 0:
		log.Info("modules stay off as the server wanted it last", "modules", off)
		a.collect.SetOff(off)
	}
	return a
}

// firstWord is how long modules wait at the start for the server's word on
// what is to be off: a probe that brings its machine down can be switched off
// while the machine is away, and is not loaded once more.
const firstWord = 3 * time.Second

// measure runs the collectors once the server has spoken, or is away.
func (a *agent) measure(ctx context.Context) error {
	late := time.NewTimer(firstWord)
	defer late.Stop()
	select {
	case <-a.told:
	case <-late.C:
	case <-ctx.Done():
		return nil
	}
	return a.collect.Run(ctx)
}

// offset spreads the nodes' ticks over the interval.
func offset(node string, interval time.Duration) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(node))
	return time.Duration(h.Sum64() % uint64(interval))
}

// supervise runs the parts until ctx ends, and stops them in order: what
// measures and works, then the way to the server, then the keeper of events,
// which hears until the end what the server has taken.
func (a *agent) supervise(ctx context.Context) error {
	linkCtx, stopLink := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLink()
	keepCtx, stopKeep := context.WithCancel(context.WithoutCancel(ctx))
	defer stopKeep()
	kept := together(keepCtx, a.events.Run)
	linked := together(linkCtx, a.link.Run, a.switches.Run)
	armed := together(ctx, func(ctx context.Context) error { return a.breaker.Run(ctx, a.rearmed) })
	worked := together(ctx, a.measure, a.tasks.Run, a.budget.Run)
	<-ctx.Done()
	a.log.Info("stopping")
	deadline := time.After(stopAll)
	err := <-armed
	defer a.breaker.Clean() // an end in order, even if a part is slow
	select {
	case werr := <-worked:
		err = errors.Join(err, werr)
		worked = nil
	case <-time.After(stopWork):
		a.log.Warn("collectors are slow to close; not waiting for their last windows")
	}
	stopLink()
	for kept != nil || worked != nil {
		if linked == nil {
			stopKeep()
		}
		select {
		case werr := <-worked:
			err, worked = errors.Join(err, werr), nil
		case lerr := <-linked:
			err, linked = errors.Join(err, lerr), nil
		case kerr := <-kept:
			err, kept = errors.Join(err, kerr), nil
		case <-deadline:
			return errors.Join(err, errors.New("not every part stopped in time"))
		}
	}
	a.account()
	return err
}

// together runs parts side by side; their errors come joined, once.
func together(ctx context.Context, parts ...func(context.Context) error) <-chan error {
	errs := make([]error, len(parts))
	var all sync.WaitGroup
	for i, run := range parts {
		all.Go(func() { errs[i] = run(ctx) })
	}
	done := make(chan error, 1)
	go func() { all.Wait(); done <- errors.Join(errs...) }()
	return done
}

// account logs what the agent did.
func (a *agent) account() {
	st, n, ev := a.link.Stats(), a.collect.Counts(), a.events.Stats()
	a.log.Info("stopped", "acknowledged", st.Acked, "still_queued", st.QueueItems, "dropped", st.Dropped,
		"collector_failures", n.Failures, "collector_panics", n.Panics, "collector_overruns", n.Overruns,
		"events_seen", ev.Seen, "events_lost", ev.Lost, "records_evicted", ev.Evicted)
}
