// Package process holds the words of the probe's process module: waiting for
// a CPU, forks, execs, exits by cause, OOM kills; the profile task and events.
//
// It knows nothing of how they are measured; that is the probe folder's part.
// Start reading at Register.
package process

import "github.com/telltale-dev/telltale/agent/inspector"

// Name is the module's name.
const Name = "process"

// The signals that a node may be able to give.
const (
	SignalRunQueue = "run_queue"
	SignalFork     = "fork"
	SignalExec     = "exec"
	SignalExit     = "exit" // exits, failures and exits by signal
	SignalOOMKill  = "oom_kill"
)

// The metrics.
const (
	RunqLatencyNS = Name + ".runq_latency_ns"
	RunqWaitNS    = Name + ".runq_wait_ns"
	Forks         = Name + ".forks"
	Threads       = Name + ".threads"
	Execs         = Name + ".execs"
	Exits         = Name + ".exits"
	ExitsFailed   = Name + ".exits_failed"
	ExitsBySignal = Name + ".exits_by_signal"
	OOMKills      = Name + ".oom_kills"
)

// LabelSignal is the label key of ExitsBySignal; its values are signal names
// without SIG (SEGV, KILL), or the number where there is no name.
const LabelSignal = "signal"

// Register adds the module's words.
func Register(r *inspector.Registry) {
	r.Add(inspector.Component{
		Name:    Name,
		Title:   "Processes",
		Probe:   true,
		Signals: []string{SignalRunQueue, SignalFork, SignalExec, SignalExit, SignalOOMKill},
		Metrics: []inspector.Metric{
			{Name: RunqLatencyNS, Kind: inspector.Histogram, Unit: inspector.Nanoseconds, Signal: SignalRunQueue,
				Help: "Time from a task's becoming runnable to its running, for every time a task of this machine came to a CPU."},
			{Name: RunqWaitNS, Kind: inspector.Delta, Unit: inspector.Nanoseconds, Signal: SignalRunQueue, Headline: true,
				Help: "Time that all tasks together waited for a CPU; a second of it in a second means one task was always waiting."},
			{Name: Forks, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalFork, Headline: true,
				Help: "Processes made; without BPF the kernel's count of processes and threads together."},
			{Name: Threads, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalFork,
				Help: "Threads made inside existing processes."},
			{Name: Execs, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalExec,
				Help: "Programs started by exec."},
			{Name: Exits, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalExit,
				Help: "Processes that ended, each counted once, with its last thread."},
			{Name: ExitsFailed, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalExit,
				Help: "Processes that ended by themselves with a status other than 0."},
			{Name: ExitsBySignal, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalExit, Labels: []string{LabelSignal},
				Help: "Processes ended by a signal, from their exit code; a signal that was delivered and survived does not count."},
			{Name: OOMKills, Kind: inspector.Delta, Unit: inspector.Count, Signal: SignalOOMKill, Headline: true,
				Help: "Processes the kernel chose to kill for lack of memory, in a memory cgroup or the whole machine."},
		},
		Tasks:  Tasks(),
		Events: Events(),
	})
}
