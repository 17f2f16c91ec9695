package events

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Nodes finds the node that a caller's words mean, within its scope.
type Nodes interface {
	ResolveNode(ctx context.Context, scope tenants.Scope, ref string) (tenants.NodeID, string, error)
}

// Metrics answers about what else nodes report.
type Metrics interface {
	// Values is what the snapshots hold: one value a metric over the windows that
	// ended in from < t <= to.
	Values(ctx context.Context, tenant tenants.TenantID, node tenants.NodeID, names []string, from, to time.Time) ([]tenants.MetricValue, error)
	// KeptOut adds to a batch what counts for each of the reasons the nodes of
	// which reports were kept out since a time, and hands the counts to each; nil
	// nodes are all of the tenant.
	KeptOut(b *pgx.Batch, tenant tenants.TenantID, nodes [][16]byte, reasons []string, since time.Time, each func(reason string, nodes int))
}

// Config tunes a Service. The zero value is the product's default.
type Config struct {
	Retention time.Duration    // age at which records are dropped by the day; 0 is 30 days
	Keep      int              // this many of the newest records stay whatever their age, up to MaxAge; 0 is 10,000
	PerHour   int              // records of one kind that one node may begin within an hour; 0 is 250
	Now       func() time.Time // nil: time.Now
}

// MaxAge is the age at which every record is dropped.
const MaxAge = 180 * 24 * time.Hour

// Service takes in and answers events. It is safe for concurrent use.
type Service struct {
	db      *tenantdb.DB
	reg     *inspector.Registry
	nodes   Nodes
	metrics Metrics
	bus     Bus
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	parts   *tenantdb.Partitions
	woken   chan struct{} // a snapshot is due
	news    news
	crowds  crowds
	lists   tenantdb.Shared[Page] // equal questions at one time are read once
	counts  counters
}

// counters are the service's own, see Stats.
type counters struct {
	begun, moved, repeated, keptOut, snapshots, snapshotsFailed atomic.Uint64
}

// Stats counts since the start of this process.
type Stats struct {
	Begun           uint64 // records made
	Moved           uint64 // reports that moved a record on
	Repeated        uint64 // reports that said nothing new
	KeptOut         uint64 // reports refused as Invalid
	Snapshots       uint64 // snapshots looked at and stored
	SnapshotsFailed uint64 // looks that failed; they are tried again
	NewsLost        uint64 // changes that subscribers were not told one by one
}

// Stats reads the counters; it is cheap.
func (s *Service) Stats() Stats {
	c := &s.counts
	return Stats{Begun: c.begun.Load(), Moved: c.moved.Load(), Repeated: c.repeated.Load(), KeptOut: c.keptOut.Load(),
		Snapshots: c.snapshots.Load(), SnapshotsFailed: c.snapshotsFailed.Load(), NewsLost: s.news.lostCount()}
}

// New builds a Service. It starts nothing: run Run for partitions, snapshots
// and subscriptions. The registry must be complete. bus may be nil where there
// is one replica.
func New(db *tenantdb.DB, reg *inspector.Registry, nodes Nodes, metrics Metrics, bus Bus, cfg Config, log *slog.Logger) *Service {
	if cfg.Retention == 0 {
		cfg.Retention = 30 * day
	}
	if cfg.Keep == 0 {
		cfg.Keep = 10_000
	}
	if cfg.PerHour == 0 {
		cfg.PerHour = 250
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{db: db, reg: reg, nodes: nodes, metrics: metrics, bus: bus, cfg: cfg, log: log, now: cfg.Now,
		parts: tenantdb.NewPartitions(db, day, "event", "event_context"), woken: make(chan struct{}, 1), news: newNews()}
}

// Run keeps the partitions, fills snapshots in and spreads news until ctx
// ends. Every replica runs it.
func (s *Service) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, part := range []func(context.Context){s.keepPartitions, s.fillContexts, s.spread} {
		wg.Go(func() { part(ctx) })
	}
	wg.Wait()
	return nil
}
