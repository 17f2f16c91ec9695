package main

import (
	"context"
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
	"github.com/telltale-dev/telltale/agent/runner"
	"github.com/telltale-dev/telltale/agent/uplink"
)

// The stop takes this long at most: the collectors close, then what is queued
// gets its chance to arrive.
const (
	stopCollectors = 2 * time.Second
	stopAll        = 4800 * time.Millisecond
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
		{name: "memory-mib", kind: "N", def: "64", help: "memory in MiB that the agent tries to stay below (GOMEMLIMIT wins)", set: number(&c.memoryMiB, 16, 65536)},
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
	modules := collectors.List(collectors.Config{Proc: c.proc, Sys: c.sys, Disable: disable}, log)
	return c.build(id, facts, modules, log).supervise(ctx)
}

// tame bounds what the agent takes from its machine.
func (c *runConfig) tame(e env, log *slog.Logger) {
	if _, ok := e.getenv("GOMEMLIMIT"); !ok {
		debug.SetMemoryLimit(int64(c.memoryMiB) << 20)
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

// sink hands the collectors' windows to the uplink; a full queue is counted
// and reported there.
type sink struct{ u *uplink.Uplink }

func (s sink) Push(w *inspector.Window) { s.u.Push(w) }

// agent is the parts of a running agent.
type agent struct {
	link     *uplink.Uplink
	collect  *runner.Runner
	switches *uplink.Switches
	told     chan struct{} // closed when the server has said what is to be off
	log      *slog.Logger
}

// build wires the parts. What the server wanted off the last time is off
// before anything is opened.
func (c *runConfig) build(id *uplink.Identity, facts uplink.Facts, modules []runner.Module, log *slog.Logger) *agent {
	a := &agent{switches: uplink.NewSwitches(id, log), told: make(chan struct{}), log: log}
	tell := sync.OnceFunc(func() { close(a.told) })
	a.link = uplink.New(uplink.Config{
		Server: c.server, Facts: facts, Disabled: c.off, QueueItems: c.queue, QueueBytes: c.queueMiB << 20,
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
		Interval: c.interval, Offset: offset(id.Node, c.interval), Off: c.off, OnCapabilities: a.link.SetCapabilities,
	}, modules, sink{a.link}, log)
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

// supervise runs the parts until ctx ends, and stops them in order.
func (a *agent) supervise(ctx context.Context) error {
	linkCtx, stopLink := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLink()
	linked, collected := make(chan error, 1), make(chan error, 1)
	go func() {
		kept := make(chan error, 1)
		go func() { kept <- a.switches.Run(linkCtx) }()
		linked <- errors.Join(a.link.Run(linkCtx), <-kept)
	}()
	go func() { collected <- a.measure(ctx) }()
	<-ctx.Done()
	a.log.Info("stopping")
	deadline := time.After(stopAll)
	var err error
	select {
	case err = <-collected:
		collected = nil
	case <-time.After(stopCollectors):
		a.log.Warn("collectors are slow to close; not waiting for their last windows")
	}
	stopLink()
	for linked != nil || collected != nil {
		select {
		case lerr := <-linked:
			err, linked = errors.Join(err, lerr), nil
		case cerr := <-collected:
			err, collected = errors.Join(err, cerr), nil
		case <-deadline:
			return errors.Join(err, errors.New("not every part stopped in time"))
		}
	}
	st := a.link.Stats()
	n := a.collect.Counts()
	a.log.Info("stopped", "acknowledged", st.Acked, "still_queued", st.QueueItems, "dropped", st.Dropped,
		"collector_failures", n.Failures, "collector_panics", n.Panics, "collector_overruns", n.Overruns)
	return err
}
