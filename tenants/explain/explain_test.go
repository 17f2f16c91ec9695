package explain

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// world stands for the slices: nodes of two tenants with labels, and what is
// recorded of them, all of it seen through a scope.
type world struct {
	nodes       map[string]Node
	owner       map[string]tenants.TenantID
	events      []Event
	changes     []Change
	moreChanges bool // there are further ones
	tasks       map[string]Task
	a, b        tenants.TenantID
	s           *Service
}

func newWorld() *world {
	w := &world{nodes: map[string]Node{}, owner: map[string]tenants.TenantID{}, tasks: map[string]Task{}, a: tenants.NewTenantID(), b: tenants.NewTenantID()}
	w.node(w.a, "db1", "prod")
	w.node(w.a, "db2", "prod")
	w.node(w.a, "test1", "test")
	w.node(w.b, "foreign", "prod")
	w.s = New(testRegistry(), w, w, w, func() time.Time { return noon.Add(time.Hour) })
	return w
}

func testRegistry() *inspector.Registry {
	r := &inspector.Registry{}
	kind := func(name string, causes ...string) inspector.EventKind {
		return inspector.EventKind{Name: name, Title: strings.ReplaceAll(name, "_", " "), Help: "help", Severity: inspector.Warning, Immediate: true, CausedBy: causes}
	}
	slow := kind("slow_io", "io_error")
	slow.Tool = "trace_slow_io"
	r.Add(inspector.Component{Name: "storage", Title: "Storage", Signals: []string{"latency"}, Tasks: []inspector.TaskKind{
		{Name: "trace_slow_io", Title: "t", Help: "h", Scope: inspector.ScopeDiagnose, Cost: inspector.CostTrace, Targets: []string{"device"},
			Args: append(inspector.TraceArgs(60), inspector.Arg{Name: "device", Kind: inspector.TextArg, Max: 64})}},
		Events: []inspector.EventKind{kind("io_error"), slow}})
	r.Add(inspector.Component{Name: "process", Title: "Process", Events: []inspector.EventKind{kind("oom_kill"), kind("process_crash", "oom_kill", "new_executable"), kind("new_executable")}})
	r.Add(inspector.Component{Name: "host", Title: "Host", Events: []inspector.EventKind{kind("inspector_stuck", "slow_io", "io_error"), kind("event_loss")}})
	return r
}

func (w *world) node(t tenants.TenantID, name, env string) {
	seen := noon.Add(time.Hour)
	w.nodes[name] = Node{ID: name, Name: name, Status: "online", Labels: map[string]string{"env": env}, LastSeen: &seen}
	w.owner[name] = t
}

// plant records an event, minutes before noon, and answers its id.
func (w *world) plant(node, kind string, before time.Duration, labels ...string) string {
	scope := map[string]string{}
	for i := 0; i < len(labels); i += 2 {
		scope[labels[i]] = labels[i+1]
	}
	id := fmt.Sprintf("%s-%d", kind, len(w.events))
	at := noon.Add(-before)
	w.events = append(w.events, Event{ID: id, Node: node, Name: node, Kind: kind, Title: strings.ReplaceAll(kind, "_", " "), Severity: inspector.Warning, State: inspector.EventEnded,
		Fingerprint: inspector.FingerprintOf(kind, scope).String(), Scope: scope, First: at, Last: at, Count: 3, Context: "complete"})
	return id
}

func (w *world) sees(scope tenants.Scope, node string) bool {
	n, ok := w.nodes[node]
	return ok && w.owner[node] == scope.Tenant && scope.Nodes.Matches(tenants.NodeID{}, n.Labels)
}

func (w *world) Event(_ context.Context, scope tenants.Scope, id string) (Event, error) {
	for _, e := range w.events {
		if e.ID == id && w.sees(scope, e.Node) {
			return e, nil
		}
	}
	return Event{}, fault.New(fault.NotFound, "unknown_event", "no event")
}

func (w *world) Around(_ context.Context, scope tenants.Scope, node string, labels map[string]string, from, to time.Time) (l Listed, err error) {
	for name, n := range w.nodes {
		if w.sees(scope, name) && (node == "" || node == name) && (tenants.Selector{Labels: labels}).Matches(tenants.NodeID{}, n.Labels) {
			l.Coverage.Asked++
			if n.Status != "online" {
				l.Coverage.NotCovered = append(l.Coverage.NotCovered, tenants.NotCovered{Node: name, Name: name, Reason: n.Status})
			}
			for _, e := range w.events {
				if e.Node == name && e.First.After(from) && !e.First.After(to) {
					e.Samples = nil
					l.Events = append(l.Events, e)
				}
			}
		}
	}
	l.Coverage.Answered = l.Coverage.Asked - len(l.Coverage.NotCovered)
	return l, nil
}

