package uplink

import (
	"sync"
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// clock stamps outgoing frames, so that the server can estimate this node's
// skew, and estimates the server's clock from its stamps. Safe for
// concurrent use.
type clock struct {
	mu     sync.Mutex
	echo   int64     // wall_ns of the server's latest frame
	came   time.Time // when it came, with its monotonic reading
	offset time.Duration
	known  bool
}

func (c *clock) stamp(now time.Time) *pb.Clock {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &pb.Clock{WallNs: now.UnixNano()}
	if c.echo != 0 {
		m.EchoNs, m.HeldNs = c.echo, int64(now.Sub(c.came))
	}
	return m
}

func (c *clock) observe(m *pb.Clock, now time.Time) {
	if m == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.echo, c.came = m.WallNs, now
	var trip int64
	if m.EchoNs != 0 {
		trip = max(0, now.UnixNano()-m.EchoNs-m.HeldNs)
	}
	c.offset, c.known = time.Duration(m.WallNs+trip/2-now.UnixNano()), true
}

// server converts a time of this machine to the server's clock, as far as it
// is known.
func (c *clock) server(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Add(c.offset)
}

// local converts a time by the server's clock to this machine's. The result
// has a monotonic reading: it stays right when this machine's clock is set.
func (c *clock) local(server, now time.Time) time.Time {
	return now.Add(server.Sub(c.server(now)))
}
