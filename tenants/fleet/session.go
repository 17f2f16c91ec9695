package fleet

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// SessionID identifies one stream of one node.
type SessionID uuid.UUID

func (s SessionID) String() string { return uuid.UUID(s).String() }

// SessionFacts is what an agent says of itself when its stream opens. All text
// is untrusted; it is cleaned and cut to tenants' label bounds.
type SessionFacts struct {
	Remote       string // peer address, from the connection
	MachineID    string
	BootID       string
	AgentVersion string
	Kernel       string
	OS           string
	Arch         string
	CertNotAfter time.Time // of the certificate in use; zero: unknown
}

// Opened is the answer to a new stream.
type Opened struct {
	ID        SessionID
	Duplicate bool     // the same identity is live elsewhere, or returned after another boot
	Off       []string // modules switched off from the server
}

// Sighting is one sign of life of a session.
type Sighting struct {
	Skew     *time.Duration    // agent clock minus server clock; nil: not estimated at this exchange
	Counters map[string]uint64 // the agent's own loss counters; nil: unchanged; at most 16
}

// ModuleSwitch is one node whose switches changed.
type ModuleSwitch struct {
	Tenant tenants.TenantID
	Node   tenants.NodeID
	Off    []string // all modules now off, sorted
}

type sessionKey struct {
	tenant tenants.TenantID
	node   tenants.NodeID
	id     SessionID
}

type sighting struct {
	at       time.Time
	skew     *time.Duration
	counters map[string]uint64
}

// headlines maps registry headline metrics to positions of node_head.vals.
type headlines struct {
	set     int32 // names the list; rows of another list are unknown
	metrics []inspector.Metric
}

func newHeadlines(reg *inspector.Registry) headlines { return headlines{} }

// SessionOpened records a new stream of the node that scope is. It is called
// once for each stream, before its first report.
func (s *Service) SessionOpened(ctx context.Context, scope tenants.Scope, f SessionFacts) (Opened, error) {
	return Opened{}, nil
}

// SessionClosed records the end of a stream. reason is a snake_case word, for
// example "eof", "replaced", "drain". Closing twice is no error.
func (s *Service) SessionClosed(ctx context.Context, scope tenants.Scope, id SessionID, reason string) error {
	return nil
}

// Seen notes a sign of life. It never blocks and never touches the database:
// Run writes sightings in batches, at most every few seconds.
func (s *Service) Seen(scope tenants.Scope, id SessionID, g Sighting) {}

// Flush writes all waiting sightings now.
func (s *Service) Flush(ctx context.Context) error { return nil }

// Run writes sightings until ctx ends.
func (s *Service) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// RecordCapabilities replaces what the node that scope is can do.
func (s *Service) RecordCapabilities(ctx context.Context, scope tenants.Scope, caps []inspector.Capability) error {
	return nil
}

// Quarantine counts n reports of the node that scope is which were refused
// before they reached a service (undecodable, oversized, a bad layout).
// Outcomes of the metrics service are counted by that service and must not be
// counted again here.
func (s *Service) Quarantine(ctx context.Context, scope tenants.Scope, reason, example string, n int64) error {
	return nil
}

// DisabledModules lists the modules switched off for the node that scope is.
func (s *Service) DisabledModules(ctx context.Context, scope tenants.Scope) ([]string, error) {
	return nil, nil
}

// SwitchedSince lists the nodes of the tenants whose switches changed after
// since, for a replica to tell its live streams. Poll it every few seconds.
func (s *Service) SwitchedSince(ctx context.Context, ids []tenants.TenantID, since time.Time) ([]ModuleSwitch, error) {
	return nil, nil
}
