package probe

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

func TestParseDiskstats(t *testing.T) {
	tests := map[string]struct {
		text      string
		want      []diskRow
		malformed int
	}{
		"all columns": {
			"8 0 sda 1000 20 80000 4000 500 30 40000 9000 0 7000 13000 7 0 1024 3 11 60\n",
			[]diskRow{{"sda", [4]uint64{1000, 500, 7, 11}, [4]uint64{80000, 40000, 1024, 0}, 4}}, 0,
		},
		"no flushes before 5.5": {
			"8 0 sda 1 0 8 0 2 0 16 0 0 0 0 3 0 24 0\n",
			[]diskRow{{"sda", [4]uint64{1, 2, 3, 0}, [4]uint64{8, 16, 24, 0}, 3}}, 0,
		},
		"no discards before 4.18": {
			"8 0 sda 1 0 8 0 2 0 16 0 0 0 0\n",
			[]diskRow{{"sda", [4]uint64{1, 2, 0, 0}, [4]uint64{8, 16, 0, 0}, 2}}, 0,
		},
		"slash in the name": {
			"104 0 cciss/c0d0 1 0 8 0 2 0 16 0 0 0 0",
			[]diskRow{{"cciss!c0d0", [4]uint64{1, 2, 0, 0}, [4]uint64{8, 16, 0, 0}, 2}}, 0,
		},
		"full 64 bits": {
			"8 0 sda 18446744073709551615 0 8 0 2 0 16 0 0 0 0",
			[]diskRow{{"sda", [4]uint64{1<<64 - 1, 2, 0, 0}, [4]uint64{8, 16, 0, 0}, 2}}, 0,
		},
		"negative, short and empty lines": {"8 0 sda -1 0 8 0 2 0 16 0 0 0 0\n8 0 sdb 1\n\n", nil, 2},
		"a disk called other":             {"8 0 other 1 0 8 0 2 0 16 0 0 0 0\n", nil, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, malformed := parseDiskstats([]byte(tc.text))
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(diskRow{})); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if malformed != tc.malformed {
				t.Errorf("%d malformed lines, want %d", malformed, tc.malformed)
			}
		})
	}
}

func FuzzParseDiskstats(f *testing.F) {
	b, err := os.ReadFile("testdata/proc/diskstats")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("8 0 \xff\xfe 1 0 8 0 2 0 16 0 0 0 0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, _ := parseDiskstats(b)
		s := newSeries(func(string) bool { return true })
		seen := map[string]*device{}
		for _, r := range rows {
			seen[r.name] = &device{}
		}
		w := &inspector.Window{}
		layout, values := s.values(seen, w, func(string) bool { return true })
		if err := layout.Check(); err != nil {
			t.Fatal(err)
		}
		inspector.AppendValues(nil, layout.Series, values)
	})
}

// saved copies the saved tree, so that a test may change it.
func saved(t *testing.T) (proc, sys string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "proc"), filepath.Join(dir, "sys")
}

func TestDisksFromSavedTree(t *testing.T) {
	proc, sys := saved(t)
	path := filepath.Join(proc, "diskstats")
	s := &diskstats{path: path, sys: sys}
	step := func(replace ...string) map[string]*device {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.NewReplacer(replace...).Replace(string(b))), 0o600); err != nil {
			t.Fatal(err)
		}
		seen := map[string]*device{}
		if err := s.add(seen); err != nil {
			t.Fatal(err)
		}
		return seen
	}
	first := step()
	// Partitions, stacked devices and loop devices without a file are left out.
	if len(first) != 2 || first["sda"] == nil || first["nvme0n1"] == nil {
		t.Fatalf("devices: %v", first)
	}
	if !first["sda"][0].unknown {
		t.Error("the first reading has an increase")
	}
	second := step("sda 1000 20 80000", "sda 1003 20 80024", "nvme0n1 4294967290", "nvme0n1 4294967300")
	if d := second["sda"][0]; d.unknown || d.ios != 3 || d.bytes != 24*512 {
		t.Errorf("sda reads: %+v", d)
	}
	if d := second["nvme0n1"][0]; d.unknown || d.ios != 10 {
		t.Errorf("nvme0n1 reads past 32 bits: %+v", d)
	}
	third := step("sda 1003 20 80024", "sda 5 0 40") // the disk was made anew
	if d := third["sda"][0]; !d.unknown {
		t.Errorf("after a reset: %+v, want unknown", d)
	}
	fourth := step("sda 5 0 40", "sdb 5 0 40")
	if fourth["sda"] != nil {
		t.Error("a disk that is gone is still there")
	}
}

func TestFallbackWithoutDiskstats(t *testing.T) {
	s := &diskstats{path: filepath.Join(t.TempDir(), "diskstats")}
	if err := s.add(map[string]*device{}); err == nil {
		t.Error("a missing file reads as no disks")
	}
}

const childEnv = "TELLTALE_STORAGE_UNPRIVILEGED"

// Without privileges the module degrades to /proc and says so. The child
// gives up root for good, so it is a process of its own.
func TestUnprivileged(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestUnprivilegedChild$", "-test.v")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestUnprivilegedChild") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestUnprivilegedChild(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		t.Skip("run by TestUnprivileged")
	}
	if os.Geteuid() == 0 {
		if err := syscall.Setuid(65534); err != nil {
			t.Fatal(err)
		}
	}
	c, err := New(Config{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	caps := c.Capabilities()
	if cp := caps[0]; cp.Level != inspector.Degraded || cp.Source != inspector.SourceProc || !strings.Contains(cp.Reason, "CAP_BPF") || !strings.Contains(cp.Reason, "diskstats") {
		t.Errorf("%+v, want degraded to /proc/diskstats for want of CAP_BPF", cp)
	}
	for _, cp := range caps[1:] {
		if cp.Level != inspector.Off || cp.Source != inspector.SourceNone || !strings.Contains(cp.Reason, "CAP_BPF") {
			t.Errorf("%+v, want off for want of CAP_BPF", cp)
		}
	}
	_, got := collect(t, c)
	if v := got[storage.TotalIOs]; !v.OK {
		t.Error("no requests from /proc/diskstats")
	}
	for name := range got {
		if strings.HasPrefix(name, storage.LatencyNS) || strings.HasPrefix(name, storage.Errors) {
			t.Errorf("series %s has no source", name)
		}
	}
}

func TestDisabled(t *testing.T) {
	all := []string{storage.SignalRequests, storage.SignalLatency, storage.SignalErrors}
	c, err := New(Config{Disable: all}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, cp := range c.Capabilities() {
		if cp.Level != inspector.Off || cp.Reason != switchedOff {
			t.Errorf("%+v, want switched off", cp)
		}
	}
	if w, _ := collect(t, c); len(w.Layout.Series) != 0 {
		t.Errorf("%d series of a module that is off", len(w.Layout.Series))
	}
}
