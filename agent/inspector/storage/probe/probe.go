// Package probe measures what the storage module names: with eBPF programs on
// the block layer's tracepoints, or from /proc/diskstats without privileges.
//
// It owns its programs, their maps and the series of one node's devices; it
// must not know who asks or where windows go. Start reading at New, then
// Collect; storage.bpf.c holds the kernel's side.
package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// Config says where the module looks and what it leaves out.
type Config struct {
	Proc    string   // where procfs is mounted; "" means /proc
	Sys     string   // where sysfs is mounted; "" means /sys
	Disable []string // signals that stay off
	// Kernel is shared by all that load programs. Nil: nothing is shared.
	Kernel *bpfload.Kernel
	// Emit takes what the module's own ring reports as it happens. It does not
	// block and is safe for concurrent use. Nil: cold events are off.
	Emit func(inspector.Occurrence)
	// SlowIO is the time from which a request is an event; 0 means SlowIO.
	SlowIO time.Duration
}

func (c Config) withRoots() Config {
	c.Proc, c.Sys = cmp.Or(c.Proc, "/proc"), cmp.Or(c.Sys, "/sys")
	return c
}

var signals = []string{storage.SignalRequests, storage.SignalLatency, storage.SignalErrors}

// programs of each signal.
var programsOf = map[string]string{
	storage.SignalRequests: storageProgRqComplete,
	storage.SignalLatency:  storageProgRqComplete,
	storage.SignalErrors:   storageProgRqError,
}

// fallbackOf says what a signal has without BPF.
var fallbackOf = map[string]string{
	storage.SignalRequests: "counted from /proc/diskstats",
}

// Collector is the running module. Collect is for one goroutine at a time;
// Capabilities may be called at any time.
type Collector struct {
	cfg   Config
	log   *slog.Logger
	set   *bpfload.Set
	maps  *requestMaps // nil: no program runs
	disks *diskstats   // nil: not needed
	shown *series
	watch *watcher // nil: nobody listens
	last  time.Time
	blind error // why the last reading of the disks failed

	mu      sync.Mutex
	untimed []string // devices whose last window had requests without a start time
}

