package probe

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"structs"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// tuple is struct tuple of bpf/task.h: the ends of a packet, a being its
// source, or of a connection, a being here.
type tuple = struct {
	_            structs.HostLayout
	A            [4]uint32
	B            [4]uint32
	Aport, Bport uint16
	Family       uint8
	Proto        uint8
	Ether        uint16
}

// owner is struct owner of bpf/owners.h.
type owner struct {
	_       structs.HostLayout
	Start   uint64
	Cgroup1 uint64
	Pid     uint32
	Inside  uint8
	Heir    uint8
	Pad     [2]uint8
	Comm    [16]int8
}

// addr writes an address of the kernel; "" where there is none.
func addr(family uint8, w [4]uint32) string {
	var b [16]byte
	for i, v := range w {
		binary.NativeEndian.PutUint32(b[4*i:], v)
	}
	switch family {
	case 4:
		return netip.AddrFrom4([4]byte(b[:4])).String()
	case 6:
		return netip.AddrFrom16(b).String()
	}
	return ""
}

var protocols = map[uint8]string{1: "icmp", 2: "igmp", 4: "ipip", 6: "tcp", 17: "udp", 41: "ipv6", 47: "gre", 50: "esp", 58: "icmpv6", 132: "sctp"}

var ethers = map[uint16]string{0x0800: "ipv4", 0x86dd: "ipv6", 0x0806: "arp", 0x8035: "rarp", 0x88cc: "lldp", 0x8100: "vlan", 0x8847: "mpls", 0x888e: "eapol"}

// protocol names what a packet carries.
func protocol(family, proto uint8, ether uint16) string {
	if family != 0 {
		if n, ok := protocols[proto]; ok {
			return n
		}
		return "ip-" + strconv.Itoa(int(proto))
	}
	if n, ok := ethers[ether]; ok {
		return n
	}
	if ether == 0 {
		return "unknown"
	}
	return fmt.Sprintf("0x%04x", ether)
}

// put sets a label unless its value is empty.
func put(labels map[string]string, key, value string) {
	if value != "" {
		labels[key], _ = inspector.CleanLabel(value)
	}
}

func putPort(labels map[string]string, key string, port uint16) {
	if port != 0 {
		labels[key] = strconv.Itoa(int(port))
	}
}

// putTuple names both ends.
func putTuple(labels map[string]string, t tuple, a, b string) {
	put(labels, a, addr(t.Family, t.A))
	putPort(labels, a+"_port", t.Aport)
	put(labels, b, addr(t.Family, t.B))
	putPort(labels, b+"_port", t.Bport)
}

// putNetns names the network namespace when it is not the agent's own.
func (tr *trace) putNetns(labels map[string]string, netns uint32) {
	if netns != 0 && netns != tr.facts.netns {
		labels["netns"] = strconv.FormatUint(uint64(netns), 10)
	}
}

// putOwner names the process that owns a socket and its group: the socket's
// own on version 2, the process's where groups are of version 1.
func (tr *trace) putOwner(labels map[string]string, o owner, cgroup2 uint64) {
	if o.Pid != 0 {
		labels["pid"] = strconv.FormatUint(uint64(o.Pid), 10)
		put(labels, "process", comm(o.Comm))
	}
	second := ""
	if cgroup2 != 0 {
		second = tr.names.Name(cgroup2)
	}
	if (second == "" || second == "/") && o.Cgroup1 != 0 && tr.facts.naming != "" {
		if first := tr.names.V1(tr.facts.naming, o.Cgroup1); first != "" && (second == "" || first != "/") {
			second = first
		}
	}
	if second == "" && cgroup2 > 1 {
		second = strconv.FormatUint(cgroup2, 10) // gone, or beyond what the agent sees
	}
	put(labels, "cgroup", second)
}

// comm is a process's name, whatever bytes it holds.
func comm(c [16]int8) string {
	b := make([]byte, len(c))
	for i, v := range c {
		b[i] = byte(v)
	}
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

var tcpStates = []string{"", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING", "NEW_SYN_RECV"}

func tcpState(s uint32) string {
	if int(s) < len(tcpStates) {
		return tcpStates[s]
	}
	return strconv.Itoa(int(s))
}

// binarySize is the length of a record.
func binarySize[S any]() int {
	var s S
	return binary.Size(s)
}

// decode copies a record of the ring; false: it is none.
func decode[S any](raw []byte) (s S, ok bool) {
	_, err := binary.Decode(raw, binary.NativeEndian, &s)
	return s, err == nil
}
