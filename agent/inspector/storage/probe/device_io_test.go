package probe

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

func TestDeviceIOEqualsTheKernels(t *testing.T) {
	needRoot(t)
	l, other := newLoop(t, 16<<20), newLoop(t, 1<<20)
	var before, after kernelStat
	var merged [2]uint64
	r := perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": l.name}, func() {
		before, merged[0] = l.stat(t), merges(t, l.name)
		l.write(t, 200)
		for range 5 {
			l.write(t, 1)
			if err := l.dev.Sync(); err != nil {
				t.Fatal(err)
			}
		}
		l.read(t, 300)
		l.discard(t, 1<<20)
		buffered(t, l.name, 4<<20) // writes that merge, sent by the kernel
		other.read(t, 50)
		after, merged[1] = l.stat(t), merges(t, l.name)
	})
	t.Logf("totals %v", r.Totals)
	for _, row := range r.Rows {
		t.Logf("%+v", row)
	}
	for i, op := range storage.Operations {
		if got, want := r.Totals[op+"_requests"], after[i].ios-before[i].ios; got != want {
			t.Errorf("%s: %d requests, the kernel counts %d", op, got, want)
		}
		if got, want := r.Totals[op+"_bytes"], after[i].bytes-before[i].bytes; got != want {
			t.Errorf("%s: %d bytes, the kernel counts %d", op, got, want)
		}
	}
	if got := r.Totals["read_merges"] + r.Totals["write_merges"] + r.Totals["discard_merges"]; got != merged[1]-merged[0] {
		t.Errorf("%d merges, the kernel counts %d", got, merged[1]-merged[0])
	}
	device := rowsWith(r, map[string]string{"row": "device"})
	var all, byProcess uint64
	var bytes float64
	for _, row := range rowsWith(r, map[string]string{"row": "process"}) {
		byProcess += row.Count
		bytes += row.Values["bytes"]
	}
	for i := range after {
		all += after[i].ios - before[i].ios
	}
	if len(device) != 1 || device[0].Count != all || byProcess != all || bytes != device[0].Values["bytes"] {
		t.Errorf("%d requests by process and %+v of %d", byProcess, device, all)
	}
	if v := device[0].Values; v["most_under_way"] < 1 || v["busy_ratio"] <= 0 || v["avg_under_way"] <= 0 || v["requests_per_s"] <= 0 {
		t.Errorf("%v", v)
	}
	if own := rowsWith(r, map[string]string{"row": "process", "operation": "read", "pid": strconv.Itoa(os.Getpid())}); len(own) != 1 || own[0].Count != 300 {
		t.Errorf("own reads: %+v", own)
	}
	if r.Lost != 0 || len(r.Samples) == 0 || r.Truncated == 0 {
		t.Errorf("lost %d, %d samples, %d truncated", r.Lost, len(r.Samples), r.Truncated)
	}
}

func TestDeviceIOErrorsAndDepth(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	r := perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": "/dev/" + l.name}, func() {
		l.read(t, 3)
		if err := os.Truncate(l.file, 0); err != nil {
			t.Fatal(err)
		}
		l.read(t, 7)
	})
	if r.Totals["read_errors"] != 7 || r.Totals["read_requests"] != 10 || r.Totals["write_errors"] != 0 {
		t.Errorf("totals %v, want 7 errors of 10 reads", r.Totals)
	}
	failed := 0
	for _, s := range r.Samples {
		if s.Labels[storage.LabelErrno] == "EIO" {
			failed++
		}
	}
	if failed != 7 {
		t.Errorf("%d samples of 7 errors: %+v", failed, r.Samples)
	}
}

// With iostats off the kernel notes no start; the task notes its own.
func TestDeviceIOWithoutIostats(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	l.read(t, 2000)
	path := "/sys/block/" + l.name + "/queue/iostats"
	if err := os.WriteFile(path, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(path, []byte("1"), 0) })
	r := perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": l.name}, func() { l.read(t, 9) })
	row := rowsWith(r, map[string]string{"row": "operation", "operation": "read"})
	if len(row) != 1 || row[0].Count != 9 || row[0].Values["max_ms"] <= 0 || row[0].Values["max_ms"] > 200 {
		t.Errorf("%+v", row)
	}
	if len(r.Notes) != 2 || !strings.Contains(r.Notes[1], "iostats") {
		t.Errorf("notes %q", r.Notes)
	}
}

