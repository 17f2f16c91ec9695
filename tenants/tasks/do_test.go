package tasks

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// A short task is answered in the call, by the replica that holds the node.
func TestShortTask(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, cancel := w.n1.open(w.s, 1)
	if len(cancel) != 0 {
		t.Error(cancel)
	}
	got := w.do(ctx, w.s, w.me(), Request{Kind: "trace_drops", Node: "n1"}, DoOptions{})
	d := w.n1.order()
	if d.Kind != "trace_drops" || !strings.Contains(string(d.Args), `"max_events":200`) || d.Principal.ID != "t" || len(d.Scopes) != 2 ||
		!d.StartBefore.Equal(start.Add(StartWithin)) || !d.Deadline.Equal(start.Add(StartWithin+5*time.Second+RunGrace)) {
		t.Errorf("%+v %s", d, d.Args)
	}
	w.must(ch.Accepted(ctx, d.ID))
	bad := result(9)
	bad.Rows[0].Labels = map[string]string{"evil\x1b": "\xff\u202e", "process": "ok"}
	w.must(ch.Finished(ctx, d.ID, Outcome{State: Completed, Result: bad}))
	a := w.wait(got)
	w.must(a.err)
	w.check("done", a.t, Completed, "")
	r := a.t.Runs[0]
	if r.Result == nil || r.Result.Totals["drops"] != 9 || r.Partial || r.Progress != 1 || r.StartedAt == nil {
		t.Errorf("%+v", r)
	}
	want := map[string]string{`evil\u001b`: "\ufffd\\xff\\u202e", "process": "ok"}
	if diff := cmp.Diff(want, r.Result.Rows[0].Labels); diff != "" {
		t.Error(diff)
	}
	if a.t.Ticket != d.ID.String() || a.t.By != "token ci" || a.t.Fanout || a.t.Coverage.Asked != 1 || a.t.Coverage.Answered != 1 || len(a.t.Args) != 3 {
		t.Errorf("%+v", a.t)
	}
	st := w.s.Stats()
	if st.Started != 1 || st.Dispatched != 1 || st.Ended[Completed] != 1 || st.Channels != 1 || st.Held != 0 || st.Watched != 0 || st.Late != 0 {
		t.Errorf("%+v", st)
	}
	w.must(ch.Finished(ctx, d.ID, Outcome{State: Failed})) // once more changes nothing
	w.check("again", w.get(w.s2, d.ID), Completed, "")
}

