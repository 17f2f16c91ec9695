package ingest

import (
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
)

// admission bounds how fast newcomers are let in, so that a reconnect storm
// cannot starve the streams that are open.
type admission struct {
	streams, enrols *rate.Limiter
	channels        *rate.Limiter // task channels: each has its stream already
	strangers       *rate.Limiter // peers whose certificate is not good
	enrolling       chan struct{} // enrolments in work
}

// strangersPerSec is how many peers with a certificate that is not good get a
// reasoned answer and a line in the log, a second. Peers without one are never
// counted against nodes: both are turned away before the bucket of streams.
const strangersPerSec = 20

// maxEnrolling is how many enrolments are in work at once.
const maxEnrolling = 16

func newAdmission(c Config) *admission {
	return &admission{
		strangers: rate.NewLimiter(strangersPerSec, strangersPerSec),
		streams:   rate.NewLimiter(rate.Limit(c.StreamsPerSec), c.StreamsPerSec),
		channels:  rate.NewLimiter(rate.Limit(c.StreamsPerSec), c.StreamsPerSec),
		enrols:    rate.NewLimiter(rate.Limit(c.EnrolsPerSec), c.EnrolsPerSec),
		enrolling: make(chan struct{}, maxEnrolling),
	}
}

// retryAfter is the hint for who was turned away, spread over a few seconds.
func retryAfter() time.Duration { return time.Second + rand.N(4*time.Second) }
