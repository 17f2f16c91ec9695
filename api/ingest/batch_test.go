package ingest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// store is a Writer that notes its batches.
type store struct {
	mu      sync.Mutex
	batches []int
	at      []time.Time
	fail    int           // calls that fail first
	slow    time.Duration // per call
	status  metrics.Status
	// poison fails every batch that holds it, with failure.
	poison  *metrics.Checked
	failure error
	block   bool // until the attempt's time is over
}

func (s *store) Write(ctx context.Context, batch []metrics.Checked) ([]metrics.Outcome, error) {
	time.Sleep(s.slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail > 0 {
		s.fail--
		return nil, fault.New(fault.Unavailable, "database_unavailable", "away")
	}
	if s.poison != nil && slices.ContainsFunc(batch, func(c metrics.Checked) bool { return reflect.DeepEqual(c, *s.poison) }) {
		if s.block {
			<-ctx.Done()
		}
		return nil, s.failure
	}
	s.batches = append(s.batches, len(batch))
	s.at = append(s.at, time.Now())
	out := make([]metrics.Outcome, len(batch))
	for i := range out {
		out[i].Status = s.status
	}
	return out, nil
}

func (s *store) noted() ([]int, []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.batches), slices.Clone(s.at)
}

func (s *store) total() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		n += b
	}
	return n
}

// end counts what becomes of items.
type end struct {
	mu   sync.Mutex
	done int
	err  error
}

func (e *end) settled(metrics.Outcome) { e.mu.Lock(); e.done++; e.mu.Unlock() }
func (e *end) broke(err error)         { e.mu.Lock(); e.err = err; e.mu.Unlock() }
func (e *end) state() (done int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.done, e.err
}
func (e *end) broken() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.err != nil }

func inBubble(t *testing.T, s *store, cfg Config, f func(t *testing.T, b *batcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if s.status == "" {
			s.status = metrics.Stored
		}
		var count counters
		b := newBatcher(s, cfg.withDefaults(), &count, testLog(t))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { _ = b.run(ctx); close(done) }()
		f(t, b)
		cancel()
		<-done
	})
}

