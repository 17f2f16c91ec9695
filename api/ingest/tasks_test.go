package ingest

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/uplink"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

func TestTaskFromOrderToTaken(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	h, u, node := r.worker(r.acme, "web-1")
	h2, _, node2 := r.worker(r.globex, "web-1")
	c := r.channel(d, node, 1)
	if !slices.Equal(c.hello.Kinds, []string{"trace_network_drops"}) || c.hello.StartedNS == 0 || c.scope.Tenant != r.acme.ID {
		t.Errorf("hello %+v of %v", c.hello, c.scope)
	}
	id := d.ask(t, c, "trace_network_drops")
	r.eventually("accepted", func() bool { return look(d, func() bool { return d.accepted[id] == 1 }) })
	o := seen(h, func() inspector.TaskOrder { return h.orders[0] })
	if o.Kind != "trace_network_drops" || o.Principal != "operator:anna" || string(o.Args) != `{"duration_s":1}` || !slices.Equal(o.Scopes, []string{"telltale:diagnose"}) {
		t.Errorf("order %+v", o)
	}
	if left := time.Until(o.StartBefore); left < 3*time.Second || left > 6*time.Second {
		t.Errorf("to be started within %v", left)
	}
	h.say(inspector.TaskUpdate{ID: inspector.TaskID(id), Permille: 300, Partial: result(100)})
	r.eventually("progress", func() bool {
		return look(d, func() bool { p := d.progress[id]; return p.Permille == 300 && p.Partial != nil })
	})
	h.say(inspector.TaskUpdate{ID: inspector.TaskID(id), Permille: 600})
	r.eventually("progress without a partial result", func() bool {
		return look(d, func() bool { p := d.progress[id]; return p.Permille == 600 && p.Partial == nil })
	})
	h.end(id, inspector.TaskCompleted, result(400<<10))
	r.eventually("taken", func() bool { return h.takenNow() == 1 })
	out := look(d, func() tasks.Outcome { return d.ends[id][0] })
	if out.State != tasks.Completed || len(out.Result.Rows) < 90 || out.Result.Totals["packets"] != 7 || out.Refusal != nil {
		t.Errorf("outcome %s with %d rows, %v", out.State, len(out.Result.Rows), out.Refusal)
	}
	// The other tenant's node works beside it, and its refusal arrives whole.
	h2.mu.Lock()
	h2.refuse = &inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: inspector.ReasonPidGone, Arg: "pid", Msg: "pid 7 is \xff gone\x1b", Next: "look again"}
	h2.mu.Unlock()
	id2 := d.ask(t, r.channel(d, node2, 1), "trace_network_drops")
	r.eventually("rejected", func() bool { return look(d, func() bool { return d.rejected[id2].Reason == inspector.ReasonPidGone }) })
	if f := look(d, func() inspector.Refusal { return d.rejected[id2] }); f.Kind != "FAILED_PRECONDITION" || f.Arg != "pid" || f.Next != "look again" ||
		f.Msg != "pid 7 is \uFFFD\\xff gone\\u001b" {
		t.Errorf("refusal %+v", f)
	}
	if st, own := r.srv.Stats(), u.Stats(); st.TaskChannels != 2 || st.TaskOpened != 2 || st.TaskOrders != 2 || st.TaskAnswers != 2 || st.TaskResults != 1 ||
		st.TaskBytes < 400_000 || st.TaskRefused+st.Refused+st.Panics != 0 || !own.ChannelOpen || own.Orders != 1 || own.Failures != 0 {
		t.Errorf("server %+v\nagent %+v", st, own)
	}
}

func TestTaskCancelReachesTheNode(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	h, _, node := r.worker(r.acme, "web-1")
	c := r.channel(d, node, 1)
	id := d.ask(t, c, "trace_network_drops")
	if !c.out.Cancel(id) {
		t.Fatal("no room for a cancel")
	}
	r.eventually("cancelled", func() bool { return seen(h, func() bool { return slices.Contains(h.cancelled, inspector.TaskID(id)) }) })
	h.end(id, inspector.TaskCancelled, result(100))
	r.eventually("ended", func() bool { return d.ended(id) == 1 && h.takenNow() == 1 })
	if out := look(d, func() tasks.Outcome { return d.ends[id][0] }); out.State != tasks.Cancelled || out.Result == nil || out.Refusal == nil {
		t.Errorf("outcome %+v", out)
	}
}

