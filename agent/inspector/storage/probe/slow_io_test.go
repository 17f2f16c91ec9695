package probe

import (
	"os"
	"strconv"
	"strings"
	"testing"

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
	work := func() {
		a.read(t, 10)
		b.read(t, 20)
		a.write(t, 5)
		if err := a.dev.Sync(); err != nil {
			t.Fatal(err)
		}
		in(t, group, "dd", "if=/dev/"+a.name, "of=/dev/null", "iflag=direct", "bs=4k", "count=30")
		in(t, memory, "dd", "if=/dev/"+a.name, "of=/dev/null", "iflag=direct", "bs=4k", "count=40")
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
