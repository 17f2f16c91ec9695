package probe

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

func ruleOf(t *testing.T, kind string) *inspector.Rule {
	t.Helper()
	for _, k := range process.Events() {
		if k.Name == kind {
			return k.Rule
		}
	}
	t.Fatal("no rule of " + kind)
	return nil
}

// Sixteen programs that want one CPU wait beyond the rule's threshold.
func TestSaturationIsBeyondItsThreshold(t *testing.T) {
	needRoot(t)
	runTrue(t, 1)
	group := cgroup(t, "cpu") // groups of their own would hide it
	c := start(t, os.Getpid(), Config{})
	var one unix.CPUSet
	one.Set(0)
	for range 16 {
		cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		if err := unix.SchedSetaffinity(cmd.Process.Pid, &one); err != nil {
			t.Fatal(err)
		}
		join(t, group, cmd.Process.Pid)
	}
	window(t, c)
	<-time.After(2 * time.Second) // what is measured is this time
	v := window(t, c)[process.RunqLatencyNS]
	p99, ok := inspector.Quantile(v.Hist, 0.99)
	rule := ruleOf(t, process.RunQueueSaturation)
	t.Logf("p99 %s of %d waits", time.Duration(p99), inspector.HistCount(v.Hist))
	if !ok || float64(p99) <= rule.Above {
		t.Errorf("p99 is %d, the rule wants above %.0f: %v", p99, rule.Above, v.Hist)
	}
}

// A loop of fork and exec in one shell is beyond the rule's threshold.
func TestExecLoopIsBeyondItsThreshold(t *testing.T) {
	needRoot(t)
	runTrue(t, 1)
	cmd := exec.Command("/bin/sh", "-c", "while :; do /bin/true & /bin/true; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, -15); err != nil {
		t.Fatal(err)
	}
	c := start(t, cmd.Process.Pid, Config{})
	window(t, c)
	began := time.Now()
	<-time.After(2 * time.Second) // what is measured is this time
	rate := float64(window(t, c)[process.Execs].Delta) / time.Since(began).Seconds()
	t.Logf("%.0f execs a second", rate)
	if rule := ruleOf(t, process.ExecBurst); rate <= rule.Above {
		t.Errorf("%.0f execs a second, the rule wants above %.0f", rate, rule.Above)
	}
}
