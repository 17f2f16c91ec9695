// Package probe measures the network module's signals on a node: with eBPF
// programs where the kernel and the agent's privileges allow, from /proc
// where not.
//
// It owns its programs and maps and the two readings that bound a window. It
// must not know the server or how windows travel. Start reading at
// Collector.Collect; kernel.go holds the eBPF side, proc.go the other, and
// bpf/network.bpf.c the programs.
package probe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// Config says where to look and what to leave alone. The zero value means
// /proc, /sys, every signal, and all network namespaces.
type Config struct {
	Proc    string
	Sys     string
	Disable []string // signals to keep off
	Netns   uint32   // count one network namespace only, by its inode; 0: all
	// Kernel is shared by all that load programs. Nil: nothing is shared.
	Kernel *bpfload.Kernel
	// Emit takes what the module's own ring reports as it happens. It does not
	// block and is safe for concurrent use. Nil: cold events are off.
	Emit func(inspector.Occurrence)
}

// Collector measures the module. Its methods are for one goroutine at a time.
type Collector struct {
	kernel  *kernel
	proc    procFiles
	off     map[string]string // signal: why
	signals []string
	log     *slog.Logger

	last   *reading
	lastAt time.Time
	layout *inspector.Layout
	chosen *choices
}

// New loads what can be loaded and takes the first reading. It never fails
// for lack of privilege or kernel support; Capabilities tells what works.
func New(cfg Config, log *slog.Logger) (*Collector, error) {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.Sys == "" {
		cfg.Sys = "/sys"
	}
	var words inspector.Registry
	network.Register(&words)
	component, _ := words.Component(network.Name)
	c := &Collector{proc: procFiles{root: cfg.Proc}, off: map[string]string{}, signals: component.Signals, log: log, chosen: newChoices()}
	for _, s := range cfg.Disable {
		if !slices.Contains(c.signals, s) {
			return nil, fmt.Errorf("network has no signal %q; it has %v", s, c.signals)
		}
		c.off[s] = "switched off by the node's configuration"
	}
	c.kernel = openKernel(cfg, c.off, log)
	first, err := c.read()
	c.lastAt = time.Now()
	if err != nil {
		// What is missing stays unknown in the first window.
		log.Warn("first reading is not whole", "component", network.Name, "error", err)
	}
	c.last = first
	return c, nil
}

// Component returns "network".
func (c *Collector) Component() string { return network.Name }

// Capabilities reports every signal, in the order of the component's words.
func (c *Collector) Capabilities() []inspector.Capability {
	out := make([]inspector.Capability, 0, len(c.signals))
	for _, s := range c.signals {
		if reason, off := c.off[s]; off {
			out = append(out, inspector.Capability{Component: network.Name, Signal: s, Level: inspector.Off, Reason: reason})
			continue
		}
		out = append(out, c.kernel.set.Capability(network.Name, s, fallbacks[s], needs[s]...))
	}
	return out
}

// read takes one reading: each signal from the source that its capability
// names.
func (c *Collector) read() (*reading, error) {
	r := &reading{counters: map[string]uint64{}}
	degraded := map[string]bool{}
	for _, cp := range c.Capabilities() {
		if cp.Source == inspector.SourceProc {
			degraded[cp.Signal] = true
		}
	}
	err := c.kernel.read(r)
	if len(degraded) > 0 {
		err = errors.Join(err, c.proc.read(degraded, r))
	}
	return r, err
}

// Collect closes the window that began at the last call, or at New; its end is
// now and the time that the reading took. A source
// that fails leaves its values unknown; the error is returned beside the
// window that could still be made.
func (c *Collector) Collect(ctx context.Context, now time.Time) ([]*inspector.Window, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("collect network: %w", err)
	}
	began := time.Now()
	r, err := c.read()
	now = now.Add(time.Since(began)) // the reading may have had to wait
	rows := increase(c.last, r, c.running(), c.chosen, now)
	w := &inspector.Window{Start: c.lastAt, End: now, Samples: rows.samples, Lost: r.lost - min(r.lost, c.last.lost), Truncated: rows.truncated + r.truncated - min(r.truncated, c.last.truncated)}
	w.Layout, w.Values = rows.close(c.layout)
	c.layout, c.last, c.lastAt = w.Layout, r, now
	return []*inspector.Window{w}, err
}

// running tells which signals have a source now.
func (c *Collector) running() map[string]bool {
	on := map[string]bool{}
	for _, cp := range c.Capabilities() {
		on[cp.Signal] = cp.Level != inspector.Off
	}
	return on
}

// Costs lists what each program has cost since it was loaded.
func (c *Collector) Costs() ([]bpfload.Cost, error) { return c.kernel.set.Costs() }

// Close unloads every program.
func (c *Collector) Close() error { return c.kernel.set.Close() }
