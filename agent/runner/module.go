package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// module is the life of one collector. At most one goroutine, started by
// start, works on the collector at a time.
type module struct {
	Module
	runner *Runner
	log    *slog.Logger

	// collector belongs to the goroutine in flight, or under mu when none is.
	collector Collector

	mu       sync.Mutex
	local    bool              // kept off by the node's configuration
	remote   bool              // kept off by the server
	held     string            // why it is kept off until the server's list is known; empty: it is not
	own      map[string]string // why the agent keeps it off to protect itself or the machine, by what does
	reported bool              // report is the collector's own or says why there is none
	busy     time.Time         // when the call in flight began; zero: none
	tried    bool              // a first step has ended
	retry    time.Time         // not opened again before
	report   []inspector.Capability
	panics   uint64
	failures uint64
	overruns uint64 // ticks that found the former call still in flight
}

// reopenPause is how long a module rests after it failed to open or panicked.
const reopenPause = time.Minute

const (
	localOff  = "switched off by the node's configuration"
	remoteOff = "switched off from the server"
)

// start lets the module do one step, unless its last one is still in flight.
// A zero now means that no window is due.
func (m *module) start(ctx context.Context, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.busy.IsZero() {
		if !now.IsZero() {
			m.overruns++
			m.log.Warn("collector has not answered", "since", m.busy)
		}
		return
	}
	m.busy = time.Now()
	m.runner.wg.Add(1)
	go func() {
		defer m.runner.wg.Done()
		m.step(ctx, now)
	}()
}

// apply brings the collector in line with its switches, if it is not.
func (m *module) apply(ctx context.Context) {
	m.mu.Lock()
	due := false
	if m.busy.IsZero() { // or else the call in flight owns the collector
		if off := m.offReason(); off != "" { // close it, or report another reason
			due = m.collector != nil || len(m.report) > 0 && m.report[0].Reason != inspector.CleanText(off)
		} else {
			due = m.collector == nil && !time.Now().Before(m.retry)
		}
	}
	m.mu.Unlock()
	if due {
		m.start(ctx, time.Time{})
	}
}

func (m *module) untried() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.tried
}

func (m *module) offReason() string {
	switch {
	case m.local:
		return localOff
	case m.remote:
		return remoteOff
	}
	for _, by := range slices.Sorted(maps.Keys(m.own)) {
		return m.own[by]
	}
	return m.held
}

// protect keeps the module off for a reason of the agent's own, or no longer
// when the reason is empty.
func (m *module) protect(by, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case reason != "" && m.own == nil:
		m.own = map[string]string{by: reason}
	case reason != "":
		m.own[by] = reason
	case m.own[by] != "":
		delete(m.own, by)
		m.retry = time.Time{} // released: open at once
	}
}

// off says why the module, or one of the given signals of it, is off. A module
// that has not been opened yet is not off for that.
func (m *module) off(signals []string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if off := m.offReason(); off != "" || !m.reported {
		return off
	}
	for _, c := range m.report {
		if c.Level == inspector.Off && slices.Contains(signals, c.Signal) {
			return c.Signal + ": " + c.Reason
		}
	}
	return ""
}

func (m *module) setRemote(off bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if (m.remote || m.held != "") && !off {
		m.retry = time.Time{} // released: open at once
	}
	m.remote, m.held = off, ""
}

func (m *module) hold(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = reason
}

// step opens, closes or collects. A panic counts, closes the collector and
// leaves it closed for a while: its state can no longer be trusted.
func (m *module) step(ctx context.Context, now time.Time) {
	var report []inspector.Capability
	var retry time.Time
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.busy, m.tried = time.Time{}, true
		if report != nil {
			m.report, m.reported = report, true
		}
		if !retry.IsZero() {
			m.retry = retry
		}
		m.runner.wake()
	}()
	m.mu.Lock()
	off, notBefore := m.offReason(), m.retry
	m.mu.Unlock()

	switch {
	case off != "":
		if err := m.guard("close", m.shut); err != nil {
			m.log.Warn("collector closed badly", "error", err)
		}
		report = m.all(inspector.Off, off)
	case m.collector == nil:
		if time.Now().Before(notBefore) {
			return
		}
		if err := m.guard("open", m.open); err != nil {
			m.log.Error("collector does not open", "error", err)
			report, retry = m.all(inspector.Off, "does not open: "+err.Error()), time.Now().Add(reopenPause)
			return
		}
		if m.collector != nil {
			report = m.ask()
		} // or else it was switched off before its turn came: apply sees to it
	case !now.IsZero():
		err := m.guard("collect", func() error { return m.collect(ctx) })
		var p *panicError
		if errors.As(err, &p) {
			m.log.Error("collector panicked", "error", err)
			_ = m.guard("close", m.shut)
			report, retry = m.all(inspector.Off, "panicked; opened again after a pause: "+err.Error()), time.Now().Add(reopenPause)
			return
		}
		if err != nil {
			m.log.Warn("collector reports an error", "error", err)
		}
		report = m.ask()
	}
}

