package main

import "math"

// switches are context switches a second.
func (m *machine) switches() float64 { return 400 * m.cpus * (0.2 + 4*m.load) }

// requests are those of one device and operation a second.
func (m *machine) requests(label map[string]string) float64 {
	n := 0.0
	switch label["op"] {
	case "read":
		n = m.reads
	case "write":
		n = m.writes
	case "flush":
		n = m.writes / 20
	}
	if label["device"] == "vdb" {
		return 0.3 * n
	}
	return n
}

func (m *machine) requestBytes(label map[string]string) float64 {
	switch label["op"] {
	case "read":
		return m.requests(label) * (24 << 10)
	case "write":
		return m.requests(label) * (12 << 10)
	}
	return 0
}

// allDevices adds up what each device and operation gives.
func (m *machine) allDevices(of func(map[string]string) float64) (sum float64) {
	for _, row := range labelRows["device op"] {
		sum += of(map[string]string{"device": row[0], "op": row[1]})
	}
	return sum
}

func (m *machine) drops(label map[string]string) float64 {
	switch label["reason"] {
	case "NETFILTER_DROP":
		return m.when(dropping, 900, 0.02)
	case "NO_SOCKET":
		if label["benign"] == "true" {
			return 0.05 * m.connections
		}
		return 0.01
	case "SOCKET_RCVBUFF":
		return m.when(dropping, 60, 0)
	}
	return 0.1
}

// rate is what a counter or a time rises by in a second.
func (m *machine) rate(name string, label map[string]string) (float64, bool) {
	const second, week = 1e9, 7 * 86400.0
	switch name {
	case "drops":
		return m.drops(label), true
	case "ios":
		return m.requests(label), true
	case "bytes":
		return m.requestBytes(label), true
	case "errors":
		if label["device"] == "vda" && label["op"] == "read" {
			return m.when(badDisk, 0.5, 0), true
		}
		return 0, true
	case "if_rx_bytes", "if_tx_bytes":
		if label["interface"] == "lo" {
			return 2e4 * m.load, true
		}
	case "if_rx_packets", "if_tx_packets":
		if label["interface"] == "lo" {
			return 70 * m.load, true
		}
	case "exits_by_signal":
		switch label["signal"] {
		case "TERM":
			return 0.01, true
		case "KILL":
			return 1 / week, true
		case "SEGV":
			return m.when(crashing, 0.4, 0), true
		}
		return 0, true
	case "cpu_ns":
		return second * m.cpus * m.mode(label["mode"]), true
	case "pressure_stalled_ns":
		return second * m.stalled(label), true
	}
	if m.rates == nil {
		m.rates = m.flatRates()
	}
	v, ok := m.rates[name]
	return v, ok
}

// mode is the share of CPU time in a mode.
func (m *machine) mode(mode string) float64 {
	switch mode {
	case "user":
		return 0.68 * m.busy
	case "system":
		return 0.27 * m.busy
	case "softirq":
		return 0.04 * m.busy
	case "irq":
		return 0.01 * m.busy
	case "iowait":
		return min(m.iowait, 1-m.busy)
	case "idle":
		return max(1-m.busy-m.iowait, 0)
	}
	return 0
}

func (m *machine) stalled(label map[string]string) float64 {
	some := 0.0
	switch label["resource"] {
	case "cpu":
		some = 0.3 * m.busy * m.busy
	case "memory":
		some = m.when(memoryFull, 0.2, 0)
	case "io":
		some = m.iowait
	}
	if label["stalled"] == "full" {
		return some / 3
	}
	return some
}