// More records than the ring holds while nobody reads it.
func TestRecordsLostAreCounted(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	const reads = 500
	w := wanted{device: diskOf(t, l.name), op: -1, every: 1, most: 10_000}
	tr, err := openTracer(labKernel, w, 4096, 0, newTasks(t).log)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.set.Close()
	l.read(t, reads)
	if err := tr.detach(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tr.records(ctx); err != nil {
		t.Fatal(err)
	}
	s, err := tr.look()
	if err != nil {
		t.Fatal(err)
	}
	if tr.read == 0 || s.counts[countLost] == 0 || tr.read+s.counts[countLost] != reads || s.all[0].Requests != reads {
		t.Errorf("read %d and lost %d of %d, the kernel counted %d", tr.read, s.counts[countLost], reads, s.all[0].Requests)
	}
	r := &inspector.TaskResult{}
	tr.account(r, s)
	if r.Lost != s.counts[countLost] || len(r.Notes) != 1 {
		t.Errorf("%+v", r)
	}
}

func TestSamplingIsDoneInTheKernel(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	r := perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": l.name, "sample_rate": 10, "max_events": 5}, func() { l.read(t, 200) })
	if r.Totals["read_requests"] != 200 || len(r.Samples) != 5 || r.Truncated != 15 || r.SampleRate != 10 {
		t.Errorf("%d samples, %d truncated, 1 in %d of %v", len(r.Samples), r.Truncated, r.SampleRate, r.Totals)
	}
}

func diskOf(t *testing.T, name string) disk {
	t.Helper()
	d, err := findDisk("/sys", name)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func merges(t *testing.T, name string) uint64 {
	t.Helper()
	s, err := readStat("/sys/block/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return s.merges[0] + s.merges[1] + s.merges[2]
}

func buffered(t *testing.T, name string, size int) {
	t.Helper()
	f, err := os.OpenFile("/dev/"+name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// Buffered writes reach the disk from a kernel worker: the result says so and
// names no process.
func TestWritebackIsTheKernels(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 4<<20)
	r := perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": l.name}, func() {
		f, err := os.OpenFile("/dev/"+l.name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		before := l.stat(t)
		unix.Sync() // wakes the kernel's flusher threads
		until(t, "the writes arrive", func() bool { return l.stat(t)[1].bytes-before[1].bytes >= 1<<20 })
	})
	rows := rowsWith(r, map[string]string{"row": "process", "operation": "write", "by": "kernel"})
	var bytes float64
	for _, row := range rows {
		bytes += row.Values["bytes"]
		if !strings.HasPrefix(row.Labels["process"], "kworker") || row.Labels["pid"] != "" {
			t.Errorf("%+v", row)
		}
	}
	if bytes != 1<<20 || !strings.Contains(strings.Join(r.Notes, " "), "kernel threads") {
		t.Errorf("%v bytes by the kernel: %+v", bytes, r)
	}
	t.Logf("%+v", rows)
}

// The kernel shows times in 32 bits: 49 days.
func TestQueueTimesWrap(t *testing.T) {
	row := &inspector.ResultRow{Values: map[string]float64{}}
	r := &inspector.TaskResult{Totals: map[string]uint64{}}
	addStat(r, row, diskStat{busy: 1<<32 - 300, waited: 1<<32 - 1000}, diskStat{busy: 200, waited: 3000}, time.Second)
	if row.Values["busy_ratio"] != 0.5 || row.Values["avg_under_way"] != 4 {
		t.Errorf("%v", row.Values)
	}
}

// Two tasks look at the same device at the same time and do not disturb each
// other.
func TestTwoTasksAtOnce(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	var inner *inspector.TaskResult
	outer := perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": l.name}, func() {
		l.read(t, 10)
		inner = perform(t, newTasks(t), storage.MonitorDeviceIO, map[string]any{"device": l.name}, func() { l.read(t, 20) })
	})
	if outer.Totals["read_requests"] != 30 || inner.Totals["read_requests"] != 20 {
		t.Errorf("%d and %d reads, want 30 and 20", outer.Totals["read_requests"], inner.Totals["read_requests"])
	}
}

// A device that makes no requests is refused with the ones that do.
func TestStackedDevice(t *testing.T) {
	sys := t.TempDir()
	for _, dir := range []string{"devices/dm-0/slaves/vda", "devices/vda/mq", "devices/vda/vda1", "class/block", "block"} {
		if err := os.MkdirAll(sys+"/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"devices/dm-0/dev": "252:0\n", "devices/vda/dev": "254:0\n", "devices/vda/size": "8\n",
		"devices/vda/vda1/dev": "254:1\n", "devices/vda/vda1/partition": "1\n"} {
		if err := os.WriteFile(sys+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"class/block/dm-0": "devices/dm-0", "class/block/vda": "devices/vda", "class/block/vda1": "devices/vda/vda1", "block/vda": "devices/vda"} {
		if err := os.Symlink(sys+"/"+to, sys+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	part, err := findDisk(sys, "/dev/vda1")
	if err != nil || part.dev != 254<<20 || part.part != 254<<20|1 || part.requestless() != nil {
		t.Errorf("%+v, %v", part, err)
	}
	stacked, err := findDisk(sys, "dm-0")
	if err != nil {
		t.Fatal(err)
	}
	if r := refusal(t, stacked.requestless()); r.Reason != inspector.ReasonFeatureOff || !strings.HasSuffix(r.Next, ": vda") {
		t.Errorf("%+v", r)
	}
	_, err = findDisk(sys, "sda")
	if r := refusal(t, err); r.Reason != inspector.ReasonUnknownDevice || r.Next != "use one of vda" {
		t.Errorf("%+v", r)
	}
}