func (w *world) Node(_ context.Context, scope tenants.Scope, ref string) (Node, error) {
	if !w.sees(scope, ref) {
		return Node{}, fault.New(fault.NotFound, "unknown_node", "no node")
	}
	return w.nodes[ref], nil
}

func (w *world) Changes(_ context.Context, scope tenants.Scope, nodes []string, from, to time.Time) (out []Change, more bool, err error) {
	for _, c := range w.changes {
		for _, n := range nodes {
			if c.Node == n && w.sees(scope, n) && !c.At.Before(from) && !c.At.After(to) {
				out = append(out, c)
			}
		}
	}
	return out, w.moreChanges, nil
}

func (w *world) Task(_ context.Context, scope tenants.Scope, ticket string) (Task, error) {
	t, ok := w.tasks[ticket]
	if !ok || scope.Tenant != w.a {
		return Task{}, fault.New(fault.NotFound, "unknown_ticket", "no task")
	}
	return t, nil
}

func reader(t tenants.TenantID) tenants.Scope {
	return tenants.Scope{Tenant: t, Granted: tenants.Read, Principal: tenants.Principal{Kind: tenants.TokenPrincipal, ID: "t"}}
}

func (w *world) explain(t *testing.T, scope tenants.Scope, q Query) Explanation {
	t.Helper()
	x, err := w.s.Explain(context.Background(), scope, q)
	if err != nil {
		t.Fatalf("%+v: %v", q, err)
	}
	return x
}

// around finds what is said of an event or change; the test fails without.
func around(t *testing.T, x Explanation, what string) Around {
	t.Helper()
	for _, a := range x.Changes {
		if a.Event == what || a.What == what {
			return a
		}
	}
	t.Fatalf("%q is not listed among %+v", what, x.Changes)
	return Around{}
}

// TestStormHidesNoCause plants a cause that only a sample ties to its effect,
// and many events of the effect's own kind in between.
func TestStormHidesNoCause(t *testing.T) {
	w := newWorld()
	slow := w.plant("db1", "slow_io", 2*time.Minute, "device", "sda")
	w.events[0].Samples = []map[string]string{{"comm": "victim"}}
	for i := range 3 * maxAround {
		w.plant("db1", "process_crash", time.Minute, "comm", fmt.Sprint("c", i))
	}
	effect := w.plant("db1", "process_crash", 0, "comm", "victim")
	w.changes = []Change{{Node: "db1", Name: "db1", At: noon.Add(-time.Second), Kind: "config"}}
	slices.Reverse(w.events) // the youngest first, as a page has them
	x := w.explain(t, reader(w.a), Query{Event: effect})
	if len(x.Chain) != 2 || x.Chain[1].Event != slow || !strings.Contains(x.Chain[1].Why, "both bear comm=victim") {
		t.Errorf("%s\n%+v", x.Verdict, x.Chain)
	}
	few := x.Nearest(2)
	if len(few) != 2 || few[0].Event != slow || few[1].What != "the agent has another configuration" {
		t.Errorf("what is related and what is near: %+v", few)
	}
}

