package explain

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

const (
	maxWindows = 5 // tasks whose windows are read
)

// promoted reports whether an event is a finding of a task that somebody kept:
// it was there while the task looked, and maybe long before.
func (e Event) promoted() bool { return e.Origin == "task" }

// findings reads the windows of the tasks that findings come from.
func (s *Service) findings(ctx context.Context, scope tenants.Scope, list []*Event, x *Explanation) {
	known := map[string]Task{}
	for _, e := range list {
		if !e.promoted() {
			continue
		}
		t, ok := known[e.Ticket]
		if !ok && len(known) < maxWindows {
			var err error
			if t, err = s.tasks.Task(ctx, scope, e.Ticket); err != nil {
				x.notLooked("the window of task "+inspector.CleanText(e.Ticket), "the task is no longer kept, or not in reach")
			}
			known[e.Ticket] = t
		}
		for _, r := range t.Runs {
			if r.Node == e.Node && r.StartedAt != nil {
				e.Began = *r.StartedAt
			}
		}
	}
}

// found says of a finding which time it bears.
func (e Event) found() string {
	if e.Began.IsZero() {
		return "its time " + clock(e.First) + " is the end of its task's window"
	}
	return fmt.Sprintf("its time is its task's window, %s to %s", clock(e.Began), clock(e.First))
}

// slack is how much earlier than its record says an event may have begun: a
// rule is known to hold only after several windows.
func (s *Service) slack(e Event) time.Duration {
	if k, ok := s.reg.Event(e.Kind); ok && k.Rule != nil && !e.promoted() {
		return time.Duration(k.Rule.N) * tenants.WindowLength
	}
	return 0
}

// order says whether c began before e, as far as their times can tell.
type order int

const (
	before  order = iota
	unclear       // recorded after it, within what the times leave open
	after
)

func (s *Service) order(c, e Event) order {
	switch {
	case !c.First.After(e.First):
		return before
	case !c.First.Add(-s.slack(c)).After(e.First):
		return unclear
	}
	return after
}

// apartText says how the times of a cause and its effect lie.
func (s *Service) apartText(c, effect Event) string {
	if s.order(c, effect) == before {
		return fmt.Sprintf("%s before %s", span(effect.First.Sub(c.First)), effect.Kind)
	}
	return fmt.Sprintf("recorded %s after %s, and its time is only known to %s", span(c.First.Sub(effect.First)), effect.Kind, span(s.slack(c)))
}

// stands lists the kinds of events that a finding's task looks into.
func (s *Service) stands(e Event) (out []string) {
	for _, c := range s.reg.Components() {
		for _, k := range c.Events {
			if k.Tool == e.Kind {
				out = append(out, k.Name)
			}
		}
	}
	return out
}

// relateFinding relates two records of a node of which at least one is a
// finding. Its time orders nothing, so that only a declared edge makes a cause.
func (s *Service) relateFinding(e, c Event, same, apart string) relation {
	start, when := e.First, c.found()
	if e.promoted() {
		when = e.found()
		if !e.Began.IsZero() {
			start = e.Began
		}
	}
	when += ", so which came first is not known"
	if start.Sub(c.Last) > causeWithin {
		return relation{why: fmt.Sprintf("over for more than %v when it was seen", causeWithin)}
	}
	switch {
	case apart != "":
		return relation{why: "no shared scope: another " + apart + "; " + when}
	case s.edge(c.Kind, e.Kind):
		return relation{cause: true, rank: edgeRank, why: fmt.Sprintf("%s can bring %s about; %s", c.Kind, e.Kind, when)}
	}
	switch {
	case c.promoted() && slices.Contains(s.stands(c), e.Kind):
		return relation{also: true, why: fmt.Sprintf("%s looks into %s: its finding may be of the same trouble; %s", c.Kind, e.Kind, when)}
	case e.promoted() && slices.Contains(s.stands(e), c.Kind):
		return relation{also: true, why: fmt.Sprintf("%s looks into %s: it may be the same trouble; %s", e.Kind, c.Kind, when)}
	}
	if c.promoted() {
		for _, k := range s.stands(c) {
			if s.edge(k, e.Kind) {
				return relation{also: true, why: fmt.Sprintf("what %s looks into, %s, can bring %s about; %s", c.Kind, k, e.Kind, when)}
			}
		}
	}
	if e.promoted() {
		for _, k := range s.stands(e) {
			if s.edge(k, c.Kind) {
				return relation{also: true, why: fmt.Sprintf("it may be an effect: what %s looks into, %s, can bring %s about; %s", e.Kind, k, c.Kind, when)}
			}
		}
	}
	if same != "" {
		return relation{also: true, why: "both bear " + same + "; " + when}
	}
	return relation{why: "no shared scope; " + when}
}
