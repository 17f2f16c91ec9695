// Package events owns the anomalies that nodes report, and the findings that
// people promote: one record a spell of trouble, with counts, samples and a
// snapshot of the metrics around it.
//
// It alone writes the tables event and event_context. What a kind means is in
// agent/inspector's words; where metrics come from is behind the interface
// Metrics, which cmd wires. Start reading at Service.Record, then List and
// Get; context.go fills the snapshots in.
package events

import (
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// ID is an event's id: a UUIDv7 whose time is the event's own.
type ID uuid.UUID

func (id ID) String() string { return uuid.UUID(id).String() }

// ParseID reads the canonical form of an event's id.
func ParseID(s string) (ID, error) {
	u, err := uuid.Parse(s)
	if err != nil || len(s) != 36 || u.Version() != 7 {
		return ID{}, fault.Bad("event_id", "not an event's id: want xxxxxxxx-xxxx-7xxx-xxxx-xxxxxxxxxxxx").Do("take the id from list_events")
	}
	return ID(u), nil
}

// Origin says who found the anomaly.
type Origin string

// The origins.
const (
	FromProbe Origin = "probe" // a node's probe or inspector
	FromTask  Origin = "task"  // promoted from a task's result
)

// Event is one row of a list.
type Event struct {
	ID       string               `json:"event_id"`
	Node     string               `json:"node"`
	Name     string               `json:"name"` // of the node
	Kind     string               `json:"kind"`
	Title    string               `json:"title"`
	Severity inspector.Severity   `json:"severity"`
	State    inspector.EventState `json:"state"`
	Origin   Origin               `json:"origin"`
	Task     string               `json:"ticket_id,omitempty"` // of a promoted one
	Scope    map[string]string    `json:"scope"`               // never null; untrusted text
	First    time.Time            `json:"first_seen"`
	Last     time.Time            `json:"last_seen"`
	// Samples were looked at one by one, Truncated were counted only;
	// Cumulative is both. Lost were lost on the way: counts are lower bounds.
	Samples     uint64 `json:"sample_count"`
	Truncated   uint64 `json:"truncated_count"`
	Cumulative  uint64 `json:"cumulative_count"`
	Lost        uint64 `json:"lost"`
	Recurrence  int    `json:"recurrence"`          // spells of the same trouble in 24 h before this one
	Corrected   bool   `json:"skew_corrected"`      // times were moved to the server's clock
	Fingerprint string `json:"fingerprint"`         // hexadecimal
	Context     string `json:"context"`             // "pending", "partial", "complete", "unavailable"
	NextTool    string `json:"next_tool,omitempty"` // goes deeper
}

// Detail is one event whole.
type Detail struct {
	Event
	Help     string                  `json:"meaning"` // what the kind means, trusted words
	Evidence []inspector.EventSample `json:"samples"` // representative, never null; untrusted text
	Contexts []Context               `json:"context_snapshots"`
	Nearby   []Event                 `json:"nearby_events"` // others of the node within five minutes, at most 20
}

// Context is one snapshot of the related metrics: taken at first sight, when
// the severity rose, or when the trouble came back. It is pending until the part
// after the moment has come, whatever is filled in before; then complete when
// every part has data, partial when some have, unavailable when none has.
type Context struct {
	Why    string         `json:"why"` // "first", "severity", "recurrence"
	At     time.Time      `json:"at"`
	Status string         `json:"status"` // "pending", "partial", "complete", "unavailable"
	Reason string         `json:"reason,omitempty"`
	Before []ContextValue `json:"before"` // five minutes before
	During []ContextValue `json:"during"` // the window of the moment and the one before
	After  []ContextValue `json:"after"`  // three windows after; empty while pending
}

// ContextValue is one metric over one part of a snapshot. Nil numbers are
// unknown.
type ContextValue struct {
	Metric string         `json:"metric"`
	Unit   inspector.Unit `json:"unit"`
	Avg    *float64       `json:"avg,omitempty"`    // gauges
	Max    *float64       `json:"max,omitempty"`    // gauges
	Rate   *float64       `json:"rate_s,omitempty"` // deltas
	P99    *float64       `json:"p99,omitempty"`    // histograms
}

// ListQuery filters events; zero fields do not filter. From and To bound
// first_seen; without From the list goes back 24 h.
type ListQuery struct {
	Node        string            // id or unique name
	Labels      map[string]string // nodes that carry all of these
	Kinds       []string
	MinSeverity inspector.Severity
	State       inspector.EventState
	Origin      Origin
	From, To    time.Time
	Limit       int
	Cursor      string
}

// Page is one page of events, the youngest first.
type Page struct {
	Window    tenants.Window     `json:"window"`
	Events    []Event            `json:"events"` // never null
	Coverage  tenants.Coverage   `json:"coverage"`
	Truncated *tenants.Truncated `json:"truncated,omitempty"`
	Notes     []string           `json:"notes,omitempty"` // for example that limit was clamped
}

// Finding is what promote_evidence makes an event of.
type Finding struct {
	Task     string             // ticket
	Node     string             // id
	Kind     string             // task kind
	Title    string             // the caller's words
	Severity inspector.Severity // empty: Warning, or what it was promoted with
	Labels   map[string]string  // of the row or sample promoted
	Count    uint64
	At       time.Time
	Samples  []inspector.EventSample
}

// Change is a hint that an event is new or moved on.
type Change struct {
	Tenant tenants.TenantID
	Event  ID
	Node   tenants.NodeID
	New    bool
}
