package mcp

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	causes "github.com/telltale-dev/telltale/tenants/explain"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

type fakeEvents struct{ *backend }

// plant makes one event of a node.
func (b *backend) plant(n fakeNode, kind string, scope map[string]string) events.ID {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := events.ID(b.nextID())
	k, _ := b.reg.Event(kind)
	d := events.Detail{Event: events.Event{ID: id.String(), Node: n.id, Name: n.name, Kind: kind, Title: k.Title, Severity: k.Severity, State: inspector.EventOpen, Origin: events.FromProbe, Scope: scope,
		First: noon.Add(-time.Minute), Last: noon, Samples: 3, Truncated: 4, Cumulative: 7, Recurrence: 1, Fingerprint: "00ff", Context: "pending", NextTool: k.Tool},
		Help:     k.Help,
		Evidence: []inspector.EventSample{{At: noon, Labels: map[string]string{"comm": n.name + "-comm"}, Values: map[string]float64{"rtt_us": 9000}}},
		Contexts: []events.Context{{Why: "first", At: noon, Status: "pending", Before: []events.ContextValue{{Metric: "network.opens", Unit: inspector.Count, Rate: ptr(3.0)}}, During: []events.ContextValue{{Metric: "network.opens", Unit: inspector.Count, Rate: ptr(30.0)}, {Metric: "host.procs_running", Unit: inspector.Count}}}},
		Nearby:   []events.Event{}}
	b.events[id] = &fakeEvent{d, n.tenant, n.role}
	return id
}

// tellOf announces an event to who listens.
func (b *backend) tellOf(tenant tenants.TenantID, id events.ID, n fakeNode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ch := range b.hear[tenant] {
		ch <- events.Change{Tenant: tenant, Event: id, Node: n.nodeID(), New: true}
	}
}

func (b *backend) node(name string) fakeNode {
	return b.nodes[slices.IndexFunc(b.nodes, func(n fakeNode) bool { return n.name == name })]
}

func (b *backend) mine(scope tenants.Scope, e *fakeEvent) bool {
	return slices.ContainsFunc(b.nodes, func(n fakeNode) bool { return n.id == e.Node && b.sees(scope, n) })
}

func (f fakeEvents) List(_ context.Context, scope tenants.Scope, q events.ListQuery) (events.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := events.Page{Window: tenants.Window{From: noon.Add(-24 * time.Hour), To: noon}, Events: []events.Event{}}
	for _, n := range f.nodes {
		if f.sees(scope, n) && !n.offline {
			p.Coverage.Asked, p.Coverage.Answered = p.Coverage.Asked+1, p.Coverage.Answered+1
		}
	}
	ids := slices.SortedFunc(maps.Keys(f.events), func(a, b events.ID) int { return -slices.Compare(a[:], b[:]) })
	limit, _ := tenants.ClampRows(q.Limit)
	for _, id := range ids {
		e := f.events[id]
		switch {
		case !f.mine(scope, e), q.Node != "" && q.Node != e.Node && q.Node != e.Name, q.Origin != "" && q.Origin != e.Origin, len(q.Kinds) > 0 && !slices.Contains(q.Kinds, e.Kind):
		case q.Cursor != "" && id.String() >= q.Cursor:
		case len(p.Events) == limit:
			p.Truncated = &tenants.Truncated{Returned: limit, NextCursor: p.Events[limit-1].ID}
			return p, nil
		default:
			p.Events = append(p.Events, e.Event)
		}
	}
	return p, nil
}

func (f fakeEvents) Get(_ context.Context, scope tenants.Scope, id events.ID) (events.Detail, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.events[id]
	if !ok || !f.mine(scope, e) {
		return events.Detail{}, fault.New(fault.NotFound, "unknown_event", "no such event").Do("take the id from list_events")
	}
	return e.Detail, nil
}

