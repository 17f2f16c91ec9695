package load

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const brief = 20 * time.Millisecond

// TestWorkIsDone runs every kind of work for a moment.
func TestWorkIsDone(t *testing.T) {
	for name, work := range map[string]func(time.Duration) (Rate, error){
		"ping-pong": PingPong, "pipe": PipePingPong, "connect/close": ConnectClose, "overflow": Overflow, "resets": Resets, "spin": Spin,
	} {
		if r, err := work(brief); err != nil || r.Wall <= 0 || r.CPU <= 0 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func TestLossyStream(t *testing.T) {
	needRoot(t)
	n, err := NewLossy()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the port is free again
		if r, err := n.Stream(brief); err != nil || r.Wall <= 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

func TestDiskBreaks(t *testing.T) {
	needRoot(t)
	d, err := NewDisk(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if r, err := d.Reads(brief); err != nil || r.Wall <= 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := errors.Join(d.Read(1), d.Break()); err != nil {
		t.Fatal(err)
	}
	if err := d.Read(1); !errors.Is(err, unix.EIO) {
		t.Errorf("a broken disk says %v", err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: makes a network namespace or a loop device")
	}
}
