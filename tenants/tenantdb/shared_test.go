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

// A pool of one connection: a reading begins when it has it.
type connection chan struct{}

func (c connection) read(ctx context.Context, v int, took time.Duration) (int, error) {
	select {
	case c <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	defer func() { <-c }()
	tenantdb.Begin(ctx)
	select {
	case <-time.After(took):
		return v, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// TestSharedIsNeverOlderThanTheQuestion: each caller's answer was read after
// it asked, and few readings serve many.
func TestSharedIsNeverOlderThanTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s tenantdb.Shared[time.Time]
		var reads atomic.Int32
		conn := make(connection, 1)
		read := func(ctx context.Context) (began time.Time, err error) {
			conn <- struct{}{}
			defer func() { <-conn }()
			tenantdb.Begin(ctx)
			reads.Add(1)
			began = time.Now()
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

// TestSharedWaitsForNobody: who finds a connection free reads at once, whatever
// equal reading is under way.
func TestSharedWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s tenantdb.Shared[int]
		conns := make(connection, 20)
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() {
				<-time.After(time.Duration(i) * time.Millisecond)
				asked := time.Now()
				got, err := s.Do(t.Context(), "k", func(ctx context.Context) (int, error) { return conns.read(ctx, i, 10*time.Millisecond) })
				if waited := time.Since(asked); got != i || err != nil || waited != 10*time.Millisecond {
					t.Errorf("%d: %d, %v after %v", i, got, err, waited)
				}
			})
		}
		all.Wait()
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
		conn := make(connection, 1)
		var reads atomic.Int32
		slow := func(ctx context.Context) (int, error) {
			reads.Add(1)
			return conn.read(ctx, 1, 10*time.Millisecond)
		}
		gone, leave := context.WithCancel(t.Context())
		all.Go(func() { _, _ = s.Do(t.Context(), "other", slow) }) // has the connection
		synctest.Wait()
		all.Go(func() { // the one that is to read goes away while it waits
			if v, err := s.Do(gone, "k", slow); v != 1 || err != nil {
				t.Errorf("of the reader that went away: %d, %v", v, err)
			}
		})
		synctest.Wait()
		early, leaveEarly := context.WithCancel(t.Context())
		all.Go(func() { // one that shares goes away
			if _, err := s.Do(early, "k", slow); !errors.Is(err, context.Canceled) {
				t.Errorf("gone, but answered %v", err)
			}
		})
		for range 5 {
			all.Go(func() {
				if v, err := s.Do(t.Context(), "k", slow); v != 1 || err != nil {
					t.Errorf("%d, %v", v, err)
				}
			})
		}
		synctest.Wait()
		leaveEarly()
		leave()
		all.Wait()
		if n := reads.Load(); n != 3 { // the other's, the one of all, and the one that said why its caller was gone
			t.Errorf("%d readings", n)
		}

		all.Go(func() { _, _ = s.Do(t.Context(), "other", slow) })
		synctest.Wait()
		alone, leave := context.WithCancel(t.Context())
		start := time.Now()
		all.Go(func() { // nobody shares it: it ends with its caller
			if _, err := s.Do(alone, "k", slow); !errors.Is(err, context.Canceled) || time.Since(start) != 0 {
				t.Errorf("gone, but answered %v after %v", err, time.Since(start))
			}
		})
		synctest.Wait()
		leave()
		synctest.Wait()
		if v, err := s.Do(t.Context(), "k", slow); v != 1 || err != nil {
			t.Errorf("after one that went away: %d, %v", v, err)
		}
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