func (f fakeEvents) Promote(_ context.Context, scope tenants.Scope, x events.Finding) (events.Promoted, error) {
	if err := scope.Require(tenants.Diagnose); err != nil {
		return events.Promoted{}, err
	}
	if x.Severity == "" {
		x.Severity = inspector.Warning
	}
	i := slices.IndexFunc(f.nodes, func(n fakeNode) bool { return n.id == x.Node && f.sees(scope, n) })
	if i < 0 {
		return events.Promoted{}, fault.New(fault.NotFound, "unknown_node", "no such node")
	}
	id := f.plant(f.nodes[i], x.Kind, x.Labels)
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.events[id]
	e.Title, e.Severity, e.Origin, e.Task, e.First, e.Last, e.Cumulative, e.Samples, e.Truncated, e.State = x.Title, x.Severity, events.FromTask, x.Task, x.At, x.At, x.Count, uint64(len(x.Samples)), 0, inspector.EventEnded
	return events.Promoted{Event: e.Event}, nil
}

func (f fakeEvents) Subscribe(tenant tenants.TenantID) (<-chan events.Change, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan events.Change, 64)
	f.hear[tenant] = append(f.hear[tenant], ch)
	return ch, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.hear[tenant] = slices.DeleteFunc(f.hear[tenant], func(c chan events.Change) bool { return c == ch })
	}
}

type fakeExplain struct{ *backend }

func (f fakeExplain) Explain(ctx context.Context, scope tenants.Scope, q causes.Query) (causes.Explanation, error) {
	e := causes.Explanation{At: noon, Window: tenants.Window{From: noon.Add(-time.Hour), To: noon}, Coverage: tenants.Coverage{Asked: 1, Answered: 1, NotCovered: []tenants.NotCovered{}},
		Chain: []causes.Link{}, Changes: []causes.Around{}, Looked: []string{"events of the node", "new executables"}, NotLooked: []causes.Omission{{What: "the switch", Why: "no agent there"}}}
	set := 0
	for _, v := range []string{q.Event, q.Task, q.Refusal} {
		if v != "" {
			set++
		}
	}
	switch {
	case set > 1, set == 1 && q.Node != "" && q.Refusal == "", set == 0 && q.Node == "":
		return e, &fault.Error{Kind: fault.Invalid, Reason: "one_subject", Field: "node", Msg: "name exactly one", Next: "send the one that the question is about"}
	case q.Event != "":
		id, err := events.ParseID(q.Event)
		if err != nil {
			return e, err
		}
		d, err := fakeEvents(f).Get(ctx, scope, id)
		if err != nil {
			return e, err
		}
		e.Subject, e.Verdict = "event "+d.Kind+" on "+d.Name, "a new executable began to send"
		e.Chain = []causes.Link{{At: d.First, Node: d.Node, Name: d.Name, What: d.Kind, Confidence: causes.Recorded, Why: "the event itself", Event: d.ID}, {At: d.First.Add(-time.Minute), Node: d.Node, Name: d.Name, What: "new executable curl", Confidence: causes.Related, Why: "it owns the sockets"}}
		e.Changes = []causes.Around{{At: d.First.Add(-time.Hour), Node: d.Node, Name: d.Name, What: "agent restarted", Why: "an hour before and of another component"}}
		e.Metrics = []causes.Shift{{Metric: "network.opens", Unit: inspector.Count, Stat: "rate_s", Before: ptr(3.0), During: ptr(30.0)}}
		e.Next = []inspector.NextStep{{Tool: "trace_tcp_retransmits", Args: map[string]any{"node": d.Node}, Why: "evidence while it lasts"}}
		return e, nil
	case q.Task != "":
		id, err := tasks.ParseID(q.Task)
		if err != nil {
			return e, err
		}
		t, err := fakeTasks(f).Get(ctx, scope, id)
		e.Subject, e.Verdict = "task "+t.Kind, "it is "+string(t.Status)
		return e, err
	case q.Refusal != "":
		e.Subject, e.Verdict = "refusal "+q.Refusal, "the node's kernel lacks it"
		return e, nil
	}
	for _, n := range f.nodes {
		if (n.name == q.Node || n.id == q.Node) && f.sees(scope, n) {
			e.Subject, e.Verdict = "node "+n.name, "nothing is wrong"
			return e, nil
		}
	}
	return e, fault.Newf(fault.NotFound, "unknown_node", "no node %.80q", q.Node)
}
