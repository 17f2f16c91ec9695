package probe

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// increase is what a counter rose by in a window; known is false before the
// second reading, after a reset, and where the kernel has no such counter.
type increase struct {
	n     uint64
	known bool
}

// procIncreases is what /proc tells of a window.
type procIncreases struct {
	forks    increase // processes and threads
	waited   increase // ns
	oomKills increase
}

// procCounters is the source without privileges. It reads three small files.
type procCounters struct {
	dir                        string
	forks, oomKills            inspector.Counter
	waited                     map[string]*inspector.Counter // by CPU
	hasForks, hasWait, hasKill bool                          // whether the kernel has the counter, found at the start
}

func newProcCounters(dir string) *procCounters {
	p := &procCounters{dir: dir, waited: map[string]*inspector.Counter{}}
	p.forks.Narrow, p.oomKills.Narrow = narrowLongs, narrowLongs
	_, p.hasForks = parseField(p.read("stat"), "processes")
	_, p.hasKill = parseField(p.read("vmstat"), "oom_kill")
	p.hasWait = parseSchedstat(p.read("schedstat")) != nil
	return p
}

// narrowLongs says whether the kernel's unsigned long has 32 bits.
const narrowLongs = strconv.IntSize == 32

// offers says what /proc has of a signal, and if nothing, why.
func (p *procCounters) offers(signal string) (fallback, none string) {
	switch signal {
	case process.SignalFork:
		if p.hasForks {
			return "counted from /proc/stat, processes and threads together", ""
		}
	case process.SignalRunQueue:
		if p.hasWait {
			return "total waiting time from /proc/schedstat, no histogram", ""
		}
		return "", "the kernel has no /proc/schedstat to fall back on"
	case process.SignalOOMKill:
		if p.hasKill {
			return "counted from /proc/vmstat", ""
		}
	}
	return "", "/proc has no count of it"
}

func (p *procCounters) read(name string) []byte {
	b, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		return nil // absent: the counter is unknown, never 0
	}
	return b
}

// step reads the counters and returns the increases since the last step.
func (p *procCounters) step() procIncreases {
	var inc procIncreases
	if n, ok := parseField(p.read("stat"), "processes"); ok && p.hasForks {
		inc.forks.n, inc.forks.known = p.forks.Step(n)
	}
	if n, ok := parseField(p.read("vmstat"), "oom_kill"); ok && p.hasKill {
		inc.oomKills.n, inc.oomKills.known = p.oomKills.Step(n)
	}
	if p.hasWait {
		if n := parseSchedstat(p.read("schedstat")); n != nil {
			inc.waited = p.stepWaits(n)
		}
	}
	return inc
}

// parseField finds "name value" at the start of a line of /proc/stat or
// /proc/vmstat.
func parseField(b []byte, name string) (uint64, bool) {
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 2 && string(f[0]) == name {
			if n, err := strconv.ParseUint(string(f[1]), 10, 64); err == nil {
				return n, true
			}
			return 0, false
		}
	}
	return 0, false
}

// stepWaits adds up the increases of the CPUs. One that was taken offline
// leaves the file and comes back with its past, so each has its own counter;
// one that is new since the last reading has no increase yet.
func (p *procCounters) stepWaits(now map[string]uint64) increase {
	inc := increase{known: len(p.waited) > 0}
	for cpu, n := range now {
		c, before := p.waited[cpu]
		if !before {
			c = &inspector.Counter{}
			p.waited[cpu] = c
		}
		more, ok := c.Step(n)
		inc.known = inc.known && (ok || !before)
		inc.n += more
	}
	if !inc.known {
		return increase{}
	}
	return inc
}

// parseSchedstat reads the nanoseconds that tasks waited on each CPU: the
// eighth value of its lines (Documentation/scheduler/sched-stats.rst). One
// line that cannot be read makes all of it unknown: nil.
func parseSchedstat(b []byte) map[string]uint64 {
	var out map[string]uint64
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 0 || !bytes.HasPrefix(f[0], []byte("cpu")) {
			continue
		}
		if len(f) < 9 {
			return nil
		}
		n, err := strconv.ParseUint(string(f[8]), 10, 64)
		if err != nil {
			return nil
		}
		if out == nil {
			out = map[string]uint64{}
		}
		out[string(f[0])] = n
	}
	return out
}
