package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// disk is a block device as a task names it: a whole disk, or a partition of
// one. Numbers are the kernel's: major << 20 | minor.
type disk struct {
	name string
	dev  uint32 // of the whole disk
	part uint32 // 0: the whole disk
	dir  string // in sysfs
}

// findDisk looks a device up in sysfs; an unknown one is a *Refusal.
func findDisk(sys, name string) (disk, error) {
	name = strings.ReplaceAll(strings.TrimPrefix(name, "/dev/"), "/", "!")
	dir, err := filepath.EvalSymlinks(filepath.Join(sys, "class/block", name))
	if err != nil || name == "." || name == ".." {
		return disk{}, unknownDisk(sys, name)
	}
	d := disk{name: name, dir: dir}
	if d.dev, err = deviceNumber(dir); err != nil {
		return disk{}, unknownDisk(sys, name)
	}
	if _, err := os.Stat(filepath.Join(dir, "partition")); err != nil {
		return d, nil
	}
	d.part = d.dev
	if d.dev, err = deviceNumber(filepath.Dir(dir)); err != nil {
		return disk{}, unknownDisk(sys, name)
	}
	return d, nil
}

func deviceNumber(dir string) (uint32, error) {
	b, err := os.ReadFile(filepath.Join(dir, "dev"))
	if err != nil {
		return 0, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(string(b), "%d:%d", &major, &minor); err != nil {
		return 0, err
	}
	return major<<20 | minor, nil
}

// knownDisks is how many devices a refusal names.
const knownDisks = 8

func unknownDisk(sys, name string) error {
	shown, _ := inspector.CleanLabel(name)
	known, _ := disksPresent(sys)
	next := "no device with a request queue is there"
	if len(known) > 0 {
		more := ""
		if len(known) > knownDisks {
			more = fmt.Sprintf(" and %d more", len(known)-knownDisks)
		}
		next = "use one of " + strings.Join(known[:min(len(known), knownDisks)], ", ") + more
	}
	return &inspector.Refusal{Kind: "NOT_FOUND", Reason: inspector.ReasonUnknownDevice, Arg: storage.ArgDevice,
		Msg: "the node has no block device " + shown, Next: next}
}

// requestless refuses a device that passes I/O on without making requests.
func (d disk) requestless() error {
	dir := d.dir
	if d.part != 0 {
		dir = filepath.Dir(dir)
	}
	if _, err := os.Stat(filepath.Join(dir, "mq")); err == nil {
		return nil
	}
	next := "look at the device that carries its data"
	if below, err := os.ReadDir(filepath.Join(dir, "slaves")); err == nil && len(below) > 0 {
		var names []string
		for _, e := range below {
			names = append(names, e.Name())
		}
		next = "look at the devices below it: " + strings.Join(names[:min(len(names), knownDisks)], ", ")
	}
	return &inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: inspector.ReasonFeatureOff, Arg: storage.ArgDevice,
		Msg: d.name + " has no request queue of its own: it passes I/O on to other devices or to memory", Next: next}
}

// process is a process by its identity: pid and start time.
type process struct {
	pid  uint32
	comm string
	born uint64 // start in clock ticks since boot, as /proc has it
}

// findProcess reads a process's identity; one that is gone is a *Refusal.
func findProcess(proc string, pid int64) (process, error) {
	p := process{pid: uint32(pid)}
	dir := filepath.Join(proc, strconv.FormatInt(pid, 10))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return p, gone(pid, err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if tgid := strings.TrimSpace(rest); tgid != strconv.FormatInt(pid, 10) {
				return p, &inspector.Refusal{Kind: "INVALID_ARGUMENT", Reason: inspector.ReasonInvalidArgument, Arg: storage.ArgPid,
					Msg: fmt.Sprintf("%d is a thread of the process %s", pid, tgid), Next: "give pid " + tgid}
			}
		}
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return p, gone(pid, err)
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return p, fmt.Errorf("%s/stat is malformed", dir)
	}
	p.comm, _ = inspector.CleanLabel(string(stat[open+1 : end]))
	f := bytes.Fields(stat[end+1:])
	if len(f) < 20 {
		return p, fmt.Errorf("%s/stat has too few fields", dir)
	}
	if slices.Contains([]string{"Z", "X"}, string(f[0])) {
		return p, gone(pid, fs.ErrNotExist)
	}
	p.born, err = strconv.ParseUint(string(f[19]), 10, 64)
	return p, err
}

func gone(pid int64, err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !strings.Contains(err.Error(), "no such process") {
		return fmt.Errorf("read the process %d: %w", pid, err)
	}
	return &inspector.Refusal{Kind: "NOT_FOUND", Reason: inspector.ReasonPidGone, Arg: storage.ArgPid,
		Msg: fmt.Sprintf("no process %d runs on the node", pid), Next: "take a pid from trace_slow_io, monitor_device_io or profile_on_cpu {\"cgroup\":\"/\"}"}
}

// alive says whether the same process still runs.
func (p process) alive(proc string) bool {
	now, err := findProcess(proc, int64(p.pid))
	return err == nil && now.born == p.born
}

// firstPidNamespace is the inode of the kernel's first PID namespace
// (PROC_PID_INIT_INO).
const firstPidNamespace = 0xEFFFFFFC

// pidNamespace is the inode of the namespace whose numbers procfs shows, 0
// for the first one.
func pidNamespace(proc string) uint32 {
	for _, who := range []string{"1", "self"} { // the first process of it is certainly in it
		link, err := os.Readlink(filepath.Join(proc, who, "ns/pid"))
		if err != nil {
			continue
		}
		var n uint32
		if _, err := fmt.Sscanf(link, "pid:[%d]", &n); err == nil && n != firstPidNamespace {
			return n
		}
		return 0
	}
	return 0
}
