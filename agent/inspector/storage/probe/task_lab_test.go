package probe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

// perform runs a task and does work while its programs run; the task is
// cancelled when work is done, and gives what it has.
func perform(t *testing.T, ts *tasks, kind string, raw map[string]any, work func()) *inspector.TaskResult {
	t.Helper()
	runs := map[string]inspector.TaskRun{storage.TraceSlowIO: ts.slowIO, storage.MonitorProcessIO: ts.processIO, storage.MonitorDeviceIO: ts.deviceIO}
	args := check(t, kind, raw)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type end struct {
		r   *inspector.TaskResult
		err error
	}
	ended, ready := make(chan end, 1), make(chan struct{}, 100)
	go func() {
		r, err := runs[kind](ctx, args, func(*inspector.TaskResult) { ready <- struct{}{} })
		ended <- end{r, err}
	}()
	select {
	case <-ready:
	case e := <-ended:
		t.Fatalf("the task ended before the work: %+v, %v", e.r, e.err)
	}
	work()
	cancel()
	e := <-ended
	if !errors.Is(e.err, context.Canceled) || e.r == nil {
		t.Fatalf("a cancelled task gives %+v, %v", e.r, e.err)
	}
	if len(e.r.Rows) > inspector.MaxResultRows || len(e.r.Samples) > inspector.MaxResultSamples || len(e.r.Next) > 3 || len(e.r.Notes) > 10 {
		t.Errorf("beyond a bound: %d rows, %d samples, %d steps, %d notes", len(e.r.Rows), len(e.r.Samples), len(e.r.Next), len(e.r.Notes))
	}
	return e.r
}

func check(t *testing.T, kind string, raw map[string]any) inspector.Args {
	t.Helper()
	var words inspector.Registry
	storage.Register(&words)
	k, ok := words.Task(kind)
	if !ok {
		t.Fatalf("no task %s", kind)
	}
	if raw[inspector.ArgDuration] == nil {
		raw[inspector.ArgDuration] = 60
	}
	args, err := k.Check(raw)
	if err != nil {
		t.Fatal(err)
	}
	return args
}

func newTasks(t *testing.T) *tasks {
	return &tasks{cfg: Config{Kernel: labKernel}.withRoots(), log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

// fill puts random data into the loop device's file and on the disk below,
// and out of the memory, so that reading it means reading that disk.
func (l *loop) fill(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(l.file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, l.blocks*block)
	_, _ = rand.Read(b)
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(l.dev.Fd()), unix.LOOP_SET_DIRECT_IO, 1); err != nil { // no reading ahead
		t.Fatal(err)
	}
}

// newGroup makes a cgroup of a version 1 controller.
func newGroup(t *testing.T, controller string) (dir, path string) {
	t.Helper()
	path = fmt.Sprintf("/telltale-test-%d-%s-%s", os.Getpid(), controller, strings.ToLower(t.Name()))
	dir = filepath.Join("/sys/fs/cgroup", controller, path)
	if _, err := os.Stat(filepath.Dir(dir)); err != nil {
		t.Skipf("this kernel's %s controller is not on cgroup version 1: %v", controller, err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		until(t, "the group is empty", func() bool { return os.Remove(dir) == nil })
	})
	return dir, path
}

// partition adds a partition to the loop device and returns its name.
func (l *loop) partition(t *testing.T, start, length int64) string {
	t.Helper()
	info, err := unix.IoctlLoopGetStatus64(int(l.dev.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	info.Flags |= unix.LO_FLAGS_PARTSCAN
	if err := unix.IoctlLoopSetStatus64(int(l.dev.Fd()), info); err != nil {
		t.Fatal(err)
	}
	// linux/blkpg.h
	const add, del = 1, 2
	part := struct {
		start, length int64
		number        int32
		names         [128]byte
	}{start: start, length: length, number: 1}
	request := func(op int32) error {
		arg := struct {
			op, flags, size int32
			data            unsafe.Pointer
		}{op, 0, int32(unsafe.Sizeof(part)), unsafe.Pointer(&part)}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, l.dev.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg))); errno != 0 {
			return errno
		}
		return nil
	}
	if err := request(add); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := request(del); err != nil {
			t.Error(err)
		}
	})
	until(t, "the partition appears", func() bool { _, err := os.Stat("/dev/" + l.name + "p1"); return err == nil })
	return l.name + "p1"
}

// throttled makes a group that reads bps bytes a second of the disk that
// holds file.
func throttled(t *testing.T, file string, bps int) (dir, path string) {
	t.Helper()
	dir, path = newGroup(t, "blkio")
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	if unix.Major(st.Dev) == 0 {
		t.Skip("the temporary folder is not on a block device of its own")
	}
	limit := fmt.Sprintf("%d:%d %d", unix.Major(st.Dev), unix.Minor(st.Dev), bps)
	err := os.WriteFile(filepath.Join(dir, "blkio.throttle.read_bps_device"), []byte(limit), 0)
	if errors.Is(err, unix.ENODEV) {
		t.Skipf("the temporary folder is on a partition, and the kernel throttles whole disks: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir, path
}

// in runs a command inside a cgroup and returns its pid after it has ended.
func in(t *testing.T, dir string, command ...string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, dir}, command...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return cmd.Process.Pid
}

func rowsWith(r *inspector.TaskResult, labels map[string]string) (out []inspector.ResultRow) {
rows:
	for _, row := range r.Rows {
		for k, v := range labels {
			if row.Labels[k] != v {
				continue rows
			}
		}
		out = append(out, row)
	}
	return out
}

func refusal(t *testing.T, err error) *inspector.Refusal {
	t.Helper()
	var r *inspector.Refusal
	if !errors.As(err, &r) || r.Msg == "" || r.Next == "" {
		t.Fatalf("%v is no refusal with its next step", err)
	}
	return r
}