// flatRates are those that no label, or none here, makes a difference to.
func (m *machine) flatRates() map[string]float64 {
	return map[string]float64{
		"tcp_active_opens": 0.4 * m.connections, "tcp_passive_opens": m.connections, "tcp_failed_opens": 0.01 * m.connections,
		"tcp_established_resets": 0.02 * m.connections, "tcp_closes": 1.4 * m.connections,
		"tcp_sent_bytes": 0.8 * m.tx, "tcp_received_bytes": 0.8 * m.rx,
		"tcp_resets_in": 0.02 * m.connections, "tcp_resets_out": 0.03 * m.connections,
		"retransmit_segments": m.when(lossy, 0.04, 0.0004) * m.tx / 1400, "packets_dropped": m.when(dropping, 960, 0.03),
		"listen_overflows": m.when(overrun, 12, 0), "listen_drops": m.when(overrun, 12, 0),
		"rx_bytes": m.rx, "tx_bytes": m.tx, "if_rx_bytes": m.rx, "if_tx_bytes": m.tx, "if_rx_packets": m.rx / 900, "if_tx_packets": m.tx / 1100,

		"total_ios": m.allDevices(m.requests), "total_bytes": m.allDevices(m.requestBytes), "total_errors": m.when(badDisk, 0.5, 0),

		"runq_wait_ns": m.switches() * m.when(cpuHot, 2e6, 2e4*(1+8*m.load)),
		"forks":        3 * (0.2 + m.load), "threads": 2 * (0.2 + m.load), "execs": 2 * (0.2 + m.load), "exits": 3 * (0.2 + m.load),
		"exits_failed": 0.05 * (0.2 + m.load), "oom_kills": m.when(memoryFull, 1.0/120, 0),

		"context_switches": m.switches(), "cpu_steps_clamped": 0,
		"swap_in_bytes": m.when(memoryFull, 4e5, 0), "swap_out_bytes": m.when(memoryFull, 9e5, 0), "major_faults": m.when(memoryFull, 150, 0.1),
		"agent_cpu_ns": 3e6,
	}
}

// level is what a gauge stands at.
func (m *machine) level(name string, label map[string]string) (float64, bool) {
	at := 0
	if label["mount"] == "/var/lib" {
		at = 1
	}
	size, used := m.disk[at], m.diskUsed[at]
	switch name {
	case "disk_total_bytes":
		return size, true
	case "disk_used_bytes":
		return size * used, true
	case "disk_available_bytes":
		return size * (1 - used) * 0.95, true
	case "disk_free_files":
		return math.Round(size / 16384 * (1 - used)), true
	case "sockets_in_use":
		return math.Round(map[string]float64{"tcp": 8 + 21*m.connections, "udp": 6}[label["kind"]]), true
	case "socket_memory_bytes":
		return 4096 * math.Round(map[string]float64{"tcp": 2 + 3*m.connections, "udp": 1}[label["kind"]]), true
	}
	if m.levels == nil {
		m.levels = m.flatLevels()
	}
	v, ok := m.levels[name]
	return v, ok
}

func (m *machine) flatLevels() map[string]float64 {
	running := m.cpus * m.busy * m.when(cpuHot, 2.5, 1)
	free := m.memory * (1 - m.memUsed)
	return map[string]float64{
		"tcp_established": math.Round(20 * m.connections),

		"cpu_busy_ratio": m.busy, "cpus": m.cpus, "processes_running": math.Round(1 + running), "processes_blocked": m.when(badDisk, 6, 0),
		"load1": running * m.jitter(0.05), "load5": running, "load15": running * 0.97,
		"memory_total_bytes": m.memory, "memory_available_bytes": free, "memory_used_ratio": m.memUsed,
		"memory_free_bytes": 0.3 * free, "memory_cached_bytes": 0.65 * free, "memory_dirty_bytes": 2e5 * m.writes,
		"swap_total_bytes": 2 << 30, "swap_free_bytes": m.when(memoryFull, 0.2, 1) * (2 << 30),
		"io_pressure_ratio": m.iowait, "disk_stuck_seconds": 0, "disks_stuck": 0,
		"disk_fullest_ratio": max(m.diskUsed[0], m.diskUsed[1]),
		"sockets_used":       math.Round(150 + 25*m.connections), "tcp_orphans": 0, "tcp_time_wait": math.Round(15 * m.connections),
		"clock_synchronized": 1, "clock_offset_seconds": 2e-4 * (m.r.Float64() - 0.5), "clock_max_error_seconds": 0.012,
		"uptime_seconds": float64(m.end.Unix()) - m.booted, "boot_time_seconds": m.booted,
		"agent_rss_bytes": 30 << 20, "agent_goroutines": 24, "agent_open_files": 48,
	}
}
