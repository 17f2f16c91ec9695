package probe

import (
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// sub returns the increase of each counter.
func sub(to, from map[string]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for k, v := range to {
		out[k] = v - from[k]
	}
	return out
}

var sameFields = maps.Equal[map[string]uint64, map[string]uint64]

func (m *meter) want(series string, n uint64) {
	m.t.Helper()
	if got := m.sums[series]; got != n {
		m.t.Errorf("%s = %d, the kernel counted %d", series, got, n)
	}
}

func TestConnectionsEqualSNMP(t *testing.T) {
	n := newNetns(t)
	before := n.fields()
	m := newMeter(t, open(t, Config{Netns: n.inode}, network.Opens, network.Closes, network.Established, network.ResetsIn, network.ResetsOut))
	const accepted, refused, aborted, standing = 20, 5, 3, 2
	l := n.listen("127.0.0.1:7001", 64)
	for range accepted {
		c := n.connect("127.0.0.1:7001")
		s := n.accept(l)
		n.check(unix.Close(c))
		n.check(unix.Close(s))
	}
	for range refused {
		n.refused("127.0.0.1:7002")
	}
	var ends []int
	for range aborted {
		c := n.connect("127.0.0.1:7001")
		ends = append(ends, n.accept(l))
		n.abort(c)
	}
	for range standing {
		ends = append(ends, n.connect("127.0.0.1:7001"), n.accept(l))
	}
	truth := sub(settle(m, sameFields, n.fields), before)
	m.want("network.tcp_active_opens", truth["Tcp.ActiveOpens"])
	m.want("network.tcp_passive_opens", truth["Tcp.PassiveOpens"])
	m.want("network.tcp_failed_opens", truth["Tcp.AttemptFails"])
	m.want("network.tcp_established_resets", truth["Tcp.EstabResets"])
	m.want("network.tcp_resets_out", truth["Tcp.OutRsts"])
	m.want("network.tcp_active_opens", accepted+refused+aborted+standing)
	m.want("network.tcp_passive_opens", accepted+aborted+standing)
	m.want("network.tcp_resets_in", refused+aborted) // one each
	m.want("network.tcp_resets_out", refused+aborted)
	if got := m.levels["network.tcp_established"]; got != 2*standing || truth["Tcp.CurrEstab"] != 2*standing {
		t.Errorf("established: %v, the kernel says %d, %d stand", got, truth["Tcp.CurrEstab"], 2*standing)
	}
	// Both ends of every finished connection left the established states.
	m.want("network.tcp_closes", 2*(accepted+aborted))
	if m.lost != 0 {
		t.Errorf("%d observations lost", m.lost)
	}
	for _, fd := range append(ends, l) {
		n.check(unix.Close(fd))
	}
}

func TestListenOverflowsEqualNetstat(t *testing.T) {
	n := newNetns(t)
	before := n.fields()
	c := open(t, Config{Netns: n.inode}, network.ListenOverflows, network.Opens)
	m := newMeter(t, c)
	l := n.listen("127.0.0.1:7001", 0)
	var fds []int
	for range 8 {
		fds = append(fds, n.begin("127.0.0.1:7001"))
	}
	until(t, "the accept queue overflows", func() bool {
		return n.fields()["TcpExt.ListenOverflows"] > before["TcpExt.ListenOverflows"]+5
	})
	truth := sub(settle(m, sameFields, n.fields), before)
	if truth["TcpExt.ListenOverflows"] == 0 {
		t.Fatal("nothing overflowed")
	}
	m.want("network.listen_overflows", truth["TcpExt.ListenOverflows"])
	m.want("network.listen_drops", truth["TcpExt.ListenDrops"])
	m.want("network.tcp_active_opens", truth["Tcp.ActiveOpens"])
	m.want("network.tcp_passive_opens", truth["Tcp.PassiveOpens"])
	for _, fd := range append(fds, l) {
		n.check(unix.Close(fd))
	}
}

// A namespace born after the module is counted from its birth.
func TestListenOverflowsOfAYoungNamespace(t *testing.T) {
	c := open(t, Config{}, network.ListenOverflows)
	n := newNetns(t)
	l := n.listen("127.0.0.1:7001", 0)
	var fds []int
	for range 4 {
		fds = append(fds, n.begin("127.0.0.1:7001"))
	}
	until(t, "the accept queue overflows", func() bool { return n.fields()["TcpExt.ListenOverflows"] > 1 })
	floor := n.fields()["TcpExt.ListenOverflows"]
	m := newMeter(t, c)
	m.collect()
	if got := m.sums["network.listen_overflows"]; got < floor {
		t.Errorf("%d overflows, the new namespace alone has %d", got, floor)
	}
	for _, fd := range append(fds, l) {
		n.check(unix.Close(fd))
	}
}

func TestRetransmitsEqualSNMP(t *testing.T) {
	a, b := newNetns(t), newNetns(t)
	join(a, b)
	// b loses every 50th segment of the stream, all of port 7002, and does
	// not hear a's SYN-ACK from port 7003.
	b.run("nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; "+
		"add rule inet lab in tcp dport 7001 tcp flags & (syn|fin) == 0 numgen inc mod 50 0 drop; "+
		"add rule inet lab in tcp dport 7002 drop; add rule inet lab in tcp sport 7003 drop")
	before := a.fields()
	m := newMeter(t, open(t, Config{Netns: a.inode}, network.Retransmits))
	l := b.listen("10.99.0.2:7001", 1)
	from := a.connect("10.99.0.2:7001")
	to := b.accept(l)
	a.stream(from, to, 16<<20)
	streamed := a.fields()["Tcp.RetransSegs"] - before["Tcp.RetransSegs"]
	if streamed < 10 {
		t.Fatalf("only %d segments were sent again; the lab loses too little", streamed)
	}
	syn := a.begin("10.99.0.2:7002")
	deaf := a.listen("10.99.0.1:7003", 8)
	ack := b.begin("10.99.0.1:7003")
	until(t, "SYN and SYN-ACK are sent again", func() bool {
		return a.fields()["TcpExt.TCPSynRetrans"] >= before["TcpExt.TCPSynRetrans"]+2
	})
	truth := sub(settle(m, sameFields, a.fields), before)
	m.want("network.retransmit_segments", truth["Tcp.RetransSegs"])
	for _, fd := range []int{from, to, l, syn, deaf, ack} {
		a.check(unix.Close(fd))
	}
}

var packets = regexp.MustCompile(`counter packets (\d+)`)

func TestDropsEqualTheirCounters(t *testing.T) {
	n := newNetns(t)
	n.run("nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; "+
		"add rule inet lab in udp dport 7777 counter drop")
	before := n.fields()
	c := open(t, Config{Netns: n.inode}, network.Drops)
	m := newMeter(t, c)
	tx := n.socket(unix.SOCK_DGRAM)
	send := func(port, times, size int) {
		for range times {
			n.check(unix.Sendto(tx, make([]byte, size), 0, sockaddr(fmt.Sprintf("127.0.0.1:%d", port))))
		}
	}
	full := n.socket(unix.SOCK_DGRAM)
	n.check(unix.SetsockoptInt(full, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	n.check(unix.Bind(full, sockaddr("127.0.0.1:7779")))
	send(7777, 37, 10)  // filtered
	send(7778, 11, 10)  // nobody there
	send(7779, 50, 900) // too much for the buffer
	n.refused("127.0.0.1:7780")
	truth := sub(settle(m, sameFields, n.fields), before)
	filtered := packets.FindStringSubmatch(n.run("nft", "list", "table", "inet", "lab"))
	if filtered == nil {
		t.Fatal("nft shows no counter")
	}
	nft, err := strconv.ParseUint(filtered[1], 10, 64)
	n.check(err)
	if nft != 37 || truth["Udp.NoPorts"] != 11 || truth["Udp.RcvbufErrors"] == 0 {
		t.Fatalf("the lab failed: filter %d, no port %d, buffer %d", nft, truth["Udp.NoPorts"], truth["Udp.RcvbufErrors"])
	}
	row := func(reason, benign string) string {
		return fmt.Sprintf(`network.drops{benign=%q,reason=%q}`, benign, reason)
	}
	m.want(row("NETFILTER_DROP", "false"), nft)
	m.want(row("NO_SOCKET", "false"), truth["Udp.NoPorts"])
	m.want(row("SOCKET_RCVBUFF", "false"), truth["Udp.RcvbufErrors"])
	m.want(row("NO_SOCKET", "true"), 1) // the refused connection is daily life
	m.want("network.packets_dropped", nft+truth["Udp.NoPorts"]+truth["Udp.RcvbufErrors"])
	n.check(unix.Close(tx))
	n.check(unix.Close(full))
}

func TestInterfacesEqualProc(t *testing.T) {
	a, b := newNetns(t), newNetns(t)
	join(a, b)
	before := a.dev()
	m := newMeter(t, open(t, Config{Netns: a.inode}, network.Interfaces))
	l := b.listen("10.99.0.2:7001", 1)
	from := a.connect("10.99.0.2:7001")
	to := b.accept(l)
	a.stream(from, to, 3<<20)
	a.stream(to, from, 2<<20)
	own := a.listen("127.0.0.1:7002", 1)
	c := a.connect("127.0.0.1:7002")
	s := a.accept(own)
	a.stream(c, s, 1<<20)
	for _, fd := range []int{from, to, l, c, s, own} {
		a.check(unix.Close(fd))
	}
	after := settle(m, maps.Equal[map[string]traffic, map[string]traffic], a.dev)
	for _, name := range []string{"va", "lo"} {
		d, ok := after[name].since(before[name])
		if !ok || d.rxBytes < 1<<20 {
			t.Fatalf("%s moved %+v", name, d)
		}
		m.want(fmt.Sprintf(`network.if_rx_bytes{interface=%q}`, name), d.rxBytes)
		m.want(fmt.Sprintf(`network.if_tx_bytes{interface=%q}`, name), d.txBytes)
		m.want(fmt.Sprintf(`network.if_rx_packets{interface=%q}`, name), d.rxPackets)
		m.want(fmt.Sprintf(`network.if_tx_packets{interface=%q}`, name), d.txPackets)
		if name == "va" {
			m.want("network.rx_bytes", d.rxBytes) // loopback is not part of it
			m.want("network.tx_bytes", d.txBytes)
		}
	}
}

func TestSocketEndsCountTheStream(t *testing.T) {
	n := newNetns(t)
	m := newMeter(t, open(t, Config{Netns: n.inode}, network.SocketEnds))
	const size = 5 << 20
	l := n.listen("127.0.0.1:7001", 1)
	c := n.connect("127.0.0.1:7001")
	s := n.accept(l)
	n.stream(c, s, size)
	for _, fd := range []int{c, s, l} {
		n.check(unix.Close(fd))
	}
	until(t, "both sockets end", func() bool { m.collect(); return m.hists["network.tcp_srtt"] >= 2 })
	for _, metric := range []string{"network.tcp_sent_bytes", "network.tcp_received_bytes"} {
		// SYN and FIN of both directions may count a byte each.
		if got := m.sums[metric]; got < size || got > size+4 {
			t.Errorf("%s = %d for a stream of %d bytes", metric, got, size)
		}
	}
}

func TestANumberStopsWithItsProgram(t *testing.T) {
	n := newNetns(t)
	c := open(t, Config{Netns: n.inode}, network.ResetsOut, network.ResetsIn)
	m := newMeter(t, c)
	n.refused("127.0.0.1:7001")
	m.collect()
	m.want("network.tcp_resets_out", 1)
	if err := c.kernel.set.Detach("reset_out", "unloaded by the test"); err != nil {
		t.Fatal(err)
	}
	n.refused("127.0.0.1:7001")
	m.collect()
	m.want("network.tcp_resets_out", 1) // the second one went unseen
	m.want("network.tcp_resets_in", 2)  // its neighbour goes on
	windows, err := c.Collect(t.Context(), c.lastAt)
	if err != nil {
		t.Fatal(err)
	}
	w := windows[0]
	if v := w.Values[w.Layout.Find(inspector.Series{Metric: "network.tcp_resets_out"})]; v.OK {
		t.Errorf("an unloaded program still reports %+v; unknown is not zero", v)
	}
	for _, cp := range c.Capabilities() {
		if cp.Signal == network.ResetsOut && (cp.Level != inspector.Off || cp.Reason != "unloaded by the test") {
			t.Errorf("capability after unloading: %+v", cp)
		}
	}
}

func TestSignalsCanBeKeptOff(t *testing.T) {
	n := newNetns(t)
	c := open(t, Config{Netns: n.inode, Disable: []string{network.Drops, network.Opens}}, network.Closes)
	if c.kernel.set.Program("drop") != nil {
		t.Error("the program of a signal that is off was loaded")
	}
	if c.kernel.set.Program("sock_state") == nil {
		t.Error("a program that another signal needs was not loaded")
	}
	for _, cp := range c.Capabilities() {
		off := cp.Signal == network.Drops || cp.Signal == network.Opens
		if off != (cp.Level == inspector.Off) {
			t.Errorf("%+v", cp)
		}
	}
	n.refused("127.0.0.1:7001")
	windows, err := c.Collect(t.Context(), c.lastAt)
	if err != nil {
		t.Fatal(err)
	}
	w := windows[0]
	for _, metric := range []string{"network.tcp_active_opens", "network.packets_dropped"} {
		if v := w.Values[w.Layout.Find(inspector.Series{Metric: metric})]; v.OK {
			t.Errorf("%s is off and reports %+v", metric, v)
		}
	}
	if _, err := New(Config{Disable: []string{"opnes"}}, c.log); err == nil {
		t.Error("a misspelt signal was taken without a word")
	}
}
