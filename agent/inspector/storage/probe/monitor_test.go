package probe

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
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
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "iostats") {
		t.Errorf("notes %q", r.Notes)
	}
}

// More records than the ring holds while nobody reads it.
func TestRecordsLostAreCounted(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	const reads = 500
	w := wanted{device: diskOf(t, l.name), op: -1, every: 1, most: 10_000}
	tr, err := openTracer(w, 4096, newTasks(t).log)
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

const workerChild = "TELLTALE_TEST_WORKER"

// TestWorkerChild reads and writes a file as often as it is told to; alone it
// does nothing.
func TestWorkerChild(t *testing.T) {
	path := os.Getenv(workerChild)
	if path == "" {
		return
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		done := make(chan error)
		for i := range 2 { // two threads, and one that ends
			go func() { done <- work(fmt.Sprintf("%s.%d", path, i)) }()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if err := exec.Command("/bin/cat", path+".0").Run(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("done")
	}
}

func work(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for range 100 {
		if _, err := f.Write(bytes.Repeat([]byte{1}, 10_000)); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	_, err = f.ReadAt(make([]byte, 100_000), 0)
	if err == nil { // written and cut off before it reaches the disk
		if _, err = f.Write(make([]byte, 200_000)); err == nil {
			err = f.Truncate(1_000_000)
		}
	}
	return err
}

func TestProcessIOEqualsProcs(t *testing.T) {
	needRoot(t)
	path := t.TempDir() + "/file"
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestWorkerChild$")
	cmd.Env = append(os.Environ(), workerChild+"="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Wait() }()
	said := bufio.NewScanner(out)
	step := func() {
		if _, err := fmt.Fprintln(in, "go"); err != nil {
			t.Fatal(err)
		}
		if !said.Scan() || said.Text() != "done" {
			t.Fatalf("the worker says %q", said.Text())
		}
	}
	step() // its threads are there
	pid := cmd.Process.Pid
	before := settled(t, pid)
	r := perform(t, newTasks(t), storage.MonitorProcessIO, map[string]any{"pid": pid}, func() {
		step()
		settled(t, pid)
	})
	after := settled(t, pid)
	for name, key := range map[string]string{"read_chars": "rchar", "write_chars": "wchar", "read_syscalls": "syscr", "write_syscalls": "syscw",
		"read_bytes": "read_bytes", "write_bytes": "write_bytes", "cancelled_write_bytes": "cancelled_write_bytes"} {
		if got, want := r.Totals[name], after[key]-before[key]; got != want {
			t.Errorf("%s: %d, /proc/%d/io says %d", name, got, pid, want)
		}
	}
	t.Logf("%v", r.Totals)
	var threads uint64
	for _, row := range r.Rows {
		t.Logf("%+v", row)
		if row.Labels["row"] == "thread" {
			threads += row.Count
		}
	}
	if threads != r.Totals["read_syscalls"]+r.Totals["write_syscalls"] {
		t.Errorf("threads make %d calls of %v", threads, r.Totals)
	}
	if r.Totals["cancelled_write_bytes"] == 0 || r.Totals["write_bytes"] < 2_000_000 {
		t.Errorf("%v", r.Totals)
	}
	if requests := rowsWith(r, map[string]string{"row": "requests"}); len(requests) == 0 || r.Totals["request_bytes"] < 2_000_000 || len(r.Next) != 1 {
		t.Errorf("a process that syncs makes requests itself: %+v", r)
	}
	for _, row := range rowsWith(r, map[string]string{"row": "requests"}) {
		if row.Labels["pid"] != strconv.Itoa(pid) {
			t.Errorf("%+v is another's", row)
		}
	}
}

// settled reads /proc/PID/io until it stands still.
func settled(t *testing.T, pid int) (io map[string]uint64) {
	t.Helper()
	last := ""
	until(t, "the process is quiet", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		if err != nil {
			t.Fatal(err)
		}
		still := string(b) == last
		last = string(b)
		return still
	})
	io = map[string]uint64{}
	for line := range strings.Lines(last) {
		name, v, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		io[name] = n
	}
	return io
}

func TestProcessIOOfAProcessThatEnds(t *testing.T) {
	needRoot(t)
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "1.5")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = cmd.Wait() }()
	ts := newTasks(t)
	args := check(t, storage.MonitorProcessIO, map[string]any{"pid": cmd.Process.Pid, "duration_s": 30})
	began := time.Now()
	r, err := ts.processIO(t.Context(), args, func(*inspector.TaskResult) {})
	if err != nil || time.Since(began) > 5*time.Second || !strings.Contains(strings.Join(r.Notes, " "), "ended meanwhile") {
		t.Errorf("after %v: %+v, %v", time.Since(began), r, err)
	}
	_, err = ts.processIO(t.Context(), args, func(*inspector.TaskResult) {})
	if ref := refusal(t, err); ref.Reason != inspector.ReasonPidGone || ref.Arg != "pid" {
		t.Errorf("%+v", ref)
	}
	// A thread is no process.
	tid := make(chan int)
	hold := make(chan struct{})
	go func() { tid <- unix.Gettid(); <-hold }()
	id := <-tid
	close(hold)
	if id != os.Getpid() {
		_, err = ts.processIO(t.Context(), check(t, storage.MonitorProcessIO, map[string]any{"pid": id}), func(*inspector.TaskResult) {})
		if ref := refusal(t, err); ref.Reason != inspector.ReasonInvalidArgument && ref.Reason != inspector.ReasonPidGone {
			t.Errorf("%+v", ref)
		}
	}
}

// A new process with the old pid is another one.
func TestLedgerNoticesAReusedPid(t *testing.T) {
	p := process{pid: 7, born: 100}
	l := &ledger{}
	l.enter(p, []accountThread{{Tgid: 7, Tid: 7, ProcessBorn: 100 * clockTick, Own: accountSums{Wchar: 5}}})
	l.enter(p, []accountThread{{Tgid: 7, Tid: 7, ProcessBorn: 100 * clockTick, Own: accountSums{Wchar: 8}}})
	l.enter(p, []accountThread{{Tgid: 7, Tid: 7, ProcessBorn: 900 * clockTick, Own: accountSums{Wchar: 1000}}})
	threads, ended := l.increases()
	if !l.ended || len(threads) != 1 || threads[0].Own.Wchar != 3 || ended.Wchar != 0 {
		t.Errorf("%+v, %+v, %+v", l, threads, ended)
	}
}

// What a thread had before the task began is not its increase when it ends.
func TestLedgerOfThreadsThatEnd(t *testing.T) {
	p := process{pid: 7}
	l := &ledger{}
	th := func(tid uint32, own, left uint64) accountThread {
		return accountThread{Tgid: 7, Tid: tid, Own: accountSums{Rchar: own}, Left: accountSums{Rchar: left}}
	}
	l.enter(p, []accountThread{th(7, 10, 100), th(8, 50, 100)})
	l.enter(p, []accountThread{th(7, 13, 157), th(9, 2, 157)}) // 8 ended with 57
	threads, ended := l.increases()
	if len(threads) != 2 || threads[0].Own.Rchar != 3 || threads[1].Own.Rchar != 2 || ended.Rchar != 7 {
		t.Errorf("%+v, %+v", threads, ended)
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
