package probe

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// exchange opens a connection, sends a little and closes both ends.
func (n *netns) exchange(family, proto int, at unix.Sockaddr) error {
	n.t.Helper()
	make := func() (fd int, err error) {
		n.do(func() { fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, proto) })
		return fd, err
	}
	l, err := make()
	if err != nil {
		return err
	}
	defer unix.Close(l)
	n.check(unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	if family == unix.AF_INET6 {
		n.check(unix.SetsockoptInt(l, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0))
	}
	n.check(unix.Bind(l, at))
	n.check(unix.Listen(l, 8))
	c, err := make()
	n.check(err)
	n.check(unix.Connect(c, at))
	s := n.accept(l)
	n.stream(c, s, 1000)
	n.check(unix.Close(c))
	n.check(unix.Close(s))
	return nil
}

// Other families and protocols: TCP over IPv6 and in v4-mapped sockets counts
// as TCP, the subflows of MPTCP count once, and what is no TCP counts as
// nothing. The kernel's own counters are the truth of all.
func TestConnectionsOfEveryKindEqualSNMP(t *testing.T) {
	n := newNetns(t)
	before := n.fields()
	m := newMeter(t, open(t, Config{Netns: n.inode}, network.Opens, network.Closes, network.Established, network.SocketEnds))
	six := &unix.SockaddrInet6{Port: 7001, Addr: [16]byte(net.IPv6loopback)}
	mapped := &unix.SockaddrInet6{Port: 7002, Addr: [16]byte(net.IPv4(127, 0, 0, 1))}
	n.check(n.exchange(unix.AF_INET6, unix.IPPROTO_TCP, six))
	n.check(n.exchange(unix.AF_INET6, unix.IPPROTO_TCP, mapped))
	opens := uint64(2)
	if err := n.exchange(unix.AF_INET, unix.IPPROTO_MPTCP, sockaddr("127.0.0.1:7003")); err != nil {
		t.Logf("no MPTCP here: %v", err)
	} else {
		opens++
	}
	if err := n.exchange(unix.AF_INET, unix.IPPROTO_SCTP, sockaddr("127.0.0.1:7004")); err != nil {
		t.Logf("no SCTP here: %v", err)
	}
	for range 5 { // a connected UDP socket is ESTABLISHED, too
		fd := n.socket(unix.SOCK_DGRAM)
		n.check(unix.Connect(fd, sockaddr("127.0.0.1:7005")))
		n.check(unix.Close(fd))
	}
	until(t, "every connection closes", func() bool { m.collect(); return m.sums["network.tcp_closes"] >= 2*opens })
	truth := sub(settle(m, sameFields, n.fields), before)
	m.want("network.tcp_active_opens", truth["Tcp.ActiveOpens"])
	m.want("network.tcp_passive_opens", truth["Tcp.PassiveOpens"])
	m.want("network.tcp_active_opens", opens)
	m.want("network.tcp_passive_opens", opens)
	m.want("network.tcp_closes", 2*opens)
	if got := m.levels["network.tcp_established"]; got != float64(truth["Tcp.CurrEstab"]) {
		t.Errorf("established: %v, the kernel says %d", got, truth["Tcp.CurrEstab"])
	}
	// A TCP stream of 1000 bytes, SYN and FIN; MPTCP adds its own options only.
	if got := m.sums["network.tcp_sent_bytes"]; got < opens*1000 || got > opens*1004 {
		t.Errorf("%d bytes sent in %d streams of 1000", got, opens)
	}
}

func TestRetransmitsOverIPv6EqualSNMP(t *testing.T) {
	n := newNetns(t)
	n.run("nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; add rule inet lab in tcp dport 7001 drop")
	before := n.fields()
	m := newMeter(t, open(t, Config{Netns: n.inode}, network.Retransmits))
	var fd int
	var err error
	n.do(func() {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	})
	n.check(err)
	_ = unix.Connect(fd, &unix.SockaddrInet6{Port: 7001, Addr: [16]byte(net.IPv6loopback)}) // in progress
	until(t, "the SYN is sent again", func() bool { return n.fields()["Tcp.RetransSegs"] > before["Tcp.RetransSegs"] })
	truth := sub(settle(m, sameFields, n.fields), before)
	m.want("network.retransmit_segments", truth["Tcp.RetransSegs"])
	n.check(unix.Close(fd))
}

// look makes a collector that counts and lists a namespace as its agent would.
func look(t *testing.T, n *netns) *Collector {
	c := open(t, Config{Netns: n.inode}, network.Interfaces)
	c.kernel.list = func() (names map[uint32]string, err error) {
		n.do(func() { names, err = ownInterfaces() })
		return names, err
	}
	first, err := c.read() // again, with the names
	n.check(err)
	c.last = first
	return c
}

