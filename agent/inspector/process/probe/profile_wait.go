package probe

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// waits are the times that a process's threads were able to run and had no
// CPU, by thread; nil: the kernel does not tell.
type waits map[string]time.Duration

// maxWaiting bounds the threads that are looked at.
const maxWaiting = 1024

// readWaits reads them: the file of a process is that of its first thread
// alone.
func readWaits(proc string, pid int) waits {
	if proc == "" {
		proc = "/proc"
	}
	dir, err := os.Open(filepath.Join(proc, strconv.Itoa(pid), "task"))
	if err != nil {
		return nil
	}
	defer dir.Close()
	threads, _ := dir.Readdirnames(maxWaiting)
	var out waits
	for _, tid := range threads {
		b, err := os.ReadFile(filepath.Join(dir.Name(), tid, "schedstat"))
		if err != nil {
			continue
		}
		f := bytes.Fields(b) // ns on a CPU, ns waiting for one, turns
		if len(f) != 3 {
			return nil
		}
		ns, err := strconv.ParseUint(string(f[1]), 10, 63)
		if err != nil {
			return nil
		}
		if out == nil {
			out = waits{}
		}
		out[tid] = time.Duration(ns)
	}
	return out
}

// since is the increase, of threads that began meanwhile too; what those
// waited that ended is not known. false: nothing is known.
func (w waits) since(before waits) (sum time.Duration, ok bool) {
	if w == nil || before == nil {
		return 0, false
	}
	for tid, now := range w {
		if d := now - before[tid]; d > 0 {
			sum += d
		}
	}
	return sum, true
}

// starved says whether a process would have run a good deal more than it did,
// and how many CPUs it was waiting for on average.
func (s *sampling) starved(samples uint64) (cpus float64, yes bool) {
	if !s.waitKnown {
		return 0, false
	}
	cpus = s.waited.Seconds() / s.to.Sub(s.from).Seconds()
	used := float64(samples) / (float64(s.hz) * s.to.Sub(s.from).Seconds())
	return cpus, cpus >= 0.1 && cpus >= used/4
}

// waitNote says what a process did when it was on no CPU.
func (s *sampling) waitNote(samples uint64) string {
	cpus, yes := s.starved(samples)
	switch {
	case yes:
		return fmt.Sprintf("It was runnable but waited %.1f s for a CPU (all its threads together, %.2f CPUs on average): it wants more than it gets.", s.waited.Seconds(), cpus)
	case s.waitKnown && float64(samples) < 0.3*float64(s.hz)*s.to.Sub(s.from).Seconds():
		return fmt.Sprintf("It waited %.2f s for a CPU: the rest of the time it had nothing to compute.", s.waited.Seconds())
	case s.waitKnown:
		return fmt.Sprintf("It waited %.2f s for a CPU.", s.waited.Seconds())
	}
	return ""
}
