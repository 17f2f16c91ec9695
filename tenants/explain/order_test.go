package explain

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// withNetwork makes the world know the real kinds of the network.
func withNetwork(w *world) {
	reg := testRegistry()
	sat := inspector.EventKind{Name: "run_queue_saturation", Title: "Run queue saturated", Help: "h", Severity: inspector.Warning, Rule: &inspector.Rule{Metric: "cpu.wait", Stat: inspector.StatValue, K: 2, N: 3}}
	reg.Add(inspector.Component{Name: "cpu", Title: "CPU", Metrics: []inspector.Metric{{Name: "cpu.wait", Kind: inspector.Gauge, Unit: inspector.Ratio, Help: "h"}}, Events: []inspector.EventKind{sat}})
	network.Register(reg)
	w.s = New(reg, w, w, w, func() time.Time { return noon.Add(time.Hour) })
}

// finding plants an event that somebody made of a task's result, which ran
// for 30 s up to the moment.
func (w *world) finding(node, kind string, before time.Duration, labels ...string) string {
	id := w.plant(node, kind, before, labels...)
	e := &w.events[len(w.events)-1]
	e.Origin, e.Ticket = "task", "ticket-of-"+id
	begun := e.First.Add(-30 * time.Second)
	w.tasks[e.Ticket] = Task{Ticket: e.Ticket, Kind: kind, Runs: []Run{{Node: node, StartedAt: &begun, EndedAt: &e.First}}}
	return id
}

// A rule is known to hold only after several windows: a cause may be recorded
// after its effect.
func TestCauseWithinTheTimesOfWindows(t *testing.T) {
	w := newWorld()
	withNetwork(w)
	effect := w.plant("db1", network.RetransmitBurst, 0)
	drops := w.plant("db1", network.PacketDropBurst, -20*time.Second, "reason", "NETFILTER_DROP")
	later := w.plant("db1", network.PacketDropBurst, -2*time.Minute, "reason", "NO_SOCKET")
	x := w.explain(t, reader(w.a), Query{Event: effect})
	if len(x.Chain) != 2 || x.Chain[1].Event != drops || !strings.Contains(x.Chain[1].Why, "recorded 20 s after retransmit_burst, and its time is only known to 30 s") {
		t.Errorf("%+v", x.Chain)
	}
	if !strings.Contains(x.Verdict, "possibly because of packet drop burst (reason=NETFILTER_DROP)") || !around(t, x, drops).Related {
		t.Error(x.Verdict)
	}
	if a := around(t, x, later); a.Related || !strings.Contains(a.Why, "came after it began") {
		t.Errorf("%+v", a)
	}
	// A shared label alone needs a known order.
	w = newWorld()
	withNetwork(w)
	effect = w.plant("db1", "slow_io", 0, "device", "sda", "port", "5432")
	tied := w.plant("db1", network.ResetBurst, -20*time.Second, "port", "5432")
	x = w.explain(t, reader(w.a), Query{Event: effect})
	if a := around(t, x, tied); len(x.Chain) != 1 || !a.Related || !strings.Contains(a.Why, "which came first is not known") {
		t.Errorf("%+v %+v", x.Chain, a)
	}
}

// A finding bears the time of its task, which orders nothing.
func TestFindingIsNoOrder(t *testing.T) {
	w := newWorld()
	withNetwork(w)
	found := w.finding("db1", network.TraceDrops, 0, "reason", "NETFILTER_DROP", "comm", "curl")
	saturated := w.plant("db1", "run_queue_saturation", time.Minute, "comm", "curl")
	plain := w.plant("db1", "run_queue_saturation", 2*time.Minute)
	retransmits := w.plant("db1", network.RetransmitBurst, 3*time.Minute)
	x := w.explain(t, reader(w.a), Query{Event: found})
	if len(x.Chain) != 1 || !strings.Contains(x.Verdict, "was found by a task: its time is its task's window, 11:59:30 to 12:00:00; it may have begun before") {
		t.Errorf("%s %+v", x.Verdict, x.Chain)
	}
	for id, c := range map[string]struct {
		related bool
		why     string
	}{
		saturated:   {true, "both bear comm=curl; its time is its task's window, 11:59:30 to 12:00:00, so which came first is not known"},
		plain:       {false, "no shared scope"},
		retransmits: {true, "it may be an effect: what trace_network_drops looks into, packet_drop_burst, can bring retransmit_burst about"},
	} {
		if a := around(t, x, id); a.Related != c.related || !strings.Contains(a.Why, c.why) {
			t.Errorf("%s: %+v", id, a)
		}
	}
	// Seen from the effect, which began before the task: not ruled out, nor
	// named its cause.
	x = w.explain(t, reader(w.a), Query{Event: retransmits})
	if a := around(t, x, found); !a.Related || !strings.Contains(a.Why, "can bring retransmit_burst about; its time is its task's window") {
		t.Errorf("%+v", a)
	}
	for _, l := range x.Chain {
		if l.Event == found {
			t.Errorf("%+v", l)
		}
	}
	// A task that is no longer kept leaves the end of its window.
	delete(w.tasks, "ticket-of-"+found)
	x = w.explain(t, reader(w.a), Query{Event: found})
	if !strings.Contains(x.Verdict, "its time 12:00:00 is the end of its task's window") || len(x.NotLooked) == 0 {
		t.Errorf("%s %+v", x.Verdict, x.NotLooked)
	}
}

