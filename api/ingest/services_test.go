package ingest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/runner"
	"github.com/telltale-dev/telltale/agent/uplink"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// services are the real services of tasks and events on a rig's database, as
// one replica has them.
type services struct {
	tasks  *tasks.Service
	events *events.Service
}

func (r *rig) services(replica string) *services {
	reg := testRegistry()
	log := testLog(r.t)
	s := &services{
		tasks:  tasks.New(r.db, reg, r.fleet, nil, tasks.Config{Replica: replica}, log),
		events: events.New(r.db, reg, nil, r.metrics, nil, events.Config{}, log),
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{s.tasks.Run, s.events.Run, r.fleet.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				r.t.Error(err)
			}
		})
	}
	r.t.Cleanup(func() { cancel(); parts.Wait() })
	return s
}

func (s *services) use(d *Deps) { d.Tasks, d.Events = TasksOf(s.tasks.ChannelOpened), s.events }

// newServiceRig is a rig whose server has the real services.
func newServiceRig(t *testing.T) (*rig, *services) {
	t.Helper()
	r := newRig(t, Config{}) // its first server gives way to one that has them
	r.stop()
	s := r.services("test")
	r.start(Config{}, s.use, r.addr)
	return r, s
}

// executorOf is a real executor with one task kind, which counts seconds.
func executorOf(t *testing.T) *runner.Tasks {
	run := func(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
		r := &inspector.TaskResult{From: time.Now(), Totals: map[string]uint64{"packets": 7}, Rows: []inspector.ResultRow{{Labels: map[string]string{"comm": "a\x1bb"}, Count: 7}}}
		partial(r)
		end := time.NewTimer(time.Duration(args.Int(inspector.ArgDuration)) * time.Second)
		defer end.Stop()
		select {
		case <-end.C:
			r.To = time.Now()
			return r, nil
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
	}
	x := runner.NewTasks(runner.TaskConfig{}, testRegistry(), []runner.Module{{Component: "network", Tasks: map[string]inspector.TaskRun{"trace_network_drops": run}}}, testLog(t))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return x
}

func (r *rig) executing(tn tenants.Tenant, name string) (*uplink.Uplink, tenants.NodeID) {
	r.t.Helper()
	id, node := r.enrol(tn, name)
	u := uplink.New(uplink.Config{Facts: facts(name), Tasks: executorOf(r.t)}, id, testLog(r.t))
	r.run(u)
	r.eventually("the task channel is open", func() bool { return u.Stats().ChannelOpen })
	return u, node
}

func diagnose(t tenants.Tenant) tenants.Scope {
	return auth.Local(t, "anna", tenants.Read|tenants.Diagnose)
}

func drops(node tenants.NodeID, seconds int) tasks.Request {
	return tasks.Request{Kind: "trace_network_drops", Node: node.String(), Args: map[string]any{"duration_s": seconds}}
}

// From a caller's request to its answer, over every real part but the probe.
func TestTaskThroughTheRealServices(t *testing.T) {
	t.Parallel()
	r, s := newServiceRig(t)
	_, node := r.executing(r.acme, "web-1")
	_, foreign := r.executing(r.globex, "web-1")
	began := time.Now()
	task, err := s.tasks.Do(t.Context(), diagnose(r.acme), drops(node, 1), tasks.DoOptions{})
	must(t, err)
	if task.Status != tasks.Completed || len(task.Runs) != 1 || task.Runs[0].Result == nil || task.Runs[0].Result.Totals["packets"] != 7 ||
		task.Runs[0].Result.Rows[0].Labels["comm"] != `a\u001bb` {
		t.Errorf("task %+v", task)
	}
	t.Logf("beyond its duration: %v", time.Since(began)-time.Second)
	id, err := tasks.ParseID(task.Ticket)
	must(t, err)
	if _, err := s.tasks.Get(t.Context(), diagnose(r.globex), id); !fault.Is(err, fault.NotFound) {
		t.Errorf("the other tenant gets %v", err)
	}
	if _, err := s.tasks.Do(t.Context(), diagnose(r.acme), drops(foreign, 1), tasks.DoOptions{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("the other tenant's node: %v", err)
	}
	// A long one is accepted, cancelled, and ends on its node.
	task, err = s.tasks.Do(t.Context(), diagnose(r.acme), drops(node, 60), tasks.DoOptions{})
	must(t, err)
	id, err = tasks.ParseID(task.Ticket)
	must(t, err)
	if task.Status != tasks.Running {
		t.Errorf("a long task is %s", task.Status)
	}
	_, err = s.tasks.Cancel(t.Context(), diagnose(r.acme), id)
	must(t, err)
	r.eventually("cancelled, with what was found", func() bool {
		task, err := s.tasks.Get(t.Context(), diagnose(r.acme), id)
		must(t, err)
		return task.Status == tasks.Cancelled
	})
	if st := r.srv.Stats(); st.TaskRefused != 0 || st.Panics != 0 {
		t.Errorf("server %+v", st)
	}
}

// A replica that stops hands a running task to another one, and the caller who
// waits gets the whole result.
func TestRunningTaskMovesToAnotherReplica(t *testing.T) {
	t.Parallel()
	r, s := newServiceRig(t)
	u, node := r.executing(r.acme, "web-1")
	type answer struct {
		task tasks.Task
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		task, err := s.tasks.Do(t.Context(), diagnose(r.acme), drops(node, 4), tasks.DoOptions{})
		got <- answer{task, err}
	}()
	r.eventually("it runs", func() bool { return r.srv.Stats().TaskAnswers == 1 })
	addr := r.addr
	r.stop()
	r.fleet = fleet.New(r.db, testRegistry(), fleet.Config{Replica: "far"}, testLog(t))
	far := r.services("far")
	r.start(Config{}, far.use, addr)
	a := <-got
	must(t, a.err)
	if a.task.Status != tasks.Completed || a.task.Runs[0].Result == nil {
		t.Errorf("task %+v", a.task)
	}
	if st := u.Stats(); st.Channels < 2 || st.Orders != 1 || r.srv.Stats().TaskResults != 1 {
		t.Errorf("agent %+v, second server %+v", st, r.srv.Stats())
	}
}

// The server dies between the event's commit and its acknowledgement: one row.
func TestEventIsOneRowOverACrash(t *testing.T) {
	t.Parallel()
	r, s := newServiceRig(t)
	gate := &gated{Events: s.events, stored: make(chan struct{}, 8), hang: make(chan struct{})}
	addr := r.addr
	r.stop()
	r.start(Config{DrainTimeout: 50 * time.Millisecond}, func(d *Deps) { s.use(d); d.Events = gate }, addr)
	a, node := r.agent(r.acme, "web-1")
	b, _ := r.agent(r.globex, "web-1")
	settled := make(chan struct{})
	a.PushEvent(sighting("slow_io", 0), func() { close(settled) })
	<-gate.stored
	r.eventually("the streams are gone", func() bool { // one that opens meanwhile, too
		for _, st := range r.srv.hub.all() {
			st.cut("crash", errStopping)
		}
		return r.srv.hub.size() == 0
	})
	close(gate.hang)
	r.stop()
	r.start(Config{}, s.use, addr)
	select {
	case <-settled:
	case <-time.After(30 * time.Second):
		t.Fatal("not settled after the crash")
	}
	b.PushEvent(sighting("slow_io", 0), nil)
	b.PushEvent(sighting("of_the_future", 0), nil)
	r.eventually("the other tenant's are settled", func() bool { return b.Stats().EventsAcked == 2 })
	page, err := s.events.List(t.Context(), admin(r.acme), events.ListQuery{})
	must(t, err)
	if len(page.Events) != 1 || page.Events[0].Node != node.String() || page.Events[0].Kind != "slow_io" || page.Events[0].Cumulative != 1 {
		t.Errorf("events %+v", page.Events)
	}
	if st := b.Stats(); st.Quarantined != 1 {
		t.Errorf("a kind that the server does not know: %+v", st)
	}
}

// gated hangs after a record until it is let go.
type gated struct {
	Events
	stored, hang chan struct{}
}

func (g *gated) Record(ctx context.Context, scope tenants.Scope, r inspector.EventReport, skew time.Duration) error {
	err := g.Events.Record(ctx, scope, r, skew)
	select {
	case g.stored <- struct{}{}:
	default:
	}
	<-g.hang
	return err
}
