package probe

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// procFiles reads what /proc offers without privileges: the agent's own
// network namespace only.
type procFiles struct{ root string }

// fallbacks says for each signal what /proc has instead of the program.
var fallbacks = map[string]string{
	network.Opens:           "/proc/net/snmp counts them in the agent's network namespace only",
	network.Established:     "/proc/net/snmp counts them in the agent's network namespace only",
	network.ResetsOut:       "/proc/net/snmp counts them in the agent's network namespace only",
	network.Retransmits:     "/proc/net/snmp counts them in the agent's network namespace only",
	network.Drops:           "/proc/net/snmp and netstat count a few reasons, in the agent's network namespace only",
	network.ListenOverflows: "/proc/net/netstat counts them in the agent's network namespace only",
	network.Interfaces:      "/proc/net/dev counts as the driver does",
}

// snmpMetrics maps fields to metrics: signal, field, metric.
var snmpMetrics = []struct{ signal, field, metric string }{
	{network.Opens, "Tcp.ActiveOpens", "network.tcp_active_opens"},
	{network.Opens, "Tcp.PassiveOpens", "network.tcp_passive_opens"},
	{network.Opens, "Tcp.AttemptFails", "network.tcp_failed_opens"},
	{network.Opens, "Tcp.EstabResets", "network.tcp_established_resets"},
	{network.ResetsOut, "Tcp.OutRsts", "network.tcp_resets_out"},
	{network.Retransmits, "Tcp.RetransSegs", "network.retransmit_segments"},
	{network.ListenOverflows, "TcpExt.ListenOverflows", "network.listen_overflows"},
	{network.ListenOverflows, "TcpExt.ListenDrops", "network.listen_drops"},
}

// dropFields maps the drop counters of /proc to the kernel's reasons.
var dropFields = []struct{ field, reason string }{
	{"Ip.InHdrErrors", "IP_INHDR"},
	{"Ip.InAddrErrors", "IP_INADDRERRORS"},
	{"Ip.InUnknownProtos", "IP_NOPROTO"},
	{"Ip.OutNoRoutes", "IP_OUTNOROUTES"},
	{"Tcp.InCsumErrors", "TCP_CSUM"},
	{"Udp.NoPorts", "NO_SOCKET"},
	{"Udp6.NoPorts", "NO_SOCKET"},
	{"Udp.RcvbufErrors", "SOCKET_RCVBUFF"},
	{"Udp6.RcvbufErrors", "SOCKET_RCVBUFF"},
	{"Udp.InCsumErrors", "UDP_CSUM"},
	{"Udp6.InCsumErrors", "UDP_CSUM"},
	{"TcpExt.TCPBacklogDrop", "SOCKET_BACKLOG"},
	{"TcpExt.TCPOFODrop", "TCP_OFO_DROP"},
	{"TcpExt.PAWSEstab", "TCP_RFC7323_PAWS"},
	{"TcpExt.IPReversePathFilter", "IP_RPFILTER"},
	{"TcpExt.TCPZeroWindowDrop", "TCP_ZEROWINDOW"},
}

// read fills in the numbers of the signals named in wanted. A file that
// cannot be read leaves its numbers missing.
func (p procFiles) read(wanted map[string]bool, r *reading) error {
	fields, err := p.fields()
	if err != nil {
		return err
	}
	for _, m := range snmpMetrics {
		if v, ok := fields[m.field]; ok && wanted[m.signal] {
			r.counters[m.metric] = v
		}
	}
	if v, ok := fields["Tcp.CurrEstab"]; ok && wanted[network.Established] {
		level := float64(v)
		r.established = &level
	}
	if wanted[network.Drops] {
		r.drops = map[dropRow]uint64{}
		for _, d := range dropFields {
			if v, ok := fields[d.field]; ok {
				r.drops[dropRow{reason: d.reason}] += v
			}
		}
	}
	if wanted[network.Interfaces] {
		b, err := os.ReadFile(p.root + "/net/dev")
		if err != nil {
			return fmt.Errorf("read interface counters: %w", err)
		}
		r.interfaces = map[ifaceKey]iface{}
		parseDev(b, r.interfaces)
	}
	return nil
}

func (p procFiles) fields() (map[string]uint64, error) {
	out := map[string]uint64{}
	for _, name := range []string{"/net/snmp", "/net/netstat"} {
		b, err := os.ReadFile(p.root + name)
		if err != nil {
			return nil, fmt.Errorf("read network counters: %w", err)
		}
		parsePairs(b, out)
	}
	if b, err := os.ReadFile(p.root + "/net/snmp6"); err == nil { // absent where IPv6 is off
		parseSNMP6(b, out)
	}
	return out, nil
}

// parsePairs reads the form of snmp and netstat: a line of names and a line
// of values, both led by the same word. Negative and odd values are left out.
func parsePairs(b []byte, out map[string]uint64) {
	var names []string
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(names) == 0 || len(words) == 0 || len(words) != len(names) || words[0] != names[0] {
			names = words
			continue
		}
		prefix := strings.TrimSuffix(words[0], ":") + "."
		for i := 1; i < len(words); i++ {
			if v, err := strconv.ParseUint(words[i], 10, 64); err == nil {
				out[prefix+names[i]] = v
			}
		}
		names = nil
	}
}

func parseSNMP6(b []byte, out map[string]uint64) {
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) != 2 {
			continue
		}
		name, ok := strings.CutPrefix(words[0], "Udp6")
		if !ok {
			continue
		}
		if v, err := strconv.ParseUint(words[1], 10, 64); err == nil {
			out["Udp6."+name] = v
		}
	}
}

// parseDev reads net/dev; a line that does not have its sixteen numbers is
// left out.
func parseDev(b []byte, out map[ifaceKey]iface) {
	in := bufio.NewScanner(bytes.NewReader(b))
	for in.Scan() {
		// A name may hold colons of its own (old aliases), numbers do not.
		at := strings.LastIndexByte(in.Text(), ':')
		if at < 0 {
			continue
		}
		words := strings.Fields(in.Text()[at+1:])
		if len(words) != 16 {
			continue
		}
		var t traffic
		ok := true
		for i, to := range map[int]*uint64{0: &t.rxBytes, 1: &t.rxPackets, 8: &t.txBytes, 9: &t.txPackets} {
			v, err := strconv.ParseUint(words[i], 10, 64)
			*to, ok = v, ok && err == nil
		}
		if ok {
			name := ifaceName(strings.TrimSpace(in.Text()[:at]))
			out[ifaceKey{name: name}] = iface{name: name, traffic: t}
		}
	}
}
