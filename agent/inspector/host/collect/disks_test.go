package collect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

// hang is a statfs that never answers for one mount point until it is let go,
// and counts how many callers wait inside at once.
type hang struct {
	point   string
	release chan struct{}
	inside  atomic.Int32
	highest atomic.Int32
	asked   atomic.Int32
}

func (h *hang) statfs(path string) (space, error) {
	if !strings.HasSuffix(path, h.point) {
		return fullDisk(path)
	}
	h.asked.Add(1)
	if n := h.inside.Add(1); n > h.highest.Load() {
		h.highest.Store(n)
	}
	defer h.inside.Add(-1)
	<-h.release
	return fullDisk(path)
}

func TestDeadMountHangsOnlyItself(t *testing.T) {
	h := &hang{point: "/mnt/fuse", release: make(chan struct{})}
	tr := newTree(t, "machine")
	cfg := Config{Proc: filepath.Join(tr.dir, "proc"), Root: tr.dir, DiskPatience: 20 * time.Millisecond, Mounts: newMounts(h.statfs)}
	c := newCollector(cfg, quiet(), synced)
	var last float64
	for round := range 5 {
		if round == 3 { // the kill switch went off and on again
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			c = newCollector(cfg, quiet(), synced)
		}
		w := next(t, c)
		wantUnknown(t, w, host.DiskUsed, "fuse.sshfs", "/mnt/fuse", "34")
		wantGauge(t, w, 1, host.DisksStuck)
		for _, other := range [][]string{{"ext4", "/", "27"}, {"xfs", "/data", "31"}, {"nfs4", "/mnt/team share", "33"}} {
			wantGauge(t, w, 25<<30, host.DiskUsed, other...)
		}
		stuck := value(t, w, host.DiskStuck, "fuse.sshfs", "/mnt/fuse", "34")
		if !stuck.OK || stuck.Gauge <= last {
			t.Errorf("round %d: stuck for %+v, want more than %v", round, stuck, last)
		}
		last = stuck.Gauge
		k := capability(c, host.Disks)
		if k.Level != inspector.Degraded || !strings.Contains(k.Reason, "/mnt/fuse (fuse.sshfs) stuck since 20") {
			t.Errorf("%+v does not name the mount and since when", k)
		}
	}
	if h.highest.Load() != 1 || h.asked.Load() != 1 {
		t.Errorf("the dead mount was asked %d times, %d at once; want once", h.asked.Load(), h.highest.Load())
	}
	close(h.release)
	landed(t, c.cfg.Mounts)
	next(t, c) // takes the late answer
	w := next(t, c)
	if !value(t, w, host.DiskUsed, "fuse.sshfs", "/mnt/fuse", "34").OK {
		t.Error("the mount answers again and has no numbers")
	}
	wantGauge(t, w, 0, host.DiskStuck, "fuse.sshfs", "/mnt/fuse", "34")
	if k := capability(c, host.Disks); k.Level != inspector.Full {
		t.Errorf("%+v after the mount came back", k)
	}
}

func TestMountsThatComeAndGoDeadStayBounded(t *testing.T) {
	release := make(chan struct{})
	d := newMounts(func(string) (space, error) {
		<-release
		return space{}, nil
	})
	for id := range uint64(1000) {
		d.ask(context.Background(), "", []mount{{id: id, point: "/x"}}, time.Microsecond)
	}
	if len(d.flying) > maxFlying {
		t.Errorf("%d goroutines hang, at most %d may", len(d.flying), maxFlying)
	}
	close(release)
	landed(t, d)
}

// landed waits until every question in flight has its answer, and leaves the
// answers where they are.
func landed(t *testing.T, m *Mounts) {
	t.Helper()
	for _, p := range m.flying {
		select {
		case a := <-p.done:
			p.done <- a
		case <-time.After(10 * time.Second):
			t.Fatalf("the question to %s did not come back", p.point)
		}
	}
}

