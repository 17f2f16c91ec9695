package collect

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

func (c *Collector) readAgent(context.Context, span) (string, error) {
	var ru unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &ru); err != nil {
		return "", err
	}
	used := uint64(ru.Utime.Nano() + ru.Stime.Nano())
	c.count(host.AgentCPU, inspector.Nanoseconds, whole, used, true, 1)
	c.gauge(host.AgentRoutines, inspector.Count, float64(runtime.NumGoroutine()), true)

	pages, ok := uint64(0), false
	if text, err := readFile("/proc/self/statm"); err == nil {
		if f := strings.Fields(text); len(f) > 1 {
			v, err := strconv.ParseUint(f[1], 10, 64)
			pages, ok = v, err == nil
		}
	}
	c.gauge(host.AgentRSS, inspector.Bytes, float64(pages)*float64(os.Getpagesize()), ok)
	files, err := openFiles()
	c.gauge(host.AgentOpenFiles, inspector.Count, float64(files), err == nil)
	if !ok || err != nil {
		return "/proc/self cannot be read", errDegraded
	}
	return "", nil
}

// openFiles counts the agent's descriptors, without the one it counts with.
func openFiles() (int, error) {
	names, err := os.ReadDir(filepath.Join("/proc", "self", "fd"))
	return max(len(names)-1, 0), err
}
