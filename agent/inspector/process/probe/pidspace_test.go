package probe

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// insideEnv marks the test's own process in a PID namespace of its own.
const insideEnv = "TELLTALE_TEST_INSIDE_PID_NAMESPACE"

// smallPidMax leaves a hundred numbers to go round: those below 300 are given
// out once.
const smallPidMax = "400"

// A process's number is used again after a few hundred others. What is told
// of a number is of the process that had it then, or nothing. The agent runs
// in the namespace too, whose numbers are not the kernel's.
func TestNumbersThatAreUsedAgain(t *testing.T) {
	needRoot(t)
	if os.Getenv(insideEnv) != "" {
		inside(t)
		return
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor); err != nil || major < 6 || major == 6 && minor < 14 {
		t.Skip("a PID namespace has a highest number of its own since Linux 6.14")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNumbersThatAreUsedAgain$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || bytes.Contains(out, []byte("--- SKIP")) {
		t.Fatal(err)
	}
}

func inside(t *testing.T) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte(smallPidMax), 0); err != nil {
		t.Fatal(err)
	}
	if os.Getpid() != 1 || pidNamespace("") == 0 {
		t.Fatal("the test is not in a namespace of its own")
	}
	a := buildC(t, "spa", "-fno-omit-frame-pointer", "-Dhot=hot_a", "-Dcool=cool_a")
	b := buildC(t, "spb", "-fno-omit-frame-pointer", "-Dhot=hot_b", "-Dcool=cool_b")
	crash := buildCrash(t, "crasher")
	group := cgroup(t, "memory")
	// Numbers go round while two programs of some length take turns.
	storm := startScript(t, `echo $$ >"$0/cgroup.procs"; while :; do /bin/true; /bin/true; (exit 0); done`, group)
	turns := startScript(t, `echo $$ >"$0/cgroup.procs"; while :; do "$1" 60 >/dev/null & "$2" 60 >/dev/null; wait; done`, group, a, b)
	before := highest(t)

	t.Run("profile of the group", func(t *testing.T) {
		r, err := profile(t, map[string]any{"cgroup": group, "duration_s": 3, "hz": 199})
		if err != nil {
			t.Fatal(err)
		}
		named := map[string]uint64{}
		for _, f := range r.Profile.Folded {
			root, rest, _ := strings.Cut(f.Stack, ";")
			if root == "spa" && strings.Contains(rest, "t_b") || root == "spb" && strings.Contains(rest, "t_a") || root != "spa" && root != "spb" && strings.Contains(rest, "hot") {
				t.Errorf("one process has the stack of another: %+v", f)
			}
			if strings.Contains(rest, "hot_") {
				named[root] += f.Count
			}
		}
		t.Logf("%d samples, %d of processes gone when looked at; named %v", r.Profile.Samples, r.Unknown, named)
		if named["spa"] == 0 || named["spb"] == 0 {
			t.Errorf("none of theirs is named: %v", named)
		}
	})
	t.Run("profile of a process whose number goes to another", func(t *testing.T) {
		p := spin(t, a, nil)
		join(t, group, p.Pid)
		r, err := profileUntil(t.Context(), t, map[string]any{"pid": p.Pid, "duration_s": 30}, func() { _ = p.Kill(); _, _ = p.Wait() })
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Rows) != 1 || r.Rows[0].Labels["comm"] != "spa" || r.Rows[0].Labels["pid"] != itoa(p.Pid) || top(r, "hot_a").Self == 0 || r.Profile.Unnamed*10 > r.Profile.Samples {
			t.Errorf("%+v %+v", r.Rows, r.Profile)
		}
	})
	t.Run("crashes", func(t *testing.T) {
		cmd := exec.Command(crash, "many", "1500")
		gate, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		cmd.Stdout = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		h, _ := watchChildren(t, 0, Config{}, func(s *eventsSizes) { s.recordsASecond = 1 << 40; s.ringBytes = 8 << 20 })
		if _, err := gate.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		truth := map[string]string{} // number by name
		for line := range strings.Lines(said.String()) {
			name, pid, _ := strings.Cut(strings.TrimSpace(line), " ")
			truth[name] = pid
		}
		used := map[string]bool{}
		told := 0
		waitFor(t, "the last crash", func() bool {
			told = 0
			for _, o := range h.of(process.ProcessCrash) {
				if truth[o.Sample.Labels[process.LabelComm]] != "" {
					told++
				}
			}
			return told >= 1500
		})
		for _, o := range h.of(process.ProcessCrash) {
			pid := truth[o.Sample.Labels[process.LabelComm]]
			if pid == "" {
				continue // of another test on the machine
			}
			used[pid] = true
			if s := o.Sample; s.Labels["pid"] != pid || s.Labels["ppid"] != itoa(cmd.Process.Pid) || s.Labels["cause"] != "SI_TKILL" {
				t.Errorf("%s has number %s: %+v", o.Sample.Labels[process.LabelComm], pid, s.Labels)
			}
		}
		t.Logf("%d crashes told, with %d numbers", told, len(used))
		if told != 1500 || len(used) > 400 {
			t.Errorf("%d told, %d numbers", told, len(used))
		}
	})
	t.Run("program of a number that is another's now", func(t *testing.T) {
		h := &heard{}
		d := newDeploys(Config{}, nil, settled, logOf(t))
		start, ok := startOf("/proc", 1)
		if !ok {
			t.Fatal("no start time")
		}
		d.judge(1, start+1, h.emit)
		if len(h.all) != 0 {
			t.Errorf("%+v", h.all)
		}
		if d.judge(1, start, h.emit); len(h.all) != 1 {
			t.Errorf("%+v", h.all)
		}
	})
	for _, p := range []*exec.Cmd{storm, turns} {
		_ = unix.Kill(-p.Process.Pid, unix.SIGKILL)
		_ = p.Wait()
	}
	t.Logf("%d processes were made", highest(t)-before)
}

func startScript(t *testing.T, script string, arg ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script}, arg...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endsWithTest(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL); _ = cmd.Wait() })
	return cmd
}

// highest is how many processes the machine has made.
func highest(t *testing.T) uint64 {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	n, _ := parseField(b, "processes")
	return n
}
