package probe

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// ear keeps what the watcher tells.
type ear struct {
	mu   sync.Mutex
	told []inspector.Occurrence
	when []time.Time
}

func (e *ear) emit(o inspector.Occurrence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told, e.when = append(e.told, o), append(e.when, time.Now())
}

// sum adds up a device's sightings of a kind; "" is every device.
func (e *ear) sum(kind, device string) (n uint64, records int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range e.told {
		if o.Kind == kind && (device == "" || o.Labels[storage.LabelDevice] == device) {
			n += max(o.Count, 1)
			if o.Sample != nil {
				records++
			}
		}
	}
	return n, records
}

func watch(t *testing.T, cfg Config, ring, gates uint32) *watcher {
	t.Helper()
	cfg.Kernel = labKernel
	w, err := openWatcher(cfg.withRoots(), ring, gates, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range eventPrograms {
		if f := w.set.Failure(p.Name); f != nil {
			t.Fatal(f)
		}
	}
	t.Cleanup(sync.OnceFunc(func() { _ = w.close() }))
	return w
}

func TestSlowIOEvent(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	l.fill(t)
	dir, path := throttled(t, l.file, 512<<10)
	e := &ear{}
	c, err := New(Config{Emit: e.emit, SlowIO: 100 * time.Millisecond}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, cp := range c.Capabilities() {
		if cp.Level != inspector.Full {
			t.Errorf("%+v", cp)
		}
	}
	began := time.Now()
	in(t, dir, "dd", "if=/dev/"+l.name, "of=/dev/null", "iflag=direct", "bs=64k", "count=4")
	whole := float64(time.Since(began).Milliseconds()) // no request took longer than all of them
	until(t, "the event comes", func() bool { n, _ := e.sum(storage.SlowIO, l.name); return n >= 3 })
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, o := range e.told {
		if o.Labels[storage.LabelDevice] != l.name {
			continue // the disk of the machine may be slow, too
		}
		t.Logf("%v later: %+v %+v", e.when[i].Sub(o.At), o, o.Sample)
		if late := e.when[i].Sub(o.At); late > 2*time.Second || late < -50*time.Millisecond {
			t.Errorf("told %v after it happened", late)
		}
		if o.Kind != storage.SlowIO || o.Labels[storage.LabelOp] != "read" || len(o.Labels) != 2 {
			t.Errorf("%+v", o)
		}
		if s := o.Sample; s == nil || s.Values["latency_ms"] < 100 || s.Values["latency_ms"] > whole || s.Values["bytes"] != 65536 || s.Labels["cgroup"] != path {
			t.Errorf("sample %+v", o.Sample)
		}
	}
}

func TestIOErrorEventsEqual(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	e := &ear{}
	w := watch(t, Config{Emit: e.emit}, 0, 0)
	if err := os.Truncate(l.file, 0); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	failed := l.read(t, 7)
	until(t, "all errors are told", func() bool { n, _ := e.sum(storage.IOError, l.name); return n >= uint64(failed) })
	if late := time.Since(began); late > 2*time.Second {
		t.Errorf("told after %v", late)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	n, records := e.sum(storage.IOError, l.name)
	if n != 7 || failed != 7 || records != 7 {
		t.Errorf("%d errors told in %d records, the reader saw %d", n, records, failed)
	}
	o := e.told[0]
	if o.Labels[storage.LabelErrno] != "EIO" || o.Labels[storage.LabelOp] != "read" || o.Sample.Values["bytes"] != block {
		t.Errorf("%+v %+v", o, o.Sample)
	}
}

// A device that fails in storms costs next to nothing, and is counted whole.
func TestErrorStorm(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	e := &ear{}
	w := watch(t, Config{Emit: e.emit}, 0, 0)
	if err := os.Truncate(l.file, 0); err != nil {
		t.Fatal(err)
	}
	const storm = 100_000
	before, began := agentCPU(t), time.Now()
	failed := uint64(storming(t, l.name, storm))
	took := time.Since(began)
	until(t, "the storm is told", func() bool {
		n, _ := e.sum(storage.IOError, l.name)
		lost, _ := e.sum(eventLoss, "")
		return n+lost >= failed
	})
	cpu := agentCPU(t) - before
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	n, records := e.sum(storage.IOError, l.name)
	lost, _ := e.sum(eventLoss, "")
	t.Logf("%d errors in %v: told %d in %d occurrences with %d samples, lost %d; this process used %v", failed, took, n, len(e.told), records, lost, cpu)
	if failed != storm || n > failed || n+lost < failed || lost > failed/100 {
		t.Errorf("%d told and %d lost of %d", n, lost, failed)
	}
	if most := int(took/time.Second+2) * 10; records > most || len(e.told) > 2*most {
		t.Errorf("%d records and %d occurrences in %v", records, len(e.told), took)
	}
	if cpu > took/20+200*time.Millisecond {
		t.Errorf("the storm of %v costs %v", took, cpu)
	}
}

// A ring without room while nobody reads it: what is told and what is lost
// add up.
func TestFullRingOfEvents(t *testing.T) {
	needRoot(t)
	e := &ear{}
	w := watch(t, Config{Emit: e.emit}, 4096, 0)
	w.mu.Lock() // the reader waits with the first record in its hands
	var failed uint64
	for range 12 {
		l := newLoop(t, 1<<20)
		if err := os.Truncate(l.file, 0); err != nil {
			t.Fatal(err)
		}
		failed += uint64(l.read(t, 8))
	}
	w.mu.Unlock()
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	n, records := e.sum(storage.IOError, "")
	lost, _ := e.sum(eventLoss, "")
	t.Logf("told %d with %d records, lost %d of %d", n, records, lost, failed)
	if failed != 96 || n+lost != failed || lost == 0 || records == 0 {
		t.Errorf("told %d with %d records, lost %d of %d", n, records, lost, failed)
	}
}

// What finds no gate is lost, and said to be.
func TestEventsLostAreCounted(t *testing.T) {
	needRoot(t)
	a, b := newLoop(t, 1<<20), newLoop(t, 1<<20)
	e := &ear{}
	w := watch(t, Config{Emit: e.emit}, 0, 1)
	for _, l := range []*loop{a, b} {
		if err := os.Truncate(l.file, 0); err != nil {
			t.Fatal(err)
		}
		l.read(t, 50)
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	n, _ := e.sum(storage.IOError, "")
	lost, _ := e.sum(eventLoss, "")
	if n+lost != 100 || lost < 50 {
		t.Errorf("%d told and %d lost of 100", n, lost)
	}
	for _, o := range e.told {
		if o.Kind == eventLoss && o.Labels["component"] != storage.Name {
			t.Errorf("%+v", o)
		}
	}
}

// What a device cannot do is no fault of it.
func TestRefusedOperationIsNoErrorEvent(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	e := &ear{}
	w := watch(t, Config{Emit: e.emit}, 0, 0)
	l.discard(t, 1<<19)
	l.read(t, 1)
	if _, err := l.dev.ReadAt(aligned(t, block), 1<<20); err == nil { // beyond the end
		t.Error("the device has no end")
	}
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	if n, _ := e.sum(storage.IOError, l.name); n != 0 {
		t.Errorf("%+v", e.told)
	}
}

// A signal that works but makes no events is not whole.
func TestSignalWithoutEvents(t *testing.T) {
	needRoot(t)
	w := watch(t, Config{Emit: (&ear{}).emit}, 0, 0)
	if err := w.set.Detach(eventsProgRqSlow, "unloaded by the test"); err != nil {
		t.Fatal(err)
	}
	for signal, want := range map[string]inspector.Level{storage.SignalLatency: inspector.Degraded, storage.SignalErrors: inspector.Full, storage.SignalRequests: inspector.Full} {
		cp := inspector.Capability{Signal: signal, Level: inspector.Full}
		if w.degrade(&cp); cp.Level != want || (cp.Reason == "") != (want == inspector.Full) {
			t.Errorf("%+v, want %s", cp, want)
		}
	}
}

func agentCPU(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const stormChild = "TELLTALE_TEST_STORM"

// storming reads n blocks of a device in another process, so that the cost
// of the reading is not this one's, and returns how many reads failed.
func storming(t *testing.T, name string, n int) (failed int) {
	t.Helper()
	return reexec(t, "TestStormChild", stormChild+"="+name, n)
}

// TestStormChild is the process that reads; alone it does nothing.
func TestStormChild(t *testing.T) {
	name := os.Getenv(stormChild)
	if name == "" {
		return
	}
	n, err := strconv.Atoi(os.Getenv(childCount))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := os.OpenFile("/dev/"+name, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	failed := (&loop{name: name, dev: dev, blocks: 256}).read(t, n)
	fmt.Printf("RESULT %d\n", failed)
}

const childCount = "TELLTALE_TEST_COUNT"

// reexec runs one test of this binary in another process and returns the
// number that it prints.
func reexec(t *testing.T, test, env string, n int) (result int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), env, childCount+"="+strconv.Itoa(n))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	at := strings.Index(string(out), "RESULT ")
	if at < 0 {
		t.Fatalf("no result: %s", out)
	}
	if _, err := fmt.Sscanf(string(out[at:]), "RESULT %d", &result); err != nil {
		t.Fatal(err)
	}
	return result
}
