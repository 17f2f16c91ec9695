package e2e_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// needProbe skips where the kernel lets nobody look.
func needProbe(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: no fault can be injected and the kernel refuses BPF programs")
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Skip("this kernel has no BTF: " + err.Error())
	}
}

// poll asks until ok or the deadline.
func poll(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("no %s within %s", what, limit)
		case <-tick.C:
		}
	}
}

// netns is a network namespace of the test's own; it goes with its thread.
type netns struct {
	t    *testing.T
	tid  int
	work chan func()
}

func newNetns(t *testing.T) *netns {
	t.Helper()
	n := &netns{t: t, work: make(chan func())}
	ready, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		n.tid = unix.Gettid()
		ready <- err
		for f := range n.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() { close(n.work); <-done })
	return n
}

// do runs f on the namespace's thread: sockets that it makes live there.
func (n *netns) do(f func() error) {
	n.t.Helper()
	done := make(chan error, 1)
	n.work <- func() { done <- f() }
	if err := <-done; err != nil {
		n.t.Fatal(err)
	}
}

func (n *netns) run(name string, args ...string) {
	n.t.Helper()
	n.do(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// lossyPort is where the lossy connection ends; the addresses are 10.88.0.1
// and 10.88.0.2.
const lossyPort = 47_391

// lossyLink keeps one TCP connection busy over a veth pair on which every
// fiftieth packet is dropped, until the test ends.
func lossyLink(t *testing.T) {
	t.Helper()
	a, b := newNetns(t), newNetns(t)
	a.run("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", fmt.Sprint(b.tid))
	for i, n := range []*netns{a, b} {
		dev := []string{"va", "vb"}[i]
		n.run("ip", "addr", "add", fmt.Sprintf("10.88.0.%d/24", i+1), "dev", dev)
		n.run("ip", "link", "set", dev, "up")
	}
	b.run("nft", fmt.Sprintf("add table inet lab; add chain inet lab in { type filter hook input priority 0; }; "+
		"add rule inet lab in tcp dport %d tcp flags & (syn|fin) == 0 numgen inc mod 50 0 drop", lossyPort))
	var l net.Listener
	var from net.Conn
	b.do(func() (err error) { l, err = net.Listen("tcp4", fmt.Sprintf("10.88.0.2:%d", lossyPort)); return err })
	a.do(func() (err error) {
		from, err = net.DialTimeout("tcp4", fmt.Sprintf("10.88.0.2:%d", lossyPort), 5*time.Second)
		return err
	})
	to, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	sent, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		_, _ = bufio.NewReader(to).WriteTo(discard{})
	}()
	go func() {
		defer close(sent)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for b := make([]byte, 256<<10); ; <-tick.C {
			if _, err := from.Write(b); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		from.Close()
		to.Close()
		l.Close()
		<-sent
		<-read
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// disk is a loop device over a file. Nobody else has a device of its name
// while the test has it.
type disk struct {
	t    *testing.T
	name string
	dev  *os.File
	file string
	dir  string // of the control group whose members are throttled; "" none
}

// brokenDisk is a small device of which nothing can be read.
func brokenDisk(t *testing.T) *disk {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	d := &disk{t: t, file: file.Name()}
	d.attach(file)
	d.lose(0)
	return d
}

// lose takes away what lies beyond an offset: reading there is an I/O error.
func (d *disk) lose(from int64) {
	d.t.Helper()
	if err := os.Truncate(d.file, from); err != nil {
		d.t.Fatal(err)
	}
}

// fail reads one block that is lost, once.
func (d *disk) fail(t *testing.T, at int64) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE) // O_DIRECT wants it aligned
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	if _, err := d.dev.ReadAt(b, at); !errors.Is(err, unix.EIO) {
		t.Fatalf("reading what %s has lost: %v", d.name, err)
	}
}

// throttledDisk is a disk that gives the members of one control group 512 KiB
// a second.
func throttledDisk(t *testing.T) *disk {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	content := make([]byte, 12<<20)
	_, _ = rand.Read(content)
	if _, err := file.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	d := &disk{t: t, file: file.Name()}
	d.throttle(file)
	d.attach(file)
	return d
}

func (d *disk) throttle(file *os.File) {
	t := d.t
	t.Helper()
	d.dir = fmt.Sprintf("/sys/fs/cgroup/blkio/telltale-e2e-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(file.Name())))
	if _, err := os.Stat(filepath.Dir(d.dir)); err != nil {
		t.Skipf("this kernel's blkio controller is not on cgroup version 1: %v", err)
	}
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { poll(t, 10*time.Second, "empty group", func() bool { return os.Remove(d.dir) == nil }) })
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if unix.Major(st.Dev) == 0 {
		t.Skip("the temporary folder is not on a block device of its own")
	}
	limit := fmt.Sprintf("%d:%d %d", unix.Major(st.Dev), unix.Minor(st.Dev), 512<<10)
	err := os.WriteFile(filepath.Join(d.dir, "blkio.throttle.read_bps_device"), []byte(limit), 0)
	if errors.Is(err, unix.ENODEV) {
		t.Skipf("the temporary folder is on a partition, and the kernel throttles whole disks: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (d *disk) attach(file *os.File) {
	t := d.t
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	for range 20 { // another process may be faster to the free device
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		d.name = fmt.Sprintf("loop%d", n)
		if d.dev, err = os.OpenFile("/dev/"+d.name, os.O_RDWR|unix.O_DIRECT, 0); err != nil {
			t.Fatal(err)
		}
		err = unix.IoctlLoopConfigure(int(d.dev.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd())})
		if errors.Is(err, unix.EBUSY) {
			d.dev.Close()
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.IoctlSetInt(int(d.dev.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
				t.Errorf("detach %s: %v", d.name, err)
			}
			d.dev.Close()
		})
		if err := unix.IoctlSetInt(int(d.dev.Fd()), unix.LOOP_SET_DIRECT_IO, 1); err != nil { // no reading ahead
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no free loop device")
}

// reader is a copy of dd, so that its name is its own; it reads the whole
// device in the throttled group, half a MiB a second in one request each.
func (d *disk) reader(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	path := copied(t, "dd", name)
	cmd := exec.Command("/bin/sh", "-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, d.dir, path, "if=/dev/"+d.name, "of=/dev/null", "iflag=direct", "bs=512k")
	start(t, cmd)
	return cmd
}

// copied copies a program of the system under another name.
func copied(t *testing.T, program, name string) string {
	t.Helper()
	from, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a command that ends with the test at the latest.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// spinner builds a program that spends three quarters of its time in hot and
// one in cool, and runs it.
func spinner(t *testing.T, name string, build ...string) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, build[0], append([]string{build[1], "-o", path}, build[2:]...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	cmd := exec.Command(path)
	start(t, cmd)
	return cmd.Process.Pid
}
