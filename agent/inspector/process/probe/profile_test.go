package probe

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// The spinners spend three quarters of their time in hot and one in cool.
const spinnerSource = "../../../symbols/testdata"

func runTool(t *testing.T, name string, arg ...string) {
	t.Helper()
	if out, err := exec.Command(name, arg...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(arg, " "), err, out)
	}
}

func buildC(t *testing.T, out string, flags ...string) string {
	t.Helper()
	cc := "gcc"
	if _, err := exec.LookPath(cc); err != nil {
		cc = "clang-14"
	}
	path := filepath.Join(t.TempDir(), out)
	runTool(t, cc, append(append([]string{"-O2", "-o", path}, flags...), filepath.Join(spinnerSource, "spin.c"))...)
	return path
}

func buildGo(t *testing.T, out string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), out)
	runTool(t, "go", append(append([]string{"build", "-o", path}, flags...), filepath.Join(spinnerSource, "gospin/main.go"))...)
	return path
}

// spin starts a spinner and waits until it runs. prepare may be nil.
func spin(t *testing.T, path string, prepare func(*exec.Cmd)) *os.Process {
	t.Helper()
	cmd := exec.Command(path)
	if prepare != nil {
		prepare(cmd)
	}
	endsWithTest(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	urgent(t, cmd.Process.Pid)
	return cmd.Process
}

// urgent gives every thread of a spinner its turn before all else, so that
// there is something to sample whatever the machine does.
func urgent(t *testing.T, pid int) {
	t.Helper()
	threads, err := os.ReadDir(filepath.Join("/proc", itoa(pid), "task"))
	if err != nil {
		t.Fatal(err)
	}
	turns := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
	for _, th := range threads {
		tid, _ := strconv.Atoi(th.Name())
		if err := unix.SchedSetAttr(tid, turns, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Logf("the spinner stays in the ordinary class: %v", err) // no real-time share in this container
			_ = unix.Setpriority(unix.PRIO_PROCESS, tid, -15)
		}
	}
}

func profile(t *testing.T, raw map[string]any) (*inspector.TaskResult, error) {
	t.Helper()
	return profileUntil(t.Context(), t, raw, func() {})
}

// profileUntil calls enough once when there are some samples.
func profileUntil(ctx context.Context, t *testing.T, raw map[string]any, enough func()) (*inspector.TaskResult, error) {
	t.Helper()
	args, err := process.Tasks()[0].Check(raw)
	if err != nil {
		t.Fatal(err)
	}
	run := Tasks(Config{Kernel: labKernel}, slog.New(slog.NewTextHandler(t.Output(), nil)))[process.ProfileOnCPU]
	var once sync.Once
	return run(ctx, args, func(r *inspector.TaskResult) {
		if r == nil || r.Totals["possible_samples"] == 0 {
			t.Errorf("partial %+v", r)
		} else if r.Totals["samples"] >= 60 {
			once.Do(enough)
		}
	})
}

func top(r *inspector.TaskResult, function string) inspector.ProfileFrame {
	i := slices.IndexFunc(r.Profile.Top, func(f inspector.ProfileFrame) bool { return f.Function == function })
	if i < 0 {
		return inspector.ProfileFrame{}
	}
	return r.Profile.Top[i]
}

// wantSplit checks three quarters to one, within what so many samples can
// tell.
func wantSplit(t *testing.T, r *inspector.TaskResult, hot, cool string) {
	t.Helper()
	h, c := top(r, hot), top(r, cool)
	n := float64(h.Self + c.Self)
	if n < 50 {
		t.Fatalf("%.0f samples in both: %+v", n, r.Profile.Top)
	}
	noise := 4 * math.Sqrt(0.75*0.25/n)
	t.Logf("%s %.3f, %s %.3f of %d samples, noise %.3f; %v", hot, h.Share, cool, c.Share, r.Profile.Samples, noise, r.Notes)
	if got := float64(h.Self) / n; math.Abs(got-0.75) > noise {
		t.Errorf("%s has %.3f of both, want 0.75 ± %.3f", hot, got, noise)
	}
	if n < 0.8*float64(r.Profile.Samples-r.Profile.Kernel) {
		t.Errorf("%.0f of %d samples are in the two functions: %+v", n, r.Profile.Samples, r.Profile.Top)
	}
	var folded uint64
	for _, f := range r.Profile.Folded {
		folded += f.Count
	}
	if folded+r.Profile.LeftOut != r.Profile.Samples {
		t.Errorf("%d in stacks and %d left out of %d samples", folded, r.Profile.LeftOut, r.Profile.Samples)
	}
}

func TestProfileFindsTheSplit(t *testing.T) {
	needRoot(t)
	tests := []struct {
		program         string
		build           func(t *testing.T, out string, flags ...string) string
		flags           []string
		hot, cool, root string
	}{
		{"c-frames", buildC, []string{"-fno-omit-frame-pointer"}, "hot", "cool", "main;"},
		{"c-leaf", buildC, []string{"-fomit-frame-pointer"}, "hot", "cool", ""},
		{"go", buildGo, nil, "main.hot", "main.cool", "runtime.main;main.main;"},
		{"go-stripped", buildGo, []string{"-ldflags=-s -w"}, "main.hot", "main.cool", "runtime.main;main.main;"},
	}
	for _, tt := range tests {
		t.Run(tt.program, func(t *testing.T) {
			other := startScript(t, "while :; do :; done").Process // is not counted
			p := spin(t, tt.build(t, tt.program, tt.flags...), nil)
			r, err := profile(t, map[string]any{"pid": p.Pid, "duration_s": 1, "hz": 199})
			if err != nil {
				t.Fatal(err)
			}
			wantSplit(t, r, tt.hot, tt.cool)
			if len(r.Rows) != 1 || r.Rows[0].Labels["comm"] != tt.program || r.Rows[0].Count != r.Profile.Samples {
				t.Errorf("rows %+v (the other is %d)", r.Rows, other.Pid)
			}
			// A function that keeps no frame of its own hides its caller.
			if f := r.Profile.Folded[0].Stack; !strings.HasSuffix(f, tt.root+tt.hot) {
				t.Errorf("first stack %q", f)
			}
			hint := slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "without frame pointers") })
			if hint != (tt.program == "c-leaf") {
				t.Errorf("notes: %v, stacks %+v", r.Notes, r.Profile.Folded)
			}
			if r.Profile.Samples > r.Totals["possible_samples"] || r.Profile.Hz != 199 || r.Profile.CPUs == 0 || r.Profile.Seconds < 0.9 || len(r.Next) == 0 {
				t.Errorf("%+v", r.Profile)
			}
		})
	}
}

