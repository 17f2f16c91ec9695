package tasks

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// pair makes two running replicas with a real bus between them.
func (w *world) pair() (one, two *Service) {
	db := dbtest.Open(w.t, tenantdb.Config{DSN: w.dsn, AppConns: 8, IngestConns: 4})
	var list []*Service
	for _, name := range []string{"r1", "r2"} {
		bus := tenantdb.NewBus(tenantdb.Config{DSN: w.dsn}, name, slog.New(slog.DiscardHandler))
		up, stop := bus.Subscribe("up")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- bus.Run(ctx) }()
		w.t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Error(err)
			}
		})
		<-up // it listens
		stop()
		list = append(list, w.service(db, name, bus))
	}
	w.run(list...)
	return list[0], list[1]
}

// Any replica takes a call for a node that another one holds.
func TestTwoReplicas(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	one, two := w.pair()
	ch, _ := w.n1.open(two, 1)
	got := w.do(ctx, one, w.me(), drops("n1", 5), DoOptions{})
	id := w.n1.order().ID
	w.must(ch.Accepted(ctx, id))
	w.must(ch.Finished(ctx, id, done(4)))
	a := w.wait(got)
	w.must(a.err)
	w.check("across", a.t, Completed, "")

	// A cancel finds its way, and comes back with what was known.
	id = w.began(one, w.me(), drops("n1", 20))
	w.n1.order()
	w.must(ch.Accepted(ctx, id))
	out := make(chan answer, 1)
	go func() {
		t, err := one.Cancel(ctx, w.me(), id)
		out <- answer{t, err}
	}()
	if w.n1.stop() != id {
		t.Error("another task was stopped")
	}
	w.must(ch.Finished(ctx, id, Outcome{State: Cancelled, Result: result(1)}))
	a = w.wait(out)
	w.must(a.err)
	w.check("cancelled", a.t, Cancelled, "cancelled")
	again, err := two.Cancel(ctx, w.me(), id)
	w.must(err)
	w.check("cancelled twice", again, Cancelled, "cancelled")
	if len(w.n1.stops) != 0 {
		t.Error("the second cancel reached the node")
	}
	if _, err := one.Cancel(ctx, caller(w.a, tenants.Read, tenants.Selector{}), id); ofError(err) != "PERMISSION_DENIED insufficient_scope " {
		t.Error(err)
	}
}

// Without any hint, another replica's work is found by looking.
func TestWithoutHints(t *testing.T) {
	w := newWorld(t)
	w.run(w.s, w.s2)
	ch, _ := w.n1.open(w.s2, 1)
	got := w.do(t.Context(), w.s, w.me(), drops("n1", 5), DoOptions{})
	w.must(ch.Finished(t.Context(), w.n1.order().ID, done(4)))
	a := w.wait(got)
	w.must(a.err)
	w.check("found", a.t, Completed, "")
}

