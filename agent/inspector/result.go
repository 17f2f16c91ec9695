package inspector

import "time"

// Bounds of one node's task result. The agent keeps within them; the server
// refuses a result beyond MaxResultBytes.
const (
	MaxResultRows    = 100       // rows
	MaxResultSamples = 50        // sample events
	MaxResultBytes   = 512 << 10 // bytes as JSON
	MaxPartialBytes  = 64 << 10  // bytes of a partial result as JSON
	MaxFoldedStacks  = 2000      // folded stacks of one profile
	MaxStackDepth    = 64        // frames of one row's or sample's stack
	MaxCount         = 1<<53 - 1 // greatest number in it that every reader of JSON numbers reads as it is
)

// TaskResult is what one node found. It is data of untrusted origin: text has
// passed CleanText on the node and passes it again on the server. Unknown
// values are absent, never zero. Ids of cgroups and inodes are text.
type TaskResult struct {
	From time.Time `json:"from"` // by the node's clock
	To   time.Time `json:"to"`
	// Totals are complete counts, whatever was sampled: name → number, units
	// in the name ("segments", "bytes_sent").
	Totals map[string]uint64 `json:"totals"`
	// Rows are groups, the greatest Count first, at most MaxResultRows.
	Rows    []ResultRow    `json:"rows"`
	Samples []ResultSample `json:"samples,omitempty"` // representative events, oldest first
	Profile *Profile       `json:"profile,omitempty"`

	Lost       uint64   `json:"lost"`                  // events known to be lost: counts are lower bounds
	OtherRows  uint64   `json:"other_rows,omitempty"`  // groups beyond Rows
	OtherCount uint64   `json:"other_count,omitempty"` // their Count together
	Truncated  uint64   `json:"truncated,omitempty"`   // events beyond max_events, or samples beyond MaxResultSamples
	SampleRate uint64   `json:"sample_rate,omitempty"` // 1 in n events was looked at one by one; 0: all
	Unknown    uint64   `json:"unknown,omitempty"`     // events that could not be attributed
	StoppedFor string   `json:"stopped_for,omitempty"` // the budget that ended the task early: "cpu", "memory", "bytes"
	Notes      []string `json:"notes,omitempty"`       // sentences: what to know when reading, at most 10
	// Next are steps that the findings suggest, at most 3.
	Next []NextStep `json:"next,omitempty"`
}

// NextStep is one suggested call. Tool is a task kind or "metrics_summary",
// "query_metrics", "list_events"; Args are arguments beside the node.
type NextStep struct {
	Tool string         `json:"tool"`
	Args map[string]any `json:"arguments"`
	Why  string         `json:"why"`
}

// ResultRow is one group of events.
type ResultRow struct {
	Labels map[string]string  `json:"labels"`           // what tells the group: reason, tuple, device, process, …
	Count  uint64             `json:"count"`            // events, or segments, packets, requests as the kind says
	Values map[string]float64 `json:"values,omitempty"` // further numbers, units in the name ("p99_us", "bytes")
	Stack  []string           `json:"stack,omitempty"`  // symbolised, innermost first
	Benign bool               `json:"benign,omitempty"` // daily life, not a fault
}

// ResultSample is one event.
type ResultSample struct {
	At     time.Time          `json:"at"`
	Labels map[string]string  `json:"labels"`
	Values map[string]float64 `json:"values,omitempty"`
	Stack  []string           `json:"stack,omitempty"`
}

// Profile is an on-CPU profile. Of Hz × CPUs × Seconds possible samples,
// Samples hit the target.
type Profile struct {
	Hz      uint64         `json:"hz"`
	CPUs    uint64         `json:"cpus"`
	Seconds float64        `json:"seconds"`
	Samples uint64         `json:"samples"`
	Kernel  uint64         `json:"kernel"`  // of them taken in the kernel
	Unnamed uint64         `json:"unnamed"` // of them whose innermost frame has no name
	Top     []ProfileFrame `json:"top"`     // by Self, most first, at most MaxResultRows
	// Folded are stacks with the outermost frame first, joined by ";", most
	// first, at most MaxFoldedStacks.
	Folded  []FoldedStack `json:"folded"`
	LeftOut uint64        `json:"left_out"` // samples in stacks beyond Folded
}

// ProfileFrame is one function's share.
type ProfileFrame struct {
	Function string  `json:"function"`
	Module   string  `json:"module,omitempty"` // file of the code; "kernel"
	Self     uint64  `json:"self"`             // samples in it
	Total    uint64  `json:"total"`            // samples in it or below it
	Share    float64 `json:"share"`            // Self / Profile.Samples
}

// FoldedStack is one distinct stack.
type FoldedStack struct {
	Stack string `json:"stack"`
	Count uint64 `json:"count"`
}
