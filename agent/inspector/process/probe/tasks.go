package probe

import (
	"log/slog"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// Tasks lists what the module does on request, by task kind. Each task loads
// its own programs and unloads them when it ends.
func Tasks(cfg Config, log *slog.Logger) map[string]inspector.TaskRun {
	return map[string]inspector.TaskRun{
		process.ProfileOnCPU: (&profiler{cfg: cfg, log: log}).run,
	}
}
