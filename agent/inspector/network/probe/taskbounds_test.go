package probe

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// refusal runs a task that must be refused for this reason.
func refusal(t *testing.T, kind string, raw map[string]any, reason, arg string) {
	t.Helper()
	args, err := kindOf(t, kind).Check(raw)
	if err != nil {
		t.Fatal(err)
	}
	run := Tasks(Config{}, slog.New(slog.NewTextHandler(t.Output(), nil)))[kind]
	_, err = run(t.Context(), args, func(*inspector.TaskResult) { t.Errorf("%v: the task ran", raw) })
	var r *inspector.Refusal
	if !errors.As(err, &r) || r.Reason != reason || r.Arg != arg || r.Next == "" || r.Kind == "" {
		t.Errorf("%s %v: %v, want %s of %s", kind, raw, err, reason, arg)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it loads programs")
	}
}

func TestTasksRefuseBadTargets(t *testing.T) {
	needRoot(t)
	ended := exec.Command("/bin/true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{network.TraceDrops, network.TraceRetransmits, network.MonitorTCP} {
		refusal(t, kind, map[string]any{"pid": ended.Process.Pid}, inspector.ReasonPidGone, network.ArgPid)
		refusal(t, kind, map[string]any{"cgroup": "/no/such/group"}, inspector.ReasonUnknownCgroup, network.ArgCgroup)
		refusal(t, kind, map[string]any{"container": "0123456789abcdef"}, inspector.ReasonUnknownCgroup, network.ArgContainer)
		refusal(t, kind, map[string]any{"container": "short"}, inspector.ReasonUnknownCgroup, network.ArgContainer)
		refusal(t, kind, map[string]any{"cgroup": "/", "container": "0123456789abcdef"}, inspector.ReasonInvalidArgument, network.ArgContainer)
		for _, address := range []string{"10.0.0.0/8", "localhost", "fe80::1%eth0", "1.2.3"} {
			refusal(t, kind, map[string]any{"address": address}, inspector.ReasonInvalidArgument, network.ArgAddress)
		}
	}
	refusal(t, network.TraceDrops, map[string]any{"reason": "NO_SUCH_REASON"}, inspector.ReasonInvalidArgument, network.ArgReason)
	refusal(t, network.MonitorInterface, map[string]any{"interface": "lo", "pid": ended.Process.Pid}, inspector.ReasonPidGone, network.ArgPid)
}

// A task on a process ends with it and says so.
func TestTaskEndsWithItsProcess(t *testing.T) {
	n := newNetns(t)
	p := n.peer("send", "127.0.0.1:7777", 1, 1)
	task := start(t, Config{Netns: n.inode}, network.TraceDrops, map[string]any{"pid": p.pid})
	p.act() // nobody listens there, but the sender's packet is no longer its socket's
	p.end()
	<-task.done
	if task.err != nil || !strings.Contains(strings.Join(task.result.Notes, " "), "ended after") {
		t.Errorf("%v, notes %v", task.err, task.result)
	}
}

func TestTaskKeepsItsTime(t *testing.T) {
	n := newNetns(t)
	task := start(t, Config{Netns: n.inode}, network.TraceRetransmits, map[string]any{"duration_s": 1})
	<-task.done
	if task.err != nil {
		t.Fatal(task.err)
	}
	if took := task.result.To.Sub(task.result.From); took < time.Second || took > 1500*time.Millisecond {
		t.Errorf("one second took %v", took)
	}
	if len(task.result.Rows) != 0 || task.result.Totals["segments"] != 0 {
		t.Errorf("a quiet namespace: %+v", task.result)
	}
}

