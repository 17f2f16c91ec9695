package collect

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

func TestMachine(t *testing.T) {
	tr := newTree(t, "machine")
	c := tr.collector(fullDisk)
	tr.write("proc/stat", "cpu  41239 10 12717 256718 1085 0 274 973 300 4\ncpu0 1 0 0 0\ncpu1 1 0 0 0\nctxt 3607098\nbtime 1795987954\nprocs_running 2\nprocs_blocked 0\n")
	tr.edit("proc/vmstat", "pswpin 100", "pswpin 103")
	tr.edit("proc/vmstat", "pgmajfault 1469", "pgmajfault 1470")
	tr.edit("proc/pressure/io", "total=8429432", "total=10929432")
	w := next(t, c)

	wantDelta(t, w, 400*tick, host.CPUTime, "user") // 500, of which 100 were a guest's
	wantDelta(t, w, 100*tick, host.CPUTime, "guest")
	wantDelta(t, w, 100*tick, host.CPUTime, "system")
	wantDelta(t, w, 800*tick, host.CPUTime, "idle")
	wantDelta(t, w, 100*tick, host.CPUTime, "steal")
	wantGauge(t, w, 600.0/1500, host.CPUBusy)
	wantUnknown(t, w, host.CgroupCPUBusy)
	wantGauge(t, w, 2, host.CPUs)
	wantDelta(t, w, 1000, host.ContextSwitches)
	wantGauge(t, w, 2, host.ProcsRunning)
	wantGauge(t, w, 1.87, host.Load1)
	wantGauge(t, w, 0.62, host.Load15)
	wantGauge(t, w, 24684092*1024, host.MemoryTotal)
	wantGauge(t, w, 1-24200716.0/24684092, host.MemoryUsedRatio)
	wantDelta(t, w, 3*uint64(os.Getpagesize()), host.SwapIn)
	wantDelta(t, w, 0, host.SwapOut)
	wantDelta(t, w, 1, host.MajorFaults)
	wantDelta(t, w, 2_500_000_000, host.PressureStalled, "io", "some")
	wantGauge(t, w, 0.25, host.PressureIO)
	wantGauge(t, w, 16, host.SocketsUsed)
	wantGauge(t, w, 5, host.SocketsInUse, "tcp")
	wantGauge(t, w, 4, host.SocketsInUse, "tcp6")
	wantGauge(t, w, 3, host.TCPTimeWait)
	wantGauge(t, w, 1, host.ClockSynced)
	wantGauge(t, w, -0.0025, host.ClockOffset)
	wantGauge(t, w, 1559.47, host.Uptime)
	wantGauge(t, w, 1795987954, host.BootTime, "3f0e2b1c-6d55-4a35-9d1e-7d2a54b1c001")
	wantGauge(t, w, 25.0/95, host.DiskFullest)
	wantGauge(t, w, 25<<30, host.DiskUsed, "xfs", "/data", "31")
	wantGauge(t, w, 0, host.DiskStuck, "nfs4", "/mnt/team share", "33")
	wantUnknown(t, w, host.DiskUsed, "xfs", "/srv/export", "32") // the same filesystem, reported once
	for _, k := range c.Capabilities() {
		if k.Level != inspector.Full || k.Source != inspector.SourceProc {
			t.Errorf("%+v, want full from proc", k)
		}
	}
	if again := next(t, c); again.Layout != w.Layout {
		t.Error("the layout was made anew although no series changed")
	}
}

func TestWordsCoverEverySeries(t *testing.T) {
	var reg inspector.Registry
	host.Register(&reg)
	headlines := 0
	comp, _ := reg.Component(host.Name)
	for _, m := range comp.Metrics {
		if m.Headline {
			headlines++
			if len(m.Labels) > 0 || m.Kind == inspector.Histogram {
				t.Errorf("%s cannot be a headline", m.Name)
			}
		}
	}
	if headlines == 0 || headlines > 6 {
		t.Errorf("%d headlines, want 1 to 6", headlines)
	}
	seen := map[string]bool{}
	for _, saved := range [][]string{{"machine"}, {"machine", "lxcfs"}} {
		w := next(t, newTree(t, saved...).collector(fullDisk))
		for _, s := range w.Layout.Series {
			seen[s.Metric] = true
			m, ok := reg.Metric(s.Metric)
			if !ok || m.Kind != s.Kind || m.Unit != s.Unit {
				t.Errorf("%s is not in the registry as %v %v", s, s.Kind, s.Unit)
			}
			for _, l := range s.Labels {
				if !slices.Contains(m.Labels, l.Key) {
					t.Errorf("%s carries a label that its words do not name", s)
				}
			}
		}
	}
	for _, m := range comp.Metrics {
		if !seen[m.Name] {
			t.Errorf("%s is registered and never measured", m.Name)
		}
	}
}