func TestMountErrorsAreNamed(t *testing.T) {
	tr := newTree(t, "machine")
	c := tr.collector(func(path string) (space, error) {
		if strings.HasSuffix(path, "/data") {
			return space{}, unix.EIO
		}
		return fullDisk(path)
	})
	w := next(t, c)
	wantUnknown(t, w, host.DiskUsed, "xfs", "/data", "31")
	wantGauge(t, w, 0, host.DisksStuck)
	if k := capability(c, host.Disks); !strings.Contains(k.Reason, "/data: input/output error") {
		t.Errorf("%+v does not name the error", k)
	}
}

func TestParseMounts(t *testing.T) {
	b, err := os.ReadFile("testdata/machine/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	all, bad := parseMounts(string(b))
	if bad != 1 {
		t.Errorf("%d lines were not understood, want 1", bad)
	}
	got, left := disksOf(all)
	var points []string
	for _, m := range got {
		points = append(points, fmt.Sprint(m.id, " ", m.point))
	}
	if d := cmp.Diff([]string{"27 /", "31 /data", "34 /mnt/fuse", "33 /mnt/team share"}, points); d != "" || left != 0 {
		t.Error(d, left)
	}
	over := append(all, mount{id: 99, device: "0:99", point: "/data", fstype: "ext4", source: "/dev/late"})
	got, _ = disksOf(over)
	for _, m := range got {
		if m.point == "/data" && m.id != 99 {
			t.Error("a mount that another one hides was chosen")
		}
	}
	var many []mount
	for i := range uint64(200) {
		many = append(many, mount{id: i, device: fmt.Sprint("9:", i), point: fmt.Sprintf("/m/%03d", i), fstype: "ext4"})
	}
	if got, left := disksOf(many); len(got) != maxMounts || left != 200-maxMounts {
		t.Errorf("%d chosen and %d left of 200", len(got), left)
	}
}

// TestDeadFUSE mounts a FUSE filesystem whose server never answers, in a
// mount namespace of its own, and reads the machine past it.
func TestDeadFUSE(t *testing.T) {
	const child = "TELLTALE_TEST_FUSE_CHILD"
	if os.Getenv(child) != "" {
		deadFUSE(t)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("a mount needs root")
	}
	if _, err := os.Stat("/dev/fuse"); errors.Is(err, os.ErrNotExist) {
		t.Skip("the kernel has no /dev/fuse")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDeadFUSE$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), notPermitted) {
		t.Skip("mounting FUSE is not permitted here")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

const notPermitted = "FUSE-NOT-PERMITTED"

func deadFUSE(t *testing.T) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		fmt.Println(notPermitted, err)
		return
	}
	dir := t.TempDir()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		fmt.Println(notPermitted, err)
		return
	}
	err = unix.Mount("dead", dir, "fuse.dead", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev))
	if err != nil {
		fmt.Println(notPermitted, err)
		return
	}
	c := New(Config{DiskPatience: 50 * time.Millisecond}, quiet())
	for range 3 {
		began := time.Now()
		w := next(t, c)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("one look took %v beside a dead mount", took)
		}
		wantGauge(t, w, 1, host.DisksStuck)
		if len(c.cfg.Mounts.flying) != 1 {
			t.Errorf("%d questions in flight, want the one to the dead mount", len(c.cfg.Mounts.flying))
		}
		if v := value(t, w, host.MemoryTotal); !v.OK {
			t.Error("the dead mount took the memory's numbers with it")
		}
		if v := value(t, w, host.DiskFullest); !v.OK {
			t.Error("the dead mount took the other disks' numbers with it")
		}
	}
	if k := capability(c, host.Disks); !strings.Contains(k.Reason, "(fuse.dead) stuck since") {
		t.Errorf("%+v does not name the dead mount", k)
	}
	// The end of the server's side lets the question go.
	if err := unix.Close(dev); err != nil {
		t.Fatal(err)
	}
	landed(t, c.cfg.Mounts)
	w := next(t, c)
	wantGauge(t, w, 0, host.DisksStuck)
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
}
