package probe

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// send sends packets to a UDP port of a namespace's loopback.
func (n *netns) send(fd, port, times, size int) {
	n.t.Helper()
	for range times {
		n.check(unix.Sendto(fd, make([]byte, size), 0, sockaddr(fmt.Sprintf("127.0.0.1:%d", port))))
	}
}

func TestDropTaskEqualsTheFilter(t *testing.T) {
	n := newNetns(t)
	n.run("nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; add rule inet lab in udp dport 7777 counter drop")
	// Before the tasks: its owner is found in the open files.
	full := n.socket(unix.SOCK_DGRAM)
	n.check(unix.SetsockoptInt(full, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	n.check(unix.Bind(full, sockaddr("127.0.0.1:7779")))
	before := n.fields()
	all := start(t, Config{Netns: n.inode}, network.TraceDrops, map[string]any{})
	port := start(t, Config{Netns: n.inode}, network.TraceDrops, map[string]any{"port": 7778})
	reason := start(t, Config{Netns: n.inode}, network.TraceDrops, map[string]any{"reason": "netfilter_drop", "interface": "lo"})
	elsewhere := start(t, Config{Netns: n.inode}, network.TraceDrops, map[string]any{"address": "10.1.2.3"})
	other := start(t, Config{Netns: n.inode}, network.TraceDrops, map[string]any{"interface": "eth99"})
	tx := n.socket(unix.SOCK_DGRAM)
	n.send(tx, 7777, 37, 10)  // filtered
	n.send(tx, 7778, 11, 10)  // nobody there
	n.send(tx, 7779, 50, 900) // too much for the buffer
	n.refused("127.0.0.1:7780")
	r := all.end()
	truth := sub(n.fields(), before)
	nft := n.filtered()
	if nft != 37 || truth["Udp.NoPorts"] != 11 || truth["Udp.RcvbufErrors"] == 0 {
		t.Fatalf("the lab failed: filter %d, no port %d, buffer %d", nft, truth["Udp.NoPorts"], truth["Udp.RcvbufErrors"])
	}
	for _, c := range []struct {
		reason, port string
		want         uint64
	}{{"NETFILTER_DROP", "7777", nft}, {"NO_SOCKET", "7778", 11}, {"SOCKET_RCVBUFF", "7779", truth["Udp.RcvbufErrors"]}} {
		got := sum(r, map[string]string{"reason": c.reason, "destination_port": c.port, "protocol": "udp", "source": "127.0.0.1", "destination": "127.0.0.1", "netns": fmt.Sprint(n.inode)})
		if got != c.want {
			b, _ := json.MarshalIndent(r.Rows, "", " ")
			t.Errorf("%s on port %s: %d, the kernel counted %d\n%s", c.reason, c.port, got, c.want, b)
		}
	}
	if benign := r.Totals["benign_packets"]; benign != 1 { // the refused connection
		t.Errorf("%d benign drops, want 1: %+v", benign, r.Rows)
	}
	if got, want := r.Totals["harmful_packets"], nft+11+truth["Udp.RcvbufErrors"]; got != want || r.Totals["packets"] != want+1 {
		t.Errorf("totals %v, want %d harmful", r.Totals, want)
	}
	if r.Lost != 0 || r.Unknown != 0 {
		t.Errorf("lost %d, unknown %d", r.Lost, r.Unknown)
	}
	if p := port.end(); p.Totals["packets"] != 11 || sum(p, nil) != 11 {
		t.Errorf("port 7778: %v", p.Totals)
	}
	if p := reason.end(); p.Totals["packets"] != nft || sum(p, map[string]string{"reason": "NETFILTER_DROP"}) != nft {
		t.Errorf("reason: %v", p.Totals)
	}
	for _, none := range []*runningTask{elsewhere, other} {
		if p := none.end(); p.Totals["packets"] != 0 || len(p.Rows) != 0 {
			t.Errorf("a filter that nothing passes: %v", p.Totals)
		}
	}
	if rows := rowsWith(r, map[string]string{"reason": "SOCKET_RCVBUFF", "pid": strconv.Itoa(os.Getpid())}); len(rows) == 0 {
		t.Errorf("the full socket has no owner in %+v", r.Rows)
	}
	for _, row := range rowsWith(r, map[string]string{"destination_port": "7777"}) {
		if row.Labels["interface"] != "lo" || row.Values["bytes"] != float64(row.Count*38) {
			t.Errorf("the filtered packets: %+v", row)
		}
	}
	found := false
	for _, s := range r.Samples {
		if s.Labels["reason"] == "NO_SOCKET" && s.Labels["protocol"] == "udp" {
			found = slices.ContainsFunc(s.Stack, func(f string) bool { return strings.HasPrefix(f, "udp_") || strings.HasPrefix(f, "__udp") })
			t.Logf("location %s, stack %v", s.Labels["location"], s.Stack)
			break
		}
	}
	if !found {
		t.Error("no sample of the closed port with a stack through udp")
	}
	n.check(unix.Close(tx))
	n.check(unix.Close(full))
}

// IPv6 addresses, and IPv4 in IPv6 sockets, are told like all others.
func TestTasksKnowIPv6(t *testing.T) {
	n := newNetns(t)
	cfg := Config{Netns: n.inode}
	six := start(t, cfg, network.TraceDrops, map[string]any{"address": "::1", "port": 7778})
	mapped := start(t, cfg, network.MonitorTCP, map[string]any{"address": "127.0.0.1"})
	plain := start(t, cfg, network.MonitorTCP, map[string]any{"address": "::1"})
	var fd int
	var err error
	n.do(func() { fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) })
	n.check(err)
	for range 7 {
		n.check(unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet6{Port: 7778, Addr: [16]byte(net.IPv6loopback)}))
	}
	n.check(unix.Close(fd))
	n.check(n.exchange(unix.AF_INET6, unix.IPPROTO_TCP, &unix.SockaddrInet6{Port: 7001, Addr: [16]byte(net.IPv6loopback)}))
	n.check(n.exchange(unix.AF_INET6, unix.IPPROTO_TCP, &unix.SockaddrInet6{Port: 7002, Addr: [16]byte(net.IPv4(127, 0, 0, 1))}))
	if r := six.end(); r.Totals["packets"] != 7 || sum(r, map[string]string{"source": "::1", "destination": "::1", "protocol": "udp", "reason": "NO_SOCKET"}) != 7 {
		show(t, r)
		t.Error("7 packets to a closed port of ::1 are not there")
	}
	for port, task := range map[string]*runningTask{"7002": mapped, "7001": plain} {
		r := task.end()
		if r.Totals["active_opens"] != 1 || r.Totals["passive_opens"] != 1 || len(rowsWith(r, map[string]string{"port": port, "direction": "out"})) != 1 || r.Totals["closes"] != 2 {
			show(t, r)
			t.Errorf("port %s: %v", port, r.Totals)
		}
	}
}
