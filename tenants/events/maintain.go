package events

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	day           = 24 * time.Hour
	daysAhead     = 2
	maintainEvery = time.Minute
	maintainLease = 20 * time.Second // longest hold of the maintenance lock
)

// keepPartitions makes and drops partitions until ctx ends.
func (s *Service) keepPartitions(ctx context.Context) {
	tick := time.NewTicker(maintainEvery)
	defer tick.Stop()
	for {
		if err := s.maintain(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("maintenance of events failed; the writer makes partitions meanwhile", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// maintain does one round, each step in a short transaction of its own; where
// another replica is at it, nothing is done.
func (s *Service) maintain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maintainLease)
	defer cancel()
	var have []tenantdb.Partition
	err := s.alone(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err = s.parts.Ahead(ctx, tx, s.now(), daysAhead); err == nil {
			have, err = s.parts.List(ctx, tx)
		}
		return err
	})
	errs := []error{err}
	for _, p := range have {
		if p.Hi.After(s.now().Add(-s.cfg.Retention)) {
			break
		}
		errs = append(errs, s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error {
			var younger int
			if err := tx.QueryRow(ctx, sqlYounger, p.Hi, s.cfg.Keep).Scan(&younger); err != nil {
				return err
			}
			if younger < s.cfg.Keep && p.Hi.After(s.now().Add(-MaxAge)) {
				return nil
			}
			return s.parts.Drop(ctx, tx, p.Lo)
		}))
	}
	return errors.Join(errs...)
}

// alone runs fn in a maintenance transaction that holds the lock.
func (s *Service) alone(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		mine := false
		if err := tx.QueryRow(ctx, sqlMaintainLock).Scan(&mine); err != nil || !mine {
			return err
		}
		return fn(ctx, tx)
	})
}