// New loads the programs that this process may load and falls back to /proc
// where it may not; Capabilities tells which. It fails only when cfg names an
// unknown signal or the embedded object is unusable. The first window starts
// here. With cfg.Emit set it also starts to read the module's own ring; Close
// ends that.
func New(cfg Config, log *slog.Logger) (*Collector, error) {
	for _, signal := range cfg.Disable {
		if !slices.Contains(signals, signal) {
			return nil, fmt.Errorf("storage has no signal %q; it has %v", signal, signals)
		}
	}
	spec, err := loadStorage()
	if err != nil {
		return nil, fmt.Errorf("read the storage module's programs: %w", err)
	}
	c := open(spec, cfg, log)
	if cfg.Emit != nil {
		if c.watch, err = openWatcher(c.cfg, 0, 0, log); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func open(spec *ebpf.CollectionSpec, cfg Config, log *slog.Logger) *Collector {
	cfg = cfg.withRoots()
	c := &Collector{cfg: cfg, log: log}
	disable := map[string]string{}
	if c.disabled(storage.SignalRequests) && c.disabled(storage.SignalLatency) {
		disable[storageProgRqComplete] = switchedOff
	}
	if c.disabled(storage.SignalErrors) {
		disable[storageProgRqError] = switchedOff
	}
	c.set = cfg.Kernel.Open(spec, []bpfload.Program{{Name: storageProgRqComplete}, {Name: storageProgRqError}}, disable, log)
	if m, o := c.set.Map(storageMapDevices), c.set.Map(storageMapOther); m != nil && o != nil {
		c.maps = newRequestMaps(c.set, m, o)
		// What was counted while the programs were loaded is in no window.
		if err := c.maps.add(map[string]*device{}, &inspector.Window{}); err != nil {
			log.Warn("no first reading of the maps", "error", err)
		}
	}
	caps := map[string]inspector.Level{}
	for _, signal := range c.Capabilities() {
		caps[signal.Signal] = signal.Level
		if signal.Source == inspector.SourceProc {
			c.disks = &diskstats{path: filepath.Join(cfg.Proc, "diskstats"), sys: cfg.Sys}
			if err := c.disks.add(map[string]*device{}); err != nil {
				log.Warn("no first reading of the disks", "error", err)
			}
		}
	}
	c.last = time.Now()
	c.shown = newSeries(func(signal string) bool { return caps[signal] != inspector.Off })
	return c
}

const switchedOff = "switched off by the node's configuration"

func (c *Collector) disabled(signal string) bool { return slices.Contains(c.cfg.Disable, signal) }

// Component names the module.
func (c *Collector) Component() string { return storage.Name }

// Costs lists what the running programs have cost; see bpfload.Cost.
func (c *Collector) Costs() ([]bpfload.Cost, error) {
	costs, err := c.set.Costs()
	if err != nil || c.watch == nil {
		return costs, err
	}
	more, err := c.watch.costs()
	return append(costs, more...), err
}

// Capabilities tells for each signal how well it works and why.
func (c *Collector) Capabilities() []inspector.Capability {
	var out []inspector.Capability
	for _, signal := range signals {
		cp := c.set.Capability(storage.Name, signal, fallbackOf[signal], programsOf[signal])
		if c.disabled(signal) {
			cp.Level, cp.Source, cp.Reason = inspector.Off, inspector.SourceNone, switchedOff
		}
		if signal == storage.SignalLatency && cp.Level == inspector.Full {
			c.mu.Lock()
			if len(c.untimed) > 0 {
				cp.Level = inspector.Degraded
				cp.Reason = "no latency of " + strings.Join(c.untimed, ", ") + ": its queue/iostats is 0"
			}
			c.mu.Unlock()
		}
		c.watch.degrade(&cp)
		out = append(out, cp)
	}
	return out
}

// Collect closes the window that began at the last call, or at New; its end is
// now and the time that the reading took.
func (c *Collector) Collect(ctx context.Context, now time.Time) ([]*inspector.Window, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	began := time.Now()
	seen := map[string]*device{}
	w := &inspector.Window{Start: c.last}
	if c.maps != nil {
		if err := c.maps.add(seen, w); err != nil {
			return nil, fmt.Errorf("read the storage module's maps: %w", err)
		}
	}
	c.blind = nil
	if c.disks != nil {
		if err := c.disks.add(seen); err != nil {
			c.blind = fmt.Errorf("read the disks: %w", err)
		}
	}
	c.addIdle(seen)
	c.forget(seen)
	c.noteUntimed(seen)
	w.End = now.Add(time.Since(began)) // the reading may have had to wait
	c.last = w.End
	w.Layout, w.Values = c.shown.values(seen, w, c.works)
	return []*inspector.Window{w}, c.blind
}

// addIdle puts in the disks that have made no request since the start: of
// them 0 is known.
func (c *Collector) addIdle(seen map[string]*device) {
	if c.maps == nil || c.maps.full() {
		return
	}
	names, err := disksPresent(c.cfg.Sys)
	if err != nil {
		c.log.Debug("disks cannot be listed", "error", err)
	}
	for _, name := range names {
		if seen[name] != nil {
			continue
		}
		seen[name] = &device{}
		if c.disks != nil { // requests come from there, and it does not know this one
			for i := range seen[name] {
				seen[name][i].unknown = true
			}
		}
	}
}

// works reports whether a signal has a source now.
func (c *Collector) works(signal string) bool {
	if c.disabled(signal) {
		return false
	}
	if c.set.Running(programsOf[signal]) {
		return true
	}
	return c.disks != nil && fallbackOf[signal] != "" && c.blind == nil
}

// forget drops devices that are gone, so that a node which makes and removes
// disks all day does not fill the map.
func (c *Collector) forget(seen map[string]*device) {
	for name, d := range seen {
		if d.moved() || name == storage.Other || carriesRequests(c.cfg.Sys, name) {
			continue
		}
		if c.maps != nil {
			c.maps.drop(name)
		}
		delete(seen, name)
	}
}

func (c *Collector) noteUntimed(seen map[string]*device) {
	var names []string
	for name, d := range seen {
		if slices.ContainsFunc(d[:], func(t totals) bool { return t.untimed > 0 }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untimed = names
}

// Close unloads the programs and ends the reading of the ring.
func (c *Collector) Close() error {
	if c.watch != nil {
		if err := c.watch.close(); err != nil {
			c.log.Warn("the storage module's events closed badly", "error", err)
		}
	}
	if err := c.set.Close(); err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("close the storage module: %w", err)
	}
	return nil
}
