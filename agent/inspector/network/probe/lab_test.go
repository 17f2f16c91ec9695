package probe

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
)

// netns is a network namespace of the test's own. It lives on one thread and
// goes with it.
type netns struct {
	t     *testing.T
	inode uint32
	tid   int
	work  chan func()
	done  chan struct{}
}

// newNetns makes a namespace whose loopback is up. It needs root.
func newNetns(t *testing.T) *netns {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces and loads programs")
	}
	n := &netns{t: t, work: make(chan func()), done: make(chan struct{})}
	ready := make(chan error, 1)
	go func() {
		defer close(n.done)
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ready <- err
			return
		}
		n.tid = unix.Gettid()
		var err error
		n.inode, err = netnsInode("/proc/thread-self/ns/net")
		ready <- err
		for f := range n.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() { close(n.work); <-n.done })
	n.run("ip", "link", "set", "lo", "up")
	return n
}

// do runs f on the namespace's thread.
func (n *netns) do(f func()) {
	n.t.Helper()
	done := make(chan struct{})
	n.work <- func() { defer close(done); f() }
	<-done
}

// run runs a command inside the namespace and returns what it printed.
func (n *netns) run(name string, args ...string) string {
	n.t.Helper()
	var out []byte
	var err error
	n.do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		out, err = exec.CommandContext(ctx, name, args...).CombinedOutput()
	})
	if err != nil {
		n.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// fields are the namespace's own /proc counters: the truth of these tests.
func (n *netns) fields() map[string]uint64 {
	n.t.Helper()
	var out map[string]uint64
	var err error
	n.do(func() { out, err = procFiles{root: "/proc/thread-self"}.fields() })
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// dev is the namespace's /proc/net/dev by interface name.
func (n *netns) dev() map[string]traffic {
	n.t.Helper()
	var b []byte
	var err error
	n.do(func() { b, err = os.ReadFile("/proc/thread-self/net/dev") })
	if err != nil {
		n.t.Fatal(err)
	}
	keys := map[ifaceKey]iface{}
	parseDev(b, keys)
	out := map[string]traffic{}
	for k, v := range keys {
		out[k.name] = v.traffic
	}
	return out
}

// join lays a veth pair between two namespaces: 10.99.0.1 and 10.99.0.2.
func join(a, b *netns) {
	a.t.Helper()
	a.run("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", fmt.Sprint(b.tid))
	for i, n := range []*netns{a, b} {
		dev := []string{"va", "vb"}[i]
		// IPv6 off: its neighbour discovery would send at moments of its own.
		n.do(func() {
			_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/disable_ipv6", []byte("1"), 0o644)
		})
		n.run("ip", "addr", "add", fmt.Sprintf("10.99.0.%d/24", i+1), "dev", dev)
		n.run("ip", "link", "set", dev, "up")
	}
}

// open loads the module for one namespace and demands that the named signals
// are measured by programs; a kernel that provably lacks one skips.
func open(t *testing.T, cfg Config, signals ...string) *Collector {
	t.Helper()
	cfg.Kernel = labKernel
	c, err := New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	for _, cp := range c.Capabilities() {
		for _, s := range signals {
			if cp.Signal != s || cp.Source == inspector.SourceBPF {
				continue
			}
			for _, p := range needs[s] {
				if f := c.kernel.set.Failure(p); f != nil && (f.Class == bpfload.Missing || f.Class == bpfload.Refused) {
					t.Skipf("this kernel cannot measure %s: %s", s, f.Reason)
				}
			}
			t.Fatalf("%s: %s", s, cp.Reason)
		}
	}
	return c
}

// meter adds up a collector's windows by series.
type meter struct {
	t      *testing.T
	c      *Collector
	sums   map[string]uint64
	levels map[string]float64
	hists  map[string]uint64
	lost   uint64
}

func newMeter(t *testing.T, c *Collector) *meter {
	return &meter{t: t, c: c, sums: map[string]uint64{}, levels: map[string]float64{}, hists: map[string]uint64{}}
}

func (m *meter) collect() {
	m.t.Helper()
	windows, err := m.c.Collect(m.t.Context(), time.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, w := range windows {
		if err := w.Layout.Check(); err != nil {
			m.t.Fatal(err)
		}
		m.lost += w.Lost
		for i, s := range w.Layout.Series {
			v := w.Values[i]
			if !v.OK {
				continue
			}
			switch s.Kind {
			case inspector.Gauge:
				m.levels[s.String()] = v.Gauge
			case inspector.Histogram:
				m.hists[s.String()] += inspector.HistCount(v.Hist)
			default:
				m.sums[s.String()] += v.Delta
			}
		}
	}
}

// settle collects until truth does not move around a collection, then
// returns that truth; what is compared then belongs to one moment.
func settle[T any](m *meter, same func(a, b T) bool, truth func() T) T {
	m.t.Helper()
	for range 100 {
		before := truth()
		m.collect()
		if after := truth(); same(before, after) {
			return after
		}
	}
	m.t.Fatal("the kernel's counters never came to rest")
	panic("unreachable")
}

// until waits for a condition with a deadline.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 20 s in vain: %s", what)
		}
		<-tick.C
	}
}

// newNamespaceChild runs a process in a network namespace of its own, which
// dies with it.
func newNamespaceChild() error {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	return cmd.Run()
}