func TestIdleInterfacesAreKnownToBeZero(t *testing.T) {
	n := newNetns(t)
	n.noIPv6()
	n.run("ip", "link", "add", "quiet0", "type", "veth", "peer", "name", "other")
	n.run("ip", "link", "add", "far0", "index", "5000", "type", "veth", "peer", "name", "peer0") // beyond the quick slots
	c := look(t, n)
	value := func(name string) (inspector.Value, bool, *inspector.Layout) {
		t.Helper()
		ws, err := c.Collect(t.Context(), c.lastAt)
		n.check(err)
		w := ws[0]
		at := w.Layout.Find(inspector.Series{Metric: "network.if_rx_bytes", Labels: []inspector.Label{{Key: "interface", Value: name}}})
		if at < 0 {
			return inspector.Value{}, false, w.Layout
		}
		return w.Values[at], true, w.Layout
	}
	_, _, first := value("lo")
	for _, name := range []string{"lo", "quiet0", "far0", `"other"`} {
		if v, _, l := value(name); !v.OK || v.Delta != 0 {
			t.Errorf("%s has moved nothing and is %+v", name, v)
		} else if l != first {
			t.Error("an idle window makes another layout")
		}
	}
	n.check(n.exchange(unix.AF_INET, unix.IPPROTO_TCP, sockaddr("127.0.0.1:7001")))
	v, _, _ := value("lo")
	if v.Delta < 1000 {
		t.Errorf("lo moved %+v", v)
	}
	// A new name charges nothing again.
	n.run("ip", "link", "set", "lo", "down")
	n.run("ip", "link", "set", "lo", "name", "loop")
	n.run("ip", "link", "set", "loop", "up")
	if v, _, _ := value("loop"); !v.OK || v.Delta > 500 {
		t.Errorf("after the renaming: %+v", v)
	}
	n.run("ip", "link", "del", "quiet0")
	if _, there, l := value("quiet0"); there || l == first {
		t.Error("an interface that is gone is still there")
	}
}

// A reading that had to wait, because the machine or the agent stood still,
// belongs into the window that it is charged to, to its end.
func TestWindowEndsWithItsReading(t *testing.T) {
	n := newNetns(t)
	c := look(t, n)
	list, wait := c.kernel.list, 300*time.Millisecond
	c.kernel.list = func() (map[uint32]string, error) { <-time.After(wait); return list() }
	now := time.Now()
	ws, err := c.Collect(t.Context(), now)
	n.check(err)
	if took := ws[0].End.Sub(now); took < wait || took > wait+10*time.Second {
		t.Errorf("the window ends %v after its call, the reading took %v", took, wait)
	}
	next, err := c.Collect(t.Context(), time.Now())
	n.check(err)
	if !next[0].Start.Equal(ws[0].End) {
		t.Errorf("windows to %v and from %v do not join", ws[0].End, next[0].Start)
	}
}

// Interfaces that come and go by the hundred while traffic flows make few
// layouts, and nothing they move is lost or counted twice.
func TestInterfaceChurn(t *testing.T) {
	n := newNetns(t)
	n.noIPv6()
	c := look(t, n)
	m := newMeter(t, c)
	before := n.dev()
	l := n.listen("127.0.0.1:7001", 1)
	from := n.connect("127.0.0.1:7001")
	to := n.accept(l)
	m.collect()
	layouts := map[inspector.LayoutHash]bool{}
	var churned uint64
	ack := n.socket(unix.SOCK_DGRAM)
	for round := range 30 {
		var batch strings.Builder
		for i := range 10 {
			fmt.Fprintf(&batch, "link add d%d-%d type veth peer name p%d-%d\nlink set p%d-%d up\naddr add 10.%d.%d.1/24 dev d%d-%d\nlink set d%d-%d arp off up\n", round, i, round, i, round, i, 100+round, i, round, i, round, i)
		}
		n.batch(batch.String())
		for i := range 10 {
			n.check(unix.Sendto(ack, make([]byte, 972), 0, sockaddr(fmt.Sprintf("10.%d.%d.2:9", 100+round, i))))
		}
		n.stream(from, to, 10_000)
		if round%2 == 0 { // half of them are seen, half are gone before
			m.collect()
		}
		after := n.dev()
		for i := range 10 {
			churned += after[fmt.Sprintf("d%d-%d", round, i)].txBytes
		}
		batch.Reset()
		for i := range 10 {
			fmt.Fprintf(&batch, "link del d%d-%d\n", round, i)
		}
		n.batch(batch.String())
		m.collect()
		layouts[c.layout.Hash] = true
		if len(c.layout.Series) > 250 {
			t.Fatalf("%d series", len(c.layout.Series))
		}
	}
	after := settle(m, maps.Equal[map[string]traffic, map[string]traffic], n.dev)
	if len(layouts) > 12 {
		t.Errorf("%d layouts in 45 windows", len(layouts))
	}
	var all uint64
	for s, v := range m.sums {
		if strings.HasPrefix(s, "network.if_tx_bytes{") {
			all += v
		}
	}
	lo, _ := after["lo"].since(before["lo"])
	if churned < 300*1000 || all != churned+lo.txBytes {
		t.Errorf("all rows hold %d bytes; the others moved %d, loopback %d", all, churned, lo.txBytes)
	}
	m.want("network.tx_bytes", churned)
	m.want(`network.if_tx_bytes{interface="lo"}`, lo.txBytes)
	t.Logf("%d layouts, %d bytes in other", len(layouts), m.sums[`network.if_tx_bytes{interface="other"}`])
	for _, fd := range []int{from, to, l, ack} {
		n.check(unix.Close(fd))
	}
}