func v2Group(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			dir, err := os.MkdirTemp(root, "telltale-test-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeGroup(t, dir) })
			return dir
		}
	}
	t.Fatal("no version 2 hierarchy is mounted")
	return ""
}

func TestProfileOfGroups(t *testing.T) {
	needRoot(t)
	program := buildC(t, "inner", "-fno-omit-frame-pointer")
	for _, tt := range []struct{ name, dir string }{{"v1 memory", cgroup(t, "memory")}, {"v1 pids", cgroup(t, "pids")}, {"v2", v2Group(t)}} {
		t.Run(tt.name, func(t *testing.T) {
			below := filepath.Join(tt.dir, "below")
			if err := os.Mkdir(below, 0o755); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { removeGroup(t, below) })
			outside := startScript(t, "while :; do :; done").Process
			inside := spin(t, program, nil)
			join(t, below, inside.Pid)
			r, err := profile(t, map[string]any{"cgroup": tt.dir, "duration_s": 1, "hz": 199})
			if err != nil {
				t.Fatal(err)
			}
			wantSplit(t, r, "hot", "cool")
			if len(r.Rows) != 1 || r.Rows[0].Labels["pid"] != itoa(inside.Pid) {
				t.Errorf("rows %+v, want %d alone and not %d", r.Rows, inside.Pid, outside.Pid)
			}
			if f := r.Profile.Folded[0].Stack; !strings.HasPrefix(f, "inner;") {
				t.Errorf("first stack %q", f)
			}
		})
	}
}

