// Package host holds the words of the host inspector: the machine's CPU,
// load, memory, pressure, disks, sockets, clock and boot, and the agent's own
// use of it.
//
// It knows nothing of how the numbers are read; that is package
// host/collect. Start reading at Register.
package host

import "github.com/telltale-dev/telltale/agent/inspector"

// Name is the component.
const Name = "host"

// The capability signals.
const (
	CPU      = "cpu"
	Load     = "load"
	Memory   = "memory"
	Pressure = "pressure"
	Disks    = "disks"
	Sockets  = "sockets"
	Clock    = "clock"
	Boot     = "boot"
	Agent    = "agent"
)

// The metrics. What is named cgroup_… is of the container that the agent runs
// in, as its /proc shows it; everything else is of the whole machine. Only
// one of the two is ever measured on a node.
const (
	CPUTime         = "host.cpu_ns"
	CPUBusy         = "host.cpu_busy_ratio"
	CgroupCPUTime   = "host.cgroup_cpu_ns"
	CgroupCPUBusy   = "host.cgroup_cpu_busy_ratio"
	CPUs            = "host.cpus"
	ContextSwitches = "host.context_switches"
	ProcsRunning    = "host.processes_running"
	ProcsBlocked    = "host.processes_blocked"
	CPUClamped      = "host.cpu_steps_clamped"

	Load1  = "host.load1"
	Load5  = "host.load5"
	Load15 = "host.load15"

	MemoryTotal           = "host.memory_total_bytes"
	MemoryAvailable       = "host.memory_available_bytes"
	MemoryUsedRatio       = "host.memory_used_ratio"
	MemoryFree            = "host.memory_free_bytes"
	MemoryCached          = "host.memory_cached_bytes"
	MemoryDirty           = "host.memory_dirty_bytes"
	CgroupMemoryTotal     = "host.cgroup_memory_total_bytes"
	CgroupMemoryAvailable = "host.cgroup_memory_available_bytes"
	CgroupMemoryRatio     = "host.cgroup_memory_used_ratio"
	SwapTotal             = "host.swap_total_bytes"
	SwapFree              = "host.swap_free_bytes"
	SwapIn                = "host.swap_in_bytes"
	SwapOut               = "host.swap_out_bytes"
	MajorFaults           = "host.major_faults"

	PressureStalled = "host.pressure_stalled_ns"
	PressureIO      = "host.io_pressure_ratio"

	DiskTotal     = "host.disk_total_bytes"
	DiskUsed      = "host.disk_used_bytes"
	DiskAvailable = "host.disk_available_bytes"
	DiskFiles     = "host.disk_free_files"
	DiskStuck     = "host.disk_stuck_seconds"
	DiskFullest   = "host.disk_fullest_ratio"
	DisksStuck    = "host.disks_stuck"

	SocketsUsed    = "host.sockets_used"
	SocketsInUse   = "host.sockets_in_use"
	TCPOrphans     = "host.tcp_orphans"
	TCPTimeWait    = "host.tcp_time_wait"
	SocketMemory   = "host.socket_memory_bytes"
	ClockSynced    = "host.clock_synchronized"
	ClockOffset    = "host.clock_offset_seconds"
	ClockMaxError  = "host.clock_max_error_seconds"
	Uptime         = "host.uptime_seconds"
	BootTime       = "host.boot_time_seconds"
	AgentCPU       = "host.agent_cpu_ns"
	AgentRSS       = "host.agent_rss_bytes"
	AgentRoutines  = "host.agent_goroutines"
	AgentOpenFiles = "host.agent_open_files"
)

// The label keys of a disk's series.
const (
	LabelMount   = "mount"    // the mount point
	LabelMountID = "mount_id" // the kernel's id of the mount; two mounts never share one
	LabelFSType  = "fstype"
	LabelMode    = "mode"     // of CPU time
	LabelKind    = "kind"     // of sockets
	LabelStalled = "stalled"  // some or full: whether some task or all were stalled
	LabelWhat    = "resource" // cpu, memory or io
	LabelBootID  = "boot_id"
)