// Each bad request has its own reason, argument and next step.
func TestRefusedRequests(t *testing.T) {
	w := newWorld(t)
	for name, status := range map[string]string{"off": "offline", "st": "stale", "nv": "never", "q": "quarantined", "rv": "revoked", "dup": "duplicate"} {
		w.node(w.a, name, map[string]string{"set": "away"}).target.Status = status
	}
	w.node(w.a, "blind", map[string]string{"set": "blind"}).target.Off = "drops: EPERM"
	for i := range MaxRuns + 2 {
		w.node(w.a, fmt.Sprintf("many%d", i), map[string]string{"set": "many"})
	}
	ask := func(kind, node string, args map[string]any) Request {
		return Request{Kind: kind, Node: node, Args: args}
	}
	for _, c := range []struct {
		req  Request
		want string
	}{
		{ask("no_such_task", "n1", nil), "INVALID_ARGUMENT unknown_task kind"},
		{ask("trace_drops", "n1", map[string]any{"duration_s": 0}), "INVALID_ARGUMENT out_of_bounds duration_s"},
		{ask("trace_drops", "n1", map[string]any{"duration_s": -1}), "INVALID_ARGUMENT out_of_bounds duration_s"},
		{ask("trace_drops", "n1", map[string]any{"duration_s": 1e6}), "INVALID_ARGUMENT out_of_bounds duration_s"},
		{ask("trace_drops", "n1", map[string]any{"max_events": 1e9}), "INVALID_ARGUMENT out_of_bounds max_events"},
		{ask("trace_drops", "n1", map[string]any{"pid": 1}), "INVALID_ARGUMENT unknown_argument pid"},
		{ask("profile", "n1", nil), "INVALID_ARGUMENT no_target pid"},
		{ask("trace_drops", "", nil), "INVALID_ARGUMENT invalid_argument node"},
		{Request{Kind: "trace_drops", Node: "n1", Labels: map[string]string{"a": "b"}}, "INVALID_ARGUMENT invalid_argument node"},
		{ask("trace_drops", "nowhere", nil), "NOT_FOUND unknown_node "},
		{ask("trace_drops", w.other.id.String(), nil), "NOT_FOUND unknown_node "},
		{ask("trace_drops", "off", nil), "UNAVAILABLE node_offline "},
		{ask("trace_drops", "st", nil), "UNAVAILABLE node_stale "},
		{ask("trace_drops", "nv", nil), "UNAVAILABLE node_never "},
		{ask("trace_drops", "q", nil), "UNAVAILABLE node_quarantined "},
		{ask("trace_drops", "rv", nil), "UNAVAILABLE node_revoked "},
		{ask("trace_drops", "dup", nil), "UNAVAILABLE node_duplicate "},
		{ask("trace_drops", "blind", nil), "FAILED_PRECONDITION feature_off "},
		{Request{Kind: "trace_drops", Labels: map[string]string{"set": "none"}}, "NOT_FOUND no_nodes "},
		{Request{Kind: "trace_drops", Labels: map[string]string{"set": "many"}}, "INVALID_ARGUMENT too_many_nodes selector"},
	} {
		_, err := w.s.Do(t.Context(), w.me(), c.req, DoOptions{})
		f := fault.Of(err)
		if got := ofError(err); got != c.want || f.Msg == "" || f.Next == "" {
			t.Errorf("%+v: %s (%v), want %s", c.req, got, f, c.want)
		}
		if f.Reason == "too_many_nodes" && !strings.Contains(f.Msg, "52") || f.Reason == "feature_off" && !strings.Contains(f.Msg, "EPERM") {
			t.Error(f.Msg)
		}
	}
	_, err := w.s.Do(t.Context(), caller(w.a, tenants.Read, tenants.Selector{}), drops("n1", 1), DoOptions{})
	if got := ofError(err); got != "PERMISSION_DENIED insufficient_scope " {
		t.Error(got)
	}
	if n := w.s.Stats().Refused; n != 21 {
		t.Errorf("%d refused", n)
	}
}

// What a node refuses is the caller's error, as the node put it.
func TestNodeRefuses(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	got := w.do(ctx, w.s, w.me(), Request{Kind: "profile", Node: "n1", Args: map[string]any{"pid": 4}}, DoOptions{})
	d := w.n1.order()
	w.must(ch.Rejected(ctx, d.ID, inspector.Refusal{Kind: "NOT_FOUND", Reason: "pid_gone", Arg: "pid", Msg: "no process 4\x00", Next: "list processes"}))
	a := w.wait(got)
	if ofError(a.err) != "NOT_FOUND pid_gone pid" || fault.Of(a.err).Msg != `no process 4\u0000` || fault.Of(a.err).Next != "list processes" {
		t.Errorf("%v", a.err)
	}
	w.check("refused", a.t, Failed, "pid_gone")

	// Words that are none of ours are made ours.
	got = w.do(ctx, w.s, w.me(), drops("n1", 1), DoOptions{})
	w.must(ch.Rejected(ctx, w.n1.order().ID, inspector.Refusal{Kind: "EVIL", Reason: "<script>"}))
	if a := w.wait(got); ofError(a.err) != "INTERNAL task_failed " || fault.Of(a.err).Next == "" {
		t.Errorf("%v", a.err)
	}

	// A channel that takes nothing is said to.
	w.n1.deaf = true
	if _, err := w.s.Do(ctx, w.me(), drops("n1", 1), DoOptions{}); ofError(err) != "UNAVAILABLE not_delivered " {
		t.Error(err)
	}
}

