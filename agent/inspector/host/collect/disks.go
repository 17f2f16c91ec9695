package collect

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

// space is what statfs(2) says of one filesystem, in bytes and files.
type space struct {
	total, used, available uint64
	files, freeFiles       uint64 // files 0: the filesystem has no such limit
}

type statfsFunc func(path string) (space, error)

func statfs(path string) (space, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(path, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return space{}, err
		}
	}
	unit := uint64(st.Frsize)
	if st.Frsize <= 0 {
		unit = uint64(st.Bsize)
	}
	return space{
		total: st.Blocks * unit, used: (st.Blocks - min(st.Bfree, st.Blocks)) * unit, available: st.Bavail * unit,
		files: st.Files, freeFiles: st.Ffree,
	}, nil
}

// answer is how one question to one mount ended.
type answer struct {
	space space
	err   error
}

// probe is one question in flight to one mount. since is by the process's own
// monotonic clock.
type probe struct {
	point string
	since time.Time
	done  chan answer // capacity 1: the asking goroutine never waits for a reader
}

// Mounts asks mounts how full they are, each in its own goroutine, never two
// at once for one mount. A question to a dead mount cannot be taken back: its
// goroutine stays until the kernel lets it go, and its mount is not asked
// again before. It is used by one collector at a time.
type Mounts struct {
	stat   statfsFunc
	flying map[uint64]*probe // by mount id; at most maxFlying
}

// NewMounts makes one that has asked nothing yet.
func NewMounts() *Mounts { return newMounts(statfs) }

// maxFlying bounds the goroutines that may hang, over mounts that come and go.
const maxFlying = 2 * maxMounts

func newMounts(stat statfsFunc) *Mounts { return &Mounts{stat: stat, flying: map[uint64]*probe{}} }

// ask questions every mount and waits at most patience for all of them
// together. What has not answered stays in flight.
func (d *Mounts) ask(ctx context.Context, root string, mounts []mount, patience time.Duration) map[uint64]answer {
	out := map[uint64]answer{}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for _, m := range mounts {
		if d.flying[m.id] != nil || len(d.flying) >= maxFlying {
			continue
		}
		p := &probe{point: m.point, since: time.Now(), done: make(chan answer, 1)}
		d.flying[m.id] = p
		go func() {
			s, err := d.stat(root + m.point)
			p.done <- answer{s, err}
		}()
	}
	late := false
	for id, p := range d.flying {
		a, ok := answer{}, false
		if !late {
			select {
			case a = <-p.done:
				ok = true
			case <-timer.C:
				late = true
			case <-ctx.Done():
				late = true
			}
		}
		if !ok {
			select {
			case a = <-p.done:
			default:
				continue
			}
		}
		delete(d.flying, id)
		out[id] = a
	}
	return out
}

func (c *Collector) readDisks(ctx context.Context, sp span) (string, error) {
	if c.mountsErr != nil {
		return "", c.mountsErr
	}
	if sp.length == 0 {
		return "", nil // the look in New asks no filesystem: New must not wait
	}
	mounts, left := disksOf(c.mounts)
	c.left += uint64(left)
	answers := c.cfg.Mounts.ask(ctx, c.cfg.Root, mounts, c.cfg.DiskPatience)
	var trouble []string
	fullest, stuck, any := 0.0, 0, false
	for _, m := range mounts {
		a, answered := answers[m.id]
		ok, waited := answered && a.err == nil, time.Duration(0)
		switch p := c.cfg.Mounts.flying[m.id]; {
		case answered && a.err != nil:
			trouble = append(trouble, fmt.Sprintf("%s: %v", clip(m.point), a.err))
		case p != nil:
			stuck++
			waited = time.Since(p.since)
			trouble = append(trouble, fmt.Sprintf("%s (%s) stuck since %s", clip(m.point), clip(m.fstype), sp.now.Add(-waited).UTC().Format(time.RFC3339)))
		case !answered:
			trouble = append(trouble, clip(m.point)+": not asked, too many mounts are stuck")
		}
		s := a.space
		labels := []string{host.LabelMount, m.point, host.LabelMountID, strconv.FormatUint(m.id, 10), host.LabelFSType, m.fstype}
		c.gauge(host.DiskTotal, inspector.Bytes, float64(s.total), ok, labels...)
		c.gauge(host.DiskUsed, inspector.Bytes, float64(s.used), ok, labels...)
		c.gauge(host.DiskAvailable, inspector.Bytes, float64(s.available), ok, labels...)
		c.gauge(host.DiskFiles, inspector.Count, float64(s.freeFiles), ok && s.files > 0, labels...)
		c.gauge(host.DiskStuck, inspector.Seconds, waited.Seconds(), answered || waited > 0, labels...)
		if ok && s.used+s.available > 0 {
			any, fullest = true, max(fullest, float64(s.used)/float64(s.used+s.available))
		}
	}
	c.gauge(host.DiskFullest, inspector.Ratio, fullest, any)
	c.gauge(host.DisksStuck, inspector.Count, float64(stuck), true)
	if len(trouble) > 0 {
		shown := trouble[:min(len(trouble), 5)]
		note := fmt.Sprintf("%d of %d mounts gave no numbers: %s", len(trouble), len(mounts), strings.Join(shown, "; "))
		if len(shown) < len(trouble) {
			note += "; …"
		}
		return note, errDegraded
	}
	return "", nil
}
