package metrics

import (
	"context"
	"log/slog"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Service takes in and answers metrics. It is safe for concurrent use.
type Service struct {
	db  *tenantdb.DB
	reg *inspector.Registry
	log *slog.Logger
	now func() time.Time
}

// Checked is a report that passed Check. It is opaque; hand it to Write.
type Checked struct {
	reason string
}

// Quarantine returns the reason why the window is kept out; "" when it is not.
func (c Checked) Quarantine() string { return c.reason }

// OpenStream says where the node that scope is stands. epoch 0 means that the
// agent has no saved position: the server issues the next epoch. An epoch that
// is not the current one is answered with a new one.
func (s *Service) OpenStream(ctx context.Context, scope tenants.Scope, epoch, nextSeq uint64) (Position, error) {
	return Position{}, nil
}

// PutLayout stores a layout in its canonical encoding for the tenant. A layout
// that does not pass inspector's Check is Invalid with reason "bad_layout".
func (s *Service) PutLayout(ctx context.Context, scope tenants.Scope, encoded []byte) (inspector.LayoutHash, error) {
	return inspector.LayoutHash{}, nil
}

// UnknownLayouts returns those of hashes that the tenant has not stored.
func (s *Service) UnknownLayouts(ctx context.Context, scope tenants.Scope, hashes []inspector.LayoutHash) ([]inspector.LayoutHash, error) {
	return nil, nil
}

// Check looks at one window of the node that scope is. skew is the agent's
// clock minus the server's at this exchange. An unknown layout is Precondition
// with reason "unknown_layout": ask the agent for it and check again. A window
// to be kept out is no error: it is a Checked with a Quarantine reason, whose
// Write consumes its sequence number and counts it.
func (s *Service) Check(ctx context.Context, scope tenants.Scope, r Report, skew time.Duration) (Checked, error) {
	return Checked{}, nil
}

// Advance is the Check of a report that is no window (a layout, a capability):
// its Write consumes the sequence number only.
func (s *Service) Advance(scope tenants.Scope, epoch, seq uint64) (Checked, error) {
	return Checked{}, nil
}

// Write commits at most MaxBatch checked reports of any tenants in one
// transaction. Reports of one node are taken in order of seq; one below the
// node's high-water mark is Replayed. When the batch fails for the sake of one
// report it is split, so that the others get through. The error is non-nil
// only when nothing was committed; the outcomes then are all Retry.
func (s *Service) Write(ctx context.Context, batch []Checked) ([]Outcome, error) { return nil, nil }

// Summary answers the state of one module. It needs telltale:read.
func (s *Service) Summary(ctx context.Context, scope tenants.Scope, q SummaryQuery) (Summary, error) {
	return Summary{}, nil
}

// Query answers series, top-N and comparisons. It needs telltale:read.
func (s *Service) Query(ctx context.Context, scope tenants.Scope, q Query) (Result, error) {
	return Result{}, nil
}

// EnsurePartitions makes the partitions from the current hour to three hours
// ahead; DropOldPartitions drops those wholly past retention. Run does both
// every minute on one replica at a time until ctx ends.
func (s *Service) EnsurePartitions(ctx context.Context) error  { return nil }
func (s *Service) DropOldPartitions(ctx context.Context) error { return nil }
func (s *Service) Run(ctx context.Context) error               { <-ctx.Done(); return nil }

// Gauges reads the service's own health; it is cheap.
func (s *Service) Gauges() Gauges { return Gauges{} }
