package main

import (
	"context"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	causes "github.com/telltale-dev/telltale/tenants/explain"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// newExplain wires explain to the slices that it asks.
func newExplain(reg *inspector.Registry, ev *events.Service, fl *fleet.Service, ta *tasks.Service) *causes.Service {
	return causes.New(reg, explainEvents{ev, eventKinds(reg)}, explainNodes{fl}, explainTasks{ta}, nil)
}

// eventKinds lists the kinds of events of all components.
func eventKinds(reg *inspector.Registry) (out []string) {
	for _, c := range reg.Components() {
		for _, k := range c.Events {
			out = append(out, k.Name)
		}
	}
	return out
}

type explainEvents struct {
	s     *events.Service
	kinds []string
}

func (e explainEvents) Event(ctx context.Context, scope tenants.Scope, id string) (causes.Event, error) {
	parsed, err := events.ParseID(id)
	if err != nil {
		return causes.Event{}, err
	}
	d, err := e.s.Get(ctx, scope, parsed)
	if err != nil {
		return causes.Event{}, err
	}
	out := explainEvent(d.Event)
	for _, s := range d.Evidence {
		out.Samples = append(out.Samples, s.Labels)
	}
	if n := len(d.Contexts); n > 0 {
		c := d.Contexts[n-1]
		out.ContextReason, out.Metrics = c.Reason, explainShifts(c)
	}
	return out, nil
}

// ofEachKind is how many events of one kind are read where all of them are too
// many.
const ofEachKind = 20

// Around reads one page, and where that does not hold all, some of every kind:
// a storm of one kind hides no other.
func (e explainEvents) Around(ctx context.Context, scope tenants.Scope, node string, labels map[string]string, from, to time.Time) (causes.Listed, error) {
	q := events.ListQuery{Node: node, Labels: labels, From: from, To: to, Limit: tenants.MaxListRows}
	p, err := e.s.List(ctx, scope, q)
	if err != nil {
		return causes.Listed{}, err
	}
	out := causes.Listed{Coverage: p.Coverage, More: p.Truncated != nil}
	seen := map[string]bool{}
	take := func(list []events.Event) {
		for _, x := range list {
			if !seen[x.ID] {
				seen[x.ID] = true
				out.Events = append(out.Events, explainEvent(x))
			}
		}
	}
	take(p.Events)
	if !out.More {
		return out, nil
	}
	q.Limit = ofEachKind
	for _, kind := range e.kinds {
		q.Kinds = []string{kind}
		if p, err = e.s.List(ctx, scope, q); err != nil {
			return causes.Listed{}, err
		}
		take(p.Events)
	}
	slices.SortStableFunc(out.Events, func(a, b causes.Event) int { return b.First.Compare(a.First) })
	return out, nil
}

func explainEvent(x events.Event) causes.Event {
	return causes.Event{ID: x.ID, Node: x.Node, Name: x.Name, Kind: x.Kind, Title: x.Title, Severity: x.Severity, State: x.State,
		Origin: string(x.Origin), Ticket: x.Task, Fingerprint: x.Fingerprint,
		Scope: x.Scope, First: x.First, Last: x.Last, Count: x.Cumulative, Lost: x.Lost, Context: x.Context}
}

// explainShifts lays the parts of a snapshot side by side: they hold the same
// metrics in the same order, as far as they are filled in.
func explainShifts(c events.Context) []causes.Shift {
	var out []causes.Shift
	for i, d := range c.During {
		s := causes.Shift{Metric: d.Metric, Unit: d.Unit}
		s.Stat, s.During = explainValue(d)
		for _, p := range []struct {
			part []events.ContextValue
			to   **float64
		}{{c.Before, &s.Before}, {c.After, &s.After}} {
			if i < len(p.part) && p.part[i].Metric == d.Metric {
				stat, v := explainValue(p.part[i])
				if *p.to = v; s.Stat == "" {
					s.Stat = stat
				}
			}
		}
		if s.Stat != "" {
			out = append(out, s)
		}
	}
	return out
}

func explainValue(v events.ContextValue) (string, *float64) {
	switch {
	case v.Avg != nil:
		return "avg", v.Avg
	case v.Rate != nil:
		return "rate_s", v.Rate
	case v.P99 != nil:
		return "p99", v.P99
	}
	return "", nil
}

type explainNodes struct{ s *fleet.Service }

func (e explainNodes) Node(ctx context.Context, scope tenants.Scope, ref string) (causes.Node, error) {
	d, err := e.s.Get(ctx, scope, ref)
	if err != nil {
		return causes.Node{}, err
	}
	n := causes.Node{ID: d.Node.Node, Name: d.Name, Status: string(d.Status), Labels: d.Labels, LastSeen: d.LastSeen, SkewMS: d.SkewMS, CertExpires: d.CertExpires}
	if len(d.Sessions) > 0 {
		n.ClosedAt, n.CloseReason = d.Sessions[0].ClosedAt, d.Sessions[0].CloseReason
	}
	for _, o := range d.ModulesOff {
		n.Off = append(n.Off, causes.Switch{Module: o.Module, By: o.By, At: o.At})
	}
	for _, c := range d.Capabilities {
		if c.Level != string(inspector.Full) {
			n.Weak = append(n.Weak, causes.Weakness{Component: c.Component, Signal: c.Signal, Level: c.Level, Reason: c.Reason, Since: c.Since})
		}
	}
	for _, q := range d.Quarantine {
		n.Kept = append(n.Kept, causes.Kept{Reason: q.Reason, Count: q.Count, LastAt: q.LastAt})
	}
	return n, nil
}

func (e explainNodes) Changes(ctx context.Context, scope tenants.Scope, nodes []string, from, to time.Time) (out []causes.Change, more bool, err error) {
	var ids []tenants.NodeID
	for _, n := range nodes {
		id, err := tenants.ParseNodeID(n)
		if err != nil {
			return nil, false, err
		}
		ids = append(ids, id)
	}
	list, more, err := e.s.Changes(ctx, scope, ids, from, to)
	if err != nil {
		return nil, false, err
	}
	for _, c := range list {
		out = append(out, causes.Change{Node: c.Node, Name: c.Name, At: c.At, Kind: string(c.Kind), Subject: c.Subject, Before: c.Before, After: c.After})
	}
	return out, more, nil
}

type explainTasks struct{ s *tasks.Service }

func (e explainTasks) Task(ctx context.Context, scope tenants.Scope, ticket string) (causes.Task, error) {
	id, err := tasks.ParseID(ticket)
	if err != nil {
		return causes.Task{}, err
	}
	t, err := e.s.Get(ctx, scope, id)
	if err != nil {
		return causes.Task{}, err
	}
	out := causes.Task{Ticket: t.Ticket, Kind: t.Kind, Status: string(t.Status), By: t.By, CreatedAt: t.CreatedAt, Deadline: t.Deadline, EndedAt: t.EndedAt, Coverage: t.Coverage}
	for _, r := range t.Runs {
		out.Runs = append(out.Runs, causes.Run{Node: r.Node, Name: r.Name, Status: string(r.Status), Reason: r.Reason, Message: r.Message, Next: r.Next, StartedAt: r.StartedAt, EndedAt: r.EndedAt})
	}
	return out, nil
}
