package collect

import (
	"context"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// tree is a writable copy of saved trees, later ones laid over earlier ones.
type tree struct {
	t   *testing.T
	dir string
}

func newTree(t *testing.T, saved ...string) tree {
	t.Helper()
	tr := tree{t, t.TempDir()}
	for _, s := range saved {
		root := filepath.Join("testdata", s)
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			tr.write(rel, string(b))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

func (tr tree) write(name, text string) {
	tr.t.Helper()
	path := filepath.Join(tr.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) edit(name, old, with string) {
	tr.t.Helper()
	b, err := os.ReadFile(filepath.Join(tr.dir, name))
	if err != nil {
		tr.t.Fatal(err)
	}
	if !strings.Contains(string(b), old) {
		tr.t.Fatalf("%s does not hold %q", name, old)
	}
	tr.write(name, strings.Replace(string(b), old, with, 1))
}

func (tr tree) remove(name string) {
	tr.t.Helper()
	if err := os.RemoveAll(filepath.Join(tr.dir, name)); err != nil {
		tr.t.Fatal(err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func fullDisk(string) (space, error) {
	return space{total: 100 << 30, used: 25 << 30, available: 70 << 30, files: 1000, freeFiles: 400}, nil
}

func synced() (discipline, error) {
	return discipline{synced: true, offset: -0.0025, maxError: 0.01}, nil
}

func (tr tree) collector(stat statfsFunc) *Collector {
	c := newCollector(Config{Proc: filepath.Join(tr.dir, "proc"), Root: tr.dir, DiskPatience: 5 * time.Second, Mounts: newMounts(stat)}, quiet(), synced)
	tr.t.Cleanup(func() { _ = c.Close() })
	return c
}

// next closes a window of exactly ten seconds.
func next(t *testing.T, c *Collector) *inspector.Window {
	t.Helper()
	ws, err := c.Collect(context.Background(), c.start.Add(10*time.Second))
	if err != nil || len(ws) != 1 {
		t.Fatalf("Collect: %d windows, %v", len(ws), err)
	}
	w := ws[0]
	if err := w.Layout.Check(); err != nil {
		t.Fatal(err)
	}
	if got := w.End.Sub(w.Start); got != 10*time.Second {
		t.Fatalf("the window is %v long", got)
	}
	// What is sent must be what was measured.
	back, refused, err := inspector.DecodeValues(inspector.AppendValues(nil, w.Layout.Series, w.Values), w.Layout.Series)
	if err != nil || refused != 0 {
		t.Fatalf("values do not survive the wire: %v, %d refused", err, refused)
	}
	if d := cmp.Diff(w.Values, back); d != "" {
		t.Fatal(d)
	}
	return w
}

// value finds one series by name and the values of its labels in key order.
func value(t *testing.T, w *inspector.Window, metric string, labels ...string) inspector.Value {
	t.Helper()
	for i, s := range w.Layout.Series {
		if s.Metric != metric {
			continue
		}
		got := []string{}
		for _, l := range s.Labels {
			got = append(got, l.Value)
		}
		if slices.Equal(got, append([]string{}, labels...)) {
			return w.Values[i]
		}
	}
	return inspector.Value{}
}

func wantGauge(t *testing.T, w *inspector.Window, want float64, metric string, labels ...string) {
	t.Helper()
	if v := value(t, w, metric, labels...); !v.OK || math.Abs(v.Gauge-want) > 1e-9*max(1, math.Abs(want)) {
		t.Errorf("%s%v is %+v, want %v", metric, labels, v, want)
	}
}

func wantDelta(t *testing.T, w *inspector.Window, want uint64, metric string, labels ...string) {
	t.Helper()
	if v := value(t, w, metric, labels...); !v.OK || v.Delta != want {
		t.Errorf("%s%v is %+v, want %v", metric, labels, v, want)
	}
}

func wantUnknown(t *testing.T, w *inspector.Window, metric string, labels ...string) {
	t.Helper()
	if v := value(t, w, metric, labels...); v.OK {
		t.Errorf("%s%v is %+v, want unknown", metric, labels, v)
	}
}

func capability(c *Collector, signal string) inspector.Capability {
	for _, k := range c.Capabilities() {
		if k.Signal == signal {
			return k
		}
	}
	return inspector.Capability{}
}

func ownTime(t *testing.T) time.Duration {
	t.Helper()
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