// A process in a container has its own root and its own idea of its paths.
func TestProfileInAnotherRoot(t *testing.T) {
	needRoot(t)
	root := t.TempDir()
	b, err := os.ReadFile(buildC(t, "inside", "-static", "-fno-omit-frame-pointer"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "inside"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	p := spin(t, "/inside", func(cmd *exec.Cmd) { inRoot(cmd, root) })
	r, err := profile(t, map[string]any{"pid": p.Pid, "duration_s": 1, "hz": 199})
	if err != nil {
		t.Fatal(err)
	}
	wantSplit(t, r, "hot", "cool")
	if f := top(r, "hot"); f.Module != "inside" {
		t.Errorf("%+v", f)
	}
}

func TestProfileKernelCode(t *testing.T) {
	needRoot(t)
	cmd := exec.Command("dd", "if=/dev/zero", "of=/dev/null", "bs=4M")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	r, err := profile(t, map[string]any{"pid": cmd.Process.Pid, "duration_s": 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r.Profile.Top[:min(5, len(r.Profile.Top))])
	if p := r.Profile; p.Hz != 99 || p.Samples < 10 || p.Kernel*10 < p.Samples*9 || p.Top[0].Module != kernelModule || !strings.HasSuffix(p.Folded[0].Stack, "_[k]") {
		t.Errorf("%d of %d in the kernel, first %+v, stack %q", p.Kernel, p.Samples, p.Top[0], p.Folded[0].Stack)
	}
	if p := r.Profile; p.Unnamed*20 > p.Samples {
		t.Errorf("%d of %d have no name", p.Unnamed, p.Samples)
	}
}

// What is known of a process that ends meanwhile is kept, and the task ends
// with it.
func TestProfileOfAProcessThatEnds(t *testing.T) {
	needRoot(t)
	p := spin(t, buildC(t, "brief", "-fno-omit-frame-pointer"), nil)
	r, err := profileUntil(t.Context(), t, map[string]any{"pid": p.Pid, "duration_s": 60}, func() { _ = p.Kill() })
	if err != nil {
		t.Fatal(err)
	}
	wantSplit(t, r, "hot", "cool")
	if r.Profile.Seconds > 30 || !strings.Contains(strings.Join(r.Notes, " "), "The process ended") {
		t.Errorf("after %.1f s: %v", r.Profile.Seconds, r.Notes)
	}
	_, err = profile(t, map[string]any{"pid": p.Pid, "duration_s": 1})
	var no *inspector.Refusal
	if !errors.As(err, &no) || no.Reason != inspector.ReasonPidGone || no.Kind != "NOT_FOUND" {
		t.Errorf("afterwards: %v", err)
	}
}

func TestCancelledProfileKeepsWhatItHas(t *testing.T) {
	needRoot(t)
	p := spin(t, buildC(t, "long", "-fno-omit-frame-pointer"), nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := profileUntil(ctx, t, map[string]any{"pid": p.Pid, "duration_s": 60}, cancel)
	if !errors.Is(err, context.Canceled) || r == nil {
		t.Fatalf("%v, %v", r, err)
	}
	wantSplit(t, r, "hot", "cool")
}

func TestProfileRefusesTwoTargets(t *testing.T) {
	_, err := profile(t, map[string]any{"pid": 1, "cgroup": "/"})
	var no *inspector.Refusal
	if !errors.As(err, &no) || no.Reason != inspector.ReasonInvalidArgument {
		t.Errorf("%v", err)
	}
}

// The kernel keeps a name as bytes, cut where it pleases.
func TestProfileOfABadName(t *testing.T) {
	needRoot(t)
	p := spin(t, buildC(t, "\xff\xfename;x"), nil)
	r, err := profile(t, map[string]any{"pid": p.Pid, "duration_s": 1})
	if err != nil {
		t.Fatal(err)
	}
	if name := r.Rows[0].Labels["comm"]; !strings.HasPrefix(name, "\uFFFD\\xff\uFFFD\\xfename") || inspector.CleanText(name) != name {
		t.Errorf("%q", name)
	}
	if f := top(r, "hot"); f.Self == 0 || inspector.CleanText(f.Module) != f.Module {
		t.Errorf("%+v", r.Profile.Top)
	}
}

// fold and its bounds, on stacks that no program makes.
func TestFoldKeepsItsBounds(t *testing.T) {
	names := &namer{kernel: map[uint64]string{}}
	var all []sampled
	p := &inspector.Profile{}
	for i := range 5000 {
		names.kernel[uint64(1000+i)] = strings.Repeat("very_long_function_name;", 20) + itoa(i)
		e := sampled{count: uint64(i%7 + 1)}
		for d := range 100 {
			e.kernel = append(e.kernel, caller(d, uint64(1000+i)))
		}
		e.kernel[0] = uint64(1000 + i)
		all = append(all, e)
		p.Samples += e.count
	}
	fold(p, all, names, nil, true)
	var kept uint64
	size := 0
	for _, f := range p.Folded {
		kept += f.Count
		size += len(f.Stack)
	}
	if kept+p.LeftOut != p.Samples || size > maxFoldedBytes || len(p.Top) > inspector.MaxResultRows || len(p.Folded) == 0 {
		t.Errorf("kept %d, left out %d of %d; %d bytes, %d in top", kept, p.LeftOut, p.Samples, size, len(p.Top))
	}
}

func TestParseCPUs(t *testing.T) {
	for text, want := range map[string][]int{"0": {0}, "0-1": {0, 1}, "0-2,5,7-8": {0, 1, 2, 5, 7, 8}, "": nil, "2-1": nil, "0-99999": nil, "a": nil} {
		got, err := parseCPUs(text)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
