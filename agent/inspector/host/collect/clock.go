package collect

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

// discipline is what the kernel says of its clock.
type discipline struct {
	synced   bool
	offset   float64 // seconds still to correct, signed
	maxError float64 // seconds
}

type clockFunc func() (discipline, error)

// adjtimex asks without changing anything, which needs no privilege.
func adjtimex() (discipline, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return discipline{}, err
	}
	unit := 1e-6
	if t.Status&unix.STA_NANO != 0 {
		unit = 1e-9
	}
	return discipline{
		synced:   state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0,
		offset:   float64(t.Offset) * unit,
		maxError: float64(t.Maxerror) * 1e-6,
	}, nil
}

func (c *Collector) readClock(context.Context, span) (string, error) {
	d, err := c.clock()
	if err != nil {
		return "", err
	}
	synced := 0.0
	if d.synced {
		synced = 1
	}
	c.gauge(host.ClockSynced, inspector.Ratio, synced, true)
	// An undisciplined clock has no idea of its own error: unknown, not 0.
	c.gauge(host.ClockOffset, inspector.Seconds, d.offset, d.synced)
	c.gauge(host.ClockMaxError, inspector.Seconds, d.maxError, d.synced)
	return "", nil
}

func (c *Collector) readBoot(context.Context, span) (string, error) {
	text, err := c.read("uptime")
	if err != nil {
		return "", err
	}
	f := strings.Fields(text)
	if len(f) == 0 {
		return "", errors.New("/proc/uptime is empty")
	}
	up, err := strconv.ParseFloat(f[0], 64)
	if err != nil || up < 0 {
		return "", errors.New("/proc/uptime is not a number")
	}
	c.gauge(host.Uptime, inspector.Seconds, up, true)
	if c.boot == "" {
		return "the boot id cannot be read: resets after a reboot are not told apart", errDegraded
	}
	// btime is fixed at boot and moves only when the clock is set.
	stat, err := c.read("stat")
	var btime uint64
	ok := false
	if err == nil {
		for k, v := range pairs(stat) {
			if k == "btime" {
				btime, ok = v, true
			}
		}
	}
	c.gauge(host.BootTime, inspector.Seconds, float64(btime), ok, host.LabelBootID, c.boot)
	return "", nil
}
