package storage

import "github.com/telltale-dev/telltale/agent/inspector"

// The task kinds.
const (
	TraceSlowIO      = "trace_slow_io"
	MonitorProcessIO = "monitor_process_io"
	MonitorDeviceIO  = "monitor_device_io"
)

// The arguments of the tasks, beside those that every trace has.
const (
	ArgDevice    = "device"
	ArgPid       = "pid"
	ArgCgroup    = "cgroup"
	ArgContainer = "container"
	ArgOperation = "operation"
	ArgThreshold = "threshold_ms"
)

// MaxPid is the kernel's highest process id.
const MaxPid = 1 << 22

// maxSeconds is the longest duration of a storage task.
const maxSeconds = 300

// Tasks are the module's task kinds.
func Tasks() []inspector.TaskKind {
	device := inspector.Arg{Name: ArgDevice, Kind: inspector.TextArg, Max: 32, Help: "block device by its kernel name as in /sys/block (vda, nvme0n1, loop3), or a partition (vda1)"}
	pid := inspector.Arg{Name: ArgPid, Kind: inspector.IntArg, Min: 1, Max: MaxPid, Help: "process id on the node; the process must be alive"}
	trace := inspector.TraceArgs(maxSeconds)
	return []inspector.TaskKind{
		{
			Name: TraceSlowIO, Title: "Trace slow I/O", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{SignalLatency},
			Help: "Which disk requests take long, on which device, and for whom: requests at or above threshold_ms, queue and device together, by device, operation, process and cgroup, " +
				"with percentiles and the single requests. Use when storage latency is high or a slow_io event came. The process is the one that submitted the I/O; " +
				"buffered writes are sent by the kernel later and are marked by=kernel. Next: monitor_device_io on the slow device, monitor_process_io on the busiest process.",
			Args: append([]inspector.Arg{
				device, pid,
				{Name: ArgCgroup, Kind: inspector.TextArg, Max: 512, Help: "only I/O charged to this cgroup or one below it: its path under the cgroup mount, or its id"},
				{Name: ArgContainer, Kind: inspector.TextArg, Max: 128, Help: "only I/O charged to this container: its id or at least its first 8 digits"},
				{Name: ArgOperation, Kind: inspector.EnumArg, Values: Operations[:], Help: "only this operation"},
				{Name: ArgThreshold, Kind: inspector.IntArg, Min: 1, Max: 60_000, Default: 10, Help: "milliseconds from which a request counts as slow"},
			}, trace...),
			Counts: map[string]string{"": "slow requests"},
		},
		{
			Name: MonitorProcessIO, Title: "Monitor a process's I/O", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{SignalRequests},
			Help: "What one process reads and writes: bytes and system calls as in /proc/PID/io, by thread, and its requests by block device. " +
				"Use to tell whether a process causes the load on a disk; writes that were cancelled before they reached a disk are told apart. Next: monitor_device_io on its busiest device.",
			Args:    append([]inspector.Arg{pid}, trace...),
			Targets: []string{ArgPid},
			Counts:  map[string]string{"": "requests", "thread": "system calls"},
			Aim:     "trace_slow_io without a target, or monitor_device_io, shows the pids of processes that use a disk",
		},
		{
			Name: MonitorDeviceIO, Title: "Monitor a device's I/O", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{SignalRequests},
			Help: "What one block device does: requests, bytes, merges, queue depth, latency percentiles and errors by operation, and the processes and cgroups that use it most. " +
				"Counts equal /sys/block/DEVICE/stat. Use when a device is busy, slow or failing. Next: monitor_process_io on the busiest process, trace_slow_io on the device.",
			Args:    append([]inspector.Arg{device}, trace...),
			Targets: []string{ArgDevice},
			Counts:  map[string]string{"": "requests"},
			Aim:     `metrics_summary {"module":"storage"} shows the devices that are in use, such as vda or nvme0n1`,
		},
	}
}