// Open events are no cause of a node's status, and the end of its stream is.
func TestOfflineNodeIsNotExplainedByEvents(t *testing.T) {
	w := newWorld()
	closed := noon.Add(59 * time.Minute)
	for reason, want := range map[string]string{"eof": "the agent was stopped", "broken": "the connection was lost", "revoked": "its identity was revoked", "odd": ""} {
		n := w.nodes["db1"]
		n.Status, n.ClosedAt, n.CloseReason = "offline", &closed, reason
		w.nodes["db1"], w.events = n, nil
		w.plant("db1", "io_error", -59*time.Minute, "device", "sda")
		w.plant("db1", "inspector_stuck", time.Hour, "component", "storage")
		for i := range w.events {
			w.events[i].State = inspector.EventOpen
		}
		x := w.explain(t, reader(w.a), Query{Node: "db1"})
		for i, l := range x.Chain {
			if l.Event != "" || i == 1 && (l.What != want || l.Role == State) {
				t.Errorf("%s: %+v", reason, l)
			}
		}
		if len(x.Open) != 2 || !strings.Contains(x.Verdict, want) || !strings.Contains(x.Verdict, "its stream ended 2026-03-01 12:59:00Z: "+reason) {
			t.Errorf("%s: %s\n%+v", reason, x.Verdict, x.Open)
		}
	}
}

func TestCompletedTaskEndedAsAsked(t *testing.T) {
	w := newWorld()
	begun, ended := noon, noon.Add(5*time.Second)
	run := func(node, status, reason string) Run {
		return Run{Node: node, Name: node, Status: status, Reason: reason, StartedAt: &begun, EndedAt: &ended}
	}
	w.tasks["t1"] = Task{Ticket: "t1", Kind: "trace_slow_io", Status: "COMPLETED", By: "ci", CreatedAt: noon, Deadline: noon.Add(time.Minute), EndedAt: &ended,
		Runs: []Run{run("db1", "COMPLETED", ""), run("db2", "COMPLETED", "")}}
	x := w.explain(t, reader(w.a), Query{Task: "t1"})
	if x.Verdict != "The task trace_slow_io ended as asked at 12:00:05, on 2 nodes." {
		t.Error(x.Verdict)
	}
	for i, l := range x.Chain {
		if strings.Contains(l.Why, "no reason") || i > 0 && l.Role != State {
			t.Errorf("%+v", l)
		}
	}
	w.tasks["t2"] = Task{Ticket: "t2", Kind: "trace_slow_io", Status: "FAILED", CreatedAt: noon, EndedAt: &ended, Runs: []Run{run("db1", "FAILED", inspector.ReasonBudget)}}
	x = w.explain(t, reader(w.a), Query{Task: "t2"})
	if l := x.Chain[1]; l.Role == State || !strings.Contains(l.Why, "over its own budget") || !strings.Contains(x.Verdict, "over its own budget") {
		t.Errorf("%s %+v", x.Verdict, l)
	}
}

// Signals that change together are one line.
func TestSignalsOfOneMoment(t *testing.T) {
	w := newWorld()
	event := w.plant("db1", "slow_io", 0, "device", "sda")
	at := noon.Add(-10 * time.Minute)
	w.changes = append(w.changes, Change{Node: "db1", Name: "db1", At: at, Kind: "agent_started"})
	for i := range 27 {
		w.changes = append(w.changes, Change{Node: "db1", Name: "db1", At: at.Add(time.Duration(i) * 100 * time.Millisecond), Kind: "capability",
			Subject: fmt.Sprintf("%s.s%d", []string{"network", "process"}[i%2], i), Before: "off", After: "full"})
	}
	w.changes = append(w.changes, Change{Node: "db1", Name: "db1", At: at.Add(5 * time.Minute), Kind: "capability", Subject: "network.tcp", Before: "full", After: "off: no BTF"},
		Change{Node: "db2", Name: "db2", At: at, Kind: "capability", Subject: "network.tcp", Before: "off", After: "full"})
	x := w.explain(t, reader(w.a), Query{Event: event})
	if len(x.Changes) != 3 {
		t.Errorf("%+v", x.Changes)
	}
	around(t, x, "27 signals of network, process came on at 11:50:00, when the agent started")
	around(t, x, "signal network.tcp: full → off: no BTF")
	if x = w.explain(t, reader(w.a), Query{Node: "db1"}); len(x.Changes) != 3 {
		t.Errorf("%+v", x.Changes)
	}
}
