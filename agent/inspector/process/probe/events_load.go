package probe

import (
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
)

// eventsSizes are the bounds that tests change.
type eventsSizes struct {
	ringBytes      uint32 // 0: as compiled
	recordsASecond uint64
	flood          bool // load the test's program too
	settled        time.Duration
}

// load loads what the signals that are on need. A program that several need
// stays as long as one of them is.
func (w *watcher) load(spec *ebpf.CollectionSpec, cfg Config, sizes eventsSizes, log *slog.Logger) {
	var load []bpfload.Program
	disable := map[string]string{}
	for _, signal := range signals {
		for _, name := range w.programs[signal] {
			if !slices.ContainsFunc(load, func(p bpfload.Program) bool { return p.Name == name }) {
				load = append(load, bpfload.Program{Name: name})
			}
		}
	}
	for _, p := range load {
		needed := false
		for signal, names := range w.programs {
			needed = needed || slices.Contains(names, p.Name) && !slices.Contains(cfg.Disable, signal)
		}
		if !needed {
			disable[p.Name] = switchedOff
		}
	}
	if sizes.flood {
		load = append(load, bpfload.Program{Name: eventsProgFlood, Attach: bpfload.OnDemand})
	}
	w.set = cfg.Kernel.Open(spec, load, disable, log)
}

// signalCause says why a signal was sent, from its si_code (siginfo.h).
func signalCause(signal int, code int32) string {
	switch code {
	case 0:
		return "SI_USER" // kill
	case -1:
		return "SI_QUEUE"
	case -6:
		return "SI_TKILL" // abort, raise
	case 0x80:
		return "SI_KERNEL"
	}
	if names := causes[unix.Signal(signal)]; code > 0 && int(code) <= len(names) {
		return names[code-1]
	}
	return strconv.Itoa(int(code))
}

var causes = map[unix.Signal][]string{
	unix.SIGSEGV: {"SEGV_MAPERR", "SEGV_ACCERR", "SEGV_BNDERR", "SEGV_PKUERR"},
	unix.SIGBUS:  {"BUS_ADRALN", "BUS_ADRERR", "BUS_OBJERR", "BUS_MCEERR_AR", "BUS_MCEERR_AO"},
	unix.SIGFPE:  {"FPE_INTDIV", "FPE_INTOVF", "FPE_FLTDIV", "FPE_FLTOVF", "FPE_FLTUND", "FPE_FLTRES", "FPE_FLTINV", "FPE_FLTSUB"},
	unix.SIGILL:  {"ILL_ILLOPC", "ILL_ILLOPN", "ILL_ILLADR", "ILL_ILLTRP", "ILL_PRVOPC", "ILL_PRVREG", "ILL_COPROC", "ILL_BADSTK"},
	unix.SIGTRAP: {"TRAP_BRKPT", "TRAP_TRACE", "TRAP_BRANCH", "TRAP_HWBKPT"},
	unix.SIGSYS:  {"SYS_SECCOMP"},
}
