package metrics

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	hoursAhead    = 3                // partitions made ahead of the current hour
	maintainEvery = time.Minute      // pace of Run
	maintainLease = 20 * time.Second // longest hold of the maintenance lock
)

// hours remembers which partitions exist, so that the writer asks the database
// only once for each hour.
type hours struct {
	mu    sync.Mutex
	known map[int64]bool
}

func hourOf(t time.Time) int64 { return t.Unix() / 3600 }

func hourStart(h int64) time.Time { return time.Unix(h*3600, 0).UTC() }

func (h *hours) missing(hs []int64) []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []int64
	for _, x := range hs {
		if !h.known[x] && !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	slices.Sort(out)
	return out
}

func (h *hours) know(hs ...int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.known) > 1000 {
		clear(h.known)
	}
	for _, x := range hs {
		h.known[x] = true
	}
}

func (h *hours) forget(hs ...int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(hs) == 0 {
		clear(h.known)
	}
	for _, x := range hs {
		delete(h.known, x)
	}
}

// makeHours makes the partitions that the writer needs and that the
// maintenance loop has not made. It runs outside the batch's transaction, so
// that the batch holds no lock on the table's catalogue.
func (s *Service) makeHours(ctx context.Context, ids []tenants.TenantID, hs []int64) error {
	hs = s.hours.missing(hs)
	if len(hs) == 0 {
		return nil
	}
	err := s.db.InTenants(ctx, ids[:1], func(ctx context.Context, tx pgx.Tx) error {
		return makePartitions(ctx, tx, hs)
	})
	if err == nil {
		s.hours.know(hs...)
	}
	return err
}

func makePartitions(ctx context.Context, tx pgx.Tx, hs []int64) error {
	for _, h := range hs {
		if _, err := tx.Exec(ctx, sqlMakePartition, hourStart(h), hourStart(h+1)); err != nil {
			return err
		}
	}
	return nil
}

// EnsurePartitions makes the missing partitions from the current hour to
// hoursAhead after it.
func (s *Service) EnsurePartitions(ctx context.Context) error {
	now := hourOf(s.now())
	var hs []int64
	for h := now; h <= now+hoursAhead; h++ {
		hs = append(hs, h)
	}
	err := s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error { return makePartitions(ctx, tx, hs) })
	if err != nil {
		return tenantdb.Fault(err)
	}
	return s.measure(ctx)
}

// DropOldPartitions drops the partitions that are wholly past retention, each
// in its own transaction: a long read holds up one drop and not the others.
func (s *Service) DropOldPartitions(ctx context.Context) error {
	parts, err := s.partitions(ctx)
	if err != nil {
		return err
	}
	keep := s.now().Add(-tenants.WindowRetention)
	var errs []error
	for _, p := range parts {
		if p.hi.After(keep) {
			continue
		}
		s.hours.forget(hourOf(p.lo))
		err := s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sqlDropPartition, p.lo)
			return err
		})
		if err != nil {
			errs = append(errs, tenantdb.Fault(err))
		}
	}
	return errors.Join(append(errs, s.measure(ctx))...)
}

type span struct{ lo, hi time.Time }

func (s *Service) partitions(ctx context.Context) ([]span, error) {
	var out []span
	err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlPartitions)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (p span, err error) {
			err = r.Scan(&p.lo, &p.hi)
			return p, err
		})
		return err
	})
	if err != nil {
		return nil, tenantdb.Fault(err)
	}
	return out, nil
}

// measure refreshes the gauges about partitions.
func (s *Service) measure(ctx context.Context) error {
	parts, err := s.partitions(ctx)
	if err != nil {
		return err
	}
	have := map[int64]bool{}
	now := s.now()
	oldest := time.Duration(0)
	for i, p := range parts {
		have[hourOf(p.lo)] = true
		if i == 0 && p.lo.Before(now) {
			oldest = now.Sub(p.lo)
		}
	}
	ahead := 0
	for have[hourOf(now)+int64(ahead)+1] {
		ahead++
	}
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	s.counts.ahead, s.counts.oldest = ahead, oldest
	return nil
}

// Run keeps the partitions until ctx ends: once at the start, then every
// minute. One replica at a time makes or drops, under an advisory lock that
// lasts no longer than its short transaction; the others only measure.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		if err := s.maintain(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("metrics maintenance failed; the writer makes partitions meanwhile", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// maintain does one round if no other replica is at it. Each step is a short
// transaction that holds the lock: a lost connection frees it.
func (s *Service) maintain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maintainLease)
	defer cancel()
	if err := s.EnsurePartitions(ctx); err != nil {
		return err
	}
	if err := s.DropOldPartitions(ctx); err != nil {
		return err
	}
	if err := s.useLayouts(ctx); err != nil {
		return err
	}
	if err := s.dropLayouts(ctx); err != nil {
		return err
	}
	s.counts.mu.Lock()
	defer s.counts.mu.Unlock()
	s.counts.maintained = s.now()
	return nil
}

// alone runs fn in a jobs transaction that holds the maintenance lock. When
// another replica holds it, fn is not run.
func (s *Service) alone(ctx context.Context, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		mine := false
		if err := tx.QueryRow(ctx, sqlMaintainLock).Scan(&mine); err != nil || !mine {
			return err
		}
		return fn(ctx, tx)
	})
}
