// Package collect reads the host inspector's numbers on the node: from /proc
// and /sys, statfs(2), adjtimex(2) and getrusage(2), without privileges.
//
// It must not know who sends the windows. It is the only place where a call
// may hang on a foreign filesystem; disks.go keeps such a hang to itself.
// Start reading at Collector.Collect.
package collect

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

// Config says where to read and what to leave out. The zero value reads this
// machine.
type Config struct {
	Proc    string   // mount point of procfs; "" is /proc
	Sys     string   // mount point of sysfs; "" is /sys
	Root    string   // prefix of every mount point, for an agent in a container; "" is none
	Disable []string // signals that are switched off

	// Mounts is handed from collector to collector where one follows another
	// in a process, so that a mount which is dead since the former one is not
	// asked a second time. Nil: this collector's own.
	Mounts *Mounts

	// DiskPatience is how long one Collect waits for the mounts together;
	// 0 is 500 ms.
	DiskPatience time.Duration
}

// point is one series and its value in the window being closed.
type point struct {
	series inspector.Series
	value  inspector.Value
}

// status is how a signal went in the last window.
type status struct {
	level  inspector.Level
	reason string
}

// Collector reads the host. Collect and Capabilities are called by one
// goroutine at a time.
type Collector struct {
	cfg Config
	log *slog.Logger

	boot     string // boot id of the last look
	start    time.Time
	signals  map[string]status
	counters map[string]*inspector.Counter
	clock    clockFunc

	mounts    []mount // of the last look
	mountsErr error

	points []point
	known  []inspector.Series // the series of layout, in the order they are produced
	layout *inspector.Layout
	slots  []int // position in layout of each produced series
	left   uint64
}

// New makes a collector and takes the counters' first look, so that the first
// Collect closes a window. It never fails: what cannot be read is off and
// says why.
func New(cfg Config, log *slog.Logger) *Collector {
	return newCollector(cfg, log, adjtimex)
}

func newCollector(cfg Config, log *slog.Logger, clock clockFunc) *Collector {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.Sys == "" {
		cfg.Sys = "/sys"
	}
	if cfg.Mounts == nil {
		cfg.Mounts = NewMounts()
	}
	if cfg.DiskPatience <= 0 {
		cfg.DiskPatience = 500 * time.Millisecond
	}
	c := &Collector{
		cfg: cfg, log: log, clock: clock,
		start:    time.Now(),
		signals:  map[string]status{},
		counters: map[string]*inspector.Counter{},
	}
	c.sweep(context.Background(), c.start, 0)
	return c
}

// Component returns "host".
func (c *Collector) Component() string { return host.Name }

// Capabilities says what every signal could do in the last window.
func (c *Collector) Capabilities() []inspector.Capability {
	out := make([]inspector.Capability, 0, len(signals))
	for _, s := range signals {
		st, source := c.signals[s.name], inspector.SourceProc
		if st.level == inspector.Off {
			source = inspector.SourceNone
		}
		out = append(out, inspector.Capability{Component: host.Name, Signal: s.name, Level: st.level, Source: source, Reason: st.reason})
	}
	return out
}

// Collect closes the window that ends now. It never waits longer than the
// patience for disks, whatever hangs.
func (c *Collector) Collect(ctx context.Context, now time.Time) ([]*inspector.Window, error) {
	from := c.start
	if !from.Before(now) { // a clock that stands or steps back has no span
		from = now.Add(-time.Millisecond)
	}
	c.start = now
	c.sweep(ctx, now, now.Sub(from))
	return []*inspector.Window{c.window(from, now)}, nil
}

// Close has nothing to give back. Goroutines that hang in a dead mount end
// when the kernel lets them go; nothing else is left behind.
func (c *Collector) Close() error { return nil }

// signals lists the readers in display order. A reader adds its points with
// put and returns how it went.
var signals = []struct {
	name string
	read func(*Collector, context.Context, span) (string, error)
}{
	{host.CPU, (*Collector).readCPU},
	{host.Load, (*Collector).readLoad},
	{host.Memory, (*Collector).readMemory},
	{host.Pressure, (*Collector).readPressure},
	{host.Disks, (*Collector).readDisks},
	{host.Sockets, (*Collector).readSockets},
	{host.Clock, (*Collector).readClock},
	{host.Boot, (*Collector).readBoot},
	{host.Agent, (*Collector).readAgent},
}

// span is what a reader knows of the window.
type span struct {
	now    time.Time
	length time.Duration // 0 in the first look of New
}

// errDegraded marks an error after which the signal still has some numbers.
var errDegraded = errors.New("")

