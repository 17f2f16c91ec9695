package probe

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

func TestTrafficTaskEqualsProc(t *testing.T) {
	a, b := newNetns(t), newNetns(t)
	join(a, b)
	l := b.listen("10.99.0.2:7001", 1)
	own := a.listen("127.0.0.1:7002", 1)
	before := a.dev()
	tasks := map[string]*runningTask{}
	for _, name := range []string{"va", "lo"} {
		// The namespace is that of the thread, as it would be of a process.
		tasks[name] = start(t, Config{}, network.MonitorInterface, map[string]any{"interface": name, "pid": a.tid})
	}
	sampled := start(t, Config{}, network.MonitorInterface, map[string]any{"interface": "va", "pid": a.tid, "sample_rate": 100, "max_events": 3})
	from := a.connect("10.99.0.2:7001")
	to := b.accept(l)
	a.stream(from, to, 3<<20)
	a.stream(to, from, 2<<20)
	c := a.connect("127.0.0.1:7002")
	s := a.accept(own)
	a.stream(c, s, 1<<20)
	udp := a.socket(unix.SOCK_DGRAM)
	for range 10 {
		a.check(unix.Sendto(udp, make([]byte, 100), 0, sockaddr("10.99.0.2:53")))
	}
	for _, fd := range []int{from, to, l, c, s, own, udp} {
		a.check(unix.Close(fd))
	}
	var last map[string]traffic
	until(t, "the interfaces are quiet", func() bool {
		now := a.dev()
		quiet := last["va"] == now["va"] && last["lo"] == now["lo"]
		last = now
		return quiet
	})
	for name, task := range tasks {
		r := task.end()
		d, ok := a.dev()[name].since(before[name])
		if !ok || d.rxBytes < 1<<20 {
			t.Fatalf("%s moved %+v", name, d)
		}
		got := traffic{r.Totals["rx_packets"], r.Totals["rx_bytes"], r.Totals["tx_packets"], r.Totals["tx_bytes"]}
		if got != d {
			t.Errorf("%s: %+v, /proc/net/dev says %+v", name, got, d)
		}
		if n := sum(r, nil); n != d.rxPackets+d.txPackets {
			t.Errorf("%s: rows hold %d packets of %d", name, n, d.rxPackets+d.txPackets)
		}
		if r.Lost != 0 || r.Unknown != 0 {
			t.Errorf("%s: lost %d, unknown %d", name, r.Lost, r.Unknown)
		}
		want := map[string]string{"protocol": "tcp", "remote": "10.99.0.2", "port": "7001"}
		if name == "lo" {
			want = map[string]string{"protocol": "tcp", "remote": "127.0.0.1", "port": "7002"}
		}
		rows := rowsWith(r, want)
		if len(rows) != 1 || rows[0].Values["rx_bytes"]+rows[0].Values["tx_bytes"] < 1<<20 || len(r.Next) == 0 {
			show(t, r)
			t.Errorf("%s: no row for the stream", name)
		}
		if name == "va" {
			rows := rowsWith(r, map[string]string{"protocol": "udp", "port": "53"})
			if len(rows) != 1 || rows[0].Values["tx_packets"] != 10 || rows[0].Values["tx_bytes"] != 10*(100+28+14) {
				t.Errorf("the datagrams' row: %+v", rows)
			}
		}
	}
	r := sampled.end()
	if len(r.Samples) != 3 || r.SampleRate != 100 || r.Truncated != (r.Totals["rx_packets"]+r.Totals["tx_packets"]+99)/100-3 {
		t.Errorf("1 in %d: %d samples, %d truncated of %v", r.SampleRate, len(r.Samples), r.Truncated, r.Totals)
	}
}

func TestTrafficTaskRefusesUnknownInterfaces(t *testing.T) {
	n := newNetns(t)
	n.run("ip", "link", "add", "here0", "type", "veth", "peer", "name", "there0")
	for _, raw := range []map[string]any{
		{"interface": "here0"}, // in another namespace
		{"interface": "eth99"}, {"interface": "eth99", "pid": n.tid}, {"interface": "*"}, {"interface": "../lo"},
	} {
		refusal(t, network.MonitorInterface, raw, inspector.ReasonUnknownIface, network.ArgInterface)
	}
	r := start(t, Config{}, network.MonitorInterface, map[string]any{"interface": "here0", "pid": n.tid}).end()
	if len(r.Rows) != 0 || fmt.Sprint(r.Totals) != "map[rx_bytes:0 rx_packets:0 tx_bytes:0 tx_packets:0]" {
		t.Errorf("an idle interface: %v %v", r.Totals, r.Rows)
	}
}
