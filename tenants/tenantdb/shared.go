package tenantdb

import (
	"context"
	"errors"
	"sync"
)

// Shared lets callers that ask the same at the same time share one reading. A
// caller is only ever given an answer whose reading began after it asked: who
// comes while one is under way waits for the end of that one and shares the
// next. So an answer is never older than its question, and no answer is kept.
// The zero value is ready; it is safe for concurrent use.
type Shared[V any] struct {
	mu sync.Mutex
	m  map[string]*reading[V] // the current one of each key, while somebody waits or reads
}

// reading is one reading: waited for, then begun, then done.
type reading[V any] struct {
	begun   bool
	waiting int         // callers that want it and have not begun it
	next    *reading[V] // of those who came after it began
	done    chan struct{}
	v       V
	err     error
}

// errNotRead is the error of a reading that panicked.
var errNotRead = errors.New("the reading did not end")

// Do answers read's result, or that of an equal call. key names everything that
// the answer depends on, tenant and selector included. Callers must not change
// what an answer refers to. Errors are not shared: who would be given one reads
// for itself.
func (s *Shared[V]) Do(ctx context.Context, key string, read func(context.Context) (V, error)) (V, error) {
	s.mu.Lock()
	cur := s.m[key]
	if cur == nil { // nobody shares this one
		if s.m == nil {
			s.m = map[string]*reading[V]{}
		}
		r := &reading[V]{begun: true, done: make(chan struct{})}
		s.m[key] = r
		s.mu.Unlock()
		defer s.end(key, r)
		return read(ctx)
	}
	r := cur
	if cur.begun {
		if cur.next == nil {
			cur.next = &reading[V]{done: make(chan struct{})}
		}
		r = cur.next
	}
	r.waiting++
	s.mu.Unlock()
	if r != cur {
		select {
		case <-cur.done:
		case <-ctx.Done():
			s.leave(key, r)
			return read(ctx) // which says why
		}
	}
	s.mu.Lock()
	mine := !r.begun
	r.begun = true
	r.waiting--
	s.mu.Unlock()
	if mine {
		s.run(ctx, key, r, read)
		return r.v, r.err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return read(ctx)
	}
	if r.err != nil {
		return read(ctx)
	}
	return r.v, nil
}

// run reads for all who wait. That one caller goes away ends it for nobody; its
// deadline holds.
func (s *Shared[V]) run(ctx context.Context, key string, r *reading[V], read func(context.Context) (V, error)) {
	defer s.end(key, r)
	own := context.WithoutCancel(ctx)
	if at, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		own, cancel = context.WithDeadline(own, at)
		defer cancel()
	}
	r.err = errNotRead
	r.v, r.err = read(own)
}

func (s *Shared[V]) end(key string, r *reading[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.next != nil {
		s.m[key] = r.next
	} else {
		delete(s.m, key)
	}
	close(r.done)
}

// leave gives up a reading that has not begun; the last one takes it away.
func (s *Shared[V]) leave(key string, r *reading[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.waiting--; r.waiting > 0 || r.begun {
		return
	}
	switch cur := s.m[key]; {
	case cur == r:
		delete(s.m, key)
	case cur != nil && cur.next == r:
		cur.next = nil
	}
}