func (c *Collector) sweep(ctx context.Context, now time.Time, length time.Duration) {
	c.points, c.left = c.points[:0], 0
	boot, err := c.read("sys/kernel/random/boot_id")
	boot = strings.TrimSpace(boot)
	if err == nil {
		if c.boot != "" && boot != c.boot { // another boot: no former reading holds, but the agent's own
			maps.DeleteFunc(c.counters, func(key string, _ *inspector.Counter) bool { return !strings.HasPrefix(key, host.AgentCPU) })
		}
		c.boot = boot
	}
	sp := span{now: now, length: length}
	text, err := c.read("self/mountinfo")
	c.mounts, _ = parseMounts(text)
	c.mountsErr = err
	for _, s := range signals {
		if slices.Contains(c.cfg.Disable, s.name) {
			c.signals[s.name] = status{inspector.Off, "switched off in the agent's configuration"}
			continue
		}
		first := len(c.points)
		note, err := s.read(c, ctx, sp)
		switch {
		case err == nil:
			c.note(s.name, status{inspector.Full, note})
		case errors.Is(err, errDegraded):
			c.note(s.name, status{inspector.Degraded, note})
		default:
			c.points = c.points[:first]
			c.note(s.name, status{inspector.Off, reasonOf(err)})
		}
	}
}

// note keeps a signal's state and logs when its level changes.
func (c *Collector) note(signal string, st status) {
	if was, ok := c.signals[signal]; ok && was.level != st.level {
		c.log.Info("host signal changed", "signal", signal, "level", string(st.level), "reason", st.reason)
	}
	c.signals[signal] = st
}

func reasonOf(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "the kernel does not offer it: " + err.Error()
	}
	return err.Error()
}

// put adds one point. Label values are cleaned and bounded here.
func (c *Collector) put(metric string, kind inspector.Kind, unit inspector.Unit, v inspector.Value, labels ...string) {
	s := inspector.Series{Metric: metric, Kind: kind, Unit: unit}
	for i := 0; i+1 < len(labels); i += 2 {
		clean, _ := inspector.CleanLabel(labels[i+1])
		s.Labels = append(s.Labels, inspector.Label{Key: labels[i], Value: clean})
	}
	if !v.OK {
		v = inspector.Value{}
	}
	c.points = append(c.points, point{s, v})
}

func (c *Collector) gauge(metric string, unit inspector.Unit, v float64, ok bool, labels ...string) {
	ok = ok && !math.IsNaN(v) && !math.IsInf(v, 0)
	c.put(metric, inspector.Gauge, unit, inspector.Value{OK: ok, Gauge: v}, labels...)
}

// step is what one counter did in the window.
type step struct {
	delta   uint64
	known   bool // false at the first look and after a reset
	clamped bool // a small step back that was held
}

// advance takes a counter's reading. A missing one drops what was known
// before, so that nothing is charged outside its window.
func (c *Collector) advance(key string, kind inspector.Counter, reading uint64, ok bool) step {
	if !ok {
		delete(c.counters, key)
		return step{}
	}
	k := c.counters[key]
	if k == nil {
		k = &kind
		c.counters[key] = k
	}
	clamped := k.Clamped
	d, known := k.Step(reading)
	return step{delta: d, known: known, clamped: k.Clamped > clamped}
}

// count adds a delta, read in units of scale.
func (c *Collector) count(metric string, unit inspector.Unit, kind inspector.Counter, reading uint64, ok bool, scale uint64, labels ...string) step {
	st := c.advance(metric+"\x00"+strings.Join(labels, "\x00"), kind, reading, ok)
	st.known = st.known && st.delta <= inspector.MaxDelta/scale
	c.put(metric, inspector.Delta, unit, inspector.Value{OK: st.known, Delta: st.delta * scale}, labels...)
	return st
}

// whole is a monotonic counter of 64 bits.
var whole = inspector.Counter{}

// window packs the points, reusing the layout while the series stay the same.
func (c *Collector) window(from, to time.Time) *inspector.Window {
	same := c.layout != nil && len(c.known) == len(c.points)
	for i := 0; same && i < len(c.points); i++ {
		same = sameSeries(c.known[i], c.points[i].series)
	}
	if !same {
		c.relayout()
	}
	w := &inspector.Window{Layout: c.layout, Start: from, End: to, Truncated: c.left,
		Values: make([]inspector.Value, len(c.layout.Series))}
	for i, p := range c.points {
		w.Values[c.slots[i]] = p.value
		if p.value.OK {
			w.Samples++
		}
	}
	return w
}

func (c *Collector) relayout() {
	c.known = c.known[:0]
	series := make([]inspector.Series, len(c.points))
	for i, p := range c.points {
		slices.SortFunc(p.series.Labels, func(a, b inspector.Label) int { return strings.Compare(a.Key, b.Key) })
		series[i] = p.series
		c.known = append(c.known, p.series)
	}
	c.layout = inspector.NewLayout(host.Name, series)
	c.slots = c.slots[:0]
	for _, s := range c.known {
		c.slots = append(c.slots, c.layout.Find(s))
	}
}

func sameSeries(a, b inspector.Series) bool {
	if a.Metric != b.Metric || len(a.Labels) != len(b.Labels) {
		return false
	}
	for _, l := range b.Labels { // a is sorted, b is in the order it was put
		if !slices.Contains(a.Labels, l) {
			return false
		}
	}
	return true
}
