package auth

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// loadTimeout ends a look-up whoever waits for it.
const loadTimeout = 5 * time.Second

// CacheStats are a cache's counters since the start and its present sizes.
type CacheStats struct {
	Hits, Misses              uint64
	KnownEvicted, NoneEvicted uint64 // entries pushed out by newer ones
	Known, None               int    // entries held: answers, and answers that there is nothing
}

// cache remembers look-ups for a short time. Answers that there is nothing
// live in a room of their own, so that guessing cannot push out what is real.
// Concurrent look-ups of one key share one fetch. Safe for concurrent use.
type cache[V any] struct {
	ttl     time.Duration // of answers
	noneTTL time.Duration // of answers that there is nothing, at most ttl

	mu           sync.Mutex
	known, none  room[V]
	flights      map[string]*flight[V]
	hits, misses uint64
}

type flight[V any] struct {
	done  chan struct{}
	val   V
	found bool
	err   error
}

func newCache[V any](ttl time.Duration, max int) *cache[V] {
	return &cache[V]{
		ttl:     ttl,
		noneTTL: ttl,
		known:   newRoom[V](max),
		none:    newRoom[V](max),
		flights: map[string]*flight[V]{},
	}
}

// load answers from memory what was fetched less than the time to live ago
// (and less than maxAge ago, if maxAge is not zero), or fetches. An error is
// never remembered. The fetch outlives the caller's cancellation, because
// others may wait for it, but not loadTimeout.
func (c *cache[V]) load(ctx context.Context, key string, maxAge time.Duration, fetch func(context.Context) (V, bool, error)) (V, bool, error) {
	if maxAge <= 0 || maxAge > c.ttl {
		maxAge = c.ttl
	}
	now := time.Now()
	c.mu.Lock()
	if e := c.known.get(key); e != nil && now.Sub(e.since) < maxAge {
		c.hits++
		c.mu.Unlock()
		return e.val, true, nil
	}
	if e := c.none.get(key); e != nil && now.Sub(e.since) < min(maxAge, c.noneTTL) {
		c.hits++
		c.mu.Unlock()
		return e.val, false, nil
	}
	c.misses++
	f, joined := c.flights[key]
	if !joined {
		f = &flight[V]{done: make(chan struct{})}
		c.flights[key] = f
	}
	c.mu.Unlock()
	if joined {
		select {
		case <-f.done:
			return f.val, f.found, f.err
		case <-ctx.Done():
			var zero V
			return zero, false, fault.New(fault.Deadline, "canceled", "the caller went away before the answer").Because(ctx.Err())
		}
	}
	c.fly(ctx, key, now, f, fetch)
	return f.val, f.found, f.err
}

// fly runs one fetch. Age counts from before the fetch began: a row revoked
// while it was being read is late by the time to live and no more.
func (c *cache[V]) fly(ctx context.Context, key string, since time.Time, f *flight[V], fetch func(context.Context) (V, bool, error)) {
	f.err = context.Canceled // stays only if fetch panics
	defer func() {
		c.mu.Lock()
		if c.flights[key] == f { // not dropped meanwhile
			delete(c.flights, key)
			if f.err == nil {
				c.known.remove(key)
				c.none.remove(key)
				if f.found {
					c.known.put(key, f.val, since)
				} else {
					c.none.put(key, f.val, since)
				}
			}
		}
		c.mu.Unlock()
		close(f.done)
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
	defer cancel()
	f.val, f.found, f.err = fetch(ctx)
}

// drop forgets a key at once, and keeps a fetch under way from being remembered.
func (c *cache[V]) drop(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.remove(key)
	c.none.remove(key)
	delete(c.flights, key)
}

// had reports whether there was an answer, however old, that is still held.
func (c *cache[V]) had(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.known.at[key]
	return ok
}

func (c *cache[V]) stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CacheStats{
		Hits: c.hits, Misses: c.misses, KnownEvicted: c.known.evicted, NoneEvicted: c.none.evicted,
		Known: len(c.known.at), None: len(c.none.at),
	}
}

// room is a bounded map that pushes out what was longest unused.
type room[V any] struct {
	max     int
	at      map[string]*list.Element
	order   list.List // of entry[V], most recently used first
	evicted uint64
}

type entry[V any] struct {
	key   string
	val   V
	since time.Time
}

func newRoom[V any](max int) room[V] { return room[V]{max: max, at: map[string]*list.Element{}} }

func (r *room[V]) get(key string) *entry[V] {
	el, ok := r.at[key]
	if !ok {
		return nil
	}
	r.order.MoveToFront(el)
	return el.Value.(*entry[V])
}

func (r *room[V]) put(key string, val V, since time.Time) {
	r.at[key] = r.order.PushFront(&entry[V]{key, val, since})
	for len(r.at) > r.max {
		last := r.order.Back()
		delete(r.at, last.Value.(*entry[V]).key)
		r.order.Remove(last)
		r.evicted++
	}
}

func (r *room[V]) remove(key string) {
	if el, ok := r.at[key]; ok {
		r.order.Remove(el)
		delete(r.at, key)
	}
}
