// Package runner drives a node's collectors: it opens them, closes a window
// of each at every tick, and keeps one that hangs or panics from harming the
// others. It also does what the server asks of the node (Tasks), keeps what
// the node reports as events (Events), and holds the agent to its own budget
// (Budget, Breaker).
//
// It owns the collectors' lives and their kill switches. It must not know
// what they measure or how windows, events and results travel. Start reading
// at Run; module.go holds the life of one collector, tasks.go, events.go and
// budget.go begin the other parts.
package runner

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Collector measures one component. The runner calls its methods from one
// goroutine at a time and never has two calls in flight. Collect may return
// windows beside an error; they are used.
type Collector interface {
	Component() string
	Capabilities() []inspector.Capability
	Collect(ctx context.Context, now time.Time) ([]*inspector.Window, error)
	Close() error
}

// Module is a collector that can be opened, closed and opened again.
type Module struct {
	Component string
	Signals   []string // named in the capability report while the module is off
	Open      func() (Collector, error)
	Tasks     map[string]inspector.TaskRun // what it does on request, by task kind; refused while the module is off
}

// Sink takes closed windows. Push must not block.
type Sink interface{ Push(*inspector.Window) }

// Config tunes a Runner. Zero values mean the defaults.
type Config struct {
	Interval time.Duration // between ticks, aligned to the wall clock; 10 s
	Offset   time.Duration // moves the ticks away from full intervals; 0
	Deadline time.Duration // for one call of a collector; 8/10 of Interval
	Off      []string      // components that this node's own configuration keeps off
	// OnCapabilities is told the whole report after every change, from the
	// goroutine of Run. It must not block. Nil: nobody is told.
	OnCapabilities func([]inspector.Capability)
	// OnStuck is told when a collector has not answered for longer than
	// Deadline, and when it answers again, from the goroutine of Run. It must
	// not block. Nil: nobody is told.
	OnStuck func(component string, since time.Time, stuck bool)
}

// Runner drives modules. Make it with New; its methods are safe for
// concurrent use.
type Runner struct {
	cfg     Config
	sink    Sink
	log     *slog.Logger
	modules []*module
	kick    chan struct{} // switches changed, or a report did
	opening chan struct{} // holds one token while a module opens

	wg sync.WaitGroup // calls in flight
}

// New prepares a runner; nothing is opened before Run.
func New(cfg Config, modules []Module, sink Sink, log *slog.Logger) *Runner {
	if cfg.Interval <= 0 {
		cfg.Interval = 10 * time.Second
	}
	if cfg.Deadline <= 0 {
		cfg.Deadline = cfg.Interval * 8 / 10
	}
	r := &Runner{cfg: cfg, sink: sink, log: log, kick: make(chan struct{}, 1), opening: make(chan struct{}, 1)}
	for _, m := range modules {
		w := &module{Module: m, runner: r, log: log.With("component", m.Component)}
		if slices.Contains(cfg.Off, m.Component) {
			w.local = true
		}
		w.report = w.all(inspector.Off, "not opened yet")
		r.modules = append(r.modules, w)
	}
	return r
}

// closeGrace is how long Run waits at the end for collectors to close.
const closeGrace = 5 * time.Second

// Run opens the modules and ticks until ctx ends; then it closes them. It
// returns an error only when a collector did not let go in time, naming it.
func (r *Runner) Run(ctx context.Context) error {
	var told []inspector.Capability
	stuck := map[*module]time.Time{}
	r.each(func(m *module) { m.start(ctx, time.Time{}) })
	timer := time.NewTimer(r.untilTick(time.Now()))
	defer timer.Stop()
	begun := false // nobody is told of what merely has not opened yet
	for {
		select {
		case <-ctx.Done():
			return r.close()
		case now := <-timer.C:
			begun = true
			r.each(func(m *module) { m.start(ctx, now) })
			timer.Reset(r.untilTick(time.Now()))
		case <-r.kick:
			r.each(func(m *module) { m.apply(ctx) })
		}
		begun = begun || !slices.ContainsFunc(r.modules, (*module).untried)
		if caps := r.Capabilities(); begun && !slices.Equal(caps, told) {
			told = caps
			if r.cfg.OnCapabilities != nil {
				r.cfg.OnCapabilities(slices.Clone(caps))
			}
		}
		r.tellStuck(stuck)
	}
}

// tellStuck tells what changed since it was called last; told holds since when
// each stuck collector has not answered.
func (r *Runner) tellStuck(told map[*module]time.Time) {
	if r.cfg.OnStuck == nil {
		return
	}
	now := time.Now()
	for _, m := range r.modules {
		since, stuck := m.stuckSince(now)
		before, was := told[m]
		if was && !(stuck && since.Equal(before)) {
			delete(told, m)
			r.cfg.OnStuck(m.Component, before, false)
		}
		if stuck && !(was && since.Equal(before)) {
			told[m] = since
			r.cfg.OnStuck(m.Component, since, true)
		}
	}
}

func (r *Runner) each(do func(*module)) {
	for _, m := range r.modules {
		do(m)
	}
}

// untilTick is the time to the next aligned tick, never zero.
func (r *Runner) untilTick(now time.Time) time.Duration {
	at := now.Add(-r.cfg.Offset)
	return at.Truncate(r.cfg.Interval).Add(r.cfg.Interval).Sub(at)
}

func (r *Runner) wake() {
	select {
	case r.kick <- struct{}{}:
	default: // one waiting wake-up is enough
	}
}

func (r *Runner) close() error {
	idle := make(chan struct{})
	go func() {
		r.wg.Wait()
		close(idle)
	}()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-idle:
	case <-grace.C:
	}
	var stuck []string
	for _, m := range r.modules {
		if !m.closeNow() {
			stuck = append(stuck, m.Component)
		}
	}
	if len(stuck) > 0 {
		return fmt.Errorf("collectors that did not let go within %v: %s", closeGrace, strings.Join(stuck, ", "))
	}
	return nil
}

// SetOff replaces the remote list of components to keep off, and ends a Hold.
// It can only turn off: what the node's own configuration keeps off stays off.
// Names that this node does not have change nothing. Called before Run, it
// keeps a module from ever being opened.
func (r *Runner) SetOff(components []string) {
	for _, m := range r.modules {
		m.setRemote(slices.Contains(components, m.Component))
	}
	r.wake()
}

// Hold keeps every module off until the next SetOff, for the given reason,
// which must not be empty: for when nobody knows what is to be off.
func (r *Runner) Hold(reason string) {
	for _, m := range r.modules {
		m.hold(reason)
	}
	r.wake()
}

// Protect keeps modules off for reasons of the agent's own, and replaces what
// by asked for before: reasons are by component; one that is missing or empty
// keeps nothing off. Like SetOff it can only turn off.
func (r *Runner) Protect(by string, reasons map[string]string) {
	for _, m := range r.modules {
		m.protect(by, reasons[m.Component])
	}
	r.wake()
}

// Off says why a component, or one of these signals of it, is off now; empty:
// it is not, or nobody knows yet.
func (r *Runner) Off(component string, signals []string) string {
	for _, m := range r.modules {
		if m.Component == component {
			return m.off(signals)
		}
	}
	return "this node has no such module"
}

// Capabilities reports every signal of every module, in their order.
func (r *Runner) Capabilities() []inspector.Capability {
	var out []inspector.Capability
	now := time.Now()
	for _, m := range r.modules {
		out = append(out, m.capabilities(now)...)
	}
	return out
}