// A result that is none ends its task with a reason, and harms nothing else.
func TestMalformedResultFailsItsTask(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	h, u, node := r.worker(r.acme, "web-1")
	c := r.channel(d, node, 1)
	for _, raw := range []string{"", "{", "null", `{"surprise":1}`, string(result(10)) + "x", `{"from":"2026-01-01T00:00:00Z","to":"9999-01-01T00:00:00Z"}`} {
		id := d.ask(t, c, "trace_network_drops")
		r.eventually("it runs", func() bool { return look(d, func() bool { return d.accepted[id] == 1 }) })
		h.end(id, inspector.TaskCompleted, []byte(raw))
		r.eventually("ended", func() bool { return d.ended(id) == 1 })
		if out := look(d, func() tasks.Outcome { return d.ends[id][0] }); out.State != tasks.Failed || out.Refusal == nil || out.Refusal.Reason != "malformed_result" || out.Result != nil {
			t.Errorf("%.40q: %+v", raw, out)
		}
	}
	r.eventually("all are taken", func() bool { return h.takenNow() == 6 })
	if u.Stats().Channels != 1 || r.srv.Stats().TaskRefused != 6 {
		t.Errorf("agent %+v, server %+v", u.Stats(), r.srv.Stats())
	}
}

// A node that speaks of another tenant's task is told nothing, changes nothing,
// is counted, and forgets it.
func TestForeignTaskIsRefused(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	h, _, node := r.worker(r.acme, "web-1")
	thief, u, other := r.worker(r.globex, "web-1")
	c := r.channel(d, node, 1)
	r.channel(d, other, 1)
	id := d.ask(t, c, "trace_network_drops")
	r.eventually("it runs where it belongs", func() bool { return look(d, func() bool { return d.accepted[id] == 1 }) })
	thief.say(inspector.TaskUpdate{ID: inspector.TaskID(id), Permille: 999})
	r.eventually("the thief is told to stop", func() bool {
		return seen(thief, func() bool { return slices.Contains(thief.cancelled, inspector.TaskID(id)) })
	})
	thief.end(id, inspector.TaskCompleted, result(100))
	r.eventually("the thief forgets it", func() bool { return thief.takenNow() == 1 })
	if d.ended(id) != 0 || look(d, func() bool { return d.progress[id].Permille != 0 }) {
		t.Error("a foreign word on a task was taken in")
	}
	if st := r.srv.Stats(); st.TaskRefused != 2 || st.TaskResults != 0 {
		t.Errorf("server %+v", st)
	}
	r.eventually("it is counted for the node", func() bool { return r.quarantine(r.globex, other, "unknown_ticket") == 2 })
	h.end(id, inspector.TaskCompleted, result(100))
	r.eventually("the owner ends it", func() bool { return d.ended(id) == 1 })
	if u.Stats().Channels != 1 {
		t.Error("the channel did not live on")
	}
}

// An end is sent again on each new channel until it is taken, and is stored
// once: also when the service was away, and when the server was.
func TestEndIsSentAgainUntilTaken(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	h, u, node := r.worker(r.acme, "web-1")
	id := d.ask(t, r.channel(d, node, 1), "trace_network_drops")
	d.mu.Lock()
	d.away = 3
	d.mu.Unlock()
	r.eventually("it runs", func() bool { return look(d, func() bool { return d.accepted[id] == 1 }) })
	h.end(id, inspector.TaskCompleted, result(100))
	r.eventually("the service is back", func() bool { return h.takenNow() == 1 })
	if u.Stats().Channels != 1 || d.ended(id) != 1 {
		t.Errorf("%d channels, %d ends", u.Stats().Channels, d.ended(id))
	}
	// The task channel alone breaks; the report stream lives.
	id = d.ask(t, r.channel(d, node, 1), "trace_network_drops")
	r.eventually("it runs", func() bool { return look(d, func() bool { return d.accepted[id] == 1 }) })
	k := nodeKey{r.acme.ID, node}
	r.srv.hub.mu.Lock()
	ch := r.srv.hub.channels[k]
	r.srv.hub.mu.Unlock()
	ch.end()
	<-ch.closed
	h.end(id, inspector.TaskCompleted, result(100))
	r.eventually("a new channel brings the end", func() bool { return d.ended(id) == 1 && h.takenNow() == 2 })
	if c := r.channel(d, node, 2); !slices.Contains(c.hello.Running, id) {
		t.Errorf("the second hello names %v", c.hello.Running)
	}
	if st := u.Stats(); st.Connects != 1 || st.Channels != 2 || st.Failures != 0 {
		t.Errorf("the report stream noticed: %+v", st)
	}
}