// A long task answers when its node has begun; the ticket gives the rest.
func TestLongTask(t *testing.T) {
	w := newWorld(t)
	w.run(w.s)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	got := w.do(ctx, w.s, w.me(), drops("n1", 20), DoOptions{})
	id := w.n1.order().ID
	w.must(ch.Accepted(ctx, id))
	a := w.wait(got)
	w.must(a.err)
	w.check("begun", a.t, Running, "")
	if a.t.Coverage.NotCovered[0].Reason != "running" {
		t.Errorf("%+v", a.t.Coverage)
	}
	moved, stop := w.s2.Subscribe(w.a, id)
	defer stop()
	w.must(w.s2.lookAtWatched(ctx)) // without any hint
	<-moved
	w.must(w.s2.lookAtWatched(ctx))
	select {
	case <-moved:
		t.Error("woken for nothing")
	default:
	}
	w.must(ch.Progress(ctx, id, Progress{Permille: 250, Partial: result(3)}))
	deadline := time.Now().Add(20 * time.Second)
	for {
		r := w.get(w.s2, id).Runs[0]
		if r.Progress == 0.25 && r.Partial && r.Result != nil && r.Result.Totals["drops"] == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", r)
		}
	}
	w.must(w.s2.lookAtWatched(ctx))
	<-moved
	w.must(ch.Finished(ctx, id, done(5)))
	w.check("ended", w.get(w.s2, id), Completed, "")
}

// Progress comes to a waiting caller who asks for it; one who goes away
// cancels the task when he said so.
func TestProgressAndAbandoned(t *testing.T) {
	w := newWorld(t)
	w.run(w.s)
	ch, _ := w.n1.open(w.s, 1)
	ctx, leave := context.WithCancel(t.Context())
	seen := make(chan Task, 100)
	got := w.do(ctx, w.s, w.me(), drops("n1", 5), DoOptions{CancelWhenAbandoned: true, Progress: func(t Task) { seen <- t }})
	id := w.n1.order().ID
	w.must(ch.Progress(ctx, id, Progress{Permille: 100, Partial: result(1)}))
	if p := <-seen; p.Status != Running || p.Runs[0].Result == nil {
		t.Errorf("%+v", p)
	}
	leave()
	if w.n1.stop() != id {
		t.Error("another task was stopped")
	}
	a := w.wait(got)
	if ofError(a.err) != "DEADLINE_EXCEEDED abandoned " || a.t.Ticket != id.String() {
		t.Error(a.err, a.t)
	}
	w.must(ch.Finished(t.Context(), id, Outcome{State: Cancelled, Result: result(2)}))
	task := w.get(w.s, id)
	w.check("cancelled", task, Cancelled, "cancelled")
	if r := task.Runs[0]; !r.Partial || r.Result.Totals["drops"] != 2 || r.ErrorKind != "" {
		t.Errorf("%+v", r)
	}

	// A server that stops leaves its caller, and not the other way round.
	stopping, stop := context.WithCancelCause(t.Context())
	got = w.do(stopping, w.s, w.me(), drops("n1", 5), DoOptions{CancelWhenAbandoned: true})
	id = w.n1.order().ID
	w.must(ch.Accepted(t.Context(), id))
	stop(fault.ErrStopping)
	if a = w.wait(got); ofError(a.err) != "UNAVAILABLE server_stopping " || !strings.Contains(fault.Of(a.err).Next, id.String()) {
		t.Error(a.err, fault.Of(a.err).Next)
	}
	w.must(ch.Finished(t.Context(), id, done(7)))
	w.check("goes on", w.get(w.s, id), Completed, "")

	// Without it the task goes on.
	ctx, leave = context.WithCancel(t.Context())
	got = w.do(ctx, w.s, w.me(), drops("n1", 5), DoOptions{})
	id = w.n1.order().ID
	leave()
	if a := w.wait(got); ofError(a.err) != "DEADLINE_EXCEEDED abandoned " || !strings.Contains(fault.Of(a.err).Next, id.String()) {
		t.Error(a.err)
	}
	if len(w.n1.stops) != 0 {
		t.Error("it was stopped")
	}
}

