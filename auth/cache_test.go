package auth

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func constant(v int, found bool, err error) func(context.Context) (int, bool, error) {
	return func(context.Context) (int, bool, error) { return v, found, err }
}

func TestCacheLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache[int](3*time.Second, 4)
		want := func(what string, v int, found bool, maxAge time.Duration, fetch func(context.Context) (int, bool, error)) {
			t.Helper()
			if got, ok, err := c.load(t.Context(), "k", maxAge, fetch); got != v || ok != found || err != nil {
				t.Errorf("%s: %d, %v, %v", what, got, ok, err)
			}
		}
		if _, _, err := c.load(t.Context(), "k", 0, constant(0, false, errors.New("down"))); err == nil {
			t.Error("an error was swallowed")
		}
		want("after an error", 0, false, 0, constant(0, false, nil))
		want("remembered absence", 0, false, 0, constant(1, true, nil))
		time.Sleep(2999 * time.Millisecond)
		want("to the last", 0, false, 0, constant(1, true, nil))
		time.Sleep(time.Millisecond)
		want("over", 1, true, 0, constant(1, true, nil))
		time.Sleep(2 * time.Second)
		want("still", 1, true, 0, constant(2, true, nil))
		want("too old for this caller", 2, true, time.Second, constant(2, true, nil))
		c.drop("k")
		want("dropped", 0, false, 0, constant(0, false, nil))
		if s := c.stats(); s.Known != 0 || s.None != 1 {
			t.Errorf("a key lives in both rooms: %+v", s)
		}
	})
}

// Age counts from before the fetch, callers share one fetch, a drop meanwhile
// keeps its answer from being remembered, and a caller that gives up harms
// nobody.
func TestCacheFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache[int](3*time.Second, 4)
		fetches := 0
		slow := func(ctx context.Context) (int, bool, error) {
			fetches++
			time.Sleep(2 * time.Second)
			return fetches, true, ctx.Err()
		}
		gone, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 5 {
			ctx := t.Context()
			if i < 2 {
				ctx = gone
			}
			wg.Go(func() {
				if v, _, err := c.load(ctx, "k", 0, slow); i >= 2 && (v != 1 || err != nil) {
					t.Errorf("caller %d: %d, %v", i, v, err)
				}
			})
		}
		synctest.Wait()
		leave()
		wg.Wait()
		if fetches != 1 {
			t.Errorf("%d fetches for five callers", fetches)
		}
		time.Sleep(time.Second) // 3 s after the fetch began
		wg.Go(func() {
			if v, _, err := c.load(t.Context(), "k", 0, slow); v != 2 || err != nil {
				t.Errorf("the answer outlived its age: %d, %v", v, err)
			}
		})
		synctest.Wait()
		c.drop("k")
		if v, _, err := c.load(t.Context(), "k", 0, constant(9, true, nil)); v != 9 || err != nil {
			t.Errorf("joined a fetch from before the drop: %d, %v", v, err)
		}
		wg.Wait()
		if v, _, _ := c.load(t.Context(), "k", 0, constant(0, false, nil)); v != 9 {
			t.Errorf("an answer from before the drop was remembered: %d", v)
		}
	})
}

func TestCacheSurvivesAPanic(t *testing.T) {
	c := newCache[int](time.Second, 4)
	func() {
		defer func() { _ = recover() }()
		_, _, _ = c.load(t.Context(), "k", 0, func(context.Context) (int, bool, error) { panic("x") })
	}()
	if v, ok, err := c.load(t.Context(), "k", 0, constant(1, true, nil)); v != 1 || !ok || err != nil {
		t.Error(v, ok, err)
	}
}

func TestCacheBounds(t *testing.T) {
	c := newCache[int](time.Hour, 3)
	for i := range 10 {
		_, _, _ = c.load(t.Context(), "keep", 0, constant(1, true, nil)) // used most lately
		_, _, _ = c.load(t.Context(), fmt.Sprint("k", i), 0, constant(i, true, nil))
	}
	if v, ok, _ := c.load(t.Context(), "keep", 0, constant(0, false, nil)); v != 1 || !ok {
		t.Error("what is in use was pushed out")
	}
	if s := c.stats(); s.Known != 3 || s.KnownEvicted != 8 {
		t.Errorf("%+v", s)
	}
}
