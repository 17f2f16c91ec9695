package explain

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// Events answers about events, within the scope.
type Events interface {
	Event(ctx context.Context, scope tenants.Scope, id string) (Event, error)
	// Around lists the youngest events of one node, or of all nodes that bear
	// the labels, first seen in from < t <= to.
	Around(ctx context.Context, scope tenants.Scope, node string, labels map[string]string, from, to time.Time) (Listed, error)
}

// Nodes answers about nodes, within the scope.
type Nodes interface {
	Node(ctx context.Context, scope tenants.Scope, ref string) (Node, error)
	// Changes lists what changed on nodes, the latest first. more: there may
	// have been further ones within the time.
	Changes(ctx context.Context, scope tenants.Scope, nodes []string, from, to time.Time) (list []Change, more bool, err error)
}

// Tasks answers about tasks, within the scope.
type Tasks interface {
	Task(ctx context.Context, scope tenants.Scope, ticket string) (Task, error)
}

// Event is what matters of an event here. Listed ones have no Samples and no
// Metrics.
type Event struct {
	ID, Node, Name string // Name is the node's
	Kind, Title    string
	Severity       inspector.Severity
	State          inspector.EventState
	Origin         string // "probe"; "task": a finding that somebody kept
	Ticket         string // of a finding's task
	Fingerprint    string
	Scope          map[string]string
	Samples        []map[string]string // labels of the samples
	First, Last    time.Time           // First of a finding is the end of its task
	Began          time.Time           // of a finding: when its task began there; zero: unknown
	Count, Lost    uint64
	Context        string // state of its newest snapshot
	ContextReason  string
	Metrics        []Shift
}

// Listed is a list of events. More: there are further, older ones.
type Listed struct {
	Events   []Event
	Coverage tenants.Coverage
	More     bool
}

// Shift is one metric around an event; nil is unknown.
type Shift struct {
	Metric string         `json:"metric"`
	Unit   inspector.Unit `json:"unit"`
	Stat   string         `json:"stat"` // "avg", "rate_s", "p99"
	Before *float64       `json:"before,omitempty"`
	During *float64       `json:"during,omitempty"`
	After  *float64       `json:"after,omitempty"`
}

// Node is what matters of a node here.
type Node struct {
	ID, Name    string
	Status      string // as the fleet slice says it
	Labels      map[string]string
	LastSeen    *time.Time // nil: never
	ClosedAt    *time.Time // of the newest stream; nil: open, or none
	CloseReason string
	SkewMS      *int64
	CertExpires *time.Time
	Off         []Switch
	Weak        []Weakness // signals that are degraded or off
	Kept        []Kept     // data that was kept out
}

// Switch is a module switched off from the server.
type Switch struct {
	Module, By string
	At         time.Time
}

// Weakness is a signal that does not work fully.
type Weakness struct {
	Component, Signal, Level, Reason string
	Since                            time.Time
}

// Kept counts data of a node that was kept out.
type Kept struct {
	Reason string
	Count  int64
	LastAt time.Time
}

// Change is one change of a node, as the fleet slice keeps it.
type Change struct {
	Node, Name                   string
	At                           time.Time
	Kind, Subject, Before, After string
}

// Task is what matters of a task here.
type Task struct {
	Ticket, Kind, Status, By string
	CreatedAt, Deadline      time.Time
	EndedAt                  *time.Time
	Runs                     []Run
	Coverage                 tenants.Coverage
}

// Run is a task on one node.
type Run struct {
	Node, Name            string
	Status                string
	Reason, Message, Next string
	StartedAt, EndedAt    *time.Time
}
