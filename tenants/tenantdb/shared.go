package tenantdb

import (
	"context"
	"errors"
	"sync"
)

// Shared lets callers that ask the same while they wait for a connection share
// one reading. A reading begins when it has its connection; who asks later has
// another one. So an answer is never older than its question, none is kept, and
// nobody waits for what he could read at once. The zero value is ready; it is
// safe for concurrent use.
type Shared[V any] struct {
	mu sync.Mutex
	m  map[string]*reading[V] // of each key the one that has not begun
}

// reading is one reading, made by the first who asked.
type reading[V any] struct {
	others int // callers that share it
	done   chan struct{}
	v      V
	err    error
}

// errNotRead is the error of a reading that panicked.
var errNotRead = errors.New("the reading did not end")

// beginKey holds in a context what is to be called when its reading begins.
type beginKey struct{}

// begin says that the reading of a context has its connection.
func begin(ctx context.Context) {
	if begun, ok := ctx.Value(beginKey{}).(func()); ok {
		begun()
	}
}

// Do answers read's result, or that of an equal call. key names everything that
// the answer depends on, tenant and selector included. Callers must not change
// what an answer refers to. Errors are not shared: who would be given one reads
// for itself. That the caller who reads goes away ends it for nobody else; its
// deadline holds.
func (s *Shared[V]) Do(ctx context.Context, key string, read func(context.Context) (V, error)) (V, error) {
	s.mu.Lock()
	r := s.m[key]
	if r == nil {
		if s.m == nil {
			s.m = map[string]*reading[V]{}
		}
		r = &reading[V]{done: make(chan struct{}), err: errNotRead}
		s.m[key] = r
		s.mu.Unlock()
		s.run(ctx, key, r, read)
		return r.v, r.err
	}
	r.others++
	s.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
		return read(ctx) // which says why
	}
	if r.err != nil {
		return read(ctx)
	}
	return r.v, nil
}

func (s *Shared[V]) run(ctx context.Context, key string, r *reading[V], read func(context.Context) (V, error)) {
	closed := func() { // nobody joins any more
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.m[key] == r {
			delete(s.m, key)
		}
	}
	own, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), beginKey{}, closed))
	defer cancel()
	if at, ok := ctx.Deadline(); ok {
		var end context.CancelFunc
		own, end = context.WithDeadline(own, at)
		defer end()
	}
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.others > 0 {
			return
		}
		if s.m[key] == r {
			delete(s.m, key)
		}
		cancel()
	})
	defer stop()
	defer close(r.done)
	defer closed()
	r.v, r.err = read(own)
}