// openTurn is how long a module waits for another one to finish opening.
const openTurn = 2 * time.Second

// open takes its turn: loading programs needs the kernel's type information
// in memory, and two modules at once would double the peak. One that hangs
// does not hold up the others, and one that was switched off meanwhile is not
// opened.
func (m *module) open() error {
	late := time.NewTimer(openTurn)
	defer late.Stop()
	select {
	case m.runner.opening <- struct{}{}:
		defer func() { <-m.runner.opening }()
	case <-late.C:
	}
	m.mu.Lock()
	off := m.offReason()
	m.mu.Unlock()
	if off != "" {
		return nil
	}
	c, err := m.Open()
	if err != nil {
		return err
	}
	m.collector = c
	return nil
}

func (m *module) shut() error {
	c := m.collector
	m.collector = nil
	if c == nil {
		return nil
	}
	return c.Close()
}

// ask takes the collector's report; one that panics reports everything off.
func (m *module) ask() (report []inspector.Capability) {
	if err := m.guard("report", func() error { report = m.collector.Capabilities(); return nil }); err != nil {
		return m.all(inspector.Off, err.Error())
	}
	return report
}

// collect closes a window now: the tick's own time may be a little past, and
// a rate wants the moment of the reading.
func (m *module) collect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.runner.cfg.Deadline)
	defer cancel()
	windows, err := m.collector.Collect(ctx, time.Now())
	for _, w := range windows {
		w.Start = began(w.Start, w.End.Round(0).Sub(w.Start.Round(0)), w.End.Sub(w.Start), w.End)
		m.runner.sink.Push(w)
	}
	return err
}

// maxSlew is how far a clock that is only disciplined, not set, may move
// during a window.
const maxSlew = time.Second

// began is when a window began by the clock that its end was read from. After
// the clock was set, or the machine slept, the start that was read before is
// no longer as far from the end as time has really passed.
func began(start time.Time, byWall, passed time.Duration, end time.Time) time.Time {
	if (byWall - passed).Abs() > maxSlew {
		return end.Add(-passed)
	}
	return start
}

// panicError is a recovered panic.
type panicError struct {
	doing string
	value any
}

func (p *panicError) Error() string { return fmt.Sprintf("panic in %s: %v", p.doing, p.value) }

// guard runs one call of a collector and counts how it ends.
func (m *module) guard(doing string, call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{doing: doing, value: v}
		}
		if err == nil {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.failures++
		if _, ok := err.(*panicError); ok {
			m.panics++
		}
	}()
	return call()
}

// all reports every signal alike.
func (m *module) all(level inspector.Level, reason string) []inspector.Capability {
	out := make([]inspector.Capability, 0, len(m.Signals))
	for _, s := range m.Signals {
		out = append(out, inspector.Capability{Component: m.Component, Signal: s, Level: level, Reason: inspector.CleanText(reason)})
	}
	return out
}

func (m *module) stuckSince(now time.Time) (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.busy, !m.busy.IsZero() && now.Sub(m.busy) > m.runner.cfg.Deadline
}

func (m *module) capabilities(now time.Time) []inspector.Capability {
	if since, stuck := m.stuckSince(now); stuck {
		return m.all(inspector.Off, "stuck: the collector has not answered since "+since.UTC().Format(time.RFC3339))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.report
}

// closeNow closes the collector at the end of Run; false means that a call
// is still in flight and the collector had to be left alone.
func (m *module) closeNow() bool {
	m.mu.Lock()
	idle := m.busy.IsZero()
	m.mu.Unlock()
	if !idle {
		return false
	}
	if err := m.guard("close", m.shut); err != nil {
		m.log.Warn("collector closed badly", "error", err)
	}
	return true
}
