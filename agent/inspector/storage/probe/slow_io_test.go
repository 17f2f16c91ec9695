package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// 64 KiB at 512 KiB a second below the loop device take 125 ms.
func TestSlowIONamesDeviceProcessAndTime(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	l.fill(t)
	dir, path := throttled(t, l.file, 512<<10)
	var pid int
	r := perform(t, newTasks(t), storage.TraceSlowIO, map[string]any{"device": l.name, "threshold_ms": 50}, func() {
		pid = in(t, dir, "dd", "if=/dev/"+l.name, "of=/dev/null", "iflag=direct", "bs=64k", "count=8")
	})
	t.Logf("%+v", r)
	want := map[string]string{"device": l.name, "operation": "read", "process": "dd", "pid": strconv.Itoa(pid), "by": "process", "cgroup": path}
	rows := rowsWith(r, want)
	if len(rows) != 1 || rows[0].Count < 6 || rows[0].Count > 8 {
		t.Fatalf("rows %+v, want one of dd with 6 to 8 requests", r.Rows)
	}
	if v := rows[0].Values; v["p50_ms"] < 90 || v["p50_ms"] > 200 || v["max_ms"] < v["p50_ms"] || v["bytes"] < 6*65536 {
		t.Errorf("values %v, want some 125 ms", v)
	}
	if r.Totals["requests"] != 8 || r.Totals["slow_requests"] != rows[0].Count {
		t.Errorf("totals %v of 8 reads", r.Totals)
	}
	if len(r.Samples) != int(rows[0].Count) || r.Samples[0].Values["bytes"] != 65536 || r.Samples[0].Values["latency_ms"] < 50 || r.Samples[0].Labels["process"] != "dd" {
		t.Errorf("samples %+v", r.Samples)
	}
	if len(r.Next) != 2 || r.Next[0].Args["device"] != l.name || r.Next[1].Args["pid"] != int64(pid) {
		t.Errorf("next %+v", r.Next)
	}
}

// What a filter does not ask for is not in the result at all.
func TestSlowIOFilters(t *testing.T) {
	needRoot(t)
	a, b := newLoop(t, 1<<20), newLoop(t, 1<<20)
	group, path := newGroup(t, "blkio")
	memory, memoryPath := newGroup(t, "memory")
	unified, unifiedPath := newGroup(t, "unified")
	container := filepath.Join(unified, "docker-"+containerID+".scope")
	if err := os.Mkdir(container, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { until(t, "the container is empty", func() bool { return os.Remove(container) == nil }) })
	resident := exec.CommandContext(t.Context(), "/bin/sleep", "60") // a container without a process is none
	if err := resident.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resident.Process.Kill(); _ = resident.Wait() })
	if err := os.WriteFile(filepath.Join(container, "cgroup.procs"), []byte(strconv.Itoa(resident.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	work := func() {
		in(t, container, "dd", "if=/dev/"+a.name, "of=/dev/null", "iflag=direct", "bs=4k", "count=60")
		a.read(t, 10)
		b.read(t, 20)
		a.write(t, 5)
		if err := a.dev.Sync(); err != nil {
			t.Fatal(err)
		}
		in(t, group, "dd", "if=/dev/"+a.name, "of=/dev/null", "iflag=direct", "bs=4k", "count=30")
		in(t, memory, "dd", "if=/dev/"+a.name, "of=/dev/null", "iflag=direct", "bs=4k", "count=40")
		in(t, unified, "dd", "if=/dev/"+a.name, "of=/dev/null", "iflag=direct", "bs=4k", "count=50")
	}
	own := os.Getpid()
	for _, c := range []struct {
		name string
		args map[string]any
		want uint64
	}{
		{"device", map[string]any{"device": b.name}, 20},
		{"pid", map[string]any{"pid": own}, 10 + 20 + 5 + 1},
		{"pid and device", map[string]any{"pid": own, "device": a.name}, 16},
		{"operation", map[string]any{"pid": own, "operation": "write"}, 5},
		{"flush belongs to who asked", map[string]any{"pid": own, "operation": "flush"}, 1},
		{"cgroup of blkio", map[string]any{"cgroup": path, "device": a.name}, 30},
		{"cgroup of memory", map[string]any{"cgroup": memoryPath, "device": a.name}, 40},
		{"cgroup of version 2", map[string]any{"cgroup": unifiedPath, "device": a.name}, 50 + 60},
		{"cgroup by id", map[string]any{"cgroup": idOf(t, container), "device": a.name}, 60},
		{"container", map[string]any{"container": containerID[:12], "device": a.name}, 60},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := perform(t, newTasks(t), storage.TraceSlowIO, c.args, work)
			if got := r.Totals["requests"]; got != c.want {
				t.Errorf("%d requests pass, want %d: %+v", got, c.want, r)
			}
			if r.Lost != 0 {
				t.Errorf("lost %d", r.Lost)
			}
		})
	}
}

const containerID = "7e117a1e00000000000000000000000000000000000000000000000000c0ffee"

