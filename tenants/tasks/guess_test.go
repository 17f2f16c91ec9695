package tasks

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	w.must(w.conn.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// A node that a task was meant for before is looked for beside the next one
// that is stored, by its name and by its id, for whoever may see it.
func TestLookedForBesideStoring(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	w.began(w.s, w.me(), drops("n1", 2))
	w.n1.order()
	before := w.fleet.looked
	for _, ref := range []string{"n1", w.n1.id.String()} {
		for _, who := range []tenants.Scope{w.me(), caller(w.a, tenants.Diagnose, tenants.Selector{Labels: map[string]string{"env": "test"}})} {
			got := w.do(ctx, w.s, who, drops(ref, 2), DoOptions{})
			d := w.n1.order()
			if !d.Alone || d.Principal.ID != "t" || !d.Deadline.Equal(start.Add(StartWithin+2*time.Second+RunGrace)) {
				t.Errorf("%+v", d)
			}
			w.must(ch.Finished(ctx, d.ID, done(3)))
			a := w.wait(got)
			w.must(a.err)
			w.check(ref, a.t, Completed, "")
			if a.t.Runs[0].Name != "n1" || a.t.Runs[0].Node != w.n1.id.String() {
				t.Errorf("%+v", a.t.Runs)
			}
		}
	}
	if w.fleet.looked != before {
		t.Errorf("looked %d times before storing", w.fleet.looked-before)
	}
	ch.Closed(ctx, true)
	if len(w.s.byName) != 0 {
		t.Error("the name of a closed channel is kept")
	}
}

// What has changed since decides: the look proves the guess, and what it does
// not find is not stored.
func TestWrongGuesses(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	twin := w.node(w.a, "twin", map[string]string{"env": "prod"})
	foreign := w.node(w.b, "only-b", nil)
	for _, n := range []*node{w.n1, w.n2, w.other, foreign} {
		ch, _ := n.open(w.s, 1)
		w.s.named(ch, n.target.Name)
	}
	set := func(n *node, change func(*tenants.Target)) func() {
		w.fleet.mu.Lock()
		defer w.fleet.mu.Unlock()
		was := n.target
		change(&n.target)
		return func() {
			w.fleet.mu.Lock()
			defer w.fleet.mu.Unlock()
			n.target = was
		}
	}
	narrow := caller(w.a, tenants.Diagnose, tenants.Selector{Labels: map[string]string{"env": "prod"}})
	for _, c := range []struct {
		what, node string
		who        tenants.Scope
		change     func() func()
		want       string
	}{
		{"offline", "n1", w.me(), func() func() { return set(w.n1, func(t *tenants.Target) { t.Status = "offline" }) }, "UNAVAILABLE node_offline "},
		{"revoked", "n1", w.me(), func() func() { return set(w.n1, func(t *tenants.Target) { t.Status = "revoked" }) }, "UNAVAILABLE node_revoked "},
		{"switched off", "n1", w.me(), func() func() { return set(w.n1, func(t *tenants.Target) { t.Off = "EPERM" }) }, "FAILED_PRECONDITION feature_off "},
		{"called otherwise", "n1", w.me(), func() func() { return set(w.n1, func(t *tenants.Target) { t.Name = "new" }) }, "NOT_FOUND unknown_node "},
		{"outside of the selector", "n1", narrow, nil, "NOT_FOUND unknown_node "},
		{"of another tenant", "only-b", w.me(), nil, "NOT_FOUND unknown_node "},
		{"of another tenant, by id", foreign.id.String(), w.me(), nil, "NOT_FOUND unknown_node "},
		{"may not diagnose", "n1", caller(w.a, tenants.Read, tenants.Selector{}), nil, "PERMISSION_DENIED insufficient_scope "},
	} {
		undo := func() {}
		if c.change != nil {
			undo = c.change()
		}
		_, err := w.s.Do(ctx, c.who, drops(c.node, 2), DoOptions{})
		if got := ofError(err); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
		if n := w.count(`select count(*) from task`) + w.count(`select count(*) from task_run`); n != 0 {
			t.Errorf("%s: %d rows are stored", c.what, n)
		}
		undo()
	}

	// The name has gone over to another node, whose channel is not here: that is
	// the one that gets the task.
	undo := set(w.n1, func(t *tenants.Target) { t.Name = "old" })
	undoTwin := set(twin, func(t *tenants.Target) { t.Name, t.Replica = "n1", "r2" })
	id := w.began(w.s, w.me(), drops("n1", 2))
	if run := w.get(w.s, id).Runs[0]; run.Node != twin.id.String() || run.Status != Created || len(w.n1.orders) != 0 {
		t.Errorf("%+v", run)
	}
	undoTwin()
	undo()

	// All places but one are taken: the one tried at first seldom is it.
	for range MaxActive - 2 {
		w.began(w.s, w.me(), drops("n2", 2))
		w.n2.order()
	}
	w.began(w.s, w.me(), drops("n1", 2))
	w.n1.order()
	if _, err := w.s.Do(ctx, w.me(), drops("n1", 2), DoOptions{}); !strings.Contains(ofError(err), "too_many_tasks") {
		t.Error(err)
	}
	if n := w.count(`select count(distinct slot) from task where ended_at is null`); n != MaxActive {
		t.Errorf("%d places are taken", n)
	}
	if n := w.count(`select count(*) from task where tenant_id = $1`, [16]byte(w.b)); n != 0 {
		t.Errorf("%d tasks of another tenant", n)
	}
}

// A server that dies between storing a task and sending it: the run is taken
// by nobody else and never sent, and says so.
func TestKilledBetweenStoringAndSending(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for _, c := range []struct {
		what string
		next func(id ID)
		want State
		why  string
	}{
		{"the node comes to another replica", func(ID) { w.n1.open(w.s2, 1) }, Failed, "not_delivered"},
		{"the agent is started anew", func(ID) { w.n1.open(w.s2, 2) }, Failed, inspector.ReasonAgentRestarted},
		{"the node stays away", func(ID) {
			w.advance(RunLease)
			w.must(w.s2.Sweep(ctx))
		}, Disconnected, "node_disconnected"},
	} {
		for _, guessed := range []bool{false, true} {
			ch, _ := w.n1.open(w.s, 1)
			if guessed {
				w.s.named(ch, "n1")
			}
			p, err := w.s.plan(w.me(), drops("n1", 2))
			w.must(err)
			w.must(w.s.begin(ctx, p))
			w.check(c.what, w.get(w.s2, p.key.task), Dispatched, "")
			w.s.forget(ch) // killed: it never sends, and tells nobody
			w.must(w.s2.lookForClaims(ctx))
			w.must(w.s2.claim(ctx))
			c.next(p.key.task)
			w.must(w.s2.lookForClaims(ctx))
			w.must(w.s2.claim(ctx))
			w.check(c.what, w.get(w.s2, p.key.task), c.want, c.why)
			if n := len(w.n1.orders); n != 0 {
				t.Errorf("%s: %d requests went out", c.what, n)
			}
		}
	}
}

// Two ends of a run at the same moment: the one that comes first is the end,
// and nothing of the other one is left.
func TestTwoEndsAtOnce(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	for _, first := range []string{"swept", "handed over"} {
		id := w.began(w.s, w.me(), drops("n1", 2))
		w.n1.order()
		tx, err := w.conn.Begin(ctx)
		w.must(err)
		if _, err := tx.Exec(ctx, sqlLockTask, [16]byte(w.a), [16]byte(id)); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- ch.Finished(ctx, id, done(1)) }()
		w.blocked()
		want, reason := Completed, ""
		if first == "swept" {
			want, reason = TimedOut, "timed_out"
			for _, sql := range []string{
				`update task_run set state = 'TIMED_OUT', reason = 'timed_out', message = 'm', ended_at = $3 where tenant_id = $1 and task_id = $2`,
				`update task set state = 'TIMED_OUT', ended_at = $3 where tenant_id = $1 and task_id = $2`,
			} {
				if _, err := tx.Exec(ctx, sql, [16]byte(w.a), [16]byte(id), w.now()); err != nil {
					t.Fatal(err)
				}
			}
		} else if _, err := tx.Exec(ctx, `update task_run set replica = 'r2' where tenant_id = $1 and task_id = $2`, [16]byte(w.a), [16]byte(id)); err != nil {
			t.Fatal(err)
		}
		w.must(tx.Commit(ctx))
		w.must(<-ended)
		got := w.get(w.s2, id)
		w.check(first, got, want, reason)
		if has := got.Runs[0].Result != nil; has != (want == Completed) {
			t.Errorf("%s: result %v", first, has)
		}
	}
	if st := w.s.Stats(); st.Ended[Completed] != 1 || st.Late != 1 {
		t.Errorf("%+v", st)
	}
}

// blocked waits until a statement waits for a lock.
func (w *world) blocked() {
	w.t.Helper()
	other := time.Now().Add(20 * time.Second)
	for w.count(`select count(*) from pg_locks where not granted`) == 0 {
		if time.Now().After(other) {
			w.t.Fatal("nothing waits for a lock")
		}
	}
}