func TestCounters(t *testing.T) {
	t.Run("iowait steps back a little and is held", func(t *testing.T) {
		tr := newTree(t, "machine")
		c := tr.collector(fullDisk)
		next(t, c)
		tr.edit("proc/stat", "255918 1085", "256018 1075")
		w := next(t, c)
		wantDelta(t, w, 0, host.CPUTime, "iowait")
		wantDelta(t, w, 1, host.CPUClamped)
		wantGauge(t, w, 0, host.CPUBusy)
		tr.edit("proc/stat", "256018 1075", "256118 1095")
		w = next(t, c)
		wantDelta(t, w, 10*tick, host.CPUTime, "iowait") // 1085 to 1095: the sum over windows is exact
		wantDelta(t, w, 0, host.CPUClamped)
	})
	t.Run("another boot is a reset, never a huge number", func(t *testing.T) {
		tr := newTree(t, "machine")
		c := tr.collector(fullDisk)
		next(t, c)
		tr.edit("proc/stat", "ctxt 3606098", "ctxt 9999999") // higher, and yet of another boot
		tr.edit("proc/sys/kernel/random/boot_id", "3f0e2b1c", "aaaaaaaa")
		w := next(t, c)
		wantUnknown(t, w, host.ContextSwitches)
		wantUnknown(t, w, host.CPUTime, "idle")
		wantUnknown(t, w, host.CPUBusy)
		if v := value(t, w, host.AgentCPU); !v.OK {
			t.Error("the agent's own time does not depend on the boot id of the tree")
		}
		tr.edit("proc/stat", "ctxt 9999999", "ctxt 10000004")
		wantDelta(t, next(t, c), 5, host.ContextSwitches)
	})
	t.Run("a counter that starts over is unknown for one window", func(t *testing.T) {
		tr := newTree(t, "machine")
		c := tr.collector(fullDisk)
		next(t, c)
		tr.edit("proc/stat", "ctxt 3606098", "ctxt 5")
		wantUnknown(t, next(t, c), host.ContextSwitches)
		tr.edit("proc/stat", "ctxt 5", "ctxt 8")
		wantDelta(t, next(t, c), 3, host.ContextSwitches)
	})
	t.Run("32-bit words wrap once", func(t *testing.T) {
		c := newTree(t, "machine").collector(fullDisk)
		c.advance("x", inspector.Counter{Narrow: true}, 4294967290, true)
		if st := c.advance("x", inspector.Counter{Narrow: true}, 10, true); !st.known || st.delta != 16 {
			t.Errorf("got %+v, want 16", st)
		}
	})
	t.Run("a file that was away charges nothing to the next window", func(t *testing.T) {
		tr := newTree(t, "machine")
		c := tr.collector(fullDisk)
		next(t, c)
		tr.remove("proc/pressure/io")
		w := next(t, c)
		wantUnknown(t, w, host.PressureStalled, "io", "some")
		if k := capability(c, host.Pressure); k.Level != inspector.Degraded || !strings.Contains(k.Reason, "io") {
			t.Errorf("pressure is %+v, want degraded, naming io", k)
		}
		tr.write("proc/pressure/io", "some avg10=0 avg60=0 avg300=0 total=99429432\nfull avg10=0 avg60=0 avg300=0 total=0\n")
		wantUnknown(t, next(t, c), host.PressureStalled, "io", "some")
	})
}

func TestContainers(t *testing.T) {
	t.Run("without lxcfs the numbers are the machine's and say so", func(t *testing.T) {
		tr := newTree(t, "machine", "lxc")
		c := tr.collector(fullDisk)
		w := next(t, c)
		wantGauge(t, w, 24684092*1024, host.MemoryTotal)
		wantUnknown(t, w, host.CgroupMemoryTotal)
		for _, s := range []string{host.CPU, host.Memory} {
			if k := capability(c, s); k.Level != inspector.Full || !strings.Contains(k.Reason, "scope host") {
				t.Errorf("%+v, want full with its scope", k)
			}
		}
		wantGauge(t, w, 25<<30, host.DiskUsed, "overlay", "/", "500")
	})
	t.Run("with lxcfs they are the container's and say so", func(t *testing.T) {
		tr := newTree(t, "machine", "lxcfs")
		c := tr.collector(fullDisk)
		next(t, c)
		tr.edit("proc/stat", "cpu  40739", "cpu  40839")
		w := next(t, c)
		wantGauge(t, w, 24684092*1024, host.CgroupMemoryTotal)
		wantUnknown(t, w, host.MemoryTotal)
		wantUnknown(t, w, host.MemoryUsedRatio)
		wantGauge(t, w, 1, host.CgroupCPUBusy)
		wantUnknown(t, w, host.CPUBusy)
		if k := capability(c, host.CPU); !strings.Contains(k.Reason, "scope cgroup") {
			t.Errorf("%+v does not say its scope", k)
		}
	})
}

