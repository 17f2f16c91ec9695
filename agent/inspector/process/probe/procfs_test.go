package probe

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

func TestParseField(t *testing.T) {
	tests := map[string]struct {
		text string
		want uint64
		ok   bool
	}{
		"found":            {"cpu 1 2\nprocesses 2915\nprocs_running 1\n", 2915, true},
		"last line uncut":  {"processes 7", 7, true},
		"absent is not 0":  {"cpu 1 2\n", 0, false},
		"longer name":      {"processes_all 7\n", 0, false},
		"two values":       {"processes 7 8\n", 0, false},
		"negative":         {"processes -7\n", 0, false},
		"beyond 64 bits":   {"processes 18446744073709551616\n", 0, false},
		"all of 64 bits":   {"processes 18446744073709551615\n", 1<<64 - 1, true},
		"nothing to read":  {"", 0, false},
		"bytes not in UTF": {"\xff\xfe 1\nprocesses 3\n", 3, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := parseField([]byte(tc.text), "processes")
			if got != tc.want || ok != tc.ok {
				t.Errorf("%d, %v; want %d, %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestParseSchedstat(t *testing.T) {
	b, err := os.ReadFile("testdata/proc/schedstat")
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	got := parseSchedstat(b)
	for _, n := range got {
		sum += n
	}
	if len(got) != 2 || sum != 1000000001 {
		t.Errorf("%v; want both CPUs", got)
	}
	for _, bad := range []string{"", "version 17\n", "cpu0 1 2 3\n", "cpu0 0 0 0 0 0 0 1 -5 3\n"} {
		if got := parseSchedstat([]byte(bad)); got != nil {
			t.Errorf("%q reads as %v", bad, got)
		}
	}
}

// A CPU that goes offline takes nothing back, and its return charges nothing
// that it counted before.
func TestWaitsOfACPUThatGoesAndReturns(t *testing.T) {
	p := newProcCounters(t.TempDir())
	for i, c := range []struct {
		now  map[string]uint64
		want increase
	}{
		{map[string]uint64{"cpu0": 100, "cpu1": 1 << 40}, increase{}},
		{map[string]uint64{"cpu0": 105, "cpu1": 1<<40 + 1}, increase{6, true}},
		{map[string]uint64{"cpu0": 106}, increase{1, true}},
		{map[string]uint64{"cpu0": 107, "cpu1": 1<<40 + 3}, increase{3, true}},
		{map[string]uint64{"cpu0": 108, "cpu1": 1<<40 + 3, "cpu2": 1 << 50}, increase{1, true}},
		{map[string]uint64{"cpu0": 50, "cpu1": 1<<40 + 3, "cpu2": 1 << 50}, increase{}},
	} {
		if got := p.stepWaits(c.now); got != c.want {
			t.Errorf("step %d: %+v, want %+v", i, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"stat", "vmstat", "schedstat"} {
		b, err := os.ReadFile(filepath.Join("testdata/proc", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, ok := parseField(b, "oom_kill"); !ok && n != 0 {
			t.Errorf("unknown, yet %d", n)
		}
		newProcCounters(t.TempDir()).stepWaits(parseSchedstat(b))
	})
}

func TestCountersFromSavedTree(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/proc")); err != nil {
		t.Fatal(err)
	}
	edit := func(name string, replace ...string) {
		t.Helper()
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.NewReplacer(replace...).Replace(string(b))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := newProcCounters(dir)
	check := func(want procIncreases) {
		t.Helper()
		if diff := cmp.Diff(want, p.step(), cmp.AllowUnexported(procIncreases{}, increase{})); diff != "" {
			t.Errorf("increases (-want +got):\n%s", diff)
		}
	}
	check(procIncreases{}) // the first reading has none
	edit("stat", "processes 2915", "processes 3215")
	edit("vmstat", "oom_kill 3", "oom_kill 4")
	edit("schedstat", "250000000", "250000900")
	check(procIncreases{forks: increase{300, true}, oomKills: increase{1, true}, waited: increase{900, true}})
	check(procIncreases{forks: increase{0, true}, oomKills: increase{0, true}, waited: increase{0, true}})
	if err := os.Remove(filepath.Join(dir, "vmstat")); err != nil {
		t.Fatal(err)
	}
	edit("stat", "processes 3215", "processes 5") // another boot
	check(procIncreases{waited: increase{0, true}})
}

func TestOffersWithoutTheFiles(t *testing.T) {
	p := newProcCounters(t.TempDir())
	for _, signal := range signals {
		if fallback, none := p.offers(signal); fallback != "" || none == "" {
			t.Errorf("%s: fallback %q, reason %q", signal, fallback, none)
		}
	}
}

const childEnv = "TELLTALE_PROCESS_UNPRIVILEGED"

// Without privileges the module degrades to /proc and says so. The child
// gives up root for good, so it is a process of its own.
func TestUnprivileged(t *testing.T) {
	dir, err := os.MkdirTemp("", "telltale-proc-") // readable to everyone, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.CopyFS(dir, os.DirFS("testdata/proc"))); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestUnprivilegedChild$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUnprivilegedChild") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestUnprivilegedChild(t *testing.T) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("run by TestUnprivileged")
	}
	if os.Geteuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			t.Fatal(err)
		}
	}
	unprivileged(t, Config{}, map[string]inspector.Level{ // the run queue by this kernel
		process.SignalFork: inspector.Degraded, process.SignalExec: inspector.Off,
		process.SignalExit: inspector.Off, process.SignalOOMKill: inspector.Degraded,
	})
	unprivileged(t, Config{Proc: dir}, map[string]inspector.Level{
		process.SignalRunQueue: inspector.Degraded, process.SignalFork: inspector.Degraded, process.SignalExec: inspector.Off,
		process.SignalExit: inspector.Off, process.SignalOOMKill: inspector.Degraded,
	})
}

func unprivileged(t *testing.T, cfg Config, want map[string]inspector.Level) {
	t.Helper()
	c, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, cp := range c.Capabilities() {
		level, ok := want[cp.Signal]
		if !ok {
			continue
		}
		source := inspector.SourceNone
		if level == inspector.Degraded {
			source = inspector.SourceProc
		}
		if cp.Level != level || cp.Source != source || !strings.Contains(cp.Reason, "CAP_BPF") {
			t.Errorf("%+v, want %s from %q for want of CAP_BPF", cp, level, source)
		}
	}
	got := window(t, c)
	if v := got[process.Forks]; !v.OK {
		t.Error("no forks from /proc/stat")
	}
	if v := got[process.OOMKills]; !v.OK {
		t.Error("no OOM kills from /proc/vmstat")
	}
	for _, name := range []string{process.RunqLatencyNS, process.Threads, process.Execs, process.Exits, process.ExitsFailed} {
		if v, ok := got[name]; ok {
			t.Errorf("%s has no source, yet a series of %+v", name, v)
		}
	}
	if v := got[process.RunqWaitNS]; want[process.SignalRunQueue] == inspector.Degraded && !v.OK {
		t.Error("no waiting time from /proc/schedstat")
	}
}
