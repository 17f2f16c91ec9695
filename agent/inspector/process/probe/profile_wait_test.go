package probe

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// pinned keeps a process on the first CPU that this test may use.
func pinned(t *testing.T, pid int) {
	t.Helper()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if all.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(pid, &one); err != nil {
		t.Fatal(err)
	}
}

// A process that computes all it can, beside another that has the CPU, waits
// for no disk.
func TestProfileTellsThatTheTargetStarves(t *testing.T) {
	needRoot(t)
	starved, hog := startScript(t, "while :; do :; done").Process, startScript(t, "while :; do :; done").Process
	for _, p := range []*os.Process{starved, hog} {
		pinned(t, p.Pid)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, starved.Pid, 19); err != nil {
		t.Fatal(err)
	}
	r, err := profile(t, map[string]any{"pid": starved.Pid, "duration_s": 1})
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "It was runnable but waited") {
		t.Errorf("notes: %s", notes)
	}
	if r.Totals["runq_wait_ms"] < 300 {
		t.Errorf("it waited %d ms", r.Totals["runq_wait_ms"])
	}
	if len(r.Next) < 2 || r.Next[0].Tool != "metrics_summary" || r.Next[0].Args["module"] != process.Name || r.Next[1].Tool != process.ProfileOnCPU || r.Next[1].Args["cgroup"] != "/" {
		t.Errorf("next: %+v", r.Next)
	}
}

// One that sleeps waits for something else than a CPU.
func TestProfileOfASleeper(t *testing.T) {
	needRoot(t)
	cmd := exec.Command("sleep", "60")
	endsWithTest(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	untilAsleep(t, cmd.Process.Pid)
	r, err := profile(t, map[string]any{"pid": cmd.Process.Pid, "duration_s": 1})
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(r.Notes, "\n"); strings.Contains(notes, "runnable") || !strings.Contains(notes, "nothing to compute") {
		t.Errorf("notes: %s", notes)
	}
	if len(r.Next) == 0 || r.Next[0].Tool != "monitor_process_io" || r.Next[0].Args["pid"] != cmd.Process.Pid {
		t.Errorf("next: %+v", r.Next)
	}
}

func TestWaitsOfThreads(t *testing.T) {
	before, now := waits{"1": time.Second, "2": time.Second}, waits{"1": 3 * time.Second, "3": time.Second}
	if sum, ok := now.since(before); !ok || sum != 3*time.Second {
		t.Errorf("%v, %v; want the increase of thread 1 and all of thread 3", sum, ok)
	}
	if _, ok := now.since(nil); ok {
		t.Error("an increase since nothing is known")
	}
	if w := readWaits("", os.Getpid()); len(w) < 2 {
		t.Errorf("this process's threads: %v", w)
	}
	if w := readWaits("", 1<<30); w != nil {
		t.Errorf("of no process: %v", w)
	}
}