func TestPlantedCauseAndPlantedChange(t *testing.T) {
	w := newWorld()
	effect := w.plant("db1", "inspector_stuck", 0, "component", "storage")
	slow := w.plant("db1", "slow_io", 4*time.Minute, "device", "sda")
	root := w.plant("db1", "io_error", 6*time.Minute, "device", "sda")
	otherDisk := w.plant("db1", "io_error", 5*time.Minute, "device", "sdb")
	deploy := w.plant("db1", "new_executable", 2*time.Minute, "exe", "/usr/bin/unrelated")
	peer := w.plant("db2", "inspector_stuck", time.Minute, "component", "storage")
	w.plant("test1", "slow_io", time.Minute, "device", "sda")
	w.plant("foreign", "slow_io", time.Minute, "device", "sda")
	old := w.plant("db1", "slow_io", 20*time.Minute, "device", "sdc")
	later := w.plant("db1", "slow_io", -time.Minute, "device", "sdd")
	w.changes = []Change{{Node: "db1", Name: "db1", At: noon.Add(-3 * time.Minute), Kind: "config", Before: "a", After: "b"},
		{Node: "db1", Name: "db1", At: noon.Add(-3 * time.Minute), Kind: "module_off", Subject: "storage", After: "token ci"},
		{Node: "db2", Name: "db2", At: noon.Add(-3 * time.Minute), Kind: "agent_started"},
		{Node: "foreign", Name: "foreign", At: noon.Add(-3 * time.Minute), Kind: "agent_started"}}
	x := w.explain(t, reader(w.a), Query{Event: effect})
	var chain []string
	for _, l := range x.Chain {
		chain = append(chain, l.Event+" "+string(l.Confidence))
	}
	// sdb's error could have brought it about as well: it is said, not chosen.
	want := []string{effect + " recorded", slow + " related", otherDisk + " related", root + " related"}
	if diff := cmp.Diff(want, chain); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(x.Verdict, "slow io (device=sda)") || !strings.Contains(x.Verdict, "io error (device=sda) at 11:54:00") {
		t.Error(x.Verdict)
	}
	for id, c := range map[string]struct {
		related bool
		why     string
	}{
		slow: {true, "slow_io can bring inspector_stuck about"}, deploy: {false, "no shared scope"}, peer: {false, "another node"}, old: {false, "over for more than 15m"},
		later: {false, "came after"}, "the agent has another configuration": {false, "no shared scope"}, "module storage was switched off by token ci": {true, "both bear component=storage"},
	} {
		if a := around(t, x, id); a.Related != c.related || !strings.Contains(a.Why, c.why) {
			t.Errorf("%s: %+v", id, a)
		}
	}
	if a := around(t, x, "the agent was started"); a.Related || a.Node != "db2" || !strings.Contains(a.Why, "another node") {
		t.Errorf("%+v", a)
	}
	for _, a := range x.Changes {
		if a.Node == "foreign" || a.Node == "test1" {
			t.Errorf("foreign: %+v", a)
		}
	}
	if len(x.Looked) < 3 {
		t.Errorf("looked at %v", x.Looked)
	}
}

// A label that both bear ties two records; another value of it keeps them
// apart, whatever the kinds say.
func TestSharedScope(t *testing.T) {
	w := newWorld()
	effect := w.plant("db1", "process_crash", 0, "comm", "server", "cgroup", "/app")
	w.events[0].Samples = []map[string]string{{"exe": "/opt/server", "pid": "9"}}
	mine := w.plant("db1", "new_executable", time.Minute, "exe", "/opt/server")
	other := w.plant("db1", "new_executable", time.Minute, "exe", "/opt/other")
	kill := w.plant("db1", "oom_kill", 2*time.Minute, "comm", "worker", "cgroup", "/app")
	apart := w.plant("db1", "oom_kill", 2*time.Minute, "comm", "thing", "cgroup", "/else")
	w.plant("db1", "slow_io", time.Minute, "device", "sda")
	again := w.plant("db1", "process_crash", 10*time.Minute, "comm", "server", "cgroup", "/app")
	x := w.explain(t, reader(w.a), Query{Event: effect})
	for id, related := range map[string]bool{mine: true, other: false, kill: true, apart: false, again: true} {
		if a := around(t, x, id); a.Related != related {
			t.Errorf("%s: %+v", id, a)
		}
	}
	if !strings.Contains(around(t, x, mine).Why, "exe=/opt/server") || !strings.Contains(around(t, x, other).Why, "another exe") {
		t.Errorf("%+v", x.Changes)
	}
	for _, l := range x.Chain {
		if l.Event == again {
			t.Error("an earlier spell is no cause")
		}
	}
	lone := w.plant("db2", "slow_io", 0, "device", "sda")
	x = w.explain(t, reader(w.a), Query{Event: lone})
	if len(x.Chain) != 1 || !strings.Contains(x.Verdict, "cause is not known") {
		t.Errorf("%s %+v", x.Verdict, x.Chain)
	}
	if len(x.Next) == 0 || x.Next[0].Tool != "trace_slow_io" || x.Next[0].Args["device"] != "sda" {
		t.Errorf("%+v", x.Next)
	}
}

