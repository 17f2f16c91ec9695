package probe

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

func TestConnectionTaskEqualsSNMP(t *testing.T) {
	n := newNetns(t)
	before := n.fields()
	l := n.listen("127.0.0.1:7001", 64) // before the task: found in the open files
	oldClient := n.connect("127.0.0.1:7001")
	oldServer := n.accept(l)
	opened := sub(n.fields(), before)
	before = n.fields()
	if opened["Tcp.ActiveOpens"] != 1 {
		t.Fatalf("the lab failed: %v", opened)
	}
	all := start(t, Config{Netns: n.inode}, network.MonitorTCP, map[string]any{})
	mine := start(t, Config{Netns: n.inode}, network.MonitorTCP, map[string]any{"pid": os.Getpid(), "address": "127.0.0.1"})
	none := start(t, Config{Netns: n.inode}, network.MonitorTCP, map[string]any{"port": 7099})
	closed := start(t, Config{Netns: n.inode}, network.MonitorTCP, map[string]any{"port": 7002})
	const accepted, refused, aborted, size = 20, 5, 3, 100_000
	for range accepted {
		c := n.connect("127.0.0.1:7001")
		s := n.accept(l)
		n.stream(c, s, size)
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
	n.check(unix.Close(oldClient)) // born before the task
	n.check(unix.Close(oldServer))
	until(t, "the last connection closes", func() bool { return n.fields()["Tcp.CurrEstab"] == 0 })
	r, truth := calm(t, n, all, before)
	for name, field := range map[string]string{"active_opens": "Tcp.ActiveOpens", "passive_opens": "Tcp.PassiveOpens", "failed_opens": "Tcp.AttemptFails", "established_resets": "Tcp.EstabResets", "resets_out": "Tcp.OutRsts"} {
		if r.Totals[name] != truth[field] {
			t.Errorf("%s: %d, the kernel counted %d", name, r.Totals[name], truth[field])
		}
	}
	if r.Totals["resets_in"] != refused+aborted || r.Totals["closes"] != 2*(accepted+aborted+1) || r.Lost != 0 || r.Unknown != 0 {
		t.Errorf("totals %v, lost %d, unknown %d", r.Totals, r.Lost, r.Unknown)
	}
	self := strconv.Itoa(os.Getpid())
	value := func(labels map[string]string, name string) (v float64) {
		rows := rowsWith(r, labels)
		for _, row := range rows {
			v += row.Values[name]
		}
		return v
	}
	out := map[string]string{"direction": "out", "remote": "127.0.0.1", "port": "7001", "pid": self, "netns": fmt.Sprint(n.inode)}
	in := map[string]string{"direction": "in", "remote": "127.0.0.1", "port": "7001", "pid": self}
	shut := map[string]string{"direction": "out", "port": "7002", "pid": self}
	for _, c := range []struct {
		labels map[string]string
		name   string
		want   float64
	}{
		{out, "opened", accepted + aborted}, {out, "bytes_sent", accepted*(size+2) + 2} /* a reset forgets */, {out, "closed", accepted + aborted + 1}, {out, "ended", accepted + aborted + 1},
		{in, "opened", accepted + aborted}, {in, "bytes_received", accepted*(size+1) + 1}, {in, "resets_in", aborted},
		{shut, "opened", refused}, {shut, "failed", refused}, {shut, "resets_in", refused},
		{map[string]string{"direction": "in", "port": "7002"}, "resets_out", refused},
	} {
		if got := value(c.labels, c.name); got != c.want {
			show(t, r)
			t.Errorf("%v %s: %v, want %v", c.labels, c.name, got, c.want)
		}
	}
	for _, row := range rowsWith(r, out) {
		if row.Values["srtt_avg_us"] <= 0 || row.Values["lifetime_max_ms"] <= 0 {
			t.Errorf("no round-trip or life time: %v", row.Values)
		}
	}
	if m := mine.end(); m.Totals["active_opens"] != truth["Tcp.ActiveOpens"] || m.Totals["passive_opens"] != truth["Tcp.PassiveOpens"] {
		t.Errorf("by process: %v", m.Totals)
	}
	if m := none.end(); len(m.Rows) != 0 || m.Totals["active_opens"] != 0 {
		t.Errorf("another port: %v", m.Totals)
	}
	if m := closed.end(); m.Totals["active_opens"] != refused || m.Totals["failed_opens"] != refused || m.Totals["resets_out"] != refused || len(m.Next) == 0 {
		t.Errorf("the closed port: %v", m.Totals)
	}
	for _, fd := range append(ends, l) {
		n.check(unix.Close(fd))
	}
}

// Many clients of one service do not push the service out of the answer.
func TestConnectionTaskFoldsClients(t *testing.T) {
	n := newNetns(t)
	task := start(t, Config{Netns: n.inode}, network.MonitorTCP, map[string]any{"max_events": 10})
	l := n.listen("127.0.0.1:7001", 512)
	const clients = 150
	for i := range clients {
		fd := n.socket(unix.SOCK_STREAM)
		n.check(unix.Bind(fd, sockaddr(fmt.Sprintf("127.0.1.%d:0", i+1))))
		n.check(unix.Connect(fd, sockaddr("127.0.0.1:7001")))
		n.check(unix.Close(n.accept(l)))
		n.check(unix.Close(fd))
	}
	r := task.end()
	var got float64
	for _, row := range rowsWith(r, map[string]string{"direction": "in", "port": "7001"}) {
		got += row.Values["opened"]
	}
	if got != clients || r.OtherCount != 0 {
		show(t, r)
		t.Errorf("%v connections of %d are in rows, %d in none", got, clients, r.OtherCount)
	}
	if len(r.Samples) > 10 || r.Truncated == 0 {
		t.Errorf("%d samples with max_events 10, %d truncated", len(r.Samples), r.Truncated)
	}
	n.check(unix.Close(l))
	if len(r.Rows) > inspector.MaxResultRows {
		t.Errorf("%d rows", len(r.Rows))
	}
}
