package collect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

// tick is one unit of /proc/stat in nanoseconds: USER_HZ is 100 on every
// architecture of the kernel's user interface.
const tick = 10_000_000

// cpuJitter is how far a CPU counter may step back and still be noise: ten
// seconds of one CPU.
const cpuJitter = 1000

// modes in the order of the columns of /proc/stat (proc(5)).
var modes = []string{"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice"}

// busy says which modes are work of this machine itself.
var busy = map[string]bool{"user": true, "nice": true, "system": true, "irq": true, "softirq": true, "guest": true}

func (c *Collector) readCPU(_ context.Context, sp span) (string, error) {
	text, err := c.read("stat")
	if err != nil {
		return "", err
	}
	row, cpus, single, err := parseStat(text)
	if err != nil {
		return "", err
	}
	metric, ratio, scope := host.CPUTime, host.CPUBusy, ""
	if c.virtual("stat") {
		metric, ratio, scope = host.CgroupCPUTime, host.CgroupCPUBusy, "scope cgroup: /proc/stat shows the agent's container"
	} else if c.contained() {
		scope = "scope host: the agent runs in a container and /proc/stat shows the whole machine"
	}
	d := c.cpuDeltas(row)
	var total, work, clamped uint64
	all := true
	for _, m := range []string{"user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest"} {
		st, ok := d[m]
		all = all && (ok || m == "guest" || m == "steal") && (!ok || st.known)
		total += st.delta
		if busy[m] {
			work += st.delta
		}
		if st.clamped {
			clamped++
		}
		c.put(metric, inspector.Delta, inspector.Nanoseconds, inspector.Value{OK: ok && st.known, Delta: st.delta * tick}, host.LabelMode, m)
	}
	c.gauge(ratio, inspector.Ratio, float64(work)/float64(max(total, 1)), all && total > 0)
	c.put(host.CPUClamped, inspector.Delta, inspector.Count, inspector.Value{OK: sp.length > 0, Delta: clamped})
	c.gauge(host.CPUs, inspector.Count, float64(cpus), cpus > 0)
	n, ok := single["ctxt"]
	c.count(host.ContextSwitches, inspector.Count, whole, n, ok, 1)
	n, ok = single["procs_running"]
	c.gauge(host.ProcsRunning, inspector.Count, float64(n), ok)
	n, ok = single["procs_blocked"]
	c.gauge(host.ProcsBlocked, inspector.Count, float64(n), ok)
	return scope, nil
}

// cpuDeltas advances one counter a mode. The kernel counts guest time within
// user time (and guest_nice within nice); it is taken out there, so that the
// modes add up to the whole.
func (c *Collector) cpuDeltas(row []uint64) map[string]step {
	out := map[string]step{}
	for i, v := range row {
		out[modes[i]] = c.advance("cpu\x00"+modes[i], inspector.Counter{Jitter: cpuJitter}, v, true)
	}
	take := func(from, what string) {
		f, g := out[from], out[what]
		f.delta -= min(f.delta, g.delta)
		out[from] = f
	}
	take("user", "guest")
	take("nice", "guest_nice")
	if g, ok := out["guest"]; ok {
		n := out["guest_nice"]
		g.delta, g.clamped = g.delta+n.delta, g.clamped || n.clamped
		out["guest"] = g
		delete(out, "guest_nice")
	}
	return out
}

// parseStat reads the sum over all CPUs, the number of CPUs, and the lines
// that hold a single number.
func parseStat(text string) (row []uint64, cpus int, single map[string]uint64, err error) {
	single = map[string]uint64{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case f[0] == "cpu":
			for i, s := range f[1:] {
				if i == len(modes) {
					break
				}
				v, err := strconv.ParseUint(s, 10, 64)
				if err != nil {
					return nil, 0, nil, fmt.Errorf("/proc/stat: column %d of the cpu line is %q", i+1, clip(s))
				}
				row = append(row, v)
			}
		case strings.HasPrefix(f[0], "cpu"):
			cpus++
		case f[0] == "ctxt" || f[0] == "procs_running" || f[0] == "procs_blocked":
			if v, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				single[f[0]] = v
			}
		}
	}
	if len(row) < 4 {
		return nil, 0, nil, errors.New("/proc/stat has no usable cpu line")
	}
	return row, cpus, single, nil
}

func (c *Collector) readLoad(context.Context, span) (string, error) {
	text, err := c.read("loadavg")
	if err != nil {
		return "", err
	}
	f := strings.Fields(text)
	if len(f) < 3 {
		return "", errors.New("/proc/loadavg has fewer than three numbers")
	}
	for i, m := range []string{host.Load1, host.Load5, host.Load15} {
		v, err := strconv.ParseFloat(f[i], 64)
		c.gauge(m, inspector.Count, v, err == nil && v >= 0)
	}
	return "", nil
}

func clip(s string) string {
	if len(s) > 40 {
		s = s[:40]
	}
	return inspector.CleanText(s)
}
