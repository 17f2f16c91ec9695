// Package network holds the words of the network module: what it measures and
// from where. The code that measures is in the probe folder; this package
// must not know it, because the server links this one too.
package network

import "github.com/telltale-dev/telltale/agent/inspector"

// Name is the component's name.
const Name = "network"

// The signals, each with its own line in the capability report.
const (
	Opens           = "opens"            // connections opened, accepted and failed
	Established     = "established"      // connections open now
	Closes          = "closes"           // connections that ended
	SocketEnds      = "socket_ends"      // bytes and round-trip time of ended sockets
	ResetsIn        = "resets_in"        // RST received
	ResetsOut       = "resets_out"       // RST sent
	Retransmits     = "retransmits"      // segments sent again
	Drops           = "drops"            // packets dropped, by reason
	ListenOverflows = "listen_overflows" // accept queues that were full
	Interfaces      = "interfaces"       // traffic by interface
)

// Register adds the component's words to a registry.
func Register(r *inspector.Registry) {
	r.Add(inspector.Component{
		Name: Name, Title: "Network", Probe: true,
		Signals: []string{Opens, Established, Closes, SocketEnds, ResetsIn, ResetsOut, Retransmits, Drops, ListenOverflows, Interfaces},
		Metrics: []inspector.Metric{
			{Name: "network.tcp_active_opens", Kind: inspector.Delta, Unit: inspector.Count, Signal: Opens, Headline: true,
				Help: "TCP connections this machine began to open, in all network namespaces (from /proc: in the agent's own)."},
			{Name: "network.tcp_passive_opens", Kind: inspector.Delta, Unit: inspector.Count, Signal: Opens,
				Help: "TCP connections this machine accepted, in all network namespaces (from /proc: in the agent's own)."},
			{Name: "network.tcp_failed_opens", Kind: inspector.Delta, Unit: inspector.Count, Signal: Opens,
				Help: "TCP connections that ended before they were established: refused, timed out or given up."},
			{Name: "network.tcp_established_resets", Kind: inspector.Delta, Unit: inspector.Count, Signal: Opens,
				Help: "Established TCP connections that ended at once, by a reset in either direction."},
			{Name: "network.tcp_established", Kind: inspector.Gauge, Unit: inspector.Count, Signal: Established, Headline: true,
				Help: "TCP connections in ESTABLISHED or CLOSE_WAIT at the end of the window."},
			{Name: "network.tcp_closes", Kind: inspector.Delta, Unit: inspector.Count, Signal: Closes,
				Help: "TCP connections that left ESTABLISHED and CLOSE_WAIT, in whatever way."},
			{Name: "network.tcp_sent_bytes", Kind: inspector.Delta, Unit: inspector.Bytes, Signal: SocketEnds,
				Help: "Acknowledged bytes sent over the whole life of the TCP sockets that ended in the window; SYN and FIN count one byte each."},
			{Name: "network.tcp_received_bytes", Kind: inspector.Delta, Unit: inspector.Bytes, Signal: SocketEnds,
				Help: "Bytes received over the whole life of the TCP sockets that ended in the window; a FIN counts one byte."},
			{Name: "network.tcp_srtt", Kind: inspector.Histogram, Unit: inspector.Nanoseconds, Signal: SocketEnds,
				Help: "Smoothed round-trip time of the TCP sockets that ended in the window, as the kernel last estimated it."},
			{Name: "network.tcp_resets_in", Kind: inspector.Delta, Unit: inspector.Count, Signal: ResetsIn,
				Help: "TCP resets received by a socket."},
			{Name: "network.tcp_resets_out", Kind: inspector.Delta, Unit: inspector.Count, Signal: ResetsOut,
				Help: "TCP resets sent."},
			{Name: "network.retransmit_segments", Kind: inspector.Delta, Unit: inspector.Count, Signal: Retransmits, Headline: true,
				Help: "TCP segments sent again, SYN and SYN-ACK among them; segments, not events."},
			{Name: "network.packets_dropped", Kind: inspector.Delta, Unit: inspector.Count, Signal: Drops, Headline: true,
				Help: "Packets the kernel dropped for any reason that is not benign."},
			{Name: "network.drops", Kind: inspector.Delta, Unit: inspector.Count, Signal: Drops, Labels: []string{"reason", "benign", "location"},
				Help: "Packets dropped by the kernel's own reason; benign ones are daily life (a refused connection, a purged queue, stray IPv6 multicast); location is the function, where the reason says nothing."},
			{Name: "network.listen_overflows", Kind: inspector.Delta, Unit: inspector.Count, Signal: ListenOverflows,
				Help: "Times a connection met a full accept queue (the kernel's ListenOverflows)."},
			{Name: "network.listen_drops", Kind: inspector.Delta, Unit: inspector.Count, Signal: ListenOverflows,
				Help: "Connection attempts dropped by a listening socket for any reason (the kernel's ListenDrops)."},
			{Name: "network.rx_bytes", Kind: inspector.Delta, Unit: inspector.Bytes, Signal: Interfaces, Headline: true,
				Help: "Bytes received by all interfaces but loopback, in the agent's network namespace."},
			{Name: "network.tx_bytes", Kind: inspector.Delta, Unit: inspector.Bytes, Signal: Interfaces, Headline: true,
				Help: "Bytes sent by all interfaces but loopback, in the agent's network namespace."},
			{Name: "network.if_rx_bytes", Kind: inspector.Delta, Unit: inspector.Bytes, Signal: Interfaces, Labels: []string{"interface"},
				Help: "Bytes received by an interface, with link headers; a packet merged by the kernel counts its merged length."},
			{Name: "network.if_tx_bytes", Kind: inspector.Delta, Unit: inspector.Bytes, Signal: Interfaces, Labels: []string{"interface"},
				Help: "Bytes handed to an interface, with link headers."},
			{Name: "network.if_rx_packets", Kind: inspector.Delta, Unit: inspector.Count, Signal: Interfaces, Labels: []string{"interface"},
				Help: "Packets received by an interface, as the stack sees them: merged ones count once (from /proc: as the driver counts)."},
			{Name: "network.if_tx_packets", Kind: inspector.Delta, Unit: inspector.Count, Signal: Interfaces, Labels: []string{"interface"},
				Help: "Packets handed to an interface, as the stack sees them: a segmented one counts once (from /proc: as the driver counts)."},
		},
		Tasks:  Tasks(),
		Events: Events(),
	})
}
