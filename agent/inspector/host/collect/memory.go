package collect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

func (c *Collector) readMemory(context.Context, span) (string, error) {
	text, err := c.read("meminfo")
	if err != nil {
		return "", err
	}
	kib := map[string]uint64{}
	for k, v := range pairs(text) {
		kib[k] = v
	}
	total, ok := kib["MemTotal"]
	if !ok || total == 0 {
		return "", errors.New("/proc/meminfo has no MemTotal")
	}
	put := func(metric, key string) {
		v, ok := kib[key]
		c.gauge(metric, inspector.Bytes, float64(v)*1024, ok)
	}
	scope, totalM, availM, ratioM := "", host.MemoryTotal, host.MemoryAvailable, host.MemoryUsedRatio
	if c.virtual("meminfo") {
		scope = "scope cgroup: /proc/meminfo shows the agent's container"
		totalM, availM, ratioM = host.CgroupMemoryTotal, host.CgroupMemoryAvailable, host.CgroupMemoryRatio
	} else if c.contained() {
		scope = "scope host: the agent runs in a container and /proc/meminfo shows the whole machine"
	}
	put(totalM, "MemTotal")
	put(availM, "MemAvailable") // absent before Linux 3.14: unknown, not guessed from MemFree
	available, ok := kib["MemAvailable"]
	c.gauge(ratioM, inspector.Ratio, 1-min(float64(available)/float64(total), 1), ok)
	put(host.MemoryFree, "MemFree")
	put(host.MemoryCached, "Cached")
	put(host.MemoryDirty, "Dirty")
	put(host.SwapTotal, "SwapTotal")
	put(host.SwapFree, "SwapFree")

	vm, err := c.read("vmstat")
	stat := map[string]uint64{}
	for k, v := range pairs(vm) {
		stat[k] = v
	}
	count := func(metric, key string, unit inspector.Unit, scale uint64) {
		v, ok := stat[key]
		c.count(metric, unit, word, v, ok, scale)
	}
	page := uint64(os.Getpagesize())
	count(host.SwapIn, "pswpin", inspector.Bytes, page)
	count(host.SwapOut, "pswpout", inspector.Bytes, page)
	count(host.MajorFaults, "pgmajfault", inspector.Count, 1)
	if err != nil {
		return "swap traffic and major faults are unknown: " + reasonOf(err), errDegraded
	}
	return scope, nil
}

// word is the kernel's unsigned long, in which /proc/vmstat counts. A 32-bit
// agent on a 64-bit kernel is not built.
var word = inspector.Counter{Narrow: strconv.IntSize == 32}

func (c *Collector) readPressure(_ context.Context, sp span) (string, error) {
	var missing []string
	var last error
	for _, what := range []string{"cpu", "memory", "io"} {
		text, err := c.read("pressure", what)
		if err != nil {
			missing, last = append(missing, what), err
		}
		for _, level := range []string{"some", "full"} {
			us, ok := parsePressure(text, level)
			if !ok && what == "cpu" && level == "full" {
				continue // not offered before Linux 5.13, and always 0 for the whole machine
			}
			st := c.count(host.PressureStalled, inspector.Nanoseconds, whole, us, ok, 1000, host.LabelWhat, what, host.LabelStalled, level)
			if what == "io" && level == "some" {
				c.gauge(host.PressureIO, inspector.Ratio, min(float64(st.delta)*1000/float64(max(sp.length, 1)), 1), st.known)
			}
		}
	}
	switch {
	case len(missing) == 3:
		return "", fmt.Errorf("pressure stall information is not available: %w", last)
	case len(missing) > 0:
		return "no pressure of " + strings.Join(missing, ", ") + ": " + last.Error(), errDegraded
	}
	return "", nil
}

// parsePressure reads the total in microseconds of a line such as
// "some avg10=0.00 avg60=0.00 avg300=0.00 total=12345".
func parsePressure(text, level string) (us uint64, ok bool) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != level {
			continue
		}
		for _, kv := range f[1:] {
			if s, found := strings.CutPrefix(kv, "total="); found {
				v, err := strconv.ParseUint(s, 10, 64)
				return v, err == nil
			}
		}
	}
	return 0, false
}
