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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

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
	cmd := exec.CommandContext(t.Context(), "/bin/sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reaped := make(chan struct{})
	go func() { defer close(reaped); _ = cmd.Wait() }()
	ts := newTasks(t)
	args := check(t, storage.MonitorProcessIO, map[string]any{"pid": cmd.Process.Pid, "duration_s": 30})
	began := time.Now()
	r, err := ts.processIO(t.Context(), args, func(*inspector.TaskResult) { _ = cmd.Process.Kill() })
	<-reaped
	if err != nil || time.Since(began) > 20*time.Second || !strings.Contains(strings.Join(r.Notes, " "), "ended meanwhile") {
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

const insideEnv = "TELLTALE_TEST_INSIDE_PID_NAMESPACE"

// An agent in a PID namespace is asked, and answers, with the numbers that it
// sees there.
func TestPidNamespace(t *testing.T) {
	needRoot(t)
	if os.Getenv(insideEnv) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestPidNamespace$", "-test.v")
		cmd.Env = append(os.Environ(), insideEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestPidNamespace") {
			t.Fatalf("inside: %v\n%s", err, out)
		}
		return
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	if os.Getpid() != 1 || pidNamespace("/proc") == 0 {
		t.Fatal("the test is not in a namespace of its own")
	}
	l := newLoop(t, 1<<20)
	r := perform(t, newTasks(t), storage.TraceSlowIO, map[string]any{"pid": 1, "device": l.name}, func() { l.read(t, 12) })
	if r.Totals["requests"] != 12 {
		t.Errorf("%v, want 12 requests of pid 1", r.Totals)
	}
	r = perform(t, newTasks(t), storage.MonitorProcessIO, map[string]any{"pid": 1}, func() { l.read(t, 12) })
	if r.Totals["requests"] != 12 || r.Totals["read_bytes"] != 12*block {
		t.Errorf("%v, want 12 reads of a block", r.Totals)
	}
	if rows := rowsWith(r, map[string]string{"row": "requests", "pid": "1", "device": l.name}); len(rows) != 1 || rows[0].Count != 12 {
		t.Errorf("%+v", r.Rows)
	}
}