// A fan-out is one task: nodes that cannot take part are rows with a reason.
func TestFanOut(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	label := map[string]string{"set": "x"}
	var chans []*Channel
	var nodes []*node
	for i := range 3 {
		n := w.node(w.a, fmt.Sprintf("x%d", i), map[string]string{"set": "x", "n": fmt.Sprint(i)})
		ch, _ := n.open(w.s, 1)
		nodes, chans = append(nodes, n), append(chans, ch)
	}
	w.node(w.a, "x8", label).target.Status = "offline"
	w.node(w.a, "x9", label).target.Off = "drops: EPERM"
	got := w.do(ctx, w.s, w.me(), Request{Kind: "trace_drops", Labels: label}, DoOptions{})
	var id ID
	for i, n := range nodes {
		id = n.order().ID
		w.must(chans[i].Accepted(ctx, id))
	}
	w.must(chans[0].Finished(ctx, id, done(1)))
	w.must(chans[1].Finished(ctx, id, done(2)))
	mid := w.get(w.s, id)
	if mid.Status != Running || mid.EndedAt != nil || mid.Coverage.Answered != 2 {
		t.Errorf("%+v", mid)
	}
	w.must(chans[2].Rejected(ctx, id, inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: "not_allowed", Msg: "no", Next: "ask"}))
	a := w.wait(got)
	w.must(a.err)
	wantCover := tenants.Coverage{Asked: 5, Answered: 2, NotCovered: []tenants.NotCovered{
		{Node: nodes[2].id.String(), Name: "x2", Reason: "not_allowed"},
		{Node: w.fleet.nodes[6].id.String(), Name: "x8", Reason: "offline"},
		{Node: w.fleet.nodes[7].id.String(), Name: "x9", Reason: "feature_off: drops: EPERM"},
	}}
	if diff := cmp.Diff(wantCover, a.t.Coverage); a.t.Status != Completed || !a.t.Fanout || len(a.t.Runs) != 3 || a.t.EndedAt == nil || diff != "" {
		t.Error(a.t.Status, len(a.t.Runs), diff)
	}

	// All of them away: a task too, which has ended.
	got = w.do(ctx, w.s, w.me(), Request{Kind: "trace_drops", Labels: map[string]string{"set": "y"}}, DoOptions{})
	if a := w.wait(got); fault.Of(a.err).Reason != "no_nodes" {
		t.Error(a.err)
	}
	w.node(w.a, "y", map[string]string{"set": "y"}).target.Status = "never"
	a = w.wait(w.do(ctx, w.s, w.me(), Request{Kind: "trace_drops", Labels: map[string]string{"set": "y"}}, DoOptions{}))
	if a.err != nil || a.t.Status != Failed || a.t.EndedAt == nil || a.t.Runs == nil || len(a.t.Runs) != 0 || a.t.Coverage.NotCovered[0].Reason != "never" {
		t.Error(a.err, a.t)
	}

	// A restricted principal sees the runs on his nodes only.
	narrow := caller(w.a, tenants.Diagnose, tenants.Selector{Labels: map[string]string{"n": "1"}})
	part, err := w.s.Get(ctx, narrow, id)
	if err != nil || len(part.Runs) != 1 || part.Runs[0].Name != "x1" || part.Coverage.Asked != 1 {
		t.Error(err, part)
	}
	list, err := w.s.List(ctx, narrow, ListQuery{})
	if err != nil || len(list.Tasks) != 1 || list.Tasks[0].Nodes != 1 || list.Tasks[0].Ticket != id.String() {
		t.Error(err, list)
	}
	for name, scope := range map[string]tenants.Scope{"no node of it": caller(w.a, tenants.Diagnose, tenants.Selector{IDs: []tenants.NodeID{w.n1.id}}),
		"another tenant": caller(w.b, tenants.Diagnose, tenants.Selector{})} {
		if _, err := w.s.Get(ctx, scope, id); ofError(err) != "NOT_FOUND unknown_ticket ticket_id" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := w.s.Cancel(ctx, scope, id); ofError(err) != "NOT_FOUND unknown_ticket ticket_id" {
			t.Errorf("%s: %v", name, err)
		}
		if list, err := w.s.List(ctx, scope, ListQuery{}); err != nil || len(list.Tasks) != 0 {
			t.Errorf("%s: %v %v", name, list, err)
		}
	}
}

