package probe

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// alwaysShown are the signals with a series from the start, so that none of
// them reads as 0 and not as absent; others appear with their first exit.
var alwaysShown = []unix.Signal{unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGKILL, unix.SIGSEGV, unix.SIGTERM}

// reading is one window's increases with the source of each signal.
type reading struct {
	source map[string]inspector.Source
	bpf    sums
	proc   procIncreases
}

// series keeps the layout and says which value stands where in it.
type series struct {
	offered   map[string]bool
	histogram bool // the run queue's, which /proc does not have
	threads   bool // apart from processes, which /proc does not tell
	signals   [128]bool
	layout    *inspector.Layout
}

func newSeries(offered map[string]bool, histogram, threads bool) *series {
	s := &series{offered: offered, histogram: histogram, threads: threads}
	for _, sig := range alwaysShown {
		s.signals[sig] = true
	}
	return s
}

// values lays one window's increases out. The layout is the same pointer as
// before unless a signal was seen for the first time.
func (s *series) values(v *reading) (*inspector.Layout, []inspector.Value) {
	rebuild := s.layout == nil
	for n, count := range v.bpf.bySignal {
		if count > 0 && !s.signals[n] {
			s.signals[n] = true
			rebuild = true
		}
	}
	if rebuild {
		s.build()
	}
	values := make([]inspector.Value, len(s.layout.Series))
	for i, sr := range s.layout.Series {
		values[i] = v.value(sr)
	}
	return s.layout, values
}

func (s *series) build() {
	var list []inspector.Series
	add := func(signal, metric string, unit inspector.Unit, labels ...inspector.Label) {
		if s.offered[signal] {
			list = append(list, inspector.Series{Metric: metric, Kind: inspector.Delta, Unit: unit, Labels: labels})
		}
	}
	if s.histogram && s.offered[process.SignalRunQueue] {
		list = append(list, inspector.Series{Metric: process.RunqLatencyNS, Kind: inspector.Histogram, Unit: inspector.Nanoseconds})
	}
	add(process.SignalRunQueue, process.RunqWaitNS, inspector.Nanoseconds)
	add(process.SignalFork, process.Forks, inspector.Count)
	if s.threads {
		add(process.SignalFork, process.Threads, inspector.Count)
	}
	add(process.SignalExec, process.Execs, inspector.Count)
	add(process.SignalExit, process.Exits, inspector.Count)
	add(process.SignalExit, process.ExitsFailed, inspector.Count)
	for n, shown := range s.signals {
		if shown {
			add(process.SignalExit, process.ExitsBySignal, inspector.Count, inspector.Label{Key: process.LabelSignal, Value: signalName(n)})
		}
	}
	add(process.SignalOOMKill, process.OOMKills, inspector.Count)
	s.layout = inspector.NewLayout(process.Name, list)
}

// value picks one series' value, by where its signal comes from now.
func (v *reading) value(s inspector.Series) inspector.Value {
	known := func(signal string, n uint64) inspector.Value {
		if v.source[signal] != inspector.SourceBPF {
			return inspector.Value{}
		}
		return inspector.Value{OK: true, Delta: n}
	}
	either := func(signal string, n uint64, p increase) inspector.Value {
		if v.source[signal] == inspector.SourceProc && p.known {
			return inspector.Value{OK: true, Delta: p.n}
		}
		return known(signal, n)
	}
	switch s.Metric {
	case process.RunqLatencyNS:
		if v.source[process.SignalRunQueue] != inspector.SourceBPF {
			return inspector.Value{}
		}
		return inspector.Value{OK: true, Sum: v.bpf.waitSum, Hist: trim(v.bpf.wait[:])}
	case process.RunqWaitNS:
		return either(process.SignalRunQueue, v.bpf.waitSum, v.proc.waited)
	case process.Forks:
		return either(process.SignalFork, v.bpf.forks, v.proc.forks)
	case process.Threads:
		return known(process.SignalFork, v.bpf.threads)
	case process.Execs:
		return known(process.SignalExec, v.bpf.execs)
	case process.Exits:
		return known(process.SignalExit, v.bpf.exits)
	case process.ExitsFailed:
		return known(process.SignalExit, v.bpf.failed)
	case process.ExitsBySignal:
		return known(process.SignalExit, v.bpf.bySignal[signalNumber(s.Labels[0].Value)])
	case process.OOMKills:
		return either(process.SignalOOMKill, v.bpf.oomKills, v.proc.oomKills)
	}
	return inspector.Value{}
}

func trim(h []uint64) []uint64 {
	n := len(h)
	for n > 0 && h[n-1] == 0 {
		n--
	}
	return h[:n]
}

// signalName is SEGV for 11; a real-time signal is its number.
func signalName(n int) string {
	if name, ok := strings.CutPrefix(unix.SignalName(unix.Signal(n)), "SIG"); ok {
		return name
	}
	return strconv.Itoa(n)
}

// signalNumber reverses signalName; what is neither gives 0, which no exit
// has.
func signalNumber(name string) int {
	if n := unix.SignalNum("SIG" + name); n != 0 {
		return int(n)
	}
	n, err := strconv.Atoi(name)
	if err != nil || n < 0 || n >= 128 {
		return 0
	}
	return n
}