// noIPv6 keeps neighbour discovery from sending at moments of its own.
func (n *netns) noIPv6() {
	n.do(func() {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0o644)
	})
}

// batch runs many commands of ip at once.
func (n *netns) batch(commands string) {
	n.t.Helper()
	n.run("sh", "-c", `printf '%s' "$0" | ip -batch -`, commands)
}

// Namespaces that are born and die while the program walks their list break
// no walk for good and never make a number step back or jump.
func TestNamespaceChurnUnderTheWalk(t *testing.T) {
	c := open(t, Config{}, network.ListenOverflows)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			// The namespace dies with the child.
			if err := newNamespaceChild(); err != nil {
				done <- err
				return
			}
		}
	}()
	failed := 0
	for range 300 {
		before := c.kernel.mibs.overflow
		r := &reading{counters: map[string]uint64{}}
		if err := c.kernel.readMIBs(r); err != nil {
			failed++
			continue
		}
		if got := c.kernel.mibs.overflow; got < before || got-before > 1000 {
			t.Fatalf("overflows go from %d to %d", before, got)
		}
		if *r.established > 1e6 {
			t.Fatalf("%v connections", *r.established)
		}
	}
	close(stop)
	n := <-done
	if n != nil {
		t.Fatal(n)
	}
	t.Logf("%d of 300 looks failed after %d walks", failed, c.kernel.mibs.round)
	if failed > 30 {
		t.Errorf("%d of 300 looks failed", failed)
	}
}

func TestNamespacesThatFoundNoRoom(t *testing.T) {
	m := &mibs{}
	look := func(partial bool, now map[uint64]networkMib, want uint64) {
		t.Helper()
		if got, _ := m.step(now, partial); got != want {
			t.Errorf("%d overflows, want %d", got, want)
		}
	}
	at := func(n uint64) networkMib { return networkMib{ListenOverflows: n} }
	look(false, map[uint64]networkMib{1: at(100)}, 0)
	look(false, map[uint64]networkMib{1: at(101), 2: at(5)}, 6)  // born since
	look(true, map[uint64]networkMib{1: at(102)}, 7)             // 2 died, or was not reached
	look(false, map[uint64]networkMib{1: at(102), 2: at(50)}, 7) // its past may be charged already
	look(false, map[uint64]networkMib{1: at(102), 2: at(51)}, 8) // from here it counts
	look(false, map[uint64]networkMib{2: at(51)}, 8)             // a death takes nothing back
	look(false, map[uint64]networkMib{2: at(40)}, 8)             // nor does a smaller number
}

// With more namespaces than the map holds, those that found room are counted,
// the answer says that it is not whole, and a death makes room.
func TestMoreNamespacesThanRoom(t *testing.T) {
	newNetns(t)
	newNetns(t)
	spec, err := loadNetwork()
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	k := &kernel{log: log, missed: map[string]uint64{}}
	if err := k.configure(spec, Config{Proc: "/proc", Sys: "/sys"}); err != nil {
		t.Fatal(err)
	}
	spec.Maps["mibs"].MaxEntries = 1
	k.set = bpfload.Open(spec, []bpfload.Program{{Name: "read_mibs", Attach: bpfload.OnDemand}}, nil, log)
	defer k.set.Close()
	if f := k.set.Failure("read_mibs"); f != nil {
		if f.Class != bpfload.Missing && f.Class != bpfload.Refused {
			t.Fatalf("the program does not load: %s", f.Reason)
		}
		t.Skipf("this kernel cannot walk the namespaces: %s", f.Reason)
	}
	var last uint64
	for range 3 {
		r := &reading{counters: map[string]uint64{}}
		if err := k.read(r); err != nil {
			t.Fatal(err)
		}
		if !k.mibs.partial || len(k.mibs.last) != 1 || r.truncated <= last || r.established == nil {
			t.Errorf("partial %v, %d namespaces, %d left out", k.mibs.partial, len(k.mibs.last), r.truncated)
		}
		last = r.truncated
	}
	// The one that has the room dies: another takes it, and brings no past.
	var dead uint64 = 1 << 63
	for cookie := range k.mibs.last {
		if err := k.set.Map("mibs").Delete(cookie); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.set.Map("mibs").Put(dead, networkMib{Round: k.mibs.round}); err != nil {
		t.Fatal(err)
	}
	before := k.mibs.overflow
	r := &reading{counters: map[string]uint64{}}
	if err := k.read(r); err != nil {
		t.Fatal(err)
	}
	if _, there := k.mibs.last[dead]; there || len(k.mibs.last) != 1 || k.mibs.overflow != before {
		t.Errorf("after a death: %v, overflows %d to %d", k.mibs.last, before, k.mibs.overflow)
	}
}
