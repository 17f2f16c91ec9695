package process

import "github.com/telltale-dev/telltale/agent/inspector"

// ProfileOnCPU is the module's task kind.
const ProfileOnCPU = "profile_on_cpu"

// The arguments of the task, beside its duration.
const (
	ArgPid       = "pid"
	ArgCgroup    = "cgroup"
	ArgContainer = "container"
	ArgHz        = "hz"
)

// MaxPid is the kernel's highest process id.
const MaxPid = 1 << 22

// maxProfileSeconds is the longest profile.
const maxProfileSeconds = 300

// Tasks are the module's task kinds. A profile counts every sample in the
// kernel, so of the arguments of a trace it takes the duration alone.
func Tasks() []inspector.TaskKind {
	return []inspector.TaskKind{{
		Name: ProfileOnCPU, Title: "Profile CPU use", Scope: inspector.ScopeDiagnose, Cost: inspector.CostHeavy,
		Help: "Where one process, or all of one cgroup or container, spends CPU time: the functions with their shares and folded stacks, kernel and user code, Go and C, " +
			"from samples of every CPU hz times a second. Of hz x CPUs x seconds possible samples it says how many hit the target; few mean that it computes little, or that it waits for a CPU: of a process, how long it was runnable and waited is told. " +
			"Use when a process or a node uses much CPU. cgroup / shows which processes of the whole node use the CPUs. Next: metrics_summary of process when it waits for a CPU, monitor_process_io when it may wait for a disk.",
		Args: []inspector.Arg{
			{Name: ArgPid, Kind: inspector.IntArg, Min: 1, Max: MaxPid, Help: "process id on the node, all its threads; the process must be alive"},
			{Name: ArgCgroup, Kind: inspector.TextArg, Max: 512, Help: "the processes of this cgroup and those below it: its path under the cgroup mount, or its id; / is the whole machine, with a row for each process"},
			{Name: ArgContainer, Kind: inspector.TextArg, Max: 128, Help: "the processes of this container: its id or a prefix of at least 12 characters"},
			{Name: inspector.ArgDuration, Kind: inspector.IntArg, Min: 1, Max: maxProfileSeconds, Default: 5, Help: "seconds to look; up to 8 are answered in the call, more gives a ticket"},
			{Name: ArgHz, Kind: inspector.IntArg, Min: 1, Max: 199, Default: 99, Help: "samples a second of each CPU"},
		},
		Targets: []string{ArgPid, ArgCgroup, ArgContainer},
		Counts:  map[string]string{"": "samples"},
		Aim:     `send "cgroup":"/" for the whole machine, which shows which process uses the CPU; then the pid of that process`,
	}}
}
