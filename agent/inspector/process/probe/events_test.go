package probe

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// heard keeps what a watcher tells.
type heard struct {
	mu  sync.Mutex
	all []inspector.Occurrence
}

func (h *heard) emit(o inspector.Occurrence) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all = append(h.all, o)
}

func (h *heard) of(kind string) (out []inspector.Occurrence) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.all {
		if o.Kind == kind {
			out = append(out, o)
		}
	}
	return out
}

// until waits for so many of a kind.
func (h *heard) until(t *testing.T, kind string, n int) []inspector.Occurrence {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		got := h.of(kind)
		if len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %s, want %d: %+v", len(got), kind, n, got)
		}
		pause()
	}
}

// watchChildren tells of the children of a process alone.
func watchChildren(t *testing.T, parent int, cfg Config, prepare func(*eventsSizes)) (*heard, *watcher) {
	t.Helper()
	h := &heard{}
	cfg.Emit = h.emit
	cfg.Kernel = labKernel
	w, err := openWatcher(cfg, parent, prepare, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range w.programs {
		for _, n := range names {
			if f := w.set.Failure(n); f != nil {
				t.Fatal(f)
			}
		}
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return h, w
}

func buildCrash(t *testing.T, name string) string {
	t.Helper()
	cc := "gcc"
	if _, err := exec.LookPath(cc); err != nil {
		cc = "clang-14"
	}
	path := filepath.Join(t.TempDir(), name)
	runTool(t, cc, "-O1", "-o", path, "testdata/crash.c")
	return path
}

func TestCrashesBySignal(t *testing.T) {
	needRoot(t)
	program := buildCrash(t, "crasher")
	runTrue(t, 1)
	group := cgroup(t, "memory")
	h, w := watchChildren(t, os.Getpid(), Config{}, nil)
	ways := []string{"segv", "segv", "fpe", "ill", "abort", "abort", "abort", "trap", "kill", "term", "quit", "fail", "none"}
	pids := map[string]string{}
	began := time.Now()
	for _, how := range ways {
		cmd := exec.Command("/bin/sh", "-c", `echo $$ > "$0/cgroup.procs"; exec "$1" "$2"`, group, program, how)
		_ = cmd.Run()
		pids[itoa(cmd.Process.Pid)] = how
	}
	got := h.until(t, process.ProcessCrash, 8)
	t.Logf("8 crashes told %s after the first", time.Since(began))
	w.tally(time.Now())
	wantSignal := map[string]string{"segv": "SEGV", "fpe": "FPE", "ill": "ILL", "abort": "ABRT", "trap": "TRAP"}
	wantCause := map[string]string{"segv": "SEGV_MAPERR", "fpe": "FPE_INTDIV", "ill": "ILL_ILLOPN", "abort": "SI_TKILL", "trap": "SI_TKILL"}
	for _, o := range got {
		s := o.Sample
		how := pids[s.Labels["pid"]]
		want := map[string]string{
			process.LabelExe: pathLabel(program), process.LabelSignal: wantSignal[how],
			process.LabelCgroup: "/" + filepath.Base(group),
		}
		for k, v := range want {
			// The kernel's path begins at the root of the mount namespace, which
			// lies above that of a test in a changed root.
			if o.Labels[k] != s.Labels[k] || o.Labels[k] != v && !(k == process.LabelExe && strings.HasSuffix(o.Labels[k], v)) {
				t.Errorf("%s: label %s is %q and %q in the sample, want %q", how, k, o.Labels[k], s.Labels[k], v)
			}
		}
		if len(o.Labels) != len(want) || s.Labels[process.LabelComm] != "crasher" || s.Labels["ppid"] != itoa(os.Getpid()) || s.Labels["core"] != "false" || s.Labels["cause"] != wantCause[how] {
			t.Errorf("%s: %+v %+v", how, o.Labels, s.Labels)
		}
		if how == "segv" && s.Labels["address"] != "0x1234" {
			t.Errorf("%+v", s.Labels)
		}
		if d := time.Since(o.At); d < 0 || d > time.Minute || s.Values["exit_code"] == 0 {
			t.Errorf("%s: at %s, %+v", how, o.At, s)
		}
	}
	if len(got) != 8 || len(h.all) != 8 {
		t.Errorf("told %d crashes and %d in all: %+v", len(got), len(h.all), h.all)
	}
}

// pathLabel is a path as a label has it: parts of 47 bytes, 128 in all.
func pathLabel(path string) string {
	cut := false
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if len(p) > 47 {
			parts[i], cut = p[:47], true
		}
	}
	path = strings.Join(parts, "/")
	if cut {
		path = "…" + path
	}
	if len(path) > inspector.MaxLabelBytes {
		path = "…" + path[len(path)-inspector.MaxLabelBytes+len("…"):]
	}
	return path
}

func TestOOMKillIsToldOnce(t *testing.T) {
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
	h, w := watchChildren(t, os.Getpid(), Config{}, nil)
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", `echo $$ > "$0/cgroup.procs"; exec tail /dev/zero`, group)
	_ = cmd.Run()
	got := h.until(t, process.OOMKill, 1)
	w.tally(time.Now())
	if len(h.all) != 1 {
		t.Errorf("%d are told, the kill is no crash: %+v", len(h.all), h.all)
	}
	o := got[0]
	if o.Labels[process.LabelComm] != "tail" || o.Labels[process.LabelCgroup] != "/"+filepath.Base(group) || len(o.Labels) != 2 {
		t.Errorf("%+v", o.Labels)
	}
	if s := o.Sample; s.Values["limit_bytes"] != 33554432 || s.Labels["pid"] != itoa(cmd.Process.Pid) || !strings.HasSuffix(s.Labels[process.LabelExe], "/tail") {
		t.Errorf("%+v", s)
	}
}

// A storm of crashes is told in part, and what is not told is counted.
func TestStormOfCrashes(t *testing.T) {
	needRoot(t)
	const n = 3000
	cmd := exec.Command(buildCrash(t, "storm"), "many", itoa(n))
	gate, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h, w := watchChildren(t, cmd.Process.Pid, Config{}, nil)
	if _, err := gate.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	began, before := time.Now(), cpuTime(t)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	took, used := time.Since(began), cpuTime(t)-before
	var g eventsGate
	if err := w.set.Map(eventsMapGates).Lookup(uint32(0), &g); err != nil {
		t.Fatal(err)
	}
	h.until(t, process.ProcessCrash, int(g.Crashes-g.Lost))
	w.tally(time.Now())
	var lost uint64
	for _, o := range h.until(t, eventLoss, 1) {
		lost += o.Count
	}
	told := uint64(len(h.of(process.ProcessCrash)))
	t.Logf("%d crashes seen, %d told, %d lost; %s of CPU in %s", g.Crashes, told, lost, used, took)
	if used > took/10 {
		t.Errorf("a storm costs %s of CPU in %s", used, took)
	}
	if told+lost != g.Crashes || g.Crashes != n {
		t.Errorf("%d told and %d lost of %d", told, lost, g.Crashes)
	}
}

// A million sightings into a ring for a few: every one is told or lost.
func TestMillionIntoASmallRing(t *testing.T) {
	needRoot(t)
	h, w := watchChildren(t, os.Getpid(), Config{}, func(s *eventsSizes) { s.ringBytes, s.recordsASecond, s.flood = 16<<10, 1<<40, true })
	flood := w.set.Program(eventsProgFlood)
	if flood == nil {
		t.Fatal(w.set.Failure(eventsProgFlood))
	}
	began := time.Now()
	for range 1_000_000 {
		if _, err := flood.Run(nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a million in %s", time.Since(began))
	var told, lost uint64
	for deadline := time.Now().Add(10 * time.Second); told+lost < 1_000_000; pause() {
		w.tally(time.Now())
		told, lost = uint64(len(h.of(process.ProcessCrash))), 0
		for _, o := range h.of(eventLoss) {
			if o.Labels["component"] != process.Name || len(o.Labels) != 1 {
				t.Fatalf("%+v", o)
			}
			lost += o.Count
		}
		if time.Now().After(deadline) {
			break
		}
	}
	t.Logf("%d told, %d lost", told, lost)
	if told+lost != 1_000_000 || told == 0 || lost == 0 {
		t.Errorf("%d told and %d lost", told, lost)
	}
}

func TestWatcherSaysWhatFails(t *testing.T) {
	needRoot(t)
	c, err := New(Config{Emit: func(inspector.Occurrence) {}, Disable: []string{process.SignalOOMKill}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if c.watcher.set.Program(eventsProgOnVictim) != nil || c.watcher.set.Program(eventsProgOnEnd) == nil {
		t.Error("a signal that is off is watched, or one that is on is not")
	}
	_ = c.watcher.set.Detach(eventsProgOnSignal, "taken away by the test")
	for _, cp := range c.Capabilities() {
		if degraded := cp.Level == inspector.Degraded; degraded != (cp.Signal == process.SignalExit) {
			t.Errorf("%+v", cp)
		}
	}
	if err := c.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

// cpuTime is what this process has used.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