// However many replicas claim a run at once, its node gets it once.
func TestClaimedOnce(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var ids []ID
	for range 20 {
		ids = append(ids, w.began(w.s, w.me(), drops("n1", 5)))
	}
	w.n1.open(w.s, 1)
	w.n1.open(w.s2, 1) // both think that they hold it
	var wg sync.WaitGroup
	for range 3 {
		for _, s := range []*Service{w.s, w.s2} {
			wg.Go(func() {
				if err := s.lookForClaims(ctx); err != nil {
					t.Error(err)
				}
				if err := s.claim(ctx); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	seen := map[ID]int{}
	for len(w.n1.orders) > 0 {
		seen[(<-w.n1.orders).ID]++
	}
	for _, id := range ids {
		if seen[id] != 1 {
			t.Errorf("%s was sent %d times", id, seen[id])
		}
	}
}

// A run that no replica takes ends, and says what was missing.
func TestReplicaAway(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	got := w.do(ctx, w.s, w.me(), drops("n1", 5), DoOptions{})
	for {
		if p, err := w.s.List(ctx, w.me(), ListQuery{}); err != nil || len(p.Tasks) == 1 {
			w.must(err)
			break
		}
	}
	w.advance(StartWithin)
	w.must(w.s.Sweep(ctx))
	a := w.wait(got)
	if ofError(a.err) != "UNAVAILABLE not_started " {
		t.Error(a.err)
	}
	w.check("away", a.t, Expired, "not_started")
	w.n1.open(w.s, 1)
	w.must(w.s.claim(ctx))
	if len(w.n1.orders) != 0 {
		t.Error("it was started after its time")
	}
}

// A lost connection is told at once; a node that comes back goes on, one that
// does not is NODE_DISCONNECTED.
func TestConnectionLost(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	one, two := w.pair()
	ch, _ := w.n1.open(two, 1)
	got := w.do(ctx, one, w.me(), drops("n1", 5), DoOptions{})
	id := w.n1.order().ID
	w.must(ch.Accepted(ctx, id))
	gone, leave := context.WithCancel(ctx)
	leave()
	ch.Closed(gone, false)
	a := w.wait(got)
	w.must(a.err)
	w.check("lost", a.t, Running, "node_connection_lost")
	if lease := a.t.Runs[0].LeaseUntil; lease == nil || !lease.Equal(start.Add(ResumeLease)) {
		t.Error(lease)
	}
	ch, cancel := w.n1.open(one, 1, id, ID{9})
	if len(cancel) != 1 || cancel[0] != (ID{9}) {
		t.Error(cancel)
	}
	w.check("back", w.get(one, id), Running, "")
	w.must(ch.Finished(ctx, id, done(3)))
	w.check("ended", w.get(one, id), Completed, "")

	id = w.began(one, w.me(), drops("n1", 5))
	w.n1.order()
	ch.Closed(ctx, false)
	w.advance(ResumeLease)
	w.must(two.Sweep(ctx))
	w.check("not back", w.get(one, id), Disconnected, "node_disconnected")
	if _, cancel = w.n1.open(one, 1, id); len(cancel) != 1 || cancel[0] != id {
		t.Error("the node was not told to stop what ended meanwhile")
	}
}

// A drained replica hands its runs over; its callers wait on.
func TestDrain(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	one, two := w.pair()
	ch, _ := w.n1.open(one, 1)
	got := w.do(ctx, one, w.me(), drops("n1", 5), DoOptions{})
	id := w.n1.order().ID
	w.must(ch.Accepted(ctx, id))
	ch.Closed(ctx, true)
	w.advance(ResumeLease + time.Second)
	ch2, cancel := w.n1.open(two, 1, id)
	if len(cancel) != 0 {
		t.Error(cancel)
	}
	w.must(ch2.Finished(ctx, id, done(6)))
	a := w.wait(got)
	w.must(a.err)
	w.check("handed over", a.t, Completed, "")
}

// Leases are renewed as long as the channel stands, and only by who holds it.
func TestLease(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.n1.open(w.s, 1)
	id := w.began(w.s, w.me(), drops("n1", 60))
	w.n1.order()
	for range 5 {
		w.advance(RunLease - time.Second)
		w.must(w.s.renew(ctx))
		w.must(w.s2.renew(ctx))
		w.exec(`update task_run set start_before = $1`, w.now().Add(time.Minute))
		w.must(w.s2.Sweep(ctx))
	}
	w.check("renewed", w.get(w.s, id), Dispatched, "")
	w.advance(RunLease) // the replica was killed
	w.must(w.s2.Sweep(ctx))
	w.check("not renewed", w.get(w.s, id), Disconnected, "node_disconnected")
}

// A node with another life has lost what the former one ran; a cancel that was
// asked for while it was away reaches it when it is back.
func TestReopened(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	ran, asked := w.began(w.s, w.me(), drops("n1", 20)), w.began(w.s, w.me(), drops("n1", 20))
	waits := w.began(w.s2, w.me(), drops("n1", 20))
	w.must(ch.Accepted(ctx, ran))
	w.must(ch.Accepted(ctx, asked))
	ch.Closed(ctx, false)
	w.must(w.s.cancelRuns(ctx, taskKey{w.a, asked}, nil))
	if _, cancel := w.n1.open(w.s2, 1, ran, asked); len(cancel) != 1 || cancel[0] != asked {
		t.Error(cancel)
	}
	w.must(w.s2.claim(ctx)) // without a look: the opening found it
	if n := len(w.n1.orders); n != 3 {
		t.Errorf("%d requests", n)
	}
	w.check("waited", w.get(w.s, waits), Dispatched, "")
	w.n1.open(w.s2, 2)
	for _, id := range []ID{ran, asked, waits} {
		w.check("restarted", w.get(w.s, id), Failed, "agent_restarted")
	}
	late, err := w.s.Get(ctx, w.me(), ran)
	if err != nil || late.Runs[0].StartedAt == nil || late.Runs[0].Next == "" {
		t.Error(late, err)
	}
}

// Only a node opens a channel, and for itself.
func TestChannelNeedsANode(t *testing.T) {
	w := newWorld(t)
	if _, _, err := w.s.ChannelOpened(t.Context(), w.me(), Hello{}, w.n1); ofError(err) != "PERMISSION_DENIED not_a_node " {
		t.Error(err)
	}
	// A node's word on another tenant's task, or another node's, changes nothing.
	w.n1.open(w.s, 1)
	id := w.began(w.s, w.me(), drops("n1", 5))
	for _, n := range []*node{w.n2, w.other} {
		ch, cancel := n.open(w.s, 1, id)
		if len(cancel) != 1 {
			t.Error(cancel)
		}
		w.must(ch.Accepted(t.Context(), id))
		w.must(ch.Finished(t.Context(), id, done(1)))
	}
	w.check("untouched", w.get(w.s, id), Dispatched, "")
}

// Of two channels of one node that open at once, the later one decides.
func TestChannelReplaced(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	slow := &Channel{s: w.s, key: nodeKey{w.a, w.n1.id}, life: 1, out: w.n1, runs: map[ID]*held{}}
	ch, _ := w.n1.open(w.s, 1)
	id := w.began(w.s, w.me(), drops("n1", 5))
	err := w.s.db.InTenants(ctx, []tenants.TenantID{w.a}, func(ctx context.Context, tx pgx.Tx) error {
		return slow.settle(ctx, tx, Hello{StartedNS: 1}, &found{})
	})
	if ofError(err) != "UNAVAILABLE channel_replaced " {
		t.Error(err)
	}
	w.check("untouched", w.get(w.s, id), Dispatched, "")

	// A word on a run that was sent on the former channel holds it on this one.
	later, _ := w.n1.open(w.s, 1, id)
	later.drop(id)
	w.must(later.Accepted(ctx, id))
	ch.Closed(ctx, false)
	w.must(w.s.write(ctx))
	w.must(w.s.renew(ctx))
	if got := w.get(w.s, id); got.Status != Running || later.held() != 1 || len(w.n1.stops) != 0 {
		t.Errorf("%+v", got)
	}
	w.must(later.Finished(ctx, id, done(1)))
	w.check("ended", w.get(w.s, id), Completed, "")
}
