package probe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

const block = 4096

// loop is a loop device over a file of its own.
type loop struct {
	name   string
	file   string
	blocks int
	dev    *os.File // O_DIRECT
}

func newLoop(t testing.TB, size int64) *loop {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	before, err := filepath.Glob("/sys/block/loop*")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // another process may be faster to the free device
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatal(err)
		}
		l := &loop{name: fmt.Sprintf("loop%d", n), file: file.Name(), blocks: int(size / block)}
		l.dev, err = os.OpenFile("/dev/"+l.name, os.O_RDWR|unix.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.IoctlLoopConfigure(int(l.dev.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd())})
		if err == nil {
			t.Cleanup(func() {
				if err := unix.IoctlSetInt(int(l.dev.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
					t.Errorf("detach %s: %v", l.name, err)
				}
				l.dev.Close()
				if !slices.Contains(before, "/sys/block/"+l.name) {
					l.remove(n)
				}
			})
			return l
		}
		l.dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			t.Fatal(err)
		}
	}
	t.Fatal("no free loop device")
	return nil
}

// remove takes away a device that the test made, unless someone uses it now.
func (l *loop) remove(n int) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer control.Close()
	_ = unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, n)
}

// aligned returns memory that O_DIRECT accepts.
func aligned(t testing.TB, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func (l *loop) write(t *testing.T, blocks int) {
	t.Helper()
	b := aligned(t, block)
	for i := range blocks {
		if _, err := l.dev.WriteAt(b, int64(i)*block); err != nil {
			t.Fatal(err)
		}
	}
}

func (l *loop) read(t testing.TB, blocks int) (failed int) {
	t.Helper()
	b := aligned(t, block)
	for i := range blocks {
		if _, err := l.dev.ReadAt(b, int64(i%l.blocks)*block); errors.Is(err, unix.EIO) {
			failed++
		} else if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return failed
}

func (l *loop) discard(t *testing.T, size uint64) {
	t.Helper()
	span := [2]uint64{0, size}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, l.dev.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&span)))
	if errno == unix.EOPNOTSUPP {
		t.Log("the file system under the loop device cannot discard")
	} else if errno != 0 {
		t.Fatal(errno)
	}
}

// kernelStat is /sys/block/DEVICE/stat by operation: ios, bytes, milliseconds.
type kernelStat [len(storage.Operations)]struct{ ios, bytes, ms uint64 }

func (l *loop) stat(t *testing.T) (s kernelStat) {
	t.Helper()
	b, err := os.ReadFile("/sys/block/" + l.name + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	var n [17]uint64
	for i, f := range strings.Fields(string(b)) {
		if _, err := fmt.Sscan(f, &n[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i, at := range [...]int{0, 4, 11} {
		s[i].ios, s[i].bytes, s[i].ms = n[at], n[at+2]*sectorBytes, n[at+3]
	}
	s[3].ios, s[3].ms = n[15], n[16]
	return s
}

// until waits for a condition with a deadline.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 10 s in vain: %s", what)
		}
		<-tick.C
	}
}
