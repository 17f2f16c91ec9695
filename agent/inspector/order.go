package inspector

import (
	"encoding/hex"
	"time"
)

// TaskID is the id of a task as it travels: the 16 bytes of its ticket.
type TaskID [16]byte

func (id TaskID) String() string { return hex.EncodeToString(id[:]) }

// TaskOrder is one request as it reaches an agent: nothing in it is trusted
// before the agent has checked it itself.
type TaskOrder struct {
	ID          TaskID
	Kind        string
	Args        []byte // JSON object
	Principal   string // who asked, for the agent's log: kind:id
	Scopes      []string
	StartBefore time.Time // by this machine's clock
	Deadline    time.Time // by this machine's clock
}

// TaskOutcome says how a task ended on its node.
type TaskOutcome string

// The outcomes.
const (
	TaskCompleted TaskOutcome = "completed"
	TaskFailed    TaskOutcome = "failed"
	TaskCancelled TaskOutcome = "cancelled"
)

// TaskEnd is how a task ended. Result may be there beside a refusal: what was
// known when it ended.
type TaskEnd struct {
	Outcome TaskOutcome
	Result  []byte   // TaskResult as JSON, at most MaxResultBytes; empty: none
	Refusal *Refusal // why, unless TaskCompleted
}

// TaskUpdate is news of one task on its way to the server.
type TaskUpdate struct {
	ID       TaskID
	Permille uint32   // of its duration
	Partial  []byte   // TaskResult as JSON, at most MaxPartialBytes; empty: nothing new
	End      *TaskEnd // nil: it runs
}
