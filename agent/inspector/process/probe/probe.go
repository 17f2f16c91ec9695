// Package probe measures what the process module names: with eBPF programs on
// the scheduler's tracepoints, or what /proc has of it without privileges.
//
// It owns its programs, their maps and the series of one node; it must not
// know who asks or where windows go. Start reading at New, then Collect;
// process.bpf.c holds the kernel's side.
package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// Config says where the module looks and what it leaves out.
type Config struct {
	Proc    string   // where procfs is mounted; "" means /proc
	Sys     string   // where sysfs is mounted; not used by this module
	Disable []string // signals that stay off
	// Kernel is shared by all that load programs. Nil: nothing is shared.
	Kernel *bpfload.Kernel
	// StateDir is a folder that outlives the agent, for the programs that are
	// known on the node; "" keeps them in memory only.
	StateDir string
	// Emit takes what the module's own ring reports as it happens. It does not
	// block and is safe for concurrent use. Nil: cold events are off.
	Emit func(inspector.Occurrence)
}

// Collector is the running module. Collect is for one goroutine at a time;
// Capabilities may be called at any time.
type Collector struct {
	cfg      Config
	set      *bpfload.Set
	programs map[string][]string // by signal
	proc     *procCounters
	useProc  bool // some signal comes from proc
	lastSums sums
	missed   map[string]uint64 // by program
	shown    *series
	last     time.Time
	watcher  *watcher // nil: nobody listens
}

var signals = []string{process.SignalRunQueue, process.SignalFork, process.SignalExec, process.SignalExit, process.SignalOOMKill}

