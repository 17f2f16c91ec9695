package network

import "github.com/telltale-dev/telltale/agent/inspector"

// The task kinds.
const (
	TraceDrops       = "trace_network_drops"
	TraceRetransmits = "trace_tcp_retransmits"
	MonitorTCP       = "monitor_tcp_connections"
	MonitorInterface = "monitor_interface_traffic"
)

// The arguments of the tasks, beside those that every trace has.
const (
	ArgReason    = "reason"
	ArgInterface = "interface"
	ArgAddress   = "address"
	ArgPort      = "port"
	ArgCgroup    = "cgroup"
	ArgContainer = "container"
	ArgPid       = "pid"
)

// MaxPid is the kernel's highest process id.
const MaxPid = 1 << 22

// maxSeconds is the longest duration of a network task.
const maxSeconds = inspector.MaxTaskSeconds

// Tasks are the component's task kinds.
func Tasks() []inspector.TaskKind {
	address := inspector.Arg{Name: ArgAddress, Kind: inspector.TextArg, Max: 45, Help: "only this IPv4 or IPv6 address, local or remote"}
	port := inspector.Arg{Name: ArgPort, Kind: inspector.IntArg, Min: 1, Max: 65_535, Help: "only this port, local or remote"}
	cgroup := inspector.Arg{Name: ArgCgroup, Kind: inspector.TextArg, Max: 512, Help: "only sockets of this cgroup or one below it: its path under the cgroup mount, or its id"}
	container := inspector.Arg{Name: ArgContainer, Kind: inspector.TextArg, Max: 128, Help: "only sockets of this container: its id or a prefix of at least 8 characters"}
	pid := inspector.Arg{Name: ArgPid, Kind: inspector.IntArg, Min: 1, Max: MaxPid, Help: "only sockets of this process on the node; it must be alive"}
	sockets := []inspector.Arg{address, port, cgroup, container, pid}
	with := func(first ...inspector.Arg) []inspector.Arg {
		return append(first, inspector.TraceArgs(maxSeconds)...)
	}
	return []inspector.TaskKind{
		{
			Name: TraceDrops, Title: "Trace dropped packets", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{Drops},
			Help: "Which packets the kernel drops and why: by the kernel's own reason, the function that dropped them, interface, protocol, addresses and ports, with kernel stacks of single drops. " +
				"Use when packets_dropped rises, a packet_drop_burst event came or a connection hangs; all network namespaces of the node are seen. " +
				"Rows marked benign are daily life (a refused connection, a purged queue, stray IPv6 multicast). A drop has a process or cgroup only where the packet belonged to a socket. " +
				"Next: trace_tcp_retransmits for the same port, metrics_summary.",
			Args: with(append([]inspector.Arg{
				{Name: ArgReason, Kind: inspector.TextArg, Max: 64, Help: "only this reason by the kernel's name, for example NETFILTER_DROP or SOCKET_RCVBUFF"},
				{Name: ArgInterface, Kind: inspector.TextArg, Max: 15, Help: "only drops on an interface of this name, in whatever namespace"},
			}, sockets...)...),
			Counts: map[string]string{"": "packets"},
		},
		{
			Name: TraceRetransmits, Title: "Trace TCP retransmits", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{Retransmits},
			Help: "Which TCP connections send segments again: by addresses and ports, with state, round-trip time, segments in flight, cgroup and the process that owns the socket. " +
				"Counts are segments, SYN and SYN-ACK among them, and equal the kernel's RetransSegs. Use when a connection is slow, retransmit_segments rises or a retransmit_burst event came; " +
				"all network namespaces of the node are seen. Rows that share a remote address point at the path or that peer; rows of all peers at this node's own link. Next: trace_network_drops for the same port.",
			Args:   with(sockets...),
			Counts: map[string]string{"": "segments"},
		},
		{
			Name: MonitorTCP, Title: "Monitor TCP connections", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{Opens, Closes, SocketEnds, ResetsIn, ResetsOut},
			Help: "Which TCP connections open, are accepted, fail, close and are reset, by direction, remote address, service port and process, with bytes, round-trip time and life time of those that ended. " +
				"Use for refused or aborted connections, connection storms and to see who talks to whom; those that are just there at the end are listed apart (event=established), the ones that moved the most bytes first. Next: trace_tcp_retransmits for a slow peer.",
			Args:   with(sockets...),
			Counts: map[string]string{"": "connection events"},
		},
		{
			Name: MonitorInterface, Title: "Monitor an interface's traffic", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Signals: []string{Interfaces},
			Help: "What passes one network interface: packets and bytes in both directions, equal to /proc/net/dev, by protocol, remote address and service port. " +
				"Use when a link is full or to find the top talkers. The interface is looked up in the agent's network namespace, or in that of the process given as pid. Next: monitor_tcp_connections for the busiest port.",
			Args: with(
				inspector.Arg{Name: ArgInterface, Kind: inspector.TextArg, Max: 15, Help: "interface by its name, for example eth0"},
				inspector.Arg{Name: ArgPid, Kind: inspector.IntArg, Min: 1, Max: MaxPid, Help: "look in the network namespace of this process, for example one inside a container"},
			),
			Targets: []string{ArgInterface},
			Counts:  map[string]string{"": "packets"},
			Aim:     `metrics_summary {"module":"network","format":"detailed"} shows the interfaces that pass packets, such as eth0`,
		},
	}
}
