package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// What a filter by interface hides is told: a packet that goes into one end
// of a veth is dropped at the other.
func TestDropTaskTellsWhatItsInterfaceHides(t *testing.T) {
	n := newNetns(t)
	n.run("ip", "link", "add", "tellhost0", "type", "veth", "peer", "name", "tellpeer0")
	n.run("ip", "addr", "add", "10.77.0.1/24", "dev", "tellhost0")
	n.run("ip", "link", "set", "tellhost0", "up")
	n.run("ip", "link", "set", "tellpeer0", "up")
	n.run("ip", "neigh", "add", "10.77.0.2", "lladdr", "02:00:00:00:00:01", "dev", "tellhost0")
	n.run("nft", "add table netdev lab; add chain netdev lab in { type filter hook ingress device tellpeer0 priority 0; }; add rule netdev lab in udp dport 7777 drop")
	cfg := Config{Netns: n.inode}
	here := start(t, cfg, network.TraceDrops, map[string]any{"interface": "tellhost0", "port": 7777})
	there := start(t, cfg, network.TraceDrops, map[string]any{"interface": "tellpeer0", "port": 7777})
	tx := n.socket(unix.SOCK_DGRAM)
	const sent = 9
	for range sent {
		n.check(unix.Sendto(tx, []byte("x"), 0, sockaddr("10.77.0.2:7777")))
	}
	n.check(unix.Close(tx))
	r := here.end()
	notes := strings.Join(r.Notes, "\n")
	if r.Totals["packets"] != 0 || !strings.Contains(notes, fmt.Sprintf("%d drops that pass the other filters were not on tellhost0", sent)) ||
		!strings.Contains(notes, fmt.Sprintf("tellpeer0 of network namespace %d (%d)", n.inode, sent)) {
		t.Errorf("totals %v, notes:\n%s", r.Totals, notes)
	}
	r = there.end()
	if r.Totals["packets"] != sent || strings.Contains(strings.Join(r.Notes, "\n"), "other filters") {
		t.Errorf("at the other end: %v, %v", r.Totals, r.Notes)
	}
}

func TestInterfacesOfOtherNamespaces(t *testing.T) {
	proc := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(proc, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("12/net/igmp", "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n6\teth0      :     1      V3\n")
	write("12/net/if_inet6", "fe80000000000000000000fffe000001 0a 40 20 80     eth1\n")
	write("12/ns/net", "")
	in, err := netnsInode(filepath.Join(proc, "12/ns/net"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[uint32]string{1: "lo", 6: "eth0", 10: "eth1"}, interfacesOf(proc, in)); d != "" {
		t.Error(d)
	}
	if got := interfacesOf(proc, in+1); len(got) != 0 {
		t.Errorf("of no process: %v", got)
	}
}

func TestPeerOfAVeth(t *testing.T) {
	sys := t.TempDir()
	for name, v := range map[string][2]string{"veth1": {"7\n", "2\n"}, "eth0": {"3\n", "3\n"}} {
		dir := filepath.Join(sys, "class/net", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, file := range []string{"ifindex", "iflink"} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(v[i]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, want := range map[string]uint32{"veth1": 2, "eth0": 0, "absent": 0} {
		if got := peerOf(sys, name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}
