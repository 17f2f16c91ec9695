// Package ingest is the gRPC face of the server towards agents: enrolment,
// renewal, one report stream a node, and beside it one task channel.
//
// It turns the client certificate into a Scope (through auth's NodeCA), the
// frames of a stream into calls of the fleet and metrics services, and their
// answers into acknowledgements, which are sent only after the commit. It owns
// no table and knows no SQL, and it must not import another adapter.
//
// Start reading at Server.Run, then stream.go for one stream, batch.go for
// how windows of many streams share a transaction, hub.go for what the server
// can do to a live stream, and tasks.go for the task channel.
package ingest

import (
	"context"
	"crypto/x509"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// Authority verifies and issues the certificates of nodes.
type Authority interface {
	// VerifyPeer turns a client certificate into the scope of its node.
	VerifyPeer(ctx context.Context, cert *x509.Certificate, now time.Time) (tenants.Scope, error)
	// Issue signs a request for a node.
	Issue(ctx context.Context, tenant tenants.TenantID, node tenants.NodeID, csrDER []byte, lifetime time.Duration) (auth.Issued, error)
}

// Enroller takes a node in for an enrolment token.
type Enroller interface {
	RedeemEnrolToken(ctx context.Context, secret string, facts directory.NodeFacts) (tenants.TenantID, tenants.NodeID, error)
}

// Nodes keeps the facts of nodes and knows which of them are no longer good.
type Nodes interface {
	RecordFacts(ctx context.Context, scope tenants.Scope, facts directory.NodeFacts) error
	// Gone lists which of the nodes are revoked and which of the tenants are
	// suspended now.
	Gone(ctx context.Context, live map[tenants.TenantID][]tenants.NodeID) ([]tenants.NodeID, []tenants.TenantID, error)
}

// Sessions keeps what is known of nodes and their streams.
type Sessions interface {
	SessionOpened(ctx context.Context, scope tenants.Scope, f fleet.SessionFacts) (fleet.Opened, error)
	SessionClosed(ctx context.Context, scope tenants.Scope, id fleet.SessionID, reason string) error
	Rivals(ctx context.Context, scope tenants.Scope, id fleet.SessionID) (fleet.Rivals, error)
	SessionAdmitted(ctx context.Context, scope tenants.Scope, id fleet.SessionID) error
	Seen(scope tenants.Scope, id fleet.SessionID, g fleet.Sighting)
	RecordCapabilities(ctx context.Context, scope tenants.Scope, caps []inspector.Capability) error
	Quarantine(ctx context.Context, scope tenants.Scope, reason, example string, n int64) error
	// SwitchedOff lists the modules switched off for the nodes.
	SwitchedOff(ctx context.Context, live map[tenants.TenantID][]tenants.NodeID) (map[tenants.NodeID][]string, error)
}

// Windows takes in hot metrics.
type Windows interface {
	Writer
	OpenStream(ctx context.Context, scope tenants.Scope, epoch, nextSeq uint64) (metrics.Position, error)
	Skip(ctx context.Context, scope tenants.Scope, epoch, seq uint64) error
	PutLayout(ctx context.Context, scope tenants.Scope, encoded []byte) (inspector.LayoutHash, error)
	UnknownLayouts(ctx context.Context, scope tenants.Scope, hashes []inspector.LayoutHash) ([]inspector.LayoutHash, error)
	Check(ctx context.Context, scope tenants.Scope, r metrics.Report, skew time.Duration) (metrics.Checked, error)
	Advance(scope tenants.Scope, epoch, seq uint64) (metrics.Checked, error)
}

// Writer commits checked reports of many tenants in one transaction.
type Writer interface {
	Write(ctx context.Context, batch []metrics.Checked) ([]metrics.Outcome, error)
}

// Config tunes a Server. The zero value of every field means its default.
type Config struct {
	CertLifetime  time.Duration // of node certificates; tenants.NodeCertLifetime
	StreamsPerSec int           // new streams admitted a second; 500
	EnrolsPerSec  int           // enrolments admitted a second; 300
	MaxInFlight   int           // reports of one stream between arrival and commit; 64
	QueueItems    int           // reports waiting for a batch, over all streams; 8192
	Writers       int           // batches written at once; 2
	MaxAge        time.Duration // age at which a stream is asked to reconnect, spread by a quarter; 6 h
	Recheck       time.Duration // how often revocations and switches are looked for; 1 s, at most 2 s
	DrainTimeout  time.Duration // given to streams to leave when the server stops; 3 s
	WriteTimeout  time.Duration // how long a batch is retried before its streams are closed; 20 s
	Now           func() time.Time
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&c.CertLifetime, tenants.NodeCertLifetime)
	def(&c.MaxAge, 6*time.Hour)
	def(&c.Recheck, time.Second)
	c.Recheck = min(c.Recheck, 2*time.Second) // the certificate's own look-up may be 3 s old
	def(&c.DrainTimeout, 3*time.Second)
	def(&c.WriteTimeout, 20*time.Second)
	num(&c.StreamsPerSec, 500)
	num(&c.EnrolsPerSec, 300)
	num(&c.MaxInFlight, 64)
	num(&c.QueueItems, 8192)
	num(&c.Writers, 2)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Deps are the services a Server stands on.
type Deps struct {
	Authority Authority
	Enroller  Enroller
	Nodes     Nodes
	Sessions  Sessions
	Windows   Windows
	Events    Events // nil: events are kept out
	Tasks     Tasks  // nil: no node gets a task
}

// Server answers agents. It is safe for concurrent use; Run serves.
type Server struct {
	cfg   Config
	deps  Deps
	log   *slog.Logger
	batch *batcher
	hub   *hub
	tally *tally
	admit *admission
	count counters

	assembling atomic.Int64 // bytes of results on their way in

	readers sync.WaitGroup // of streams, and handlers of task channels; each ends soon after its stream
}

// New makes a Server. It starts nothing.
func New(cfg Config, deps Deps, log *slog.Logger) *Server {
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, deps: deps, log: log, admit: newAdmission(cfg)}
	s.batch = newBatcher(deps.Windows, cfg, &s.count, log)
	s.hub = newHub(deps, cfg, &s.count, log)
	s.tally = newTally(deps.Sessions, &s.count, log)
	return s
}

// Live returns how many streams this server holds.
func (s *Server) Live() int { return s.hub.size() }
