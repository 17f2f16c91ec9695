package network

import "github.com/telltale-dev/telltale/agent/inspector"

// The kinds of events; all come from rules on the component's own metrics.
const (
	PacketDropBurst = "packet_drop_burst"
	RetransmitBurst = "retransmit_burst"
	ListenOverflow  = "listen_overflow"
	ResetBurst      = "reset_burst"
)

// Events are the component's event kinds. Windows last 10 s: 2 of 3 leaves
// out what is over within one window and still speaks within half a minute.
func Events() []inspector.EventKind {
	return []inspector.EventKind{
		{
			Name: PacketDropBurst, Title: "Packet drop burst", Severity: inspector.Warning, Signals: []string{Drops},
			Help: "The kernel drops many packets for one reason that is not benign. NETFILTER_DROP is a firewall rule at work, SOCKET_RCVBUFF and SOCKET_BACKLOG a process that reads too slowly, " +
				"NO_SOCKET a UDP port where nobody listens. See which addresses and ports are hit and where in the kernel.",
			// Strays and port scans make a few a second on any machine that
			// is reachable; 20 a second of one reason is somebody's traffic.
			Rule:     &inspector.Rule{Metric: "network.drops", Stat: inspector.StatRate, Above: 20, K: 2, N: 3, Skip: map[string]string{"benign": "true"}},
			Labels:   []string{"reason", "location"},
			Related:  []string{"network.packets_dropped", "network.drops", "network.retransmit_segments", "network.listen_overflows", "network.rx_bytes", "network.tx_bytes"},
			CausedBy: []string{ListenOverflow},
			Tool:     TraceDrops,
		},
		{
			Name: RetransmitBurst, Title: "TCP retransmit burst", Severity: inspector.Warning, Signals: []string{Retransmits},
			Help: "TCP sends many segments again: packets or their acknowledgements are lost or late. See whether one peer or all of them are concerned.",
			// A healthy path loses less than one segment in a thousand, and
			// few nodes send 20,000 a second for long.
			Rule:     &inspector.Rule{Metric: "network.retransmit_segments", Stat: inspector.StatRate, Above: 20, K: 2, N: 3},
			Related:  []string{"network.retransmit_segments", "network.packets_dropped", "network.tcp_srtt", "network.tcp_established", "network.tcp_failed_opens", "network.rx_bytes", "network.tx_bytes"},
			CausedBy: []string{PacketDropBurst, ListenOverflow, "run_queue_saturation"},
			Tool:     TraceRetransmits,
		},
		{
			Name: ListenOverflow, Title: "Listen queue overflow", Severity: inspector.Warning, Signals: []string{ListenOverflows},
			Help: "Connections met a full accept queue and were not taken: a server accepts too slowly, or its backlog is too small. Clients see slow or failed connects. See which port and process accept.",
			// Every overflow kept a client waiting for a second or more:
			// there is no healthy rate, and one window is enough.
			Rule:     &inspector.Rule{Metric: "network.listen_overflows", Stat: inspector.StatRate, Above: 0, K: 1, N: 3},
			Related:  []string{"network.listen_overflows", "network.listen_drops", "network.tcp_passive_opens", "network.tcp_failed_opens", "network.retransmit_segments"},
			CausedBy: []string{"run_queue_saturation", "slow_io", "oom_kill"},
			Tool:     MonitorTCP,
		},
		{
			Name: ResetBurst, Title: "TCP reset burst", Severity: inspector.Warning, Signals: []string{ResetsIn},
			Help: "Sockets of this node receive many resets: connections are refused or cut off, by a peer or by a service of the node itself. See which remote port and which process.",
			// Received by a socket, so that somebody here was cut off; resets
			// sent are mostly answers to scans. Clients that end with a
			// reset by habit make some; 20 a second are more than habit.
			Rule:     &inspector.Rule{Metric: "network.tcp_resets_in", Stat: inspector.StatRate, Above: 20, K: 2, N: 3},
			Related:  []string{"network.tcp_resets_in", "network.tcp_resets_out", "network.tcp_established_resets", "network.tcp_failed_opens", "network.tcp_active_opens", "network.listen_drops"},
			CausedBy: []string{ListenOverflow, "process_crash", "oom_kill"},
			Tool:     MonitorTCP,
		},
	}
}
