package metrics

import (
	"cmp"
	"context"
	"hash/crc32"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Service takes in and answers metrics. It is safe for concurrent use.
type Service struct {
	db        *tenantdb.DB
	reg       *inspector.Registry
	log       *slog.Logger
	now       func() time.Time
	owner     map[string]string // component of each registered metric
	heads     headlines
	layouts   *layouts
	nodes     *nodeStates
	companies companies
	summaries tenantdb.Shared[Summary] // equal questions at one time are read once
	parts     *tenantdb.Partitions
	counts    counters
}

// counters are the service's own, see Gauges.
type counters struct {
	written, replayed, quarantined, expired, refused, conflicts, splits atomic.Uint64

	mu         sync.Mutex
	ahead      int
	oldest     time.Duration
	maintained time.Time
}

// New builds a Service. It starts nothing. The registry must be complete.
func New(db *tenantdb.DB, reg *inspector.Registry, cfg Config, log *slog.Logger) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Service{db: db, reg: reg, log: log, now: cfg.Now, owner: map[string]string{},
		layouts: newLayouts(), nodes: newNodeStates(), parts: tenantdb.NewPartitions(db, time.Hour, "win")}
	for _, c := range reg.Components() {
		for _, m := range c.Metrics {
			s.owner[m.Name] = c.Name
		}
	}
	s.heads = headlinesOf(reg)
	return s
}

// maxHeads is how many headline values a head row holds.
const maxHeads = 16

// headlines maps headline metrics to positions of node_head.vals.
type headlines struct {
	set     int32 // names the list: a row written by another list is unknown
	metrics []inspector.Metric
	owners  []string // component of each
	pos     map[string]int
}

// headlinesOf takes the first maxHeads headline metrics by name. The fleet
// slice reads node_head by the same rule.
func headlinesOf(reg *inspector.Registry) headlines {
	h := headlines{pos: map[string]int{}}
	owner := map[string]string{}
	for _, c := range reg.Components() {
		for _, m := range c.Metrics {
			if m.Headline && m.Kind != inspector.Histogram && len(m.Labels) == 0 {
				h.metrics = append(h.metrics, m)
				owner[m.Name] = c.Name
			}
		}
	}
	slices.SortFunc(h.metrics, func(a, b inspector.Metric) int { return cmp.Compare(a.Name, b.Name) })
	h.metrics = h.metrics[:min(len(h.metrics), maxHeads)]
	sum := crc32.NewIEEE()
	for i, m := range h.metrics {
		h.pos[m.Name] = i
		h.owners = append(h.owners, owner[m.Name])
		sum.Write([]byte(m.Name + "\n"))
	}
	h.set = int32(sum.Sum32())
	return h
}

// OpenStream says where the node that scope is stands. epoch 0 means that the
// agent has no saved position: the server issues the next epoch. An epoch that
// is not the current one is answered with a new one, whose HighSeq is 0.
// nextSeq is what the agent would send next; it is only checked for its range.
func (s *Service) OpenStream(ctx context.Context, scope tenants.Scope, epoch, nextSeq uint64) (Position, error) {
	key, err := nodeOf(scope)
	if err != nil {
		return Position{}, err
	}
	if epoch > MaxSeq || nextSeq > MaxSeq {
		return Position{}, fault.Bad("epoch", "epoch and seq are at most 2^53")
	}
	var e, q int64
	err = s.db.InTenants(ctx, []tenants.TenantID{key.tenant}, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, sqlOpen, uid(key.tenant), uid(key.node), int64(epoch)).Scan(&e, &q)
	})
	if err != nil {
		return Position{}, tenantdb.Fault(err)
	}
	return Position{Epoch: uint64(e), HighSeq: uint64(q)}, nil
}

// Skip says that the node that scope is used none of the numbers up to seq
// that are not committed: an agent that died starts again above all numbers it
// had set aside. They do not count as missing. Another epoch than the current
// one changes nothing.
func (s *Service) Skip(ctx context.Context, scope tenants.Scope, epoch, seq uint64) error {
	key, err := nodeOf(scope)
	if err != nil {
		return err
	}
	if epoch > MaxSeq || seq > MaxSeq {
		return fault.Bad("seq", "epoch and seq are at most 2^53")
	}
	err = s.db.InTenants(ctx, []tenants.TenantID{key.tenant}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlSkip, uid(key.tenant), uid(key.node), int64(epoch), int64(seq))
		return err
	})
	return tenantdb.Fault(err)
}

// Gauges reads the service's own health; it is cheap.
func (s *Service) Gauges() Gauges {
	c := &s.counts
	c.mu.Lock()
	defer c.mu.Unlock()
	return Gauges{PartitionsAhead: c.ahead, OldestKept: c.oldest, Maintained: c.maintained,
		Written: c.written.Load(), Replayed: c.replayed.Load(), Quarantined: c.quarantined.Load(),
		Expired: c.expired.Load(), RefusedPoints: c.refused.Load(), Conflicts: c.conflicts.Load(), Splits: c.splits.Load()}
}
