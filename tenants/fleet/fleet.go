// Package fleet answers what the nodes of a tenant are and how they are: their
// status, live sessions, capabilities, module switches and counted refusals.
//
// It alone writes the tables node_session, capability, module_switch,
// quarantine and node_change. It reads the directory's node and node_label and the metrics
// slice's node_head and win_quarantine by SQL, and knows no transport. Start
// reading at Service, then status in store.go.
package fleet

import (
	"log/slog"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Status is a node's condition, derived from its sessions when it is read.
type Status string

// The statuses, in the order in which they win.
const (
	Revoked     Status = "revoked"     // the certificate was revoked
	Never       Status = "never"       // enrolled, but no stream was ever opened
	Duplicate   Status = "duplicate"   // one identity is live on two machines, boots or agents at once
	Quarantined Status = "quarantined" // live, but its clock is more than an hour off: new data is kept out
	Online      Status = "online"      // heard of within tenants.NodeStaleAfter
	Stale       Status = "stale"       // the stream is open but silent for longer
	Offline     Status = "offline"     // the stream is closed, or silent for more than OfflineAfter
)

// Statuses lists every status.
func Statuses() []Status {
	return []Status{Online, Stale, Offline, Quarantined, Duplicate, Revoked, Never}
}

// OfflineAfter is the silence after which an open stream counts as gone: the
// replica that held it died.
const OfflineAfter = 5 * time.Minute

// Node is one row of a list.
type Node struct {
	Node         string            `json:"node"`
	Name         string            `json:"name"`
	Status       Status            `json:"status"`
	Labels       map[string]string `json:"labels"`      // never null
	LastSeen     *time.Time        `json:"last_seen"`   // null: never
	FreshnessS   *float64          `json:"freshness_s"` // age of LastSeen in seconds; null: never
	AgentVersion string            `json:"agent_version,omitempty"`
	Kernel       string            `json:"kernel,omitempty"`
	OS           string            `json:"os,omitempty"`
	Arch         string            `json:"arch,omitempty"`
	SkewMS       *int64            `json:"skew_ms,omitempty"`        // agent clock minus server clock at the last exchange
	SkewMarked   bool              `json:"skew_corrected,omitempty"` // data is rebased to the server's time
	SameMachine  bool              `json:"same_machine,omitempty"`   // another identity reports the same machine id
	EnrolledAt   time.Time         `json:"enrolled_at"`
}

// Page is one page of nodes in order of name, then id.
type Page struct {
	Nodes      []Node             `json:"nodes"` // never null
	NextCursor string             `json:"next_cursor,omitempty"`
	Truncated  *tenants.Truncated `json:"truncated,omitempty"`
	Notes      []string           `json:"notes,omitempty"` // for example that limit was clamped
}

// ListQuery narrows a list. The zero value lists everything in scope.
type ListQuery struct {
	Status []Status          // any of these; empty: all
	Labels map[string]string // all of these
	Search string            // prefix of the name, case-sensitive, or a whole id; at most 128 bytes
	Limit  int               // tenants.ClampRows
	Cursor string            // Page.NextCursor of the same query
}

// NodeDetail is everything known about one node.
type NodeDetail struct {
	Node
	MachineID    string            `json:"machine_id,omitempty"`
	BootID       string            `json:"boot_id,omitempty"`
	SameAs       []tenants.NodeRef `json:"same_machine_as,omitempty"` // other identities on this machine id, in scope
	Epoch        uint64            `json:"epoch"`                     // 0: no stream yet
	Seq          uint64            `json:"seq"`                       // highest committed report of the epoch
	LastDataAt   *time.Time        `json:"last_data_at"`              // end of the newest window; null: none yet
	Headlines    []HeadlineValue   `json:"headlines"`                 // latest headline values; unknown ones are left out
	Capabilities []Capability      `json:"capabilities"`
	ModulesOff   []ModuleOff       `json:"modules_off"`
	Quarantine   []QuarantineRow   `json:"quarantine"`
	Loss         Loss              `json:"loss"`
	Sessions     []Session         `json:"sessions"` // live ones first; two live ones when duplicate
	CertExpires  *time.Time        `json:"cert_expires_at,omitempty"`
	CertDays     *float64          `json:"cert_expires_days,omitempty"` // negative: expired
}

// HeadlineValue is the latest value of one headline metric of one node.
type HeadlineValue struct {
	Metric string  `json:"metric"`
	Unit   string  `json:"unit"`
	Stat   string  `json:"stat"` // "last" of a gauge, "rate_per_s" of a delta
	Value  float64 `json:"value"`
}

// Capability is one signal of one component on one node.
type Capability struct {
	Component string    `json:"component"`
	Signal    string    `json:"signal"`
	Level     string    `json:"level"`  // full, degraded, off
	Source    string    `json:"source"` // bpf, proc, or empty when off
	Reason    string    `json:"reason,omitempty"`
	Since     time.Time `json:"since"` // when this state was first reported
}

// NodeCapabilities is the answer of Capabilities.
type NodeCapabilities struct {
	tenants.NodeRef
	Capabilities []Capability `json:"capabilities"`
	ModulesOff   []ModuleOff  `json:"modules_off"`
}

// ModuleOff is one module switched off from the server.
type ModuleOff struct {
	Module string    `json:"module"`
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
}

// QuarantineRow counts what was kept out for one reason.
type QuarantineRow struct {
	Reason  string    `json:"reason"` // clock_skew, too_old, future, malformed, too_many_series, …
	Count   int64     `json:"count"`
	FirstAt time.Time `json:"first_at"`
	LastAt  time.Time `json:"last_at"`
	Example string    `json:"example,omitempty"` // untrusted, escaped
}

// Loss is what is known to be missing of a node's data.
type Loss struct {
	Agent         map[string]uint64 `json:"agent"`          // the agent's own counters since its start, for example queue_dropped
	MissingSeq    uint64            `json:"missing_seq"`    // sequence numbers that never arrived: dropped on the node
	PastRetention uint64            `json:"past_retention"` // accepted late, but older than raw windows are kept
	RefusedPoints uint64            `json:"refused_points"` // single values out of range
}

// Session is one stream of a node's identity.
type Session struct {
	ID           string     `json:"session"`
	Live         bool       `json:"live"`
	Replica      string     `json:"replica"`
	Remote       string     `json:"remote_addr,omitempty"`
	MachineID    string     `json:"machine_id,omitempty"`
	BootID       string     `json:"boot_id,omitempty"`
	AgentVersion string     `json:"agent_version,omitempty"`
	ConnectedAt  time.Time  `json:"connected_at"`
	LastSeen     time.Time  `json:"last_seen"`
	ClosedAt     *time.Time `json:"closed_at,omitempty"`
	CloseReason  string     `json:"close_reason,omitempty"`
	SkewMS       *int64     `json:"skew_ms,omitempty"`
}

// Overview is the state of all nodes in scope at one moment.
type Overview struct {
	At         time.Time         `json:"at"`
	Nodes      int               `json:"nodes"`
	ByStatus   map[Status]int    `json:"by_status"`   // every status, zero included
	FreshnessS *float64          `json:"freshness_s"` // age of the newest sign of life of any node; null: none ever
	Coverage   tenants.Coverage  `json:"coverage"`    // answered = online
	ByVersion  []Share           `json:"by_version"`  // most first, at most 10
	ByKernel   []Share           `json:"by_kernel"`   // most first, at most 10
	Worst      []Worst           `json:"worst"`       // one row a headline metric that any node has
	Unhealthy  []CapabilityShare `json:"unhealthy"`   // degraded and off signals, most nodes first, at most 20
	Kept       []QuarantineShare `json:"quarantined"` // kept-out data by reason
}

// Share counts nodes with one value; an empty value is shown as "unknown".
type Share struct {
	Value string `json:"value"`
	Nodes int    `json:"nodes"`
}

// Worst lists the nodes with the highest fresh value of one headline metric.
type Worst struct {
	Metric string      `json:"metric"`
	Unit   string      `json:"unit"`
	Stat   string      `json:"stat"`
	Nodes  []NodeValue `json:"nodes"` // highest first, at most 3
}

// NodeValue is one node's value.
type NodeValue struct {
	tenants.NodeRef
	Value float64 `json:"value"`
}

// CapabilityShare counts nodes whose signal is not full.
type CapabilityShare struct {
	Component string          `json:"component"`
	Signal    string          `json:"signal"`
	Level     string          `json:"level"`
	Nodes     int             `json:"nodes"`
	Reason    string          `json:"reason,omitempty"` // of the example
	Example   tenants.NodeRef `json:"example"`
}

// QuarantineShare counts kept-out data of all nodes by reason.
type QuarantineShare struct {
	Reason string `json:"reason"`
	Count  int64  `json:"count"`
	Nodes  int    `json:"nodes"`
}

// Config tunes a Service. The zero value is the product's default.
type Config struct {
	Replica string           // name of this server process, kept with every session
	Now     func() time.Time // nil: time.Now
}

// Service answers about nodes. It is safe for concurrent use.
type Service struct {
	db      *tenantdb.DB
	reg     *inspector.Registry
	log     *slog.Logger
	replica string
	now     func() time.Time
	heads   headlines

	overviews overviews
	words     words

	// Equal questions at one time are read once; see tenantdb.Shared.
	lists     tenantdb.Shared[Page]
	details   tenantdb.Shared[NodeDetail]
	summaries tenantdb.Shared[Overview]

	mu    sync.Mutex
	seen  map[sessionKey]sighting // sightings not yet written
	drops uint64                  // sightings dropped because too many were waiting
}

// New builds a Service. It starts nothing: run Run to have sightings written.
// The registry must be complete.
func New(db *tenantdb.DB, reg *inspector.Registry, cfg Config, log *slog.Logger) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{db: db, reg: reg, log: log, replica: cfg.Replica, now: cfg.Now,
		heads: newHeadlines(reg), seen: map[sessionKey]sighting{}}
}
