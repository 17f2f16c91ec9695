package metrics

import (
	"context"
	"errors"
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

// EnsurePartitions makes the missing partitions from the current hour to
// hoursAhead after it.
func (s *Service) EnsurePartitions(ctx context.Context) error {
	err := s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error { return s.parts.Ahead(ctx, tx, s.now(), hoursAhead) })
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
		if p.Hi.After(keep) {
			continue
		}
		err := s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error { return s.parts.Drop(ctx, tx, p.Lo) })
		if err != nil {
			errs = append(errs, tenantdb.Fault(err))
		}
	}
	return errors.Join(append(errs, s.measure(ctx))...)
}

func (s *Service) partitions(ctx context.Context) (out []tenantdb.Partition, err error) {
	err = s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = s.parts.List(ctx, tx)
		return err
	})
	return out, tenantdb.Fault(err)
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
		have[p.Lo.Unix()] = true
		if i == 0 && p.Lo.Before(now) {
			oldest = now.Sub(p.Lo)
		}
	}
	ahead := 0
	for have[now.Truncate(time.Hour).Add(time.Duration(ahead+1)*time.Hour).Unix()] {
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
