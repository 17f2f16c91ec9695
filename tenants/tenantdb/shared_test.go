package tenantdb_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// TestSharedIsNeverOlderThanTheQuestion: each caller's answer was read after
// it asked, and few readings serve many.
func TestSharedIsNeverOlderThanTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s tenantdb.Shared[time.Time]
		var reads, under atomic.Int32
		read := func(context.Context) (time.Time, error) {
			if under.Add(1) > 1 {
				t.Error("two readings of one key at once")
			}
			defer under.Add(-1)
			reads.Add(1)
			began := time.Now()
			<-time.After(10 * time.Millisecond)
			return began, nil
		}
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				<-time.After(time.Duration(i) * time.Millisecond)
				asked := time.Now()
				got, err := s.Do(t.Context(), "k", read)
				if err != nil || got.Before(asked) {
					t.Errorf("asked %v, read %v, %v", asked, got, err)
				}
				if waited := time.Since(asked); waited > 20*time.Millisecond {
					t.Errorf("waited %v", waited)
				}
			})
		}
		all.Wait()
		if n := reads.Load(); n > 12 {
			t.Errorf("%d readings of 10 ms for 100 calls within 100 ms", n)
		}
	})
}

func TestSharedKeysAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s tenantdb.Shared[string]
		var all sync.WaitGroup
		for i := range 60 {
			key := []string{"a", "b", "c"}[i%3]
			all.Go(func() {
				got, err := s.Do(t.Context(), key, func(context.Context) (string, error) {
					<-time.After(time.Millisecond)
					return key, nil
				})
				if got != key || err != nil {
					t.Errorf("%s was given %q, %v", key, got, err)
				}
			})
		}
		all.Wait()
	})
}

// TestSharedOutlivesItsReader: a caller that goes away, fails or panics takes
// nobody along.
func TestSharedOutlivesItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s tenantdb.Shared[int]
		var all sync.WaitGroup
		slow := func(ctx context.Context) (int, error) {
			select {
			case <-time.After(10 * time.Millisecond):
				return 1, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		all.Go(func() { _, _ = s.Do(t.Context(), "k", slow) })
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		all.Go(func() { // waits for the second reading or makes it, and goes away in its midst
			if v, err := s.Do(gone, "k", slow); v != 1 && !errors.Is(err, context.Canceled) {
				t.Errorf("of a caller that went away: %d, %v", v, err)
			}
		})
		early, leaveEarly := context.WithCancel(t.Context())
		all.Go(func() { // goes away before it begins
			if _, err := s.Do(early, "k", slow); !errors.Is(err, context.Canceled) {
				t.Errorf("gone, but answered %v", err)
			}
		})
		synctest.Wait()
		leaveEarly()
		for range 5 {
			all.Go(func() {
				if v, err := s.Do(t.Context(), "k", slow); v != 1 || err != nil {
					t.Errorf("%d, %v", v, err)
				}
			})
		}
		<-time.After(15 * time.Millisecond)
		leave()
		all.Wait()

		broken := errors.New("broken")
		var n atomic.Int32
		fails := func(context.Context) (int, error) {
			<-time.After(time.Millisecond)
			if n.Add(1) <= 2 {
				return 0, broken
			}
			return 2, nil
		}
		var bad, good atomic.Int32
		for range 10 {
			all.Go(func() {
				switch v, err := s.Do(t.Context(), "k", fails); {
				case errors.Is(err, broken):
					bad.Add(1)
				case v == 2 && err == nil:
					good.Add(1)
				}
			})
		}
		all.Wait()
		if bad.Load() != 2 || good.Load() != 8 {
			t.Errorf("%d calls failed, %d did not: want those that met the fault themselves", bad.Load(), good.Load())
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = s.Do(t.Context(), "k", func(context.Context) (int, error) { panic("of the reader") })
		}()
		if v, err := s.Do(t.Context(), "k", slow); v != 1 || err != nil {
			t.Errorf("after a panic: %d, %v", v, err)
		}
	})
}
