package auth

import (
	"context"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// kept is a document of an issuer that is fetched again after some time and
// kept while the issuer is down. Fetches are shared by all who wait, at most
// one each floor, successful or not. Safe for concurrent use.
type kept[V any] struct {
	get   func(context.Context) (V, error)
	floor time.Duration // between two fetches
	age   time.Duration // after which a document is fetched again

	mu      sync.Mutex
	val     V
	has     bool
	fetched time.Time // when the fetch of val began
	tried   time.Time // when the latest fetch began
	err     error     // of the latest fetch
	flight  chan struct{}
	fetches uint64
	fails   uint64
}

// current returns the document, fetched if it is older than the age, or if
// again asks for a newer one and the floor allows it. An error means that
// nothing is known.
func (k *kept[V]) current(ctx context.Context, again bool) (V, error) {
	k.mu.Lock()
	now := time.Now()
	if k.has && !again && now.Sub(k.fetched) < k.age {
		defer k.mu.Unlock()
		return k.val, nil
	}
	if k.flight == nil && (k.tried.IsZero() || now.Sub(k.tried) >= k.floor) {
		k.flight, k.tried = make(chan struct{}), now
		k.fetches++
		k.mu.Unlock()
		k.fetch(ctx, now)
		return k.known()
	}
	flight := k.flight
	wait := flight != nil && (!k.has || again)
	k.mu.Unlock()
	if wait {
		select {
		case <-flight:
		case <-ctx.Done():
			var zero V
			return zero, fault.New(fault.Deadline, "canceled", "the caller went away before the answer").Because(ctx.Err())
		}
	}
	return k.known()
}

func (k *kept[V]) known() (V, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.has {
		return k.val, nil
	}
	return k.val, k.err
}

// since is when the fetch of the present document began.
func (k *kept[V]) since() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fetched
}

// fetch outlives the caller's cancellation, because others wait for it too,
// but not loadTimeout.
func (k *kept[V]) fetch(ctx context.Context, began time.Time) {
	var val V
	err := error(fault.New(fault.Internal, "internal", "the server failed to answer")) // stays only if get panics
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.err = err; err == nil {
			k.val, k.has, k.fetched = val, true, began
		} else {
			k.fails++
		}
		close(k.flight)
		k.flight = nil
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
	defer cancel()
	val, err = k.get(ctx)
}

func (k *kept[V]) counts() (fetches, fails uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fetches, k.fails
}
