package probe

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// These tests run real programs in the kernel, make requests on loop devices
// of their own and compare with the kernel's own counts of those devices, so
// that what else the machine does cannot matter.

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads eBPF programs into the kernel and sets up loop devices")
	}
}

// start loads the module; devices is the size of its map, 0 for the usual.
func start(t *testing.T, devices uint32, cfg Config) *Collector {
	t.Helper()
	spec, err := loadStorage()
	if err != nil {
		t.Fatal(err)
	}
	if devices > 0 {
		spec.Maps[storageMapDevices].MaxEntries = devices
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

func collect(t *testing.T, c *Collector) (*inspector.Window, map[string]inspector.Value) {
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
	return w, out
}

func seriesOf(metric, device, op string) string {
	return fmt.Sprintf("%s{device=%q,op=%q}", metric, device, op)
}

func TestEverySignalIsFull(t *testing.T) {
	needRoot(t)
	c := start(t, 0, Config{})
	caps := c.Capabilities()
	if len(caps) != 3 {
		t.Fatalf("%d capabilities, want 3", len(caps))
	}
	for _, cp := range caps {
		if cp.Level != inspector.Full || cp.Source != inspector.SourceBPF || cp.Reason != "" {
			t.Errorf("%+v, want full from bpf", cp)
		}
	}
	_, got := collect(t, c)
	for _, name := range []string{storage.TotalIOs, storage.TotalBytes, storage.TotalErrors} {
		if !got[name].OK {
			t.Errorf("%s is unknown", name)
		}
	}
}

func TestRequestsEqualTheKernels(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 16<<20)
	c := start(t, 0, Config{})
	collect(t, c)
	before := l.stat(t)
	l.write(t, 200)
	for range 5 { // a data write and a flush each
		l.write(t, 1)
		if err := l.dev.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	l.read(t, 300)
	l.discard(t, 1<<20)
	after := l.stat(t)
	w, got := collect(t, c)
	t.Logf("kernel: %v to %v", before, after)
	for i, op := range storage.Operations {
		ios, bytes := after[i].ios-before[i].ios, after[i].bytes-before[i].bytes
		if v := got[seriesOf(storage.IOs, l.name, op)]; v.Delta != ios || ios > 0 && !v.OK {
			t.Errorf("%s: %+v requests, the kernel counts %d", op, v, ios)
		}
		if v := got[seriesOf(storage.Bytes, l.name, op)]; v.Delta != bytes || ios > 0 && !v.OK {
			t.Errorf("%s: %+v bytes, the kernel counts %d", op, v, bytes)
		}
		// The kernel adds the same times up, and cuts to milliseconds.
		v, ms := got[seriesOf(storage.LatencyNS, l.name, op)], float64(after[i].ms-before[i].ms)
		if n := inspector.HistCount(v.Hist); n != ios {
			t.Errorf("%s: %d latencies for %d requests", op, n, ios)
		}
		t.Logf("%s: %d requests, %.3f ms here, %.0f ms in stat", op, ios, float64(v.Sum)/1e6, ms)
		if d := math.Abs(float64(v.Sum)/1e6 - ms); d > 1.5+0.02*ms {
			t.Errorf("%s: latencies sum up to %.3f ms, the kernel counts %.0f ms", op, float64(v.Sum)/1e6, ms)
		}
	}
	if reads := after[0].ios - before[0].ios; reads != 300 {
		t.Errorf("the kernel counts %d reads of 300", reads)
	}
	if v := got[storage.TotalIOs]; !v.OK || v.Delta < 505 || w.Samples < 505 {
		t.Errorf("total is %+v of %d samples", v, w.Samples)
	}
	// Nothing moves in an idle window, and the layout is the same one.
	w2, again := collect(t, c)
	if v := again[seriesOf(storage.IOs, l.name, "read")]; !v.OK || v.Delta != 0 {
		t.Errorf("idle window has %+v reads", v)
	}
	if w2.Start != w.End || !w2.End.After(w2.Start) {
		t.Errorf("windows %v–%v and %v–%v do not join", w.Start, w.End, w2.Start, w2.End)
	}
}

func TestErrorsEqual(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	c := start(t, 0, Config{})
	if err := os.Truncate(l.file, 0); err != nil {
		t.Fatal(err)
	}
	failed := l.read(t, 7)
	if failed != 7 {
		t.Fatalf("%d of 7 reads failed", failed)
	}
	_, got := collect(t, c)
	if v := got[seriesOf(storage.Errors, l.name, "read")]; !v.OK || v.Delta != uint64(failed) {
		t.Errorf("errors: %+v, the reader saw %d", v, failed)
	}
	if v := got[seriesOf(storage.Errors, l.name, "write")]; !v.OK || v.Delta != 0 {
		t.Errorf("write errors: %+v, want 0", v)
	}
	if v := got[storage.TotalErrors]; !v.OK || v.Delta < uint64(failed) {
		t.Errorf("total: %+v", v)
	}
}

func TestUnloadedProgramStopsItsNumber(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	c := start(t, 0, Config{})
	l.read(t, 3)
	_, got := collect(t, c)
	if v := got[seriesOf(storage.IOs, l.name, "read")]; !v.OK || v.Delta != 3 {
		t.Fatalf("before: %+v, want 3", v)
	}
	if err := c.set.Detach(storageProgRqComplete, "unloaded by the test"); err != nil {
		t.Fatal(err)
	}
	l.read(t, 3)
	_, got = collect(t, c)
	if v := got[seriesOf(storage.IOs, l.name, "read")]; v.OK {
		t.Errorf("after: %+v, want unknown", v)
	}
	if v := got[storage.TotalErrors]; !v.OK {
		t.Error("errors have a program of their own, yet are unknown")
	}
	if now, err := c.maps.read(); err != nil || now[l.name][0].ios != 3 {
		t.Errorf("the counter stands at %d (%v), want 3", now[l.name][0].ios, err)
	}
	for _, cp := range c.Capabilities() {
		if on := cp.Level == inspector.Full; on != (cp.Signal == storage.SignalErrors) {
			t.Errorf("%+v", cp)
		}
	}
}

func TestDevicesBeyondTheBound(t *testing.T) {
	needRoot(t)
	a, b := newLoop(t, 1<<20), newLoop(t, 1<<20)
	c := start(t, 1, Config{})
	var first uint64
	for _, l := range []*loop{a, b} { // another disk of the machine may have taken the place
		l.read(t, 50)
	}
	w, got := collect(t, c)
	for _, l := range []*loop{a, b} {
		first += got[seriesOf(storage.IOs, l.name, "read")].Delta
	}
	rest := got[seriesOf(storage.IOs, storage.Other, "read")]
	if !rest.OK || first+rest.Delta < 100 || rest.Delta < 50 {
		t.Errorf("named %d, other %+v of 100", first, rest)
	}
	if w.Truncated < 50 {
		t.Errorf("truncated is %d, want what other holds", w.Truncated)
	}
}

// A device that sysfs no longer lists gives its place back.
func TestForgetsDevicesThatAreGone(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	c := start(t, 0, Config{Sys: t.TempDir()})
	l.read(t, 1)
	_, got := collect(t, c)
	name := seriesOf(storage.IOs, l.name, "read")
	if v := got[name]; v.Delta != 1 {
		t.Fatalf("%+v, want 1", v)
	}
	if _, got = collect(t, c); got[name].OK {
		t.Error("the series of a device that is gone stays")
	}
	l.read(t, 2)
	if _, got = collect(t, c); got[name].Delta != 2 {
		t.Errorf("after its return: %+v, want 2", got[name])
	}
}

// With iostats off the kernel may note no start: requests still count, and
// the latency says what it misses, if it does. The memory of a request is
// used again and again, with the start that an earlier one noted there: that
// must not become the latency of another.
func TestDeviceWithoutIostats(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	l.read(t, 2000) // every request that the queue has notes a start
	old := time.NewTimer(300 * time.Millisecond)
	path := "/sys/block/" + l.name + "/queue/iostats"
	if err := os.WriteFile(path, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			t.Error(err)
		}
	})
	var mu sync.Mutex
	var told []inspector.Occurrence
	c := start(t, 0, Config{})
	watch(t, Config{SlowIO: 200 * time.Millisecond, Emit: func(o inspector.Occurrence) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, o)
	}}, 0, 0)
	<-old.C
	l.read(t, 9)
	_, got := collect(t, c)
	if v := got[seriesOf(storage.LatencyNS, l.name, "read")]; v.Sum > uint64(200*time.Millisecond) {
		t.Errorf("9 reads from memory took %v together", time.Duration(v.Sum))
	}
	mu.Lock()
	if len(told) > 0 {
		t.Errorf("slow: %+v", told)
	}
	mu.Unlock()
	if v := got[seriesOf(storage.IOs, l.name, "read")]; v.Delta != 9 {
		t.Errorf("%+v requests, want 9", v)
	}
	timed := inspector.HistCount(got[seriesOf(storage.LatencyNS, l.name, "read")].Hist)
	cp := c.Capabilities()[1]
	if said := strings.Contains(cp.Reason, l.name); said != (timed < 9) || (cp.Level == inspector.Degraded) != said {
		t.Errorf("%d of 9 requests have a latency, the capability says %+v", timed, cp)
	}
	t.Logf("%d of 9 requests have a latency: %+v", timed, cp)
}