func TestScope(t *testing.T) {
	w := newWorld()
	id := w.plant("db1", "slow_io", 0, "device", "sda")
	own := w.plant("test1", "slow_io", 0, "device", "sda")
	limited := reader(w.a)
	limited.Nodes = tenants.Selector{Labels: map[string]string{"env": "test"}}
	for name, scope := range map[string]tenants.Scope{"limited": limited, "another tenant": reader(w.b)} {
		for _, q := range []Query{{Event: id}, {Node: "db1"}, {Refusal: "node_offline", Node: "db1"}} {
			if _, err := w.s.Explain(context.Background(), scope, q); !fault.Is(err, fault.NotFound) {
				t.Errorf("%s %+v: %v", name, q, err)
			}
		}
	}
	if x := w.explain(t, limited, Query{Event: own}); len(x.Changes) != 0 || x.Coverage.Asked != 1 {
		t.Errorf("%+v", x)
	}
	for _, q := range []Query{{}, {Node: "db1", Event: id}, {Event: id, Task: "t"}, {Refusal: "rate", Event: id}} {
		if _, err := w.s.Explain(context.Background(), reader(w.a), q); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := w.s.Explain(context.Background(), tenants.Scope{Tenant: w.a}, Query{Node: "db1"}); !fault.Is(err, fault.Denied) {
		t.Errorf("without telltale:read: %v", err)
	}
}

func TestNode(t *testing.T) {
	w := newWorld()
	closed, skew := noon.Add(-time.Minute), int64(2*time.Hour/time.Millisecond)
	for status, c := range map[string]struct {
		change func(*Node)
		want   string
	}{
		"online":      {func(*Node) {}, "the node is online"},
		"offline":     {func(n *Node) { n.ClosedAt, n.CloseReason = &closed, "eof" }, "its stream ended 2026-03-01 11:59:00Z: eof"},
		"quarantined": {func(n *Node) { n.SkewMS = &skew }, "its clock is 2h0m0s off"},
		"revoked":     {func(*Node) {}, "its certificate was revoked"},
		"duplicate":   {func(*Node) {}, "two machines"},
		"never":       {func(n *Node) { n.LastSeen = nil }, "no agent ever opened"},
		"stale":       {func(*Node) {}, "silent"},
	} {
		n := w.nodes["db1"]
		n.Status = status
		c.change(&n)
		w.nodes["db2"] = func() Node { n.ID, n.Name = "db2", "db2"; return n }()
		x := w.explain(t, reader(w.a), Query{Node: "db2"})
		if !strings.Contains(x.Verdict, c.want) {
			t.Errorf("%s: %s", status, x.Verdict)
		}
	}
	n := w.nodes["db1"]
	n.Off = []Switch{{"network", "token ci", noon}}
	n.Weak = []Weakness{{"storage", "latency", "degraded", "no BTF", noon}}
	n.Kept = []Kept{{"clock_skew", 7, noon}}
	w.nodes["db1"] = n
	w.changes = []Change{{Node: "db1", At: noon, Kind: "module_off", Subject: "network", After: "token ci"}, {Node: "db1", At: noon, Kind: "agent_started"}}
	w.plant("db1", "slow_io", 0, "device", "sda")
	w.plant("db1", "slow_io", -58*time.Minute, "device", "sdb")
	w.events[len(w.events)-1].State = inspector.EventOpen
	x := w.explain(t, reader(w.a), Query{Node: "db1"})
	if len(x.Chain) != 4 || len(x.Open) != 1 || x.Open[0].What != "slow io (device=sdb)" || !strings.Contains(x.Verdict, "1 event is open") || !around(t, x, "module network was switched off by token ci").Related || around(t, x, "the agent was started").Related {
		t.Errorf("%s\n%+v\n%+v", x.Verdict, x.Chain, x.Changes)
	}
}

// Reports that were kept out are named with their reason in words and their
// time, for the node and for an event that they may have stood beside.
func TestKeptOutIsTold(t *testing.T) {
	w := newWorld()
	n := w.nodes["db1"]
	n.Kept = []Kept{{"too_many_events", 7, noon}, {"too_old", 3, noon.Add(-10 * time.Hour)}, {"new_word", 1, noon}}
	w.nodes["db1"] = n
	x := w.explain(t, reader(w.a), Query{Node: "db1"})
	for what, why := range map[string]string{"7 reports were kept out": "too_many_events: the node made more records", "3 reports were kept out": "; the last one 2026-03-01 02:00:00Z", "1 reports were kept out": "new_word; the last one"} {
		if !slices.ContainsFunc(x.Chain, func(l Link) bool { return l.What == what && strings.Contains(l.Why, why) }) {
			t.Errorf("%s (%s) is not in %+v", what, why, x.Chain)
		}
	}
	x = w.explain(t, reader(w.a), Query{Event: w.plant("db1", "slow_io", 0, "device", "sda")})
	var told []string
	for _, o := range x.NotLooked {
		if strings.Contains(o.What, "kept out") {
			told = append(told, o.Why)
		}
	}
	if len(told) != 2 || !strings.HasPrefix(told[0], "too_many_events: the node made") || !strings.HasSuffix(told[0], "the last one 2026-03-01 12:00:00Z") {
		t.Errorf("%q", told)
	}
	x = w.explain(t, reader(w.a), Query{Event: w.plant("db2", "slow_io", 0, "device", "sda")})
	if slices.ContainsFunc(x.NotLooked, func(o Omission) bool { return strings.Contains(o.What, "kept out") }) {
		t.Errorf("another node's: %+v", x.NotLooked)
	}
}

// What could not be listed of the changes is told, whatever is explained.
func TestMoreChangesAreTold(t *testing.T) {
	w := newWorld()
	w.moreChanges = true
	event := w.plant("db1", "slow_io", 0, "device", "sda")
	w.plant("db2", "slow_io", 0, "device", "sda")
	w.tasks["t1"] = Task{Ticket: "t1", CreatedAt: noon, Runs: []Run{{Node: "db1", Name: "db1", Status: "RUNNING"}}}
	for whose, q := range map[string]Query{"the node": {Node: "db1"}, "db1": {Event: event}, "peers": {Event: event}, "those nodes": {Task: "t1"}} {
		x := w.explain(t, reader(w.a), q)
		if !slices.ContainsFunc(x.NotLooked, func(o Omission) bool { return o.What == "further changes of "+whose && o.Why != "" }) {
			t.Errorf("%s: %+v", whose, x.NotLooked)
		}
	}
}

func TestTask(t *testing.T) {
	w := newWorld()
	begun, ended := noon, noon.Add(5*time.Second)
	w.tasks["t1"] = Task{Ticket: "t1", Kind: "trace_slow_io", Status: "FAILED", By: "ci", CreatedAt: noon, Deadline: noon.Add(time.Minute), EndedAt: &ended, Runs: []Run{
		{Node: "db2", Name: "db2", Status: "COMPLETED", StartedAt: &begun, EndedAt: &ended},
		{Node: "db1", Name: "db1", Status: "FAILED", Reason: inspector.ReasonAgentRestarted, StartedAt: &begun, EndedAt: &ended, Next: "start it again"},
	}}
	w.changes = []Change{{Node: "db1", At: ended.Add(time.Second), Kind: "agent_started"}, {Node: "db1", At: noon.Add(-time.Minute), Kind: "config"},
		{Node: "db1", At: noon.Add(-20 * time.Minute), Kind: "boot"}, {Node: "db2", At: noon, Kind: "agent_started"}}
	x := w.explain(t, reader(w.a), Query{Task: "t1"})
	if !strings.Contains(x.Verdict, "1 FAILED (agent_restarted)") || !strings.Contains(x.Verdict, "started anew") {
		t.Error(x.Verdict)
	}
	related := map[string]bool{}
	for _, a := range x.Changes {
		related[a.Node+" "+a.What] = a.Related
	}
	if diff := cmp.Diff(map[string]bool{"db1 the agent was started": true, "db1 the agent has another configuration": false, "db1 the machine was booted": false, "db2 the agent was started": false}, related); diff != "" {
		t.Error(diff)
	}
	if x.Chain[0].What != "the task is FAILED" || x.Chain[len(x.Chain)-1].What != "the task was created" || len(x.Next) == 0 {
		t.Errorf("%+v", x.Chain)
	}
	if _, err := w.s.Explain(context.Background(), reader(w.b), Query{Task: "t1"}); !fault.Is(err, fault.NotFound) {
		t.Errorf("another tenant: %v", err)
	}
}

func TestRefusal(t *testing.T) {
	w := newWorld()
	x := w.explain(t, reader(w.a), Query{Refusal: inspector.ReasonTooManyTraces})
	if !strings.Contains(x.Verdict, "the bound is 4 traces a node") || !strings.Contains(x.Verdict, "Next: ") {
		t.Error(x.Verdict)
	}
	x = w.explain(t, reader(w.a), Query{Refusal: "node_offline", Node: "db1"})
	if !strings.Contains(x.Verdict, "does not hold on db1 now: the node is online") || !strings.Contains(x.Verdict, "try again") {
		t.Error(x.Verdict)
	}
	n := w.nodes["db1"]
	n.Off = []Switch{{Module: "network"}}
	w.nodes["db1"] = n
	x = w.explain(t, reader(w.a), Query{Refusal: inspector.ReasonFeatureOff, Node: "db1"})
	if !strings.Contains(x.Verdict, "It holds on db1 now: off are module network") {
		t.Error(x.Verdict)
	}
	for _, k := range fault.Kinds() {
		x := w.explain(t, reader(w.a), Query{Refusal: k.String()})
		if strings.Contains(x.Verdict, "means that ;") || strings.Contains(x.Verdict, "means that .") || !strings.Contains(x.Verdict, "the reason word after it") {
			t.Errorf("%s: %s", k, x.Verdict)
		}
	}
	for word, near := range map[string]string{"node_of_line": "node_offline", "too_many_trace": "too_many_traces", "pidgone": "pid_gone", "\x00\xff": "", strings.Repeat("x", 100_000): ""} {
		_, err := w.s.Explain(context.Background(), reader(w.a), Query{Refusal: word})
		if f := fault.Of(err); f == nil || f.Kind != fault.Invalid || f.Field != "refusal" || !strings.Contains(f.Msg, near) {
			t.Errorf("%.20q: %v", word, err)
		}
	}
}

// ofAgents are reasons that only an agent's own stream or a defect ever sees.
var ofAgents = map[string]bool{"no_principal": true, "bad_capabilities": true, "bad_layout": true, "layout_collision": true, "batch_too_large": true, "too_many_layouts": true, "channel_replaced": true, "not_committed": true,
	"no_tenant": true, "too_many_tenants": true}

// wholeReason is the form of a reason; one that ends in _ is the front of one.
var wholeReason = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// createdReasons finds the words that a file makes reasons of: the second
// argument of fault.New and fault.Newf, what a function is called with in the
// place of its parameter reason, and the value of a field or key reason.
func createdReasons(t *testing.T, name string) (words []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	add := func(e ast.Expr) {
		if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if word, _ := strconv.Unquote(l.Value); wholeReason.MatchString(word) {
				words = append(words, word)
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if i, ok := takesReason[calledName(n)]; ok && i < len(n.Args) {
				add(n.Args[i])
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Reason" {
				add(n.Value)
			}
			if key, ok := n.Key.(*ast.BasicLit); ok && key.Value == `"reason"` {
				add(n.Value)
			}
		case *ast.ValueSpec:
			for i, v := range n.Values {
				if strings.HasPrefix(strings.ToLower(n.Names[i].Name), "reason") {
					add(v)
				}
				if c, ok := v.(*ast.CompositeLit); ok && strings.HasSuffix(n.Names[i].Name, "Quota") && len(c.Elts) > 0 {
					add(c.Elts[0])
				}
			}
		}
		return true
	})
	return words
}