// A server that drains hands the node and its running task over to another.
func TestDrainHandsTasksOver(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	h, u, node := r.worker(r.acme, "web-1")
	id := d.ask(t, r.channel(d, node, 1), "trace_network_drops")
	r.eventually("it runs", func() bool { return look(d, func() bool { return d.accepted[id] == 1 }) })
	addr := r.addr
	r.stop()
	if c := d.of(node)[0]; c.closed != 1 || !c.planned || c.out.Cancel(id) {
		t.Errorf("the first channel: closed %d times, planned %v", c.closed, c.planned)
	}
	r.start(Config{}, d.use, addr)
	c := r.channel(d, node, 2)
	if !slices.Equal(c.hello.Running, []tasks.ID{id}) {
		t.Errorf("the second server hears of %v", c.hello.Running)
	}
	h.end(id, inspector.TaskCompleted, result(100))
	r.eventually("the second server takes the end", func() bool { return d.ended(id) == 1 && h.takenNow() == 1 })
	if st := u.Stats(); st.Orders != 1 {
		t.Errorf("agent %+v", st)
	}
}

// What ended before the agent was told to stop still arrives.
func TestStoppingAgentSendsItsEnds(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	enrolled, node := r.enrol(r.acme, "web-1")
	h := newHand()
	u := uplink.New(uplink.Config{Facts: facts("web-1"), Tasks: h}, enrolled, testLog(t))
	stop := r.run(u)
	id := d.ask(t, r.channel(d, node, 1), "trace_network_drops")
	r.eventually("it runs", func() bool { return look(d, func() bool { return d.accepted[id] == 1 }) })
	h.end(id, inspector.TaskFailed, nil)
	stop()
	if d.ended(id) != 1 || h.takenNow() != 1 {
		t.Errorf("%d ends, %d taken", d.ended(id), h.takenNow())
	}
	r.eventually("the end was planned", func() bool { c := d.of(node)[0]; return c.closed == 1 && c.planned })
}

func TestRevocationCutsTheTaskChannel(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	_, u, node := r.worker(r.acme, "web-1")
	_, _, other := r.worker(r.globex, "web-1")
	c := r.channel(d, node, 1)
	r.channel(d, other, 1)
	must(t, r.dir.RevokeNode(t.Context(), admin(r.acme), node))
	within(t, 5*time.Second, "the channel is cut", func() bool { c := d.of(node)[0]; return c.closed == 1 && !c.planned })
	if c.out.Dispatch(tasks.Dispatch{}) {
		t.Error("a revoked node takes orders")
	}
	r.eventually("the agent knows", func() bool { return !u.Stats().ChannelOpen })
	if d.of(other)[0].closed != 0 {
		t.Error("the other tenant's channel ended too")
	}
}

// A task channel needs the report stream of the same node on the same
// connection, and a server that gives tasks at all.
func TestTaskChannelNeedsItsReportStream(t *testing.T) {
	t.Parallel()
	d := newDesk()
	r := newRigWith(t, Config{}, d.use)
	id, _ := r.enrol(r.acme, "web-1")
	u := uplink.New(uplink.Config{Facts: facts("web-1")}, id, testLog(t))
	r.run(u)
	r.eventually("connected", func() bool { return u.Stats().Connected })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := pb.NewAgentClient(r.dial(id.TLS())).Tasks(ctx)
	must(t, err)
	_ = s.Send(helloFrame()) // may come too late: the refusal is on its way
	_, err = s.Recv()
	if f := faultOf(err); status.Code(err) != codes.FailedPrecondition || f.GetReason() != "no_report_stream" || f.GetRetryAfterMs() == 0 {
		t.Errorf("another connection: %v", err)
	}
	r.stop()
	r.start(Config{}, nil, r.addr)
	r.eventually("connected again", func() bool { return r.srv.Live() == 1 })
	s, err = pb.NewAgentClient(r.dial(id.TLS())).Tasks(ctx)
	must(t, err)
	if _, err = s.Recv(); status.Code(err) != codes.FailedPrecondition || faultOf(err).GetReason() != "feature_off" {
		t.Errorf("a server without tasks: %v", err)
	}
	s, err = pb.NewAgentClient(r.dial(nil)).Tasks(ctx)
	must(t, err)
	if _, err = s.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("no certificate: %v", err)
	}
	if len(d.channels) != 0 || u.Stats().Connected != true {
		t.Error("a channel was opened")
	}
}
