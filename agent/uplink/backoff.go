package uplink

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Bounds of the wait between two attempts to connect.
const (
	backoffBase  = time.Second
	backoffMax   = time.Minute
	backoffFloor = 100 * time.Millisecond
	seldomFloor  = time.Minute // while a refusal stands that only people can end
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

// seldom returns the wait after a refusal that does not pass by itself: one
// to two minutes, so that many refused agents do not ask together, and never
// before the hint.
func (b *backoff) seldom(hint time.Duration) time.Duration {
	b.failures++
	return max(seldomFloor, hint) + rand.N(seldomFloor)
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

// troubles tells a trouble that begins from one that goes on, so that a log
// gets a line for each change and none for each attempt. The zero value is
// ready. Safe for concurrent use.
type troubles struct {
	mu    sync.Mutex
	known map[string]bool // what and why, since the last end
}

// maxTroubles bounds what is remembered: reasons come from the server.
const maxTroubles = 64

// begins reports whether what went wrong is new since the last end.
func (t *troubles) begins(what string, err error) bool {
	why := ""
	if r, ok := errors.AsType[*Refusal](err); ok {
		why = r.Reason
	} else if err != nil {
		why = err.Error()
	}
	key := what + " " + why
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known[key] || len(t.known) >= maxTroubles {
		return false
	}
	if t.known == nil {
		t.known = map[string]bool{}
	}
	t.known[key] = true
	return true
}

// end forgets all: the next trouble is a new one.
func (t *troubles) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.known)
}