// A million events into a small ring: what is lost is known, and no count is.
func TestFloodReportsItsLoss(t *testing.T) {
	n := newNetns(t)
	n.run("nft", "add table inet lab; add chain inet lab in { type filter hook input priority 0; }; add rule inet lab in udp dport 7777 counter drop")
	tracer := newTracer(Config{Netns: n.inode, Kernel: labKernel}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	tracer.tune = func(spec *ebpf.CollectionSpec) {
		spec.Maps["ring"].MaxEntries = 4096
		if err := spec.Variables["max_events"].Set(uint32(1 << 30)); err != nil {
			t.Error(err)
		}
	}
	task := startWith(t, tracer, network.TraceDrops, map[string]any{"duration_s": 300})
	const flood, senders = 300_000, 2
	done := make(chan error, senders)
	for range senders {
		fd := n.socket(unix.SOCK_DGRAM)
		n.check(unix.Connect(fd, sockaddr("127.0.0.1:7777")))
		go func() {
			defer unix.Close(fd)
			payload := []byte{1}
			for range flood / senders {
				if _, err := unix.Write(fd, payload); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range senders {
		n.check(<-done)
	}
	until(t, "every packet met the filter", func() bool { return n.filtered() >= flood })
	r := task.end()
	if got := n.filtered(); got != flood || r.Totals["packets"] != flood || sum(r, map[string]string{"reason": "NETFILTER_DROP"}) != flood {
		t.Errorf("%d packets in totals, %v; the filter counted %d", r.Totals["packets"], r.Rows, got)
	}
	seen := uint64(len(r.Samples)) + r.Truncated
	if r.Lost == 0 || seen == 0 || seen+r.Lost != flood {
		t.Errorf("%d seen and %d lost of %d", seen, r.Lost, flood)
	}
	if !strings.Contains(strings.Join(r.Notes, " "), "found no room") {
		t.Errorf("no word of the loss: %v", r.Notes)
	}
	t.Logf("%d events: %d seen, %d lost, all counted", flood, seen, r.Lost)
}

// More groups than there is room for stay in the totals, and a spent budget
// ends the task with what it has.
func TestTaskStaysWithinItsBudget(t *testing.T) {
	n := newNetns(t)
	tracer := newTracer(Config{Netns: n.inode, Kernel: labKernel}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	tracer.tune = func(spec *ebpf.CollectionSpec) { spec.Maps["groups"].MaxEntries = 16 }
	task := startWith(t, tracer, network.TraceDrops, map[string]any{})
	fd := n.socket(unix.SOCK_DGRAM)
	for port := range 300 {
		n.send(fd, 20_000+port, 1, 10)
	}
	if r := task.end(); r.Totals["packets"] != 300 || sum(r, nil)+r.OtherCount != 300 {
		t.Errorf("%v in totals, %d in rows, %d elsewhere", r.Totals, sum(r, nil), r.OtherCount)
	}
	tracer.tune = func(spec *ebpf.CollectionSpec) {
		if err := spec.Variables["event_budget"].Set(uint64(20)); err != nil {
			t.Error(err)
		}
	}
	task = startWith(t, tracer, network.TraceDrops, map[string]any{"reason": "NO_SOCKET"})
	n.send(fd, 20_000, 300, 10)
	<-task.done
	if task.err != nil || task.result.StoppedFor != "cpu" || task.result.Totals["packets"] < 20 || task.result.Totals["packets"] > 20*64 {
		t.Errorf("%v %+v", task.err, task.result)
	}
	n.check(unix.Close(fd))
}

func openFDs(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// Each task holds its maps within 8 MiB while it runs and leaves nothing.
func TestTasksLeaveNothing(t *testing.T) {
	needRoot(t)
	start(t, Config{}, network.TraceRetransmits, map[string]any{}).end() // what a first one opens for good
	var left []ebpf.MapID
	wake := make(chan struct{})
	for kind, raw := range map[string]map[string]any{network.TraceDrops: {}, network.TraceRetransmits: {}, network.MonitorTCP: {}, network.MonitorInterface: {"interface": "lo"}} {
		fds := openFDs(t)
		task := start(t, Config{}, kind, raw)
		var ids []ebpf.MapID
		var bytes uint64
		for _, m := range ownMaps(t) {
			info, err := m.Info()
			if err != nil {
				t.Fatal(err)
			}
			id, _ := info.ID()
			ids = append(ids, id)
			b, ok := info.Memlock()
			if !ok {
				t.Fatal("the kernel tells no map's memory")
			}
			bytes += b
			_ = m.Close()
		}
		t.Logf("%s: %d maps, %d KiB", kind, len(ids), bytes>>10)
		if len(ids) < 4 || bytes > 8<<20 {
			t.Errorf("%s holds %d maps with %d bytes", kind, len(ids), bytes)
		}
		task.end()
		left = append(left, ids...)
		if now := openFDs(t); now != fds {
			t.Errorf("%s: %d files open before, %d after", kind, fds, now)
		}
	}
	// The kernel takes programs away when nothing can run them any more, which
	// may be seconds on a busy machine.
	for range 240 {
		left = slices.DeleteFunc(left, func(id ebpf.MapID) bool {
			m, err := ebpf.NewMapFromID(id)
			if err == nil {
				_ = m.Close()
			}
			return err != nil
		})
		if len(left) == 0 {
			return
		}
		time.AfterFunc(250*time.Millisecond, func() { wake <- struct{}{} })
		<-wake
	}
	t.Errorf("%d maps outlive their tasks", len(left))
}

// ownMaps are the maps that this process holds, each once.
func ownMaps(t *testing.T) (out []*ebpf.Map) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range entries {
		b, err := os.ReadFile("/proc/self/fdinfo/" + e.Name())
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			id, ok := strings.CutPrefix(line, "map_id:\t")
			if !ok || seen[id] {
				continue
			}
			seen[id] = true
			m, err := ebpf.NewMapFromID(ebpf.MapID(parseID(id)))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, m)
		}
	}
	return out
}

func parseID(s string) (n uint32) {
	for _, c := range strings.TrimSpace(s) {
		n = n*10 + uint32(c-'0')
	}
	return n
}

// An agent without privileges says what it lacks.
func TestTaskWithoutItsProgramsIsOff(t *testing.T) {
	needRoot(t)
	tracer := newTracer(Config{Kernel: labKernel}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	tracer.tune = func(spec *ebpf.CollectionSpec) { spec.Programs["trace_drop"].AttachTo = "no_such_hook" }
	args, err := kindOf(t, network.TraceDrops).Check(map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = tracer.drops(context.Background(), args, func(*inspector.TaskResult) { t.Error("it ran") })
	var r *inspector.Refusal
	if !errors.As(err, &r) || r.Reason != inspector.ReasonFeatureOff || r.Kind != "FAILED_PRECONDITION" || !strings.Contains(r.Msg, "lacks") {
		t.Errorf("%v", err)
	}
}

// The owners of more sockets than there is room for are forgotten, and the
// result says how many; with room enough it says nothing.
func TestForgottenOwnersAreCounted(t *testing.T) {
	n := newNetns(t)
	tracer := newTracer(Config{Netns: n.inode, Kernel: labKernel}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	const sockets, room = 600, 128
	sender := n.peer("send", "127.0.0.1:7777", sockets, 10)
	for _, c := range []struct {
		room  uint32
		least uint64
	}{{room, sockets - room}, {16_384, 0}} {
		tracer.tune = func(spec *ebpf.CollectionSpec) { spec.Maps["owners"].MaxEntries = c.room }
		task := startWith(t, tracer, network.TraceDrops, map[string]any{})
		sender.act()
		r := task.end()
		said := strings.Contains(strings.Join(r.Notes, " "), "owners of sockets were forgotten")
		if got := r.Totals["owners_forgotten"]; got < c.least || (got > 0) != (c.least > 0) || said != (c.least > 0) || r.Totals["packets"] != sockets {
			t.Errorf("room for %d: %v %v, want at least %d forgotten", c.room, r.Totals, r.Notes, c.least)
		}
	}
}

// The same of connections that began while the task ran and go on.
func TestForgottenConnectionsAreCounted(t *testing.T) {
	n := newNetns(t)
	n.listen("127.0.0.1:7001", 512)
	tracer := newTracer(Config{Netns: n.inode, Kernel: labKernel}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	const connections, room = 150, 64
	tracer.tune = func(spec *ebpf.CollectionSpec) { spec.Maps["conns"].MaxEntries = room }
	task := startWith(t, tracer, network.MonitorTCP, map[string]any{})
	for range connections {
		fd := n.socket(unix.SOCK_STREAM)
		n.check(unix.Connect(fd, sockaddr("127.0.0.1:7001")))
		t.Cleanup(func() { _ = unix.Close(fd) })
	}
	r := task.end()
	if got := r.Totals["connections_forgotten"]; got < 2*connections-room || r.Totals["active_opens"] != connections || !strings.Contains(strings.Join(r.Notes, " "), "connections were forgotten") {
		t.Errorf("%v %v", r.Totals, r.Notes)
	}
}
