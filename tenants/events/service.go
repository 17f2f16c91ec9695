package events

import (
	"context"
	"log/slog"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Nodes finds the node that a caller's words mean, within its scope.
type Nodes interface {
	ResolveNode(ctx context.Context, scope tenants.Scope, ref string) (tenants.NodeID, string, error)
}

// Metrics answers what the snapshots hold: one value a metric that has any,
// over from < t <= to.
type Metrics interface {
	Values(ctx context.Context, tenant tenants.TenantID, node tenants.NodeID, names []string, from, to time.Time) ([]tenants.MetricValue, error)
}

// Config tunes a Service. The zero value is the product's default.
type Config struct {
	Retention time.Duration    // age at which records are dropped; 0 is 30 days
	Keep      int64            // never drop below this many records; 0 is 10,000
	Now       func() time.Time // nil: time.Now
}

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
}

// New builds a Service. It starts nothing: run Run for partitions, snapshots
// and news from other replicas. The registry must be complete. bus may be nil
// where there is one replica.
func New(db *tenantdb.DB, reg *inspector.Registry, nodes Nodes, metrics Metrics, bus Bus, cfg Config, log *slog.Logger) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{db: db, reg: reg, nodes: nodes, metrics: metrics, bus: bus, cfg: cfg, log: log, now: cfg.Now}
}

func notYet() error { return fault.New(fault.Unavailable, "not_built", "events are not built yet") }

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Record takes one report of the node that scope is. skew is the node's clock
// minus the server's at this exchange. An Invalid fault means: keep the report
// out, count it by the fault's reason, consume its number. Anything else is
// worth another try.
func (s *Service) Record(ctx context.Context, scope tenants.Scope, r inspector.EventReport, skew time.Duration) error {
	return notYet()
}

// List answers one page of events, the youngest first. It needs telltale:read.
func (s *Service) List(ctx context.Context, scope tenants.Scope, q ListQuery) (Page, error) {
	return Page{}, notYet()
}

// Get answers one event whole. It needs telltale:read.
func (s *Service) Get(ctx context.Context, scope tenants.Scope, id ID) (Detail, error) {
	return Detail{}, notYet()
}

// Promote makes an event of a task's finding. It needs telltale:diagnose.
func (s *Service) Promote(ctx context.Context, scope tenants.Scope, f Finding) (Event, error) {
	return Event{}, notYet()
}

// Subscribe answers hints of a tenant's events until the returned function is
// called.
func (s *Service) Subscribe(tenant tenants.TenantID) (<-chan Change, func()) {
	return make(chan Change), func() {}
}