func TestAbsentIsNotZero(t *testing.T) {
	tr := newTree(t, "machine")
	tr.edit("proc/meminfo", "MemAvailable:   24200716 kB\n", "")
	tr.remove("proc/pressure")
	tr.remove("proc/net/sockstat6")
	tr.remove("proc/vmstat")
	tr.write("proc/loadavg", "x y z\n")
	c := newCollector(Config{Proc: filepath.Join(tr.dir, "proc"), Root: tr.dir, Disable: []string{host.Clock}, Mounts: newMounts(fullDisk)}, quiet(),
		func() (discipline, error) {
			t.Error("a signal that is switched off was read")
			return discipline{}, nil
		})
	w := next(t, c)
	wantUnknown(t, w, host.MemoryAvailable)
	wantUnknown(t, w, host.MemoryUsedRatio)
	wantUnknown(t, w, host.PressureIO)
	wantUnknown(t, w, host.Load1)
	wantUnknown(t, w, host.MajorFaults)
	wantUnknown(t, w, host.ClockSynced)
	wantUnknown(t, w, host.SocketsInUse, "tcp6")
	wantGauge(t, w, 5, host.SocketsInUse, "tcp")
	for signal, want := range map[string]inspector.Level{host.Pressure: inspector.Off, host.Clock: inspector.Off, host.Memory: inspector.Degraded, host.Sockets: inspector.Full} {
		k := capability(c, signal)
		if k.Level != want || k.Reason == "" {
			t.Errorf("%+v, want %s with a reason", k, want)
		}
		if (k.Level == inspector.Off) != (k.Source == inspector.SourceNone) {
			t.Errorf("%+v: the source does not fit the level", k)
		}
	}
	tr.remove("proc")
	w = next(t, c) // nothing at all is there: nothing is 0, nothing fails
	for i, v := range w.Values {
		if m := w.Layout.Series[i].Metric; v.OK && !strings.HasPrefix(m, "host.agent_") {
			t.Errorf("%s has the value %+v without a source", m, v)
		}
	}
}

func TestBadFilesNeverPanic(t *testing.T) {
	names := []string{"stat", "loadavg", "uptime", "meminfo", "vmstat", "pressure/io", "net/sockstat", "net/sockstat6", "self/mountinfo", "sys/kernel/random/boot_id"}
	texts := []string{"", "\n", "cpu", "cpu  1", "cpu  -1 2 3 4", "cpu 18446744073709551616 1 1 1", "some total=", "TCP: inuse", "1 2 0:1 / / rw -", "\xff\xfe\x00", strings.Repeat("a ", 5000), "MemTotal: 0 kB", "-5 -5", "NaN Inf"}
	for _, n := range names {
		for _, text := range texts {
			tr := newTree(t, "machine")
			c := tr.collector(fullDisk)
			tr.write("proc/"+n, text)
			next(t, c)
			next(t, c)
		}
	}
}

// TestLiveMachine reads this machine and compares with what it says itself.
func TestLiveMachine(t *testing.T) {
	c := New(Config{DiskPatience: 10 * time.Second}, quiet())
	defer c.Close()
	before := ownTime(t)
	for ownTime(t)-before < 30*time.Millisecond { // some CPU time of our own
	}
	w := next(t, c)
	text, err := readFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range pairs(text) {
		if k == "MemTotal" && !c.virtual("meminfo") {
			wantGauge(t, w, float64(v)*1024, host.MemoryTotal)
		}
	}
	root, err := statfs("/")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for i, s := range w.Layout.Series {
		if s.Metric == host.DiskTotal && slices.Contains(s.Labels, inspector.Label{Key: host.LabelMount, Value: "/"}) {
			found = true
			if got := w.Values[i]; !got.OK || got.Gauge != float64(root.total) {
				t.Errorf("the root filesystem has %+v bytes, statfs says %d", got, root.total)
			}
		}
	}
	if !found {
		t.Error("the root filesystem is not reported")
	}
	if v := value(t, w, host.AgentCPU); !v.OK || v.Delta < uint64(30*time.Millisecond) || v.Delta > uint64(time.Minute) {
		t.Errorf("own CPU time is %+v after 30 ms of spinning", v)
	}
	if v := value(t, w, host.AgentRSS); !v.OK || v.Gauge < 1<<20 {
		t.Errorf("own memory is %+v", v)
	}
	if v := value(t, w, host.Uptime); !v.OK || v.Gauge <= 0 {
		t.Errorf("uptime is %+v", v)
	}
	for _, k := range c.Capabilities() {
		t.Logf("%-9s %-8s %s %s", k.Signal, k.Level, k.Source, k.Reason)
	}
}
