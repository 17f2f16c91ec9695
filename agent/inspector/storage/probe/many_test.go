package probe

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

func TestIdleDisksAreKnownToBeZero(t *testing.T) {
	needRoot(t)
	l := newLoop(t, 1<<20)
	c := start(t, 0, Config{})
	w, got := collect(t, c)
	for _, metric := range []string{storage.IOs, storage.Bytes, storage.LatencyNS, storage.Errors} {
		for _, op := range storage.Operations {
			if v := got[seriesOf(metric, l.name, op)]; !v.OK || v.Delta != 0 || inspector.HistCount(v.Hist) != 0 {
				t.Errorf("%s by %s of a disk that did nothing: %+v", metric, op, v)
			}
		}
	}
	l.read(t, 4)
	w2, got := collect(t, c)
	if v := got[seriesOf(storage.IOs, l.name, "read")]; v.Delta != 4 {
		t.Errorf("%+v reads, want 4", v)
	}
	if w2.Layout.Hash != w.Layout.Hash {
		t.Error("the first request made another layout")
	}
	if err := unix.IoctlSetInt(int(l.dev.Fd()), unix.LOOP_CLR_FD, 0); err != nil {
		t.Fatal(err)
	}
	l.dev.Close() // with the last opener the file goes
	until(t, "the disk disappears", func() bool {
		_, got = collect(t, c)
		_, there := got[seriesOf(storage.IOs, l.name, "read")]
		return !there
	})
	// For the cleanup, which detaches once more.
	again := attach(t, l.name, l.file)
	l.dev = again
}

// More disks than the map and the layout hold: what finds no name is in the
// row of the others, and the sum is right.
func TestMoreDisksThanRoom(t *testing.T) {
	needRoot(t)
	const many = maxDevices + 20
	var all []*loop
	for range many {
		all = append(all, newLoop(t, 1<<20))
	}
	c := start(t, maxDevices+5, Config{})
	collect(t, c)
	layouts := map[inspector.LayoutHash]bool{}
	var sum uint64
	for range 3 {
		for _, l := range all {
			l.read(t, 2)
		}
		w, got := collect(t, c)
		layouts[w.Layout.Hash] = true
		for name, v := range got {
			if strings.HasPrefix(name, storage.IOs+"{") && strings.Contains(name, `op="read"`) && (strings.Contains(name, "loop") || strings.Contains(name, storage.Other)) {
				sum += v.Delta
			}
		}
		if len(w.Layout.Series) > (maxDevices+1)*4*len(storage.Operations)+3 {
			t.Fatalf("%d series", len(w.Layout.Series))
		}
	}
	if sum < 3*2*many || sum > 3*2*many+50 { // the machine's own disks may be in Other
		t.Errorf("%d reads in all rows, want %d", sum, 3*2*many)
	}
	if len(layouts) > 3 {
		t.Errorf("%d layouts in three windows", len(layouts))
	}
}

func attach(t *testing.T, name, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dev, err := os.OpenFile("/dev/"+name, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd())}); err != nil {
		t.Fatal(fmt.Errorf("attach %s again: %w", name, err))
	}
	return dev
}