// takesReason says which argument of a function is a reason.
var takesReason = map[string]int{"fault.New": 1, "fault.Newf": 1, "badCert": 0, "refused": 0, "exhausted": 0, "keepOut": 0}

func calledName(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok && x.Name == "fault" {
			return "fault." + f.Sel.Name
		}
	}
	return ""
}

// Every reason that a node, the door, an adapter or a slice can give is
// explained.
func TestEveryReasonOfANodeIsExplained(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "../../agent/inspector/task.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Reason") || len(v.Values) != 1 {
			return true
		}
		found++
		if word, _ := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value); meaning(word) == "" {
			t.Errorf("%s is not explained", word)
		}
		return true
	})
	door, err := os.ReadFile("../../auth/auth.go")
	if err != nil {
		t.Fatal(err)
	}
	classes := regexp.MustCompile(`Class = "([a-z_]+)"`).FindAllStringSubmatch(string(door), -1)
	if len(classes) < 25 {
		t.Errorf("found %d classes of refused credentials only", len(classes))
	}
	for _, m := range classes {
		if meaning("credential_"+m[1]) == "" {
			t.Errorf("credential_%s is not explained", m[1])
		}
	}
	created := 0
	for _, root := range []string{"../../auth", "..", "../../api/rest", "../../mcp"} {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			for _, word := range createdReasons(t, name) {
				created++
				if meaning(word) == "" && !ofAgents[word] {
					t.Errorf("%s: %s is not explained", name, word)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if created < 150 {
		t.Errorf("found %d places only that create a reason", created)
	}
	if found < 20 {
		t.Errorf("found %d reasons only", found)
	}
	for word, r := range reasons {
		if r.means == "" || r.next == "" {
			t.Errorf("%s lacks its meaning or its next step", word)
		}
	}
}
