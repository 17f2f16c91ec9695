package e2e_test

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// TestTasksOverKilledAgent kills the agent in every state in which it can hold
// a task. Afterwards the ticket is terminal for the right reason, the caller
// has an answer, and nothing has run twice.
func TestTasksOverKilledAgent(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	s := newServer(t, dsn)
	s.start()
	conn := dbtest.Connect(t, dsn)
	acme := s.tenant("acme", "role=web")
	type row struct {
		what    string
		seconds int
		before  func(n *simulatedNode) // before the call
		state   string                 // in which the run is then
		after   func(n *simulatedNode, a *ask)
		back    bool // the agent is started anew
		want    string
		reason  string
		begun   int
	}
	frozen := func(n *simulatedNode) { n.line.freeze(true, false) }
	didEnd := func(n *simulatedNode, a *ask) {
		poll(t, 20*time.Second, "the task's end on "+n.name, func() bool { return n.count("task ended", a.ticket) == 1 })
	}
	rows := []row{
		{"dispatched, back", 60, frozen, "DISPATCHED", nil, true, "FAILED", "agent_restarted", 1},
		{"dispatched, gone", 60, frozen, "DISPATCHED", nil, false, "NODE_DISCONNECTED", "node_disconnected", 1},
		{"running, back", 60, nil, "RUNNING", nil, true, "FAILED", "agent_restarted", 1},
		{"running, gone", 60, nil, "RUNNING", nil, false, "NODE_DISCONNECTED", "node_disconnected", 1},
		{"result not taken, back", 2, nil, "RUNNING", func(n *simulatedNode, a *ask) { n.line.freeze(true, false); didEnd(n, a) }, true, "FAILED", "agent_restarted", 1},
		{"result taken, agent not told", 2, nil, "RUNNING", func(n *simulatedNode, a *ask) {
			n.line.freeze(false, true)
			didEnd(n, a)
			ended(t, acme, a.ticket, 10*time.Second)
		}, true, "COMPLETED", "", 1},
	}
	agents := make([]*simulatedNode, len(rows))
	for i, r := range rows {
		agents[i] = simulate(t, s, acme, "k"+string(rune('a'+i))+"-")
		_ = r
	}
	connected(t, acme, len(rows))
	poll(t, 20*time.Second, "task channels", func() bool { return s.metric("telltale_ingest_task_channels") == float64(len(rows)) })

	asks := make([]*ask, len(rows))
	for i, r := range rows {
		if r.before != nil {
			r.before(agents[i])
		}
		asks[i] = startOn(t, conn, acme, agents[i], r.seconds, r.state)
	}
	for i, r := range rows {
		if r.after != nil {
			r.after(agents[i], asks[i])
		} else { // the request has arrived, whatever came back of it
			poll(t, 10*time.Second, "start on "+agents[i].name, func() bool { return agents[i].begun(asks[i].ticket) == 1 })
		}
		agents[i].kill()
		if r.back {
			agents[i].start()
		}
	}
	for i, r := range rows {
		asks[i].answered(t)
		doc := ended(t, acme, asks[i].ticket, 20*time.Second)
		run := doc.Runs[0]
		if doc.Status != r.want || run.Reason != r.reason || r.reason != "" && (run.Next == "" || run.Message == "") {
			t.Errorf("%s: %s", r.what, sprintJSON(doc))
		}
		if r.want == "COMPLETED" && (run.Result == nil || run.Partial) {
			t.Errorf("%s: completed without its result: %s", r.what, sprintJSON(doc))
		}
	}
	// Every agent that is back works, and has nothing left over.
	for i, r := range rows {
		if r.back {
			poll(t, 20*time.Second, agents[i].name+" at work", func() bool {
				_, doc := startTask(t, acme, "trace_slow_io", agents[i].name, map[string]any{"duration_s": 1})
				return doc.Status == "COMPLETED"
			})
		}
		if n := agents[i].begun(asks[i].ticket); n != r.begun {
			t.Errorf("%s: the task was begun %d times, want %d:\n%s", r.what, n, r.begun, agents[i].log)
		}
		if doc := getTask(t, acme, asks[i].ticket); doc.Status != r.want {
			t.Errorf("%s: later it is %s", r.what, doc.Status)
		}
	}
}