// New loads the programs that this process may load and falls back to /proc
// where it may not; Capabilities tells which. It fails only when cfg names an
// unknown signal or the embedded object is unusable. The first window starts
// here.
func New(cfg Config, log *slog.Logger) (*Collector, error) {
	for _, signal := range cfg.Disable {
		if !slices.Contains(signals, signal) {
			return nil, fmt.Errorf("process has no signal %q; it has %v", signal, signals)
		}
	}
	spec, err := loadProcess()
	if err != nil {
		return nil, fmt.Errorf("read the process module's programs: %w", err)
	}
	c := open(spec, cfg, log)
	if cfg.Emit != nil {
		if c.watcher, err = openWatcher(cfg, 0, nil, log); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func open(spec *ebpf.CollectionSpec, cfg Config, log *slog.Logger) *Collector {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	exit := processProgOnExit
	if !exitTellsLast(cfg.Kernel) {
		exit = processProgOnExitLive
	}
	c := &Collector{cfg: cfg, missed: map[string]uint64{}, programs: map[string][]string{
		process.SignalRunQueue: {processProgOnWakeup, processProgOnWakeupNew, processProgOnSwitch},
		process.SignalFork:     {processProgOnFork},
		process.SignalExec:     {processProgOnExec},
		process.SignalExit:     {exit},
		process.SignalOOMKill:  {processProgOnOomKill},
	}}
	var load []bpfload.Program
	disable := map[string]string{}
	for _, signal := range signals {
		for _, name := range c.programs[signal] {
			load = append(load, bpfload.Program{Name: name})
			if c.disabled(signal) {
				disable[name] = switchedOff
			}
		}
	}
	c.set = cfg.Kernel.Open(spec, load, disable, log)
	c.dropHalves()
	c.proc = newProcCounters(cfg.Proc)
	offered := map[string]bool{}
	for _, cp := range c.Capabilities() {
		offered[cp.Signal] = cp.Level != inspector.Off
		c.useProc = c.useProc || cp.Source == inspector.SourceProc
	}
	if c.useProc {
		c.proc.step() // the first reading: increases start here
	}
	if m := c.set.Map(processMapTotals); m != nil {
		// What was counted while the programs were loaded is in no window.
		var err error
		if c.lastSums, err = readSums(m); err != nil {
			log.Warn("no first reading of the map", "error", err)
		}
	}
	c.last = time.Now()
	c.shown = newSeries(offered, c.set.Running(c.programs[process.SignalRunQueue]...), c.set.Running(c.programs[process.SignalFork]...))
	return c
}

const switchedOff = "switched off by the node's configuration"

func (c *Collector) disabled(signal string) bool { return slices.Contains(c.cfg.Disable, signal) }

// exitTellsLast says whether the kernel's exit tracepoint has the argument
// that tells the last thread of a process.
func exitTellsLast(kernel *bpfload.Kernel) bool {
	spec, err := kernel.Types()
	if err != nil {
		return true // no BTF: nothing loads anyway, and says why
	}
	var hook *btf.Typedef
	if spec.TypeByName("btf_trace_sched_process_exit", &hook) != nil {
		return true
	}
	ptr, ok := hook.Type.(*btf.Pointer)
	if !ok {
		return true
	}
	proto, ok := ptr.Target.(*btf.FuncProto)
	return !ok || len(proto.Params) > 2 // the first is the hook's own
}

// dropHalves unloads what is left of a signal that needs several programs
// when one of them does not run: a switch hook without wake-ups only costs.
func (c *Collector) dropHalves() {
	for _, signal := range signals {
		if c.set.Running(c.programs[signal]...) {
			continue
		}
		for _, name := range c.programs[signal] {
			_ = c.set.Detach(name, "of no use without the other programs of "+signal)
		}
	}
}

// Component names the module.
func (c *Collector) Component() string { return process.Name }

// Costs lists what the running programs have cost; see bpfload.Cost.
func (c *Collector) Costs() ([]bpfload.Cost, error) { return c.set.Costs() }

// Capabilities tells for each signal how well it works and why.
func (c *Collector) Capabilities() []inspector.Capability {
	var out []inspector.Capability
	for _, signal := range signals {
		fallback, none := c.proc.offers(signal)
		cp := c.set.Capability(process.Name, signal, fallback, c.firstFailure(signal)...)
		if c.disabled(signal) {
			cp.Level, cp.Source, cp.Reason = inspector.Off, inspector.SourceNone, switchedOff
		} else if cp.Level == inspector.Off && none != "" {
			cp.Reason += "; " + none
		}
		c.watcher.degrade(&cp)
		out = append(out, cp)
	}
	return out
}

// firstFailure puts the program with a reason of its own before those that
// were dropped for its sake.
func (c *Collector) firstFailure(signal string) []string {
	names := slices.Clone(c.programs[signal])
	slices.SortStableFunc(names, func(a, b string) int { return c.own(b) - c.own(a) })
	return names
}

func (c *Collector) own(name string) int {
	if f := c.set.Failure(name); f != nil && f.Class != bpfload.Disabled {
		return 1
	}
	return 0
}

// Collect closes the window that began at the last call, or at New; its end is
// now and the time that the reading took. After an error the next window
// begins where this one would have.
func (c *Collector) Collect(ctx context.Context, now time.Time) ([]*inspector.Window, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	began := time.Now()
	w := &inspector.Window{Start: c.last}
	v := reading{source: map[string]inspector.Source{}}
	for _, cp := range c.Capabilities() {
		v.source[cp.Signal] = cp.Source
	}
	costs, err := c.set.Costs()
	if err != nil {
		return nil, fmt.Errorf("read the process module's programs: %w", err)
	}
	if m := c.set.Map(processMapTotals); m != nil {
		sum, err := readSums(m)
		if err != nil {
			return nil, fmt.Errorf("read the process module's map: %w", err)
		}
		v.bpf = sum.since(&c.lastSums)
		c.lastSums = sum
		w.Lost = v.bpf.lost
	}
	for _, k := range costs {
		w.Lost += k.Missed - c.missed[k.Program]
		c.missed[k.Program] = k.Missed
	}
	if c.useProc {
		v.proc = c.proc.step()
	}
	w.End = now.Add(time.Since(began)) // the reading may have had to wait
	c.last = w.End
	w.Layout, w.Values = c.shown.values(&v)
	w.Samples = v.bpf.count()
	return []*inspector.Window{w}, nil
}

// Close unloads the programs.
func (c *Collector) Close() error {
	var err error
	if c.watcher != nil {
		err = c.watcher.close()
	}
	if err = errors.Join(err, c.set.Close()); err != nil && !errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("close the process module: %w", err)
	}
	return nil
}
