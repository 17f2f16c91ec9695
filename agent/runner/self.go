package runner

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Self is what the agent itself costs and how its collectors fared.
type Self struct {
	CPU      time.Duration // user and system time since the process began
	RSS      uint64        // resident bytes now
	Panics   uint64        // collector calls that panicked
	Failures uint64        // collector calls that failed, panics among them
	Overruns uint64        // ticks that found a collector's former call in flight
	Stuck    int           // collectors past their deadline now
}

// Self measures the process and adds up the modules' counters.
func (r *Runner) Self() (Self, error) {
	s := Self{Stuck: len(r.Stuck())}
	for _, m := range r.modules {
		m.mu.Lock()
		s.Panics += m.panics
		s.Failures += m.failures
		s.Overruns += m.overruns
		m.mu.Unlock()
	}
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return s, fmt.Errorf("own processor time: %w", err)
	}
	s.CPU = time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return s, fmt.Errorf("own memory: %w", err)
	}
	words := strings.Fields(string(b))
	if len(words) < 2 {
		return s, fmt.Errorf("own memory: statm holds %q", b)
	}
	pages, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return s, fmt.Errorf("own memory: %w", err)
	}
	s.RSS = pages * uint64(os.Getpagesize())
	return s, nil
}
