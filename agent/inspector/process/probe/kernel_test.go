package probe

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// These tests run real programs in the kernel, stimulate each signal and
// compare with the kernel's own count. Where they say equal they load the
// programs for the children of the test alone, so that what else the machine
// does cannot matter.

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads eBPF programs into the kernel")
	}
}

func start(t *testing.T, onlyParent int, cfg Config) *Collector {
	t.Helper()
	spec, err := loadProcess()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["only_parent"].Set(int32(onlyParent)); err != nil {
		t.Fatal(err)
	}
	cfg.Kernel = labKernel
	c := open(spec, cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// window closes one and returns its values by series.
func window(t *testing.T, c *Collector) map[string]inspector.Value {
	t.Helper()
	ws, err := c.Collect(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := ws[0]
	if err := w.Layout.Check(); err != nil {
		t.Fatal(err)
	}
	if w.Lost != 0 {
		t.Logf("window lost %d observations", w.Lost)
	}
	out := map[string]inspector.Value{}
	for i, s := range w.Layout.Series {
		out[s.String()] = w.Values[i]
	}
	return out
}

func wantDeltas(t *testing.T, got map[string]inspector.Value, want map[string]uint64) {
	t.Helper()
	for name, n := range want {
		if v, ok := got[name]; !ok || !v.OK || v.Delta != n {
			t.Errorf("%s = %+v, want %d", name, v, n)
		}
	}
}

func runTrue(t *testing.T, times int) {
	t.Helper()
	for range times {
		if err := exec.Command("/bin/true").Run(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEverySignalIsFull(t *testing.T) {
	needRoot(t)
	c := start(t, 0, Config{})
	caps := c.Capabilities()
	if len(caps) != len(signals) {
		t.Fatalf("%d capabilities, want %d", len(caps), len(signals))
	}
	for _, cp := range caps {
		if cp.Level != inspector.Full || cp.Source != inspector.SourceBPF || cp.Reason != "" {
			t.Errorf("%+v, want full from bpf", cp)
		}
	}
	runTrue(t, 20)
	got := window(t, c)
	for _, name := range []string{process.Forks, process.Execs, process.Exits} {
		if v := got[name]; !v.OK || v.Delta < 20 {
			t.Errorf("%s = %+v, want at least the 20 of this test", name, v)
		}
	}
	if v := got[process.RunqLatencyNS]; !v.OK || inspector.HistCount(v.Hist) < 20 || v.Sum == 0 {
		t.Errorf("run queue: %d waits of %d ns", inspector.HistCount(v.Hist), v.Sum)
	}
}

func TestForkExecExitEqual(t *testing.T) {
	needRoot(t)
	runTrue(t, 1) // the first use of os/exec forks to try the kernel's features
	c := start(t, os.Getpid(), Config{})
	runTrue(t, 300)
	wantDeltas(t, window(t, c), map[string]uint64{
		process.Forks: 300, process.Execs: 300, process.Exits: 300, process.ExitsFailed: 0, process.OOMKills: 0,
	})
	wantDeltas(t, window(t, c), map[string]uint64{process.Forks: 0, process.Execs: 0, process.Exits: 0})
}

// A process of many threads ends once, whichever of them ends last.
func TestThreadsAreNoExits(t *testing.T) {
	needRoot(t)
	runTrue(t, 1)
	c := start(t, os.Getpid(), Config{})
	if err := exec.Command(os.Args[0], "-test.run=^$").Run(); err != nil {
		t.Fatal(err)
	}
	got := window(t, c)
	wantDeltas(t, got, map[string]uint64{process.Forks: 1, process.Exits: 1, process.ExitsFailed: 0})
	if got[process.Threads].Delta == 0 {
		t.Error("a Go program made no thread")
	}
}

func TestExitsBySignalEqual(t *testing.T) {
	needRoot(t)
	runTrue(t, 1)
	c := start(t, os.Getpid(), Config{})
	scripts := []string{
		"kill -SEGV $$", "kill -SEGV $$", "kill -ABRT $$", "kill -FPE $$", "kill -ILL $$", "kill -KILL $$", "kill -TERM $$",
		"kill -QUIT $$", "exit 3", "exit 0",
		"trap '' TERM; kill -TERM $$; exit 0", // delivered, survived: no crash
	}
	want := map[string]uint64{process.Exits: uint64(len(scripts)), process.ExitsFailed: 0}
	for _, s := range scripts {
		cmd := exec.Command("/bin/sh", "-c", "ulimit -c 0; "+s)
		_ = cmd.Run()
		// The truth is what the parent is told.
		st := cmd.ProcessState.Sys().(syscall.WaitStatus)
		switch {
		case st.Signaled():
			want[fmt.Sprintf("%s{signal=%q}", process.ExitsBySignal, signalName(int(st.Signal())))]++
		case st.ExitStatus() != 0:
			want[process.ExitsFailed]++
		}
	}
	if n := want[process.ExitsBySignal+`{signal="SEGV"}`]; n != 2 || want[process.ExitsFailed] != 1 || len(want) != 9 {
		t.Fatalf("the stimulus went wrong: %v", want)
	}
	wantDeltas(t, window(t, c), want)
}

// Two spinners share one CPU and one group, so each waits while the other
// runs; the kernel's own sum is the second number of /proc/PID/schedstat.
// They take turns in the real-time class: of an ordinary task that a wake-up
// preempts the kernel dates the wait back to the wake-up
// (rq_clock_skip_update), some microseconds before it leaves the CPU, and on
// a busy machine that is more than the per mille allowed here.
func TestRunQueueWaitWithinPerMille(t *testing.T) {
	needRoot(t)
	runTrue(t, 1)
	group := cgroup(t, "cpu")
	c := start(t, os.Getpid(), Config{})
	const script = `read go; i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done; echo done; read end`
	type spinner struct {
		cmd *exec.Cmd
		in  *os.File
		out *bufio.Reader
	}
	var all []spinner
	for range 2 {
		inR, inW, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Stdin = inR
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		inR.Close()
		s := spinner{cmd, inW, bufio.NewReader(out)}
		all = append(all, s)
		t.Cleanup(func() { s.in.Close(); _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(cmd.Process.Pid, &one); err != nil {
			t.Fatal(err)
		}
		turns := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
		if err := unix.SchedSetAttr(cmd.Process.Pid, turns, 0); err != nil {
			t.Logf("the spinners stay in the ordinary class: %v", err) // no real-time share in this container
			join(t, group, cmd.Process.Pid)
		}
	}
	for _, s := range all {
		fmt.Fprintln(s.in, "go")
	}
	for _, s := range all {
		if line, err := s.out.ReadString('\n'); err != nil {
			t.Fatalf("spinner said %q: %v", line, err)
		}
	}
	var waited, runs uint64
	for _, s := range all {
		untilAsleep(t, s.cmd.Process.Pid) // its last wait is accounted then
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", s.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		var run, wait, n uint64
		if _, err := fmt.Sscan(string(b), &run, &wait, &n); err != nil {
			t.Fatal(err)
		}
		waited, runs = waited+wait, runs+n
	}
	v := window(t, c)[process.RunqLatencyNS]
	diff := float64(v.Sum)/float64(waited) - 1
	t.Logf("bpf %d ns in %d waits, schedstat %d ns in %d runs: %+.4f %%", v.Sum, inspector.HistCount(v.Hist), waited, runs, 100*diff)
	if waited < uint64(100*time.Millisecond) {
		t.Fatalf("the spinners waited %d ns only", waited)
	}
	if diff < -0.001 || diff > 0.001 {
		t.Errorf("run-queue wait is %d ns, the kernel says %d ns", v.Sum, waited)
	}
}

func TestOOMKillEqual(t *testing.T) {
	needRoot(t)
	runTrue(t, 1)
	group := cgroup(t, "memory")
	const limit = "33554432"
	if write(filepath.Join(group, "memory.limit_in_bytes"), limit) == nil {
		_ = write(filepath.Join(group, "memory.swappiness"), "0")
		_ = write(filepath.Join(group, "memory.memsw.limit_in_bytes"), limit)
	} else if err := write(filepath.Join(group, "memory.max"), limit); err != nil {
		t.Fatal(err)
	} else {
		_ = write(filepath.Join(group, "memory.swap.max"), "0")
	}
	before := oomKills(t, group)
	c := start(t, os.Getpid(), Config{})
	// tail keeps all of what it takes for one endless line.
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `echo $$ > "$0/cgroup.procs"; exec tail /dev/zero`, group)
	err := cmd.Run()
	if st := cmd.ProcessState.Sys().(syscall.WaitStatus); st.Signal() != unix.SIGKILL {
		t.Fatalf("the hog ended with %v, not killed", err)
	}
	killed := oomKills(t, group) - before
	if killed != 1 {
		t.Fatalf("the kernel counts %d kills in the group, want 1", killed)
	}
	wantDeltas(t, window(t, c), map[string]uint64{
		process.OOMKills: killed, process.ExitsBySignal + `{signal="KILL"}`: killed, process.Exits: 1,
	})
}

func TestUnloadedProgramStopsItsNumber(t *testing.T) {
	needRoot(t)
	c := start(t, 0, Config{})
	runTrue(t, 5)
	if v := window(t, c)[process.Forks]; !v.OK || v.Delta < 5 {
		t.Fatalf("forks before: %+v", v)
	}
	if err := c.set.Detach(processProgOnFork, "unloaded by the test"); err != nil {
		t.Fatal(err)
	}
	runTrue(t, 5)
	got := window(t, c)
	if v := got[process.Forks]; v.OK {
		t.Errorf("forks after: %+v, want unknown", v)
	}
	if v := got[process.Execs]; !v.OK || v.Delta < 5 {
		t.Errorf("execs after: %+v, want them to go on", v)
	}
	sum, err := readSums(c.set.Map(processMapTotals))
	if err != nil {
		t.Fatal(err)
	}
	if sum.forks != c.lastSums.forks {
		t.Errorf("the counter moved from %d to %d without its program", c.lastSums.forks, sum.forks)
	}
	for _, cp := range c.Capabilities() {
		if off := cp.Level == inspector.Off; off != (cp.Signal == process.SignalFork) {
			t.Errorf("%+v", cp)
		}
	}
}

func TestDisabledSignalLoadsNothing(t *testing.T) {
	needRoot(t)
	c := start(t, 0, Config{Disable: []string{process.SignalRunQueue}})
	for _, p := range []string{processProgOnWakeup, processProgOnWakeupNew, processProgOnSwitch} {
		if c.set.Program(p) != nil {
			t.Errorf("%s is loaded", p)
		}
	}
	if v, ok := window(t, c)[process.RunqWaitNS]; ok {
		t.Errorf("run queue is %+v, want no series", v)
	}
}

// A half-working run queue costs and gives nothing: it goes as a whole.
func TestOneProgramMissing(t *testing.T) {
	needRoot(t)
	spec, err := loadProcess()
	if err != nil {
		t.Fatal(err)
	}
	spec.Programs[processProgOnWakeupNew].AttachTo = "no_such_hook"
	c := open(spec, Config{Proc: "testdata/proc"}, slog.New(slog.DiscardHandler))
	defer c.Close()
	if c.set.Program(processProgOnSwitch) != nil {
		t.Error("the switch program still runs")
	}
	for _, cp := range c.Capabilities() {
		if cp.Signal != process.SignalRunQueue {
			if cp.Level != inspector.Full {
				t.Errorf("%+v, want full", cp)
			}
		} else if cp.Level != inspector.Degraded || cp.Source != inspector.SourceProc || !strings.Contains(cp.Reason, "the kernel lacks") {
			t.Errorf("%+v, want degraded for want of the hook", cp)
		}
	}
}
