package probe

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// A connection that was there before and stays is not nothing: what it moves
// is told.
func TestConnectionTaskListsWhatGoesOn(t *testing.T) {
	n := newNetns(t)
	l := n.listen("127.0.0.1:7001", 64)
	busy := n.connect("127.0.0.1:7001")
	busyEnd := n.accept(l)
	idle := n.connect("127.0.0.1:7001")
	idleEnd := n.accept(l)
	n.stream(busy, busyEnd, 5000) // before the task
	task := start(t, Config{Netns: n.inode}, network.MonitorTCP, map[string]any{"port": 7001, "pid": os.Getpid()})
	other := start(t, Config{Netns: n.inode}, network.MonitorTCP, map[string]any{"port": 7002})
	const size = 70_000
	n.stream(busy, busyEnd, size)
	r := task.end()
	if len(r.Samples) != 0 || r.Totals["active_opens"] != 0 || r.Totals["established"] != 4 || r.Unknown != 0 {
		t.Errorf("totals %v, unknown %d", r.Totals, r.Unknown)
	}
	self := strconv.Itoa(os.Getpid())
	for direction, value := range map[string]string{"out": "bytes_sent", "in": "bytes_received"} {
		rows := rowsWith(r, map[string]string{"event": "established", "direction": direction, "remote": "127.0.0.1", "port": "7001", "pid": self, "netns": fmt.Sprint(n.inode)})
		if len(rows) != 1 || rows[0].Count != 2 || rows[0].Values[value] != size || rows[0].Values[value+"_so_far"] < size+5000 {
			show(t, r)
			t.Errorf("%s: %+v", direction, rows)
		}
	}
	if r := other.end(); len(r.Rows) != 0 || r.Totals["established"] != 0 {
		t.Errorf("another port: %+v", r.Rows)
	}
	for _, fd := range []int{busy, busyEnd, idle, idleEnd, l} {
		n.check(unix.Close(fd))
	}
}
