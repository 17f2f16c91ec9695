package tasks

import (
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// The database dies a moment after two tasks began: the one whose ticket was
// told is there, the one that nobody was told of may be lost. It is not sent
// again, the node's result is taken and forgotten, and its caller hears at once
// what happened.
func TestCrashOfTheDatabase(t *testing.T) {
	srv := dbtest.NewServer(t, map[string]string{"fsync": "on", "synchronous_commit": "on", "wal_writer_delay": "10s"})
	w := newWorldOn(t, srv.Database())
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	ticket := w.do(ctx, w.s, w.me(), drops("n1", 20), DoOptions{})
	told := w.n1.order()
	short := w.do(ctx, w.s, w.me(), drops("n1", 2), DoOptions{})
	untold := w.n1.order()
	killed := srv.PID()
	if err := syscall.Kill(killed, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the database does not come back")
		}
		if pid := srv.PID(); pid <= 0 || pid == killed {
			continue
		}
		if _, err := w.s.Get(ctx, w.me(), told.ID); err == nil {
			break
		} else if fault.Is(err, fault.NotFound) {
			t.Fatalf("the task whose ticket was told: %v", err)
		}
	}
	w.check("told", w.get(w.s, told.ID), Dispatched, "")
	if _, err := w.s.Get(ctx, w.me(), untold.ID); !fault.Is(err, fault.NotFound) {
		t.Fatalf("nothing was lost, so that nothing is tested: %v", err)
	}
	w.must(w.s.lookForClaims(ctx))
	w.must(w.s.claim(ctx))
	if n := len(w.n1.orders); n != 0 {
		t.Errorf("%d requests went out again", n)
	}
	w.must(ch.Finished(ctx, untold.ID, done(1)))
	if a := w.wait(short); fault.Of(a.err).Reason != "task_lost" || fault.Of(a.err).Next == "" {
		t.Errorf("the caller of the lost task: %+v %v", a.t, a.err)
	}
	w.must(ch.Accepted(ctx, told.ID))
	w.must(ch.Finished(ctx, told.ID, done(3)))
	if a := w.wait(ticket); a.err != nil || a.t.Status != Completed {
		t.Errorf("the caller of the other one: %+v %v", a.t, a.err)
	}
}
