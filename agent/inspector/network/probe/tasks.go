package probe

import (
	"log/slog"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/telltale-dev/telltale/agent/cgroups"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// Tasks lists what the module does on request, by task kind. Each task loads
// its own programs and unloads them when it ends.
func Tasks(cfg Config, log *slog.Logger) map[string]inspector.TaskRun {
	t := newTracer(cfg, log)
	return map[string]inspector.TaskRun{
		network.TraceDrops:       t.drops,
		network.TraceRetransmits: t.retransmits,
		network.MonitorTCP:       t.connections,
		network.MonitorInterface: t.traffic,
	}
}

// tracer runs the module's tasks. Safe for concurrent use.
type tracer struct {
	cfg   Config
	log   *slog.Logger
	names *cgroups.Names
	facts func() (*facts, error)     // looked up once, by the first task
	tune  func(*ebpf.CollectionSpec) // of tests; nil: leave it as it is
}

func newTracer(cfg Config, log *slog.Logger) *tracer {
	if cfg.Proc == "" {
		cfg.Proc = "/proc"
	}
	if cfg.Sys == "" {
		cfg.Sys = "/sys"
	}
	return &tracer{cfg: cfg, log: log.With("component", network.Name), names: cgroups.NewNames(cfg.Sys), facts: sync.OnceValues(func() (*facts, error) { return readFacts(cfg) })}
}
