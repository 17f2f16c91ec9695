// Package audit owns the record of who did what: every call of a tool, every
// write over REST and every refusal, append-only and sealed into one hash
// chain a tenant; and the attempts to connect, which lead from a reference id
// to the check that failed.
//
// It alone writes the tables audit, audit_seal, refusal, attempt and
// attempt_dropped. It must not know any tool, route or credential: whoever
// answers a call hands it an Entry whose arguments are redacted already.
//
// Start reading at Service.Note (reads, batched) and Service.Write (writes wait
// for their row), then seal.go.
package audit

import (
	"net/netip"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// Outcome is how a call ended.
type Outcome string

// The outcomes.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused" // a scope, a limit or a rule said no; Reason says which
	Failed  Outcome = "failed"  // it was tried and did not work; Reason says why
	Started Outcome = "started" // a write that waits for its row before it acts; a second entry tells its end
)

// Entry is one line of the audit. It holds no credential, no result, and no
// argument that its tool or route calls secret.
type Entry struct {
	ID        string // UUIDv7, made here when empty
	Tenant    tenants.TenantID
	At        time.Time // zero: now
	Principal tenants.Principal
	Surface   string // "mcp", "rest", "dashboard", "command"
	Action    string // tool name, or method and route pattern such as "POST tokens"
	Arguments string // redacted, cleaned and cut by whoever made the entry
	Outcome   Outcome
	Reason    string // enumerated; empty when OK
	Bytes     int    // of the answer
	Duration  time.Duration
	Reference string // leads to the log line and to what the caller was told
	From      netip.Addr
	// Count is how many alike were folded into this one: the same refusal of the
	// same principal within a minute. 0 reads as 1.
	Count int
}

// Row is one line of the audit as a list shows it.
type Row struct {
	ID         string    `json:"id"`
	At         time.Time `json:"at"`
	Principal  Caller    `json:"principal"`
	Surface    string    `json:"surface"`
	Action     string    `json:"action"`
	Arguments  string    `json:"arguments,omitempty"` // redacted; untrusted text
	Outcome    Outcome   `json:"outcome"`
	Reason     string    `json:"reason,omitempty"`
	Bytes      int64     `json:"bytes"`
	DurationMS float64   `json:"duration_ms"`
	Reference  string    `json:"reference_id,omitempty"`
	From       string    `json:"from,omitempty"`
	Count      int       `json:"count"` // how many alike it stands for
	Seal       int64     `json:"seal"`  // of the tenant's chain; 0: not sealed yet, which takes some seconds
}

// Caller is the principal of a Row.
type Caller struct {
	Kind   tenants.PrincipalKind `json:"kind"`
	ID     string                `json:"id"`
	Name   string                `json:"name,omitempty"`
	Client string                `json:"client,omitempty"`
}

// Query filters a list; zero fields do not filter. Since and Until bound the
// time: Since <= at < Until.
type Query struct {
	Principal    string // id
	Action       string
	Outcome      Outcome
	Since, Until time.Time
	Reference    string
	Cursor       string
	Limit        int
}

// Page is one page of the audit, the youngest first.
type Page struct {
	Entries   []Row              `json:"entries"` // never null
	Truncated *tenants.Truncated `json:"truncated,omitempty"`
	Notes     []string           `json:"notes,omitempty"`
}
