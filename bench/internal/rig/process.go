package rig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of processor time in /proc, USER_HZ, the same on all
// architectures that Go runs on.
const tick = 10 * time.Millisecond

// stat is what /proc/PID/stat says of a process.
type stat struct {
	pid, parent   int
	name          string
	own, children time.Duration // children: those that have ended and were waited for
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[end+1:])) // from the state on, proc(5)
	if open < 0 || len(f) < 15 {
		return stat{}, fmt.Errorf("/proc/%d/stat holds %q", pid, b)
	}
	s := stat{pid: pid, name: string(b[open+1 : end])}
	var n [4]int64
	var errs error
	for i := range n {
		var e error
		n[i], e = strconv.ParseInt(f[11+i], 10, 64)
		errs = errors.Join(errs, e)
	}
	s.parent, err = strconv.Atoi(f[1])
	s.own, s.children = time.Duration(n[0]+n[1])*tick, time.Duration(n[2]+n[3])*tick
	return s, errors.Join(errs, err)
}

// CPU is the processor time a process has used, without its children.
func CPU(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.own, err
}

// OwnCPU is the processor time this process has used.
func OwnCPU() time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// Usage is processor time since the start of a stack.
type Usage struct {
	Server   time.Duration // the telltaled process
	Database time.Duration // the postmaster and all its processes, ended ones too
	Agents   time.Duration // the agents that the stack started, simulated ones too
	Own      time.Duration // this process
	Machine  time.Duration // the whole machine, what was idle left out
}

// Sub is the time used since an earlier reading.
func (u Usage) Sub(o Usage) Usage {
	return Usage{u.Server - o.Server, u.Database - o.Database, u.Agents - o.Agents, u.Own - o.Own, u.Machine - o.Machine}
}

// Others is what the machine used and none of the above: other processes, the
// kernel's own work, and what its host took away. The kernel counts in ticks,
// so that a few of them may be missing.
func (u Usage) Others() time.Duration {
	return max(0, u.Machine-u.Server-u.Database-u.Agents-u.Own)
}

// Usage reads what everybody has used.
func (s *Stack) Usage() (Usage, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return Usage{}, err
	}
	all := map[int]stat{}
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil { // or it has just ended
			all[pid] = st
		}
	}
	u := Usage{Server: all[s.PID].own, Own: OwnCPU()}
	for _, pid := range s.AgentPIDs {
		u.Agents += all[pid].own + all[pid].children
	}
	for _, st := range all {
		if st.name != "postgres" {
			continue
		}
		switch {
		case st.parent == s.PID:
			u.Database += st.own + st.children
		case all[st.parent].parent == s.PID && all[st.parent].name == "postgres":
			u.Database += st.own
		}
	}
	if u.Server == 0 || u.Database == 0 {
		return u, errors.New("the processor time of server and database is not to be found in /proc")
	}
	u.Machine, err = MachineCPU()
	return u, err
}

// Memory is a process's memory in bytes.
type Memory struct {
	RSS, Anon, Peak uint64 // resident now; of it not backed by files; highest so far
}

// ReadMemory reads /proc/PID/status.
func ReadMemory(pid int) (Memory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	var m Memory
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseUint(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			m.RSS = kib << 10
		case "RssAnon:":
			m.Anon = kib << 10
		case "VmHWM:":
			m.Peak = kib << 10
		}
	}
	if m.RSS == 0 {
		return m, fmt.Errorf("/proc/%d/status names no resident memory", pid)
	}
	return m, nil
}

// MachineCPU is the processor time of the whole machine that was not idle.
func MachineCPU() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy int64
	for i, w := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // name, idle, iowait; guest time is within user time
			continue
		}
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		busy += n
	}
	return time.Duration(busy) * tick, nil
}

// Load is the machine's load average as the kernel prints it.
func Load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	f := strings.Fields(string(b))
	return strings.Join(f[:min(3, len(f))], " ")
}
