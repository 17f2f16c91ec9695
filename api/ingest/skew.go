package ingest

import (
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// Bounds of the estimate.
const (
	maxTrip    = 30 * time.Second // a slower exchange tells nothing
	maxBestAge = 2 * time.Minute  // a better but older exchange gives way
	tripSlack  = 10 * time.Millisecond
)

// skew estimates an agent's clock against the server's from the stamps of
// each exchange (RFC 5905 section 8, with the agent's holding time measured by
// its monotonic clock, so that a step of its wall clock in between does no
// harm). Among recent exchanges the one with the shortest round trip counts,
// unless a later one contradicts it beyond both errors: then the clock moved.
// Not safe for concurrent use.
type skew struct {
	value time.Duration // agent minus server
	trip  time.Duration
	at    time.Time
	known bool
}

func (s *skew) observe(c *pb.Clock, now time.Time) {
	if c == nil || c.WallNs == 0 {
		return
	}
	// The first frame answers nothing: its way is unknown, and taken as long.
	trip := maxTrip
	value := time.Duration(c.WallNs - now.UnixNano())
	if c.EchoNs != 0 {
		trip = max(0, time.Duration(now.UnixNano()-c.EchoNs-max(c.HeldNs, 0)))
		if trip > maxTrip {
			return
		}
		value += trip / 2
	}
	moved := (value - s.value).Abs() > (trip+s.trip)/2+tripSlack
	if !s.known || trip <= s.trip || moved || now.Sub(s.at) > maxBestAge {
		*s = skew{value: value, trip: trip, at: now, known: true}
	}
}