func idOf(t *testing.T, dir string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	return strconv.FormatUint(st.Ino, 10)
}

// A partition is a part of its disk: only what goes to it counts.
func TestPartition(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 4<<20)
	part := l.partition(t, 1<<20, 1<<20)
	dev, err := os.OpenFile("/dev/"+part, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	inner := &loop{name: part, dev: dev, blocks: 256}
	work := func() { l.read(t, 30); inner.read(t, 20) }
	for name, want := range map[string]uint64{part: 20, l.name: 50} {
		if r := perform(t, newTasks(t), storage.TraceSlowIO, map[string]any{"device": name}, work); r.Totals["requests"] != want {
			t.Errorf("%s: %v, want %d requests", name, r.Totals, want)
		}
	}
	before, blind := readStat("/sys/class/block/" + part)
	r := perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": part}, work)
	if row := rowsWith(r, map[string]string{"row": "device"}); blind != nil || len(row) != 1 || row[0].Count != 20 || row[0].Labels["device"] != part {
		t.Errorf("%+v after %+v, %v", row, before, blind)
	}
}

// The maps of one task are bounded.
func TestMemoryOfATask(t *testing.T) {
	needRoot(t)
	tr, err := openTracer(labKernel, wanted{op: -1, every: 1, most: 10_000}, 0, 0, newTasks(t).log)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.set.Close()
	var sum uint64
	for _, name := range []string{traceMapAll, traceMapCounts, traceMapGroups, traceMapOwners, traceMapRing} {
		info, err := tr.set.Map(name).Info()
		if err != nil {
			t.Fatal(err)
		}
		bytes, _ := info.Memlock()
		t.Logf("%s: %d KiB", name, bytes>>10)
		sum += bytes
	}
	if sum == 0 || sum > 8<<20 {
		t.Errorf("%d bytes of maps, at most 8 MiB", sum)
	}
}

func TestSlowIORefusals(t *testing.T) {
	needRoot(t)
	for _, c := range []struct {
		args        map[string]any
		reason, arg string
	}{
		{map[string]any{"device": "nosuch0"}, inspector.ReasonUnknownDevice, "device"},
		{map[string]any{"device": "../../block"}, inspector.ReasonUnknownDevice, "device"},
		{map[string]any{"device": ".."}, inspector.ReasonUnknownDevice, "device"},
		{map[string]any{"pid": storage.MaxPid}, inspector.ReasonPidGone, "pid"},
		{map[string]any{"cgroup": "/no/such"}, inspector.ReasonUnknownCgroup, "cgroup"},
		{map[string]any{"container": strings.Repeat("0123456789abcdef", 4)}, inspector.ReasonUnknownCgroup, "container"},
		{map[string]any{"container": "0123456789ab", "cgroup": "/"}, inspector.ReasonInvalidArgument, "container"},
	} {
		_, err := newTasks(t).slowIO(t.Context(), check(t, storage.TraceSlowIO, c.args), func(*inspector.TaskResult) {})
		if r := refusal(t, err); r.Reason != c.reason || r.Arg != c.arg {
			t.Errorf("%v: %+v, want %s of %s", c.args, r, c.reason, c.arg)
		}
	}
	_, err := newTasks(t).deviceIO(t.Context(), check(t, storage.MonitorDeviceIO, map[string]any{"device": "nosuch0"}), func(*inspector.TaskResult) {})
	if r := refusal(t, err); r.Reason != inspector.ReasonUnknownDevice || !strings.Contains(r.Next, "use one of") {
		t.Errorf("%+v", r)
	}
	off := newTasks(t)
	off.cfg.Disable = []string{storage.SignalLatency}
	_, err = off.slowIO(t.Context(), check(t, storage.TraceSlowIO, map[string]any{}), func(*inspector.TaskResult) {})
	if r := refusal(t, err); r.Reason != inspector.ReasonFeatureOff {
		t.Errorf("%+v", r)
	}
}

const unprivileged = "TELLTALE_TEST_UNPRIVILEGED"

// An ordinary user is told what the agent lacks.
func TestTasksWithoutPrivileges(t *testing.T) {
	if os.Getenv(unprivileged) == "" && os.Geteuid() == 0 {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestTasksWithoutPrivileges$", "-test.v")
		cmd.Env, cmd.Dir = append(os.Environ(), unprivileged+"=1"), "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestTasksWithoutPrivileges") {
			t.Fatalf("as an ordinary user: %v\n%s", err, out)
		}
		return
	}
	for kind, args := range map[string]map[string]any{
		storage.TraceSlowIO: {}, storage.MonitorProcessIO: {"pid": os.Getpid()},
	} {
		run := Tasks(Config{}, newTasks(t).log)[kind]
		_, err := run(t.Context(), check(t, kind, args), func(*inspector.TaskResult) {})
		if r := refusal(t, err); r.Reason != inspector.ReasonFeatureOff || !strings.Contains(r.Msg, "CAP_BPF") {
			t.Errorf("%s: %+v", kind, r)
		}
	}
}
