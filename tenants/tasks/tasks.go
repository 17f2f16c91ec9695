// Package tasks owns bounded work on nodes: who may start it, on which node it
// runs, how it ends, and the ticket by which its result is fetched.
//
// It alone writes the tables task, task_run and task_result; it reads the
// directory's node and node_label by SQL for who may see what. It knows neither
// the wire to the agents (api/ingest hands it an Outbox a node) nor what a
// task measures (agent/inspector's words say what may be asked). Start reading
// at Service.Do, then states.go for how a run moves, open.go and channel.go for
// what an agent says, and sweep.go for what ends it when nobody says anything.
package tasks

import (
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// ID is a task's id and its ticket: a UUIDv7.
type ID uuid.UUID

func (id ID) String() string { return uuid.UUID(id).String() }

// ParseID reads the canonical form of a ticket.
func ParseID(s string) (ID, error) {
	u, err := uuid.Parse(s)
	if err != nil || len(s) != 36 {
		return ID{}, fault.Bad("ticket_id", "not a ticket: want xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx").Do("use the ticket_id that the task's first answer gave")
	}
	return ID(u), nil
}

// Limits that are part of the product's contract.
const (
	ShortTask     = 8 * time.Second  // longest duration that is answered in the call
	MaxActive     = 128              // active tasks of a tenant; a fan-out counts once
	MaxRuns       = 50               // nodes of one fan-out
	TicketLife    = 24 * time.Hour   // after that a result is gone and the ticket EXPIRED
	StartWithin   = 5 * time.Second  // a run that has not begun by then never begins
	ResumeLease   = 5 * time.Second  // a node that lost its connection has this long to come back
	RunLease      = 10 * time.Second // renewed by the replica that holds the node
	RunGrace      = 10 * time.Second // beyond its duration: to load programs before, and to name what was found after
	DeadlineGrace = 5 * time.Second  // beyond a run's deadline, then it is TIMED_OUT
)

// State is where a task, or its run on one node, stands.
type State string

// The states. A task of several runs is RUNNING while any of its runs is not
// terminal; then it is COMPLETED when any run completed, else as its runs are.
const (
	Created      State = "CREATED"           // stored, not sent
	Dispatched   State = "DISPATCHED"        // sent, not answered
	Running      State = "RUNNING"           // accepted by the node
	Completed    State = "COMPLETED"         // ended, with a result
	Failed       State = "FAILED"            // refused or ended by the node; the reason says why
	Cancelled    State = "CANCELLED"         // ended on request
	TimedOut     State = "TIMED_OUT"         // ended by the server's clock
	Disconnected State = "NODE_DISCONNECTED" // the node did not come back in time
	Expired      State = "EXPIRED"           // never begun in time, or the ticket's life is over
)

// Terminal reports whether a state is final.
func (s State) Terminal() bool {
	switch s {
	case Completed, Failed, Cancelled, TimedOut, Disconnected, Expired:
		return true
	}
	return false
}

// Request asks for a task. Exactly one of Node and Labels is set.
type Request struct {
	Kind   string
	Args   map[string]any    // decoded JSON, not yet checked
	Node   string            // id or unique name
	Labels map[string]string // selector: nodes that carry all of these, at most MaxRuns
}

// Task is one task with its runs, as a caller sees it. It is rendered as it
// is by every adapter, beside what the adapter adds.
type Task struct {
	Ticket    string         `json:"ticket_id"`
	Kind      string         `json:"kind"`
	Status    State          `json:"status"`
	Args      map[string]any `json:"arguments"`
	By        string         `json:"started_by"` // principal, for people
	CreatedAt time.Time      `json:"created_at"`
	Deadline  time.Time      `json:"deadline"`           // by the server's clock: terminal then at the latest
	EndedAt   *time.Time     `json:"ended_at,omitempty"` // nil while active
	ExpiresAt time.Time      `json:"expires_at"`         // end of the ticket's life
	Fanout    bool           `json:"fan_out"`            // asked by selector
	Runs      []Run          `json:"runs"`               // one a node, never null
	// Coverage counts the nodes that were asked for and did not answer, with
	// the run's reason; for a fan-out also those that got no run (offline,
	// unsupported).
	Coverage tenants.Coverage `json:"coverage"`
}

// Run is a task on one node.
type Run struct {
	Node       string                `json:"node"`
	Name       string                `json:"name"`
	Status     State                 `json:"status"`
	Reason     string                `json:"reason,omitempty"` // why, unless COMPLETED
	Message    string                `json:"message,omitempty"`
	Next       string                `json:"next_step,omitempty"`
	ErrorKind  string                `json:"error,omitempty"` // "FAILED_PRECONDITION", …; of terminal states but COMPLETED and CANCELLED
	Arg        string                `json:"argument,omitempty"`
	StartedAt  *time.Time            `json:"started_at,omitempty"`
	EndedAt    *time.Time            `json:"ended_at,omitempty"`
	Progress   float64               `json:"progress"` // 0 to 1
	Partial    bool                  `json:"partial,omitempty"`
	Result     *inspector.TaskResult `json:"result,omitempty"` // nil: none yet, or never; partial while RUNNING
	LeaseUntil *time.Time            `json:"lease_until,omitempty"`
}

// Summary is one row of a list of tasks.
type Summary struct {
	Ticket    string     `json:"ticket_id"`
	Kind      string     `json:"kind"`
	Status    State      `json:"status"`
	By        string     `json:"started_by"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Nodes     int        `json:"nodes"`
}

// ListQuery filters a list of tasks; zero fields do not filter.
type ListQuery struct {
	Active bool
	Kind   string
	Limit  int
	Cursor string
}

// Page is one page of tasks, the youngest first.
type Page struct {
	Tasks     []Summary          `json:"tasks"` // never null
	Truncated *tenants.Truncated `json:"truncated,omitempty"`
}

// Dispatch is what a node is asked to do.
type Dispatch struct {
	ID          ID
	Kind        string
	Args        []byte // JSON object
	Principal   tenants.Principal
	Scopes      []string // effective, as words
	StartBefore time.Time
	Deadline    time.Time
	Alone       bool // it is the only run of its task
}

// Outbox is the way to one live node. Its methods do not block; false means
// that the channel is gone or full.
type Outbox interface {
	Dispatch(Dispatch) bool
	Cancel(ID) bool
}

// Hello is what a node says when its task channel opens.
type Hello struct {
	StartedNS int64    // start of the agent process: one life of it
	Running   []ID     // what runs there, or ended and was not taken
	Kinds     []string // what it accepts
}

// Progress is a node's word on a running task. A nil Partial leaves the former
// one in place.
type Progress struct {
	Permille uint32
	Partial  *inspector.TaskResult
}

// Outcome is how a run ended on its node.
type Outcome struct {
	State   State // Completed, Failed or Cancelled
	Result  *inspector.TaskResult
	Refusal *inspector.Refusal // why, unless Completed
}
