package probe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// perfEvents are one clock event on each CPU. The clock is software: many
// virtual machines have no hardware counters.
type perfEvents struct {
	fds  []int
	away int // CPUs that went offline meanwhile
}

// maxCPUs bounds what the kernel's list may name.
const maxCPUs = 8192

// openPerfEvents prepares the events, each to run prog hz times a second.
func openPerfEvents(sys string, prog *ebpf.Program, hz uint64) (_ *perfEvents, err error) {
	if sys == "" {
		sys = "/sys"
	}
	b, err := os.ReadFile(filepath.Join(sys, "devices/system/cpu/online"))
	if err != nil {
		return nil, fmt.Errorf("list the CPUs: %w", err)
	}
	cpus, err := parseCPUs(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, err
	}
	e := &perfEvents{}
	defer func() {
		if err != nil {
			_ = e.Close()
		}
	}()
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: unix.PERF_ATTR_SIZE_VER1,
		Sample: hz, Bits: unix.PerfBitDisabled | unix.PerfBitFreq,
	}
	for _, cpu := range cpus {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ENODEV) {
			e.away++
			continue
		}
		if err != nil {
			return e, fmt.Errorf("open a perf event on CPU %d: %w", cpu, err)
		}
		e.fds = append(e.fds, fd)
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, prog.FD()); err != nil {
			return e, fmt.Errorf("attach the program to CPU %d: %w", cpu, err)
		}
	}
	if len(e.fds) == 0 {
		return e, errors.New("no CPU is online")
	}
	return e, nil
}

func (e *perfEvents) cpus() int { return len(e.fds) + e.away }

func (e *perfEvents) enable() error {
	for _, fd := range e.fds {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the events. How many there were stays known.
func (e *perfEvents) Close() error {
	var errs []error
	for _, fd := range e.fds {
		errs = append(errs, unix.Close(fd))
	}
	e.away, e.fds = e.cpus(), nil
	return errors.Join(errs...)
}

var _ io.Closer = (*perfEvents)(nil)

// parseCPUs reads the kernel's form of a set: "0-3,8".
func parseCPUs(text string) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		b := a
		if err == nil && ranged {
			b, err = strconv.Atoi(to)
		}
		if err != nil || a < 0 || b < a || b >= maxCPUs {
			return nil, fmt.Errorf("the list of CPUs is malformed: %.40q", text)
		}
		for cpu := a; cpu <= b; cpu++ {
			out = append(out, cpu)
		}
	}
	return out, nil
}