// TestTasksOverKilledServer kills a server in every state of the tasks on its
// nodes, and stops servers as an operator does. The nodes go to the other one,
// or come back, and each task ends there as if nothing had been.
func TestTasksOverKilledServer(t *testing.T) {
	t.Parallel()
	dsn := dbtest.DSN(t)
	a := newServer(t, dsn)
	a.start()
	b := a.twin()
	b.start()
	conn := dbtest.Connect(t, dsn)
	acme := a.tenant("acme", "role=web")
	const n = 5
	var agents [n]*simulatedNode
	for i := range agents {
		agents[i] = simulate(t, a, acme, "s"+string(rune('a'+i))+"-")
	}
	channels := func(s *server) {
		t.Helper()
		poll(t, 30*time.Second, "task channels", func() bool { return s.metric("telltale_ingest_task_channels") == n })
	}
	channels(a)
	over := func(what string, x tenant, asked ...*ask) {
		t.Helper()
		for _, k := range asked {
			doc := ended(t, x, k.ticket, 30*time.Second)
			k.answered(t)
			if doc.Status != "COMPLETED" || doc.Runs[0].Result == nil || doc.Runs[0].Partial {
				t.Errorf("%s: %s: %s", what, k.n.name, sprintJSON(doc))
			}
			if times := k.n.begun(k.ticket); times != 1 {
				t.Errorf("%s: %s began it %d times", what, k.n.name, times)
			}
		}
	}

	// CREATED: the server that holds the node takes no hint. It never begins,
	// also not when that server wakes up again.
	a.signal(syscall.SIGSTOP)
	stuck := startOn(t, conn, b.at(acme), agents[0], 1, "CREATED")
	doc := ended(t, b.at(acme), stuck.ticket, 20*time.Second)
	stuck.answered(t)
	if r := doc.Runs[0]; doc.Status != "EXPIRED" || r.Reason != "not_started" || r.Next == "" || stuck.status != 503 {
		t.Errorf("no server took it: the call answered %d: %s", stuck.status, sprintJSON(doc))
	}
	a.signal(syscall.SIGCONT)
	over("after a pause", b.at(acme), startOn(t, conn, b.at(acme), agents[0], 1, "RUNNING"))
	if stuck.n.begun(stuck.ticket) != 0 {
		t.Error("a task that was not started in time began all the same")
	}

	// Killed in every other state at once; the nodes go to the other server.
	running := startOn(t, conn, a.at(acme), agents[1], 6, "RUNNING")
	sent := startOn(t, conn, a.at(acme), agents[3], 1, "RUNNING")
	agents[3].line.freeze(true, false)
	poll(t, 10*time.Second, "the end on "+sent.n.name, func() bool { return sent.n.count("task ended", sent.ticket) == 1 })
	agents[2].line.freeze(true, false)
	dispatched := startOn(t, conn, a.at(acme), agents[2], 4, "DISPATCHED")
	poll(t, 10*time.Second, "the start on "+dispatched.n.name, func() bool { return dispatched.n.begun(dispatched.ticket) == 1 })
	a.signal(syscall.SIGSTOP)
	created := startOn(t, conn, b.at(acme), agents[0], 2, "CREATED")
	for _, x := range agents {
		x.line.lay(b.grpc)
	}
	a.kill()
	for _, x := range agents {
		x.line.cut()
	}
	for _, k := range []*ask{running, sent, dispatched} { // their calls ended with the server
		<-k.done
	}
	over("the server was killed", b.at(acme), running, sent, dispatched)
	// Its node must be back within five seconds of the call.
	if doc := ended(t, b.at(acme), created.ticket, 20*time.Second); doc.Status == "EXPIRED" {
		if created.n.begun(created.ticket) != 0 || doc.Runs[0].Reason != "not_started" {
			t.Errorf("created: %s", sprintJSON(doc))
		}
		t.Log("the node was not back in time for the task that no one had sent")
	} else {
		over("the server was killed before it sent it", b.at(acme), created)
	}
	channels(b)

	// The only server is killed and started again.
	again := startOn(t, conn, b.at(acme), agents[1], 5, "RUNNING")
	b.kill()
	<-again.done
	b.start()
	over("the server was started again", b.at(acme), again)
	channels(b)

	// An operator stops one server; the nodes go to the other one.
	a.start()
	drained := startOn(t, conn, a.at(acme), agents[1], 6, "RUNNING")
	for _, x := range agents {
		x.line.lay(a.grpc)
	}
	stopServer(t, b)
	over("the server was drained", a.at(acme), drained)
	channels(a)

	// The only server is stopped and started again. Whoever waits there is told
	// in time, with the ticket, and the task goes on.
	drained = startOn(t, conn, a.at(acme), agents[1], 8, "RUNNING")
	stopServer(t, a)
	<-drained.done
	if drained.status != http.StatusServiceUnavailable || !strings.Contains(drained.said, "server_stopping") || !strings.Contains(drained.said, drained.ticket) {
		t.Errorf("the caller at a server that stops got %d: %s", drained.status, drained.said)
	}
	a.start()
	over("the only server was drained", a.at(acme), drained)
}

// stopServer stops a server as an operator does and wants a clean end.
func stopServer(t *testing.T, s *server) {
	t.Helper()
	s.signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- s.cmd.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the server ended with %v:\n%s", err, s.output)
		}
	case <-ctx.Done():
		t.Errorf("the server did not end within 20 s of SIGTERM:\n%s", s.output)
		_ = s.cmd.Process.Kill()
		<-done
	}
	s.cmd = nil
}
