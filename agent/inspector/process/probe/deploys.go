package probe

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// settled is how long a program must have run to be worth telling: a window.
const settled = 10 * time.Second

// maxLooked bounds the processes looked at in one second.
const maxLooked = 256

// deploys finds programs that were not seen on the node before, among the
// processes that were started lately and live on. It belongs to the
// watcher's counting goroutine.
type deploys struct {
	proc    string
	fresh   *ebpf.Map
	settled time.Duration
	known   *executables
	file    string         // "" keeps what is known in memory only
	young   map[int]uint64 // processes of the first look that had not run long enough: start by pid
	log     *slog.Logger
}

func newDeploys(cfg Config, fresh *ebpf.Map, settled time.Duration, log *slog.Logger) *deploys {
	d := &deploys{proc: cfg.Proc, fresh: fresh, settled: settled, known: newExecutables(maxExecutables), young: map[int]uint64{}, log: log}
	if d.proc == "" {
		d.proc = "/proc"
	}
	if cfg.StateDir != "" {
		d.file = filepath.Join(cfg.StateDir, "executables.json")
	}
	return d
}

// begin takes in what runs already. Without a file of what was known before
// nothing of it is told; with one, what was started while nobody looked is.
func (d *deploys) begin(ctx context.Context, emit func(inspector.Occurrence)) {
	before := d.load()
	entries, err := os.ReadDir(d.proc)
	if err != nil {
		d.log.Warn("running programs are not listed", "error", err)
		return
	}
	tell := emit
	if !before {
		tell = func(inspector.Occurrence) {}
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || ctx.Err() != nil {
			continue
		}
		start, ok := startOf(d.proc, pid)
		if !ok {
			continue
		}
		if before && time.Since(sinceBoot(start*tick)) < d.settled {
			d.young[pid] = start
			continue
		}
		d.judge(pid, start, tell)
	}
	d.save()
}

// look judges the processes that have run long enough by now.
func (d *deploys) look(now time.Time, emit func(inspector.Occurrence)) {
	var boot unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return
	}
	type due struct {
		key uint32
		p   eventsFreshProcess
	}
	var ready []due
	var key uint32
	var p eventsFreshProcess
	for it := d.fresh.Iterate(); it.Next(&key, &p) && len(ready) < maxLooked; {
		if p.Since+uint64(d.settled) <= uint64(boot.Nano()) {
			ready = append(ready, due{key, p})
		}
	}
	for _, r := range ready {
		_ = d.fresh.Delete(r.key) // a later exec puts it in again
		d.judge(int(r.p.Pid), r.p.Start/tick, emit)
	}
	for pid, start := range d.young {
		if start*tick+uint64(d.settled) <= uint64(boot.Nano()) {
			delete(d.young, pid)
			d.judge(pid, start, emit)
		}
	}
	if len(ready) > 0 {
		d.save()
	}
}

// judge looks at one process and tells when its program is new. start, in
// ticks, says that the number is still the same process's.
func (d *deploys) judge(pid int, start uint64, emit func(inspector.Occurrence)) {
	exe, ok := executableOf(d.proc, pid)
	if !ok {
		return // it has ended, or is the kernel's own
	}
	if now, ok := startOf(d.proc, pid); !ok || now != start {
		return
	}
	change, old := d.known.see(exe)
	if change == "" {
		return
	}
	label, _ := inspector.CleanLabel(exe.Path)
	s := &inspector.EventSample{At: time.Now(), Labels: map[string]string{
		process.LabelExe: label, process.LabelChange: change, "pid": strconv.Itoa(pid),
		process.LabelComm: commOf(d.proc, pid), "modified": exe.modified(),
		"inode": strconv.FormatUint(exe.Inode, 10),
	}, Values: map[string]float64{"size_bytes": float64(exe.Size)}}
	if old != nil {
		s.Labels["old_modified"], s.Labels["old_inode"] = old.modified(), strconv.FormatUint(old.Inode, 10)
		s.Values["old_size_bytes"] = float64(old.Size)
	}
	emit(inspector.Occurrence{Kind: process.NewExecutable, At: s.At, Sample: s, Labels: map[string]string{process.LabelExe: label, process.LabelChange: change}})
}

// executableOf identifies the file that a process runs. It asks no server for
// fresh attributes of a file on a network.
func executableOf(proc string, pid int) (executable, bool) {
	at := filepath.Join(proc, strconv.Itoa(pid), "exe")
	path, err := os.Readlink(at)
	if err != nil {
		return executable{}, false
	}
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, at, unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_MTIME|unix.STATX_SIZE, &st); err != nil {
		return executable{}, false
	}
	return executable{Path: strings.TrimSuffix(path, " (deleted)"), Inode: st.Ino, Modified: st.Mtime.Sec*int64(time.Second) + int64(st.Mtime.Nsec), Size: st.Size}, true
}

// startOf is when a process began, in ticks since boot.
func startOf(proc string, pid int) (uint64, bool) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false
	}
	_, rest, ok := cutLast(string(b), ")")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(f[19], 10, 64)
	return n, err == nil
}

func commOf(proc string, pid int) string {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return text([]byte(strings.TrimSuffix(string(b), "\n")))
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
