package probe

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/network"
)

func TestRetransmitTaskEqualsSNMP(t *testing.T) {
	a, b := newNetns(t), newNetns(t)
	join(a, b)
	b.run("nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; "+
		"add rule inet lab in tcp dport 7001 tcp flags & (syn|fin) == 0 numgen inc mod 50 0 drop; "+
		"add rule inet lab in tcp dport 7002 drop; add rule inet lab in tcp sport 7003 drop")
	early := b.listen("10.99.0.2:7001", 1)
	from := a.connect("10.99.0.2:7001") // before the task: found in the open files
	to := b.accept(early)
	before := a.fields()
	all := start(t, Config{Netns: a.inode}, network.TraceRetransmits, map[string]any{})
	mine := start(t, Config{Netns: a.inode}, network.TraceRetransmits, map[string]any{"pid": os.Getpid(), "port": 7001, "address": "10.99.0.2"})
	others := start(t, Config{Netns: a.inode}, network.TraceRetransmits, map[string]any{"pid": 1})
	port := start(t, Config{Netns: a.inode}, network.TraceRetransmits, map[string]any{"port": 7099})
	a.stream(from, to, 16<<20)
	syn := a.begin("10.99.0.2:7002")
	deaf := a.listen("10.99.0.1:7003", 8)
	ack := b.begin("10.99.0.1:7003")
	until(t, "SYN and SYN-ACK are sent again", func() bool {
		// A SYN-ACK goes out again by its own timer and for each SYN that comes
		// again: two may be of one connection.
		return a.fields()["TcpExt.TCPSynRetrans"] >= before["TcpExt.TCPSynRetrans"]+3
	})
	for _, fd := range []int{syn, deaf, ack} { // or else they go on
		a.check(unix.Close(fd))
	}
	r, truth := calm(t, a, all, before)
	if r.Totals["segments"] != truth["Tcp.RetransSegs"] || sum(r, nil) != truth["Tcp.RetransSegs"] {
		b, _ := json.MarshalIndent(r, "", " ")
		t.Errorf("%d segments, the kernel counted %d\n%s", r.Totals["segments"], truth["Tcp.RetransSegs"], b)
	}
	if r.Totals["events"] == 0 || r.Totals["events"] > r.Totals["segments"] || r.Lost != 0 || r.Unknown != 0 {
		t.Errorf("totals %v, lost %d, unknown %d", r.Totals, r.Lost, r.Unknown)
	}
	self := map[string]string{"pid": strconv.Itoa(os.Getpid()), "remote": "10.99.0.2", "remote_port": "7001", "state": "ESTABLISHED", "netns": fmt.Sprint(a.inode)}
	stream := sum(r, self)
	if stream < 10 {
		t.Errorf("the stream's row has %d segments: %+v", stream, r.Rows)
	}
	for _, row := range rowsWith(r, self) {
		if row.Values["srtt_us"] <= 0 || row.Values["cwnd"] <= 0 {
			t.Errorf("the stream has no shape: %v", row.Values)
		}
	}
	for state, p := range map[string]string{"SYN_SENT": "7002", "SYN_RECV": "7003"} {
		key := "remote_port"
		if state == "SYN_RECV" {
			key = "local_port"
		}
		if sum(r, map[string]string{"state": state, key: p, "pid": self["pid"]}) == 0 {
			t.Errorf("no row for %s on port %s: %+v", state, p, r.Rows)
		}
	}
	if got := mine.end().Totals["segments"]; got != stream {
		t.Errorf("by process, port and address: %d, the row has %d", got, stream)
	}
	if r := others.end(); r.Totals["segments"] != 0 || r.Unknown != 0 {
		t.Errorf("another process: %v, unknown %d", r.Totals, r.Unknown)
	}
	if got := port.end().Totals["segments"]; got != 0 {
		t.Errorf("another port: %d", got)
	}
	for _, fd := range []int{from, to, early} {
		a.check(unix.Close(fd))
	}
}
