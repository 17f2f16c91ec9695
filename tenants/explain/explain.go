// Package explain answers why a node, an event or a task is as it is, and what
// a refusal means: a chain of recorded facts with their times, what else
// changed around them and why it is taken for related or not, what was looked
// at and what was not, and what to do next.
//
// It owns no table and infers nothing silently: one record is tied to another
// only by a label that both carry or by an edge that the kinds of events
// declare, and only when it came first, as far as times can tell. It knows no sibling slice: events,
// nodes and tasks come through interfaces with this package's own small
// structs, which cmd fills. Start reading at Service.Explain, then relate.go
// for what ties records together.
package explain

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Query names one thing to explain. Exactly one of Event, Task, Refusal and
// Node is set; Node may also accompany Refusal.
type Query struct {
	Node    string // id or unique name
	Event   string // id
	Task    string // ticket
	Refusal string // the reason word of an error
}

// Explanation is an answer. Sentences quote text of untrusted origin, cleaned.
type Explanation struct {
	Subject   string               `json:"subject"` // "event retransmit_burst on db1"
	At        time.Time            `json:"at"`      // the moment that is explained
	Verdict   string               `json:"verdict"` // the answer in one sentence
	Window    tenants.Window       `json:"window"`
	Coverage  tenants.Coverage     `json:"coverage"`
	Chain     []Link               `json:"chain"`                 // from the subject back to its first cause, never null
	Open      []Link               `json:"open_events,omitempty"` // of a node: what is going on there, the gravest first; no cause of its status
	Changes   []Around             `json:"changes"`               // what else happened, in order of time, never null
	Metrics   []Shift              `json:"metrics,omitempty"`     // the subject's snapshot
	Looked    []string             `json:"looked_at"`
	NotLooked []Omission           `json:"not_looked_at"` // never null
	Next      []inspector.NextStep `json:"next,omitempty"`
}

// Confidence says what a link rests on.
type Confidence string

// The confidences.
const (
	Recorded Confidence = "recorded" // stands in the records of the subject itself
	Related  Confidence = "related"  // another record, tied to it by what Why says
)

// State is the Role of a link that is a further fact of the subject.
const State = "state"

// Link is one step of a chain: the subject first, then its causes.
type Link struct {
	Role       string     `json:"role,omitempty"` // State: a further fact, no cause
	At         time.Time  `json:"at"`
	Node       string     `json:"node,omitempty"`
	Name       string     `json:"name,omitempty"`
	What       string     `json:"what"`
	Why        string     `json:"why"`
	Confidence Confidence `json:"confidence"`
	Event      string     `json:"event_id,omitempty"`
}

// Around is something that happened around the subject, and why it is taken
// for related to it or not.
type Around struct {
	At      time.Time `json:"at"`
	Node    string    `json:"node,omitempty"`
	Name    string    `json:"name,omitempty"`
	What    string    `json:"what"`
	Event   string    `json:"event_id,omitempty"`
	Related bool      `json:"related"`
	Why     string    `json:"why"`
}

// Omission is what could not be looked at, and why.
type Omission struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Service explains. It is safe for concurrent use.
type Service struct {
	reg    *inspector.Registry
	events Events
	nodes  Nodes
	tasks  Tasks
	now    func() time.Time
}

// New builds a Service. now may be nil: time.Now.
func New(reg *inspector.Registry, events Events, nodes Nodes, tasks Tasks, now func() time.Time) *Service {
	if now == nil {
		now = time.Now
	}
	return &Service{reg: reg, events: events, nodes: nodes, tasks: tasks, now: now}
}

// Explain answers one query. It needs telltale:read; what lies outside the
// scope is NotFound as a subject and does not exist around one.
func (s *Service) Explain(ctx context.Context, scope tenants.Scope, q Query) (Explanation, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Explanation{}, err
	}
	set := 0
	for _, v := range []string{q.Event, q.Task, q.Refusal} {
		if v != "" {
			set++
		}
	}
	switch {
	case set > 1, set == 1 && q.Node != "" && q.Refusal == "", set == 0 && q.Node == "":
		return Explanation{}, &fault.Error{Kind: fault.Invalid, Reason: "one_subject", Field: "node",
			Msg: "name exactly one of node, event, task and refusal; node may go with refusal", Next: "send the one that the question is about"}
	case q.Event != "":
		return s.event(ctx, scope, q.Event)
	case q.Task != "":
		return s.task(ctx, scope, q.Task)
	case q.Refusal != "":
		return s.refusal(ctx, scope, q.Refusal, q.Node)
	}
	return s.node(ctx, scope, q.Node)
}

// blank is an answer with nothing in it.
func blank(subject string, at time.Time) Explanation {
	return Explanation{Subject: subject, At: at.UTC(), Coverage: tenants.Coverage{NotCovered: []tenants.NotCovered{}},
		Chain: []Link{}, Changes: []Around{}, Looked: []string{}, NotLooked: []Omission{}}
}

func (e *Explanation) looked(what string) { e.Looked = append(e.Looked, what) }
func (e *Explanation) notLooked(what, why string) {
	e.NotLooked = append(e.NotLooked, Omission{what, why})
}

// changes reads what changed on nodes within the window, and says when that is
// not all.
func (s *Service) changes(ctx context.Context, scope tenants.Scope, nodes []string, whose string, x *Explanation) ([]Change, error) {
	list, more, err := s.nodes.Changes(ctx, scope, nodes, x.Window.From, x.Window.To)
	if more {
		x.notLooked("further changes of "+whose, "there were more within the time than are kept or read at once")
	}
	return list, err
}
