package process

import "github.com/telltale-dev/telltale/agent/inspector"

// The kinds of events. The first three are immediate.
const (
	OOMKill            = "oom_kill"
	ProcessCrash       = "process_crash"
	NewExecutable      = "new_executable"
	ExecBurst          = "exec_burst"
	RunQueueSaturation = "run_queue_saturation"
)

// The label keys of the events.
const (
	LabelComm   = "comm"   // name of the process, as the kernel keeps it: at most 15 bytes
	LabelExe    = "exe"    // path of the executable file
	LabelCgroup = "cgroup" // path of its cgroup: memory on v1, else v2
	LabelChange = "change" // of new_executable: ChangeNew or ChangeReplaced
)

// The values of LabelChange.
const (
	ChangeNew      = "new"      // no process of this path was seen on the node before
	ChangeReplaced = "replaced" // the path was seen with another file behind it
)

const (
	// burstExecs is what no shell session and no usual build of a few cores
	// reaches for half a minute; a process that loops over fork and exec does.
	burstExecs = 200
	// saturatedNS is 2^24: several times the slice that the scheduler grants
	// with more than one task for a CPU (3 ms), so one wait in a hundred stood
	// behind at least five others, or behind a throttled group. A
	// percentile is known to its power of two alone.
	saturatedNS = 1 << 24
	// saturatedFloor is the least number of waits in a window that a
	// percentile is worth anything for: ten of them lie beyond it.
	saturatedFloor = 1000
)

// Events are the module's event kinds.
func Events() []inspector.EventKind {
	return []inspector.EventKind{
		{
			Name: OOMKill, Title: "Out-of-memory kill", Severity: inspector.Critical, Immediate: true, Signals: []string{SignalOOMKill},
			Help: "The kernel killed a process for lack of memory: in its memory cgroup, whose limit the sample shows, or on the whole machine. " +
				"The victim is the largest process there, not always the one that grew. Compare the limit with what the process needs, and host.memory_available_bytes before it.",
			Labels:  []string{LabelComm, LabelCgroup},
			Related: []string{OOMKills, ExitsBySignal, "host.memory_available_bytes", "host.memory_used_ratio", "host.swap_free_bytes", "host.pressure_stalled_ns"},
			Tool:    "metrics_summary",
		},
		{
			Name: ProcessCrash, Title: "Process crashed", Severity: inspector.Warning, Immediate: true, Signals: []string{SignalExit},
			Help: "A process was ended by a signal that tells of a fault in it: SEGV, BUS (bad address), ABRT (gave up by itself: assertion, panic, heap check), FPE, ILL, TRAP, SYS (refused system call) and their like. " +
				"A kill by TERM, KILL or a keyboard is none; an out-of-memory kill is an event of its own. The sample has the exit code, the faulting address where the kernel gave one, and whether a core was written.",
			Labels:   []string{LabelExe, LabelComm, LabelSignal, LabelCgroup}, // comm only where the file is not known
			Related:  []string{ExitsBySignal, ExitsFailed, Exits, OOMKills, "host.memory_available_bytes"},
			CausedBy: []string{NewExecutable, OOMKill},
			Tool:     "query_metrics",
		},
		{
			Name: NewExecutable, Title: "New executable", Severity: inspector.Info, Immediate: true, Signals: []string{SignalExec},
			Help: "A program runs that was not seen on this node before, or whose file was replaced since: mostly a deploy or an upgrade. " +
				"Only processes that live through a window of ten seconds are looked at. Not a fault: what else changed at that time is what it is good for.",
			Labels:  []string{LabelExe, LabelChange},
			Related: []string{Execs, Exits, ExitsFailed},
			Tool:    "list_events",
		},
		{
			Name: ExecBurst, Title: "Burst of new programs", Severity: inspector.Warning, Signals: []string{SignalExec},
			Rule: &inspector.Rule{Metric: Execs, Stat: inspector.StatRate, Above: burstExecs, K: 2, N: 3},
			Help: "More than 200 programs a second were started, in two of three windows: a loop over fork and exec, a script that restarts at once, or a large build. " +
				"Each costs the kernel about a millisecond of CPU. See whether they fail (process.exits_failed) and what the CPU is used for.",
			Related: []string{Execs, Forks, Exits, ExitsFailed, RunqWaitNS, "host.load1", "host.cpu_busy_ratio"},
			Tool:    "metrics_summary",
		},
		{
			Name: RunQueueSaturation, Title: "Run queue saturated", Severity: inspector.Warning, Signals: []string{SignalRunQueue},
			Rule: &inspector.Rule{Metric: RunqLatencyNS, Stat: inspector.StatP99, Above: saturatedNS, Floor: saturatedFloor, K: 3, N: 5},
			Help: "One in a hundred waits for a CPU took 17 ms or more, in three of five windows: more tasks want to run than there are CPUs, or a group is throttled by its own CPU limit. " +
				"Find who uses the CPU first; a group that is throttled waits while CPUs idle.",
			Related:  []string{RunqLatencyNS, RunqWaitNS, Execs, Threads, "host.load1", "host.cpu_busy_ratio", "host.pressure_stalled_ns"},
			CausedBy: []string{ExecBurst},
			Tool:     ProfileOnCPU,
		},
	}
}
