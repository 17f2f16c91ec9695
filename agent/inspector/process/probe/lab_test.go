package probe

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// cgroup makes a group of its own, in whichever hierarchy has the controller.
func cgroup(t *testing.T, controller string) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	parent := filepath.Join(root, controller)
	if _, err := os.Stat(filepath.Join(parent, "cgroup.procs")); err != nil {
		parent = root
		if err := write(filepath.Join(root, "cgroup.subtree_control"), "+"+controller); err != nil {
			t.Fatalf("no %s controller in %s: %v", controller, root, err)
		}
	}
	dir, err := os.MkdirTemp(parent, "telltale-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeGroup(t, dir) })
	return dir
}

// removeGroup waits for the last member to be reaped.
func removeGroup(t *testing.T, dir string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for err := os.Remove(dir); err != nil; err = os.Remove(dir) {
		if time.Now().After(deadline) {
			t.Errorf("the test's group stays: %v", err)
			return
		}
		pause()
	}
}

// inRoot lets a command run below another root, as a container does.
func inRoot(cmd *exec.Cmd, root string) {
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
}

// endsWithTest has the kernel end a program that would go on for ever when the
// test is killed.
func endsWithTest(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// asNobody lets a command run as another user.
func asNobody(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

func itoa(n int) string { return strconv.Itoa(n) }

func join(t *testing.T, group string, pid int) {
	t.Helper()
	if err := write(filepath.Join(group, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		t.Fatal(err)
	}
}

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// oomKills is the group's own count, of memory.oom_control (v1) or
// memory.events (v2).
func oomKills(t *testing.T, group string) uint64 {
	t.Helper()
	for _, name := range []string{"memory.oom_control", "memory.events"} {
		b, err := os.ReadFile(filepath.Join(group, name))
		if err != nil {
			continue
		}
		if n, ok := parseField(b, "oom_kill"); ok {
			return n
		}
	}
	t.Fatal("the group has no count of OOM kills")
	return 0
}

func untilAsleep(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if i := bytes.LastIndexByte(b, ')'); bytes.HasPrefix(b[i:], []byte(") S")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d does not go to sleep: %s", pid, b)
		}
		pause()
	}
}

// pause gives way for the length of one poll of a bounded wait.
func pause() { <-time.After(5 * time.Millisecond) }

func logOf(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); pause() {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come", what)
		}
	}
}