// A tenant has so many active tasks and no more, however they are started.
func TestActiveLimit(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ch, _ := w.n1.open(w.s, 1) // one of them looks for the node beside storing, the other one before
	w.s.named(ch, "n1")
	reasons := map[string]int{}
	for i := range MaxActive + 20 {
		wg.Go(func() {
			s := []*Service{w.s, w.s2}[i%2]
			p, err := s.plan(w.me(), drops("n1", 5))
			if err == nil {
				err = s.begin(ctx, p)
			}
			mu.Lock()
			defer mu.Unlock()
			reasons[ofError(err)]++
		})
	}
	wg.Wait()
	want := map[string]int{"none": MaxActive, "RESOURCE_EXHAUSTED too_many_tasks ": 20}
	if diff := cmp.Diff(want, reasons); diff != "" {
		t.Error(diff)
	}
	w.began(w.s, caller(w.b, tenants.Diagnose, tenants.Selector{}), drops("n1", 5)) // another tenant has room
	w.advance(StartWithin)
	w.must(w.s.Sweep(ctx))
	w.began(w.s, w.me(), drops("n1", 5))
}

// Pages go from the youngest task to the oldest.
func TestList(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	var want []string
	for range 5 {
		id := w.began(w.s, w.me(), drops("n1", 5))
		w.must(ch.Finished(ctx, w.n1.order().ID, done(1)))
		want = append(want, id.String())
	}
	live := w.began(w.s, caller(w.a, tenants.Diagnose, tenants.Selector{}), Request{Kind: "peek", Node: "n1"})
	want = append(want, live.String())
	w.began(w.s, caller(w.b, tenants.Diagnose, tenants.Selector{}), drops("n1", 5))
	var all []Summary
	q := ListQuery{Limit: 4}
	for range 3 {
		p, err := w.s.List(ctx, w.me(), q)
		w.must(err)
		all = append(all, p.Tasks...)
		if p.Truncated == nil {
			break
		}
		q.Cursor = p.Truncated.NextCursor
	}
	if diff := cmp.Diff(want, tickets(all)); diff != "" || all[0].Ticket != live.String() || all[0].Status != Dispatched || all[1].Status != Completed || all[1].Nodes != 1 {
		t.Error(diff, all)
	}
	if p, err := w.s.List(ctx, w.me(), ListQuery{Active: true, Kind: "peek", Limit: 1000}); err != nil || len(p.Tasks) != 1 || p.Truncated == nil || p.Truncated.Hint != "limit was clamped to 200" {
		t.Error(p, err)
	}
	for _, q := range []ListQuery{{Cursor: "x"}, {Kind: "nothing"}} {
		if _, err := w.s.List(ctx, w.me(), q); !fault.Is(err, fault.Invalid) {
			t.Error(err)
		}
	}
}

// An outage of the database is told once, however many wait and look.
func TestOutageIsToldOnce(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var told bytes.Buffer
	w.s.log = slog.New(slog.NewTextHandler(&told, nil)) // serial by itself
	ch, _ := w.n1.open(w.s, 1)
	var waiting []<-chan answer
	var ids []ID
	for range 3 {
		waiting = append(waiting, w.do(ctx, w.s, w.me(), drops("n1", 5), DoOptions{}))
		ids = append(ids, w.n1.order().ID)
	}
	w.exec(`alter table task_result rename to away`)
	for deadline := time.Now().Add(20 * time.Second); !w.s.blind.Load(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("no caller looked")
		}
		for _, id := range ids {
			w.s.moved(taskKey{w.a, id})
		}
	}
	w.exec(`alter table away rename to task_result`)
	for i, id := range ids {
		w.must(ch.Finished(ctx, id, done(1)))
		w.must(w.wait(waiting[i]).err)
	}
	if log := told.String(); strings.Count(log, "cannot look") != 1 || strings.Count(log, "look again") != 1 {
		t.Error(log)
	}
}
