package uplink

import (
	"context"
	"math/rand/v2"
	"time"
)

// Bounds of the wait between two attempts to connect.
const (
	backoffBase  = time.Second
	backoffMax   = time.Minute
	backoffFloor = 100 * time.Millisecond
)

// backoff counts failures in a row and spreads the next attempts: full jitter
// below a doubling bound, never before the server's own hint. The zero value
// is ready; not safe for concurrent use.
type backoff struct{ failures int }

func (b *backoff) reset() { b.failures = 0 }

// next returns the wait before the next attempt. hint is the server's
// retry-after, or zero; it is stretched by up to half so that many agents
// with the same hint do not come back together.
func (b *backoff) next(hint time.Duration) time.Duration {
	bound := backoffMax
	if b.failures < 6 {
		bound = backoffBase << b.failures
	}
	b.failures++
	d := backoffFloor + rand.N(bound)
	if hint > 0 {
		d = max(d, hint+rand.N(hint/2+1))
	}
	return d
}

// sleep waits d; false means that ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