// Register adds the inspector's words to a registry.
func Register(r *inspector.Registry) {
	r.Add(inspector.Component{
		Name:    Name,
		Title:   "Host",
		Signals: []string{CPU, Load, Memory, Pressure, Disks, Sockets, Clock, Boot, Agent},
		Metrics: metrics(),
		Events:  events(),
	})
}

func metrics() []inspector.Metric {
	disk := []string{LabelMount, LabelMountID, LabelFSType}
	const (
		gauge, delta         = inspector.Gauge, inspector.Delta
		count, bytes, ratio  = inspector.Count, inspector.Bytes, inspector.Ratio
		nanoseconds, seconds = inspector.Nanoseconds, inspector.Seconds
	)
	return []inspector.Metric{
		{Name: CPUTime, Kind: delta, Unit: nanoseconds, Signal: CPU, Labels: []string{LabelMode}, Help: "CPU time of the whole machine by mode, from /proc/stat; guest time is not counted again under user"},
		{Name: CPUBusy, Kind: gauge, Unit: ratio, Signal: CPU, Headline: true, Help: "Share of the whole machine's CPU time in the window that was neither idle, iowait nor stolen"},
		{Name: CgroupCPUTime, Kind: delta, Unit: nanoseconds, Signal: CPU, Labels: []string{LabelMode}, Help: "CPU time of the agent's own container by mode, where its /proc shows the container only"},
		{Name: CgroupCPUBusy, Kind: gauge, Unit: ratio, Signal: CPU, Help: "Share of the container's CPU time in the window that was neither idle, iowait nor stolen"},
		{Name: CPUs, Kind: gauge, Unit: count, Signal: CPU, Help: "CPUs that /proc/stat lists as online"},
		{Name: ContextSwitches, Kind: delta, Unit: count, Signal: CPU, Help: "Context switches over all CPUs, from /proc/stat"},
		{Name: ProcsRunning, Kind: gauge, Unit: count, Signal: CPU, Help: "Tasks running or ready to run, from /proc/stat"},
		{Name: ProcsBlocked, Kind: gauge, Unit: count, Signal: CPU, Help: "Tasks blocked on I/O, from /proc/stat"},
		{Name: CPUClamped, Kind: delta, Unit: count, Signal: CPU, Help: "CPU time counters that stepped back a little and were held; the kernel's idle and iowait are not monotonic"},

		{Name: Load1, Kind: gauge, Unit: count, Signal: Load, Headline: true, Help: "Load average of one minute"},
		{Name: Load5, Kind: gauge, Unit: count, Signal: Load, Help: "Load average of five minutes"},
		{Name: Load15, Kind: gauge, Unit: count, Signal: Load, Help: "Load average of fifteen minutes"},

		{Name: MemoryTotal, Kind: gauge, Unit: bytes, Signal: Memory, Help: "Memory of the whole machine, from /proc/meminfo"},
		{Name: MemoryAvailable, Kind: gauge, Unit: bytes, Signal: Memory, Help: "The kernel's estimate of memory that new work can have without swapping"},
		{Name: MemoryUsedRatio, Kind: gauge, Unit: ratio, Signal: Memory, Headline: true, Help: "Memory that new work cannot have without swapping, as a share of the whole machine's memory"},
		{Name: MemoryFree, Kind: gauge, Unit: bytes, Signal: Memory, Help: "Memory that nothing uses at all"},
		{Name: MemoryCached, Kind: gauge, Unit: bytes, Signal: Memory, Help: "Page cache, without swap cache"},
		{Name: MemoryDirty, Kind: gauge, Unit: bytes, Signal: Memory, Help: "Pages that wait to be written to disk"},
		{Name: CgroupMemoryTotal, Kind: gauge, Unit: bytes, Signal: Memory, Help: "Memory of the agent's own container, where its /proc shows the container only"},
		{Name: CgroupMemoryAvailable, Kind: gauge, Unit: bytes, Signal: Memory, Help: "Available memory of the agent's own container"},
		{Name: CgroupMemoryRatio, Kind: gauge, Unit: ratio, Signal: Memory, Help: "Memory that new work cannot have without swapping, as a share of the container's memory"},
		{Name: SwapTotal, Kind: gauge, Unit: bytes, Signal: Memory, Help: "Swap space; 0 means that there is none"},
		{Name: SwapFree, Kind: gauge, Unit: bytes, Signal: Memory, Help: "Swap space that is unused"},
		{Name: SwapIn, Kind: delta, Unit: bytes, Signal: Memory, Help: "Bytes read back from swap, from /proc/vmstat"},
		{Name: SwapOut, Kind: delta, Unit: bytes, Signal: Memory, Help: "Bytes written to swap, from /proc/vmstat"},
		{Name: MajorFaults, Kind: delta, Unit: count, Signal: Memory, Help: "Page faults that had to read from disk, from /proc/vmstat"},

		{Name: PressureStalled, Kind: delta, Unit: nanoseconds, Signal: Pressure, Labels: []string{LabelWhat, LabelStalled}, Help: "Time in which some or all tasks waited for the resource, from /proc/pressure"},
		{Name: PressureIO, Kind: gauge, Unit: ratio, Signal: Pressure, Headline: true, Help: "Share of the window in which some task waited for I/O, from /proc/pressure/io"},

		{Name: DiskTotal, Kind: gauge, Unit: bytes, Signal: Disks, Labels: disk, Help: "Size of the filesystem"},
		{Name: DiskUsed, Kind: gauge, Unit: bytes, Signal: Disks, Labels: disk, Help: "Used space of the filesystem"},
		{Name: DiskAvailable, Kind: gauge, Unit: bytes, Signal: Disks, Labels: disk, Help: "Space that an ordinary user can still write"},
		{Name: DiskFiles, Kind: gauge, Unit: count, Signal: Disks, Labels: disk, Help: "Files that can still be made; unknown where the filesystem has no such limit"},
		{Name: DiskStuck, Kind: gauge, Unit: seconds, Signal: Disks, Labels: disk, Help: "How long the mount has not answered; 0 while it answers"},
		{Name: DiskFullest, Kind: gauge, Unit: ratio, Signal: Disks, Headline: true, Help: "Used share of the fullest filesystem that answered"},
		{Name: DisksStuck, Kind: gauge, Unit: count, Signal: Disks, Help: "Mounts that do not answer, for example a dead NFS or FUSE mount"},

		{Name: SocketsUsed, Kind: gauge, Unit: count, Signal: Sockets, Help: "Sockets in use in the agent's network namespace, from /proc/net/sockstat"},
		{Name: SocketsInUse, Kind: gauge, Unit: count, Signal: Sockets, Labels: []string{LabelKind}, Help: "Sockets in use by protocol"},
		{Name: TCPOrphans, Kind: gauge, Unit: count, Signal: Sockets, Help: "TCP sockets that no process holds any more"},
		{Name: TCPTimeWait, Kind: gauge, Unit: count, Signal: Sockets, Help: "TCP sockets in TIME_WAIT"},
		{Name: SocketMemory, Kind: gauge, Unit: bytes, Signal: Sockets, Labels: []string{LabelKind}, Help: "Kernel memory of the sockets' buffers, over all network namespaces"},

		{Name: ClockSynced, Kind: gauge, Unit: ratio, Signal: Clock, Help: "1 when the kernel's clock is disciplined by a time source, 0 when not"},
		{Name: ClockOffset, Kind: gauge, Unit: seconds, Signal: Clock, Help: "Correction that the clock still has to make, from adjtimex; signed"},
		{Name: ClockMaxError, Kind: gauge, Unit: seconds, Signal: Clock, Help: "Largest error that the clock can have, by its own account"},

		{Name: Uptime, Kind: gauge, Unit: seconds, Signal: Boot, Help: "Time since the machine booted"},
		{Name: BootTime, Kind: gauge, Unit: seconds, Signal: Boot, Labels: []string{LabelBootID}, Help: "When the machine booted, in seconds since 1970"},

		{Name: AgentCPU, Kind: delta, Unit: nanoseconds, Signal: Agent, Help: "CPU time that the agent itself used"},
		{Name: AgentRSS, Kind: gauge, Unit: bytes, Signal: Agent, Help: "Resident memory of the agent itself"},
		{Name: AgentRoutines, Kind: gauge, Unit: count, Signal: Agent, Help: "Goroutines of the agent itself"},
		{Name: AgentOpenFiles, Kind: gauge, Unit: count, Signal: Agent, Help: "Open file descriptors of the agent itself"},
	}
}