func TestLingerAdapts(t *testing.T) {
	node := tenants.NewNodeID()
	t.Run("idle", func(t *testing.T) {
		s := &store{}
		inBubble(t, s, Config{Writers: 1}, func(t *testing.T, b *batcher) {
			e := &end{}
			for range 20 { // ten a second
				must(t, b.submit(t.Context(), node, item{from: e}))
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
			if batches, _ := s.noted(); s.total() != 20 || len(batches) != 20 {
				t.Errorf("%d items in batches %v", s.total(), batches)
			}
			if got := b.lanes[0]; len(got) != 0 {
				t.Error("something is left")
			}
		})
	})
	t.Run("two within an idle linger share a batch", func(t *testing.T) {
		s := &store{}
		inBubble(t, s, Config{Writers: 1}, func(t *testing.T, b *batcher) {
			time.Sleep(time.Second)
			began := time.Now()
			e := &end{}
			must(t, b.submit(t.Context(), node, item{from: e}))
			time.Sleep(50 * time.Millisecond)
			must(t, b.submit(t.Context(), node, item{from: e}))
			time.Sleep(time.Second)
			if batches, at := s.noted(); len(batches) != 1 || at[0].Sub(began) != lingerIdle {
				t.Errorf("batches %v after %v", batches, at)
			}
		})
	})
	t.Run("busy", func(t *testing.T) {
		s := &store{}
		inBubble(t, s, Config{Writers: 1}, func(t *testing.T, b *batcher) {
			e := &end{}
			for range 20_000 { // ten thousand a second
				must(t, b.submit(t.Context(), node, item{from: e}))
				time.Sleep(100 * time.Microsecond)
			}
			time.Sleep(time.Second)
			if done, _ := e.state(); s.total() != 20_000 || done != 20_000 {
				t.Fatalf("%d stored, %d settled", s.total(), done)
			}
			_, at := s.noted()
			late := at[len(at)-20:]
			for i := 1; i < len(late)-2; i++ {
				if d := late[i].Sub(late[i-1]); d > lingerBusy+time.Millisecond {
					t.Errorf("under load a batch took %v", d)
				}
			}
		})
	})
}

func TestBatchesAreBounded(t *testing.T) {
	s := &store{slow: 10 * time.Millisecond}
	inBubble(t, s, Config{Writers: 1, QueueItems: 600}, func(t *testing.T, b *batcher) {
		e := &end{}
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 300 {
					_ = b.submit(t.Context(), tenants.NodeID{}, item{from: e})
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		if s.total() != 3000 {
			t.Errorf("%d stored", s.total())
		}
		batches, _ := s.noted()
		for _, n := range batches {
			if n > metrics.MaxBatch {
				t.Errorf("a batch of %d", n)
			}
		}
	})
}

// A full queue holds the submitter back, and the end of its stream frees it.
func TestBackPressure(t *testing.T) {
	s := &store{fail: 1 << 30}
	inBubble(t, s, Config{Writers: 1, QueueItems: 4, WriteTimeout: time.Hour}, func(t *testing.T, b *batcher) {
		e := &end{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		sent := 0
		for b.submit(ctx, tenants.NodeID{}, item{from: e}) == nil {
			if sent++; sent > metrics.MaxBatch+10 {
				t.Fatal("nothing holds the submitter back")
			}
		}
		if done, _ := e.state(); ctx.Err() == nil || done != 0 {
			t.Errorf("after %d items: %v, %d settled", sent, ctx.Err(), done)
		}
	})
}

// After a failure nothing later of the same source is stored; others are.
func TestFailureBreaksItsSourceOnly(t *testing.T) {
	bad := checkedOf(t, 1)
	s := &store{poison: &bad, failure: fault.New(fault.Internal, "internal", "refused")}
	inBubble(t, s, Config{Writers: 1}, func(t *testing.T, b *batcher) {
		first, second := &end{}, &end{}
		must(t, b.submit(t.Context(), tenants.NodeID{}, item{bad, first}))
		must(t, b.submit(t.Context(), tenants.NodeID{}, item{checkedOf(t, 2), first}))
		must(t, b.submit(t.Context(), tenants.NodeID{}, item{checkedOf(t, 1), second}))
		time.Sleep(time.Second)
		for range 3 { // queued behind the failed batch
			must(t, b.submit(t.Context(), tenants.NodeID{}, item{checkedOf(t, 3), first}))
		}
		must(t, b.submit(t.Context(), tenants.NodeID{}, item{checkedOf(t, 2), second}))
		time.Sleep(10 * time.Second)
		if done, err := first.state(); err == nil || done != 0 {
			t.Errorf("the failed source: %v, %d settled", err, done)
		}
		if done, err := second.state(); err != nil || done != 2 || s.total() != 2 {
			t.Errorf("the other source: %v, %d settled, %d stored", err, done, s.total())
		}
	})
}

func TestRetryOutcomeBreaksTheSource(t *testing.T) {
	for _, status := range []metrics.Status{metrics.Retry, metrics.StaleEpoch} {
		s := &store{status: status}
		inBubble(t, s, Config{Writers: 1}, func(t *testing.T, b *batcher) {
			e := &end{}
			must(t, b.submit(t.Context(), tenants.NodeID{}, item{from: e}))
			time.Sleep(time.Second)
			if done, err := e.state(); done != 0 || err == nil {
				t.Errorf("%s: %d settled, %v", status, done, err)
			}
		})
	}
}

// checkedOf makes a report of a node without a window.
func checkedOf(t *testing.T, seq uint64) metrics.Checked {
	t.Helper()
	scope := tenants.Scope{Tenant: tenants.NewTenantID(), Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: tenants.NewNodeID().String()}}
	c, err := (&metrics.Service{}).Advance(scope, 1, seq)
	must(t, err)
	return c
}

// One report that the database refuses, cannot take now or does not finish
// holds up the reports of other tenants for seconds at most, whether they are
// in its batch or wait behind it. Each source keeps its order.
func TestOneReportHoldsNobodyUp(t *testing.T) {
	for _, tc := range []struct {
		failure error
		block   bool
		within  time.Duration
	}{
		{fault.New(fault.Internal, "database", "bigint out of range"), false, time.Second},
		{fault.New(fault.Unavailable, "database_busy", "in the way"), false, time.Second},
		{fault.New(fault.Deadline, "database_deadline", "not in time"), true, 2*attemptTimeout + apartTimeout},
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprint(fault.Of(tc.failure).Kind, first), func(t *testing.T) {
				bad := checkedOf(t, 7)
				s := &store{poison: &bad, failure: tc.failure, block: tc.block}
				inBubble(t, s, Config{Writers: 1}, func(t *testing.T, b *batcher) {
					poisoned := &end{}
					if first { // alone in its batch; the others come while it is tried
						must(t, b.submit(t.Context(), tenants.NodeID{}, item{bad, poisoned}))
						time.Sleep(lingerIdle + time.Millisecond)
					}
					var others []*end
					for i := range 40 {
						e := &end{}
						others = append(others, e)
						for seq := range 3 {
							must(t, b.submit(t.Context(), tenants.NodeID{}, item{checkedOf(t, uint64(seq+1)), e}))
						}
						if i == 20 && !first {
							must(t, b.submit(t.Context(), tenants.NodeID{}, item{bad, poisoned}))
						}
					}
					time.Sleep(tc.within)
					for i, e := range others {
						if done, err := e.state(); done != 3 || err != nil {
							t.Fatalf("source %d: %d settled, %v", i, done, err)
						}
					}
					if done, err := poisoned.state(); done != 0 || fault.Of(err).Kind != fault.Of(tc.failure).Kind {
						t.Errorf("the poisoned one: %d settled, %v", done, err)
					}
				})
			})
		}
	}
}

// A batch whose sources are all gone is not tried again.
func TestNothingIsTriedForNobody(t *testing.T) {
	s := &store{fail: 1 << 30}
	inBubble(t, s, Config{Writers: 1, WriteTimeout: time.Hour}, func(t *testing.T, b *batcher) {
		e := &end{}
		must(t, b.submit(t.Context(), tenants.NodeID{}, item{checkedOf(t, 1), e}))
		time.Sleep(time.Second)
		e.broke(context.Canceled)
		time.Sleep(3 * time.Second)
		tried := b.count.writeErrors.Load()
		time.Sleep(time.Minute)
		if n := b.count.writeErrors.Load(); n != tried {
			t.Errorf("tried %d times more", n-tried)
		}
	})
}
