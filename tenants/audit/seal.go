package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	sealLease   = 20 * time.Second // longest hold of the lock
	sealRows    = 250              // of one seal: more at once would hold up whoever reads meanwhile
	sealTenants = 1000             // of one look
	weeksAhead  = 1
	keepRefusal = 30 * day
	maxRefusals = 2000 // rows a tenant
)

// seal seals what has settled, tenant by tenant, each seal in a transaction of
// its own; where another replica is at it, nothing is done. A row that comes
// late, from a replica that could not write, is in a later seal: membership
// and place are the row's own columns, so no order of times is needed.
func (s *Service) seal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sealLease)
	defer cancel()
	for {
		var due []tenants.TenantID
		err := s.alone(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
			due, err = tenantsOf(ctx, tx, sqlUnsealed, s.settled(), sealTenants)
			return err
		})
		if err != nil || len(due) == 0 {
			return tenantdb.Fault(err)
		}
		more, errs := false, []error{}
		for _, t := range due {
			start := time.Now()
			full, err := s.sealTenant(ctx, t)
			more = more || full
			if err != nil {
				errs = append(errs, fmt.Errorf("seal rows of %s: %w", t, err))
			}
			rest(ctx, time.Since(start))
		}
		if !more || len(errs) > 0 {
			return errors.Join(errs...)
		}
	}
}

// rest leaves the database to others for as long as a seal took: nobody
// waits for seals, and after a busy time there are many.
func rest(ctx context.Context, took time.Duration) {
	select {
	case <-time.After(took):
	case <-ctx.Done():
	}
}

func (s *Service) settled() time.Time { return s.now().Add(-s.cfg.Settle) }

func tenantsOf(ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]tenants.TenantID, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (t tenants.TenantID, err error) { return t, r.Scan((*[16]byte)(&t)) })
}

// sealTenant makes the tenant's next seal, of rows of one partition: they go
// together one day. more says that there may be others.
func (s *Service) sealTenant(ctx context.Context, t tenants.TenantID) (more bool, err error) {
	err = s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error {
		more = false
		found, err := tx.Query(ctx, sqlToSeal, t, s.settled(), sealRows)
		if err != nil {
			return err
		}
		rows, err := pgx.CollectRows(found, func(r pgx.CollectableRow) (row, error) { return scanRow(r) })
		if err != nil || len(rows) == 0 {
			return err
		}
		more = len(rows) == sealRows
		for i, r := range rows {
			if !r.at.Truncate(week).Equal(rows[0].at.Truncate(week)) {
				rows, more = rows[:i], true
				break
			}
		}
		return s.link(ctx, tx, t, rows)
	})
	if err != nil {
		return false, tenantdb.Fault(err)
	}
	return more, nil
}

// link seals the rows, which are in their order.
func (s *Service) link(ctx context.Context, tx pgx.Tx, t tenants.TenantID, rows []row) error {
	l := seal{no: 1, rows: len(rows), first: rows[0].at, last: rows[len(rows)-1].at, sealedAt: s.now().UTC().Truncate(time.Microsecond), sealedBy: s.life}
	var prev []byte
	switch err := tx.QueryRow(ctx, sqlLastSeal, t).Scan(&l.no, &prev); {
	case err == nil:
		l.no++
		copy(l.prev[:], prev)
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	at, id := make([]time.Time, len(rows)), make([][16]byte, len(rows))
	for i, r := range rows {
		d := r.digest()
		l.digests = append(l.digests, d[:]...)
		at[i], id[i] = r.at, r.id
	}
	l.hash = l.sum(t)
	tag, err := tx.Exec(ctx, sqlSealRows, t, l.no, at, id, l.first, l.last)
	if err != nil {
		return err
	}
	if tag.RowsAffected() != int64(len(rows)) {
		return fmt.Errorf("%d of %d rows took their seal", tag.RowsAffected(), len(rows))
	}
	if _, err := tx.Exec(ctx, sqlPutSeal, t, l.no, l.prev[:], l.hash[:], l.rows, l.first, l.last, l.digests, l.sealedAt, l.sealedBy); err != nil {
		return err
	}
	s.counts.sealed.Add(uint64(len(rows)))
	return nil
}

// keep makes partitions ahead, drops those past retention with their seals, and
// bounds the tables of the doors.
func (s *Service) keep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sealLease)
	defer cancel()
	now := s.now()
	var have []tenantdb.Partition
	err := s.alone(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err = s.parts.Ahead(ctx, tx, now, weeksAhead); err == nil {
			have, err = s.parts.List(ctx, tx)
		}
		return err
	})
	errs := []error{err}
	for _, p := range have {
		if p.Hi.After(now.Add(-s.cfg.Retention)) {
			break
		}
		errs = append(errs, s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error { return s.parts.Drop(ctx, tx, p.Lo) }))
	}
	for _, do := range []struct {
		sql string
		arg any
	}{
		{sqlOldRefusals, now.Add(-keepRefusal)},
		{sqlManyRefusals, maxRefusals},
		{sqlOldAttempts, now.Add(-day)},
		{sqlOldDropped, now.Add(-day)},
	} {
		errs = append(errs, s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, do.sql, do.arg)
			return err
		}))
	}
	errs = append(errs, s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var floor *time.Time
		if err := tx.QueryRow(ctx, sqlFloor).Scan(&floor); err != nil || floor == nil {
			return err
		}
		_, err := tx.Exec(ctx, sqlPruneSeals, *floor)
		return err
	}))
	return tenantdb.Fault(errors.Join(errs...))
}

// alone runs fn in a maintenance transaction that holds the lock; where another
// replica holds it, fn is not run.
func (s *Service) alone(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		mine := false
		if err := tx.QueryRow(ctx, sqlLock).Scan(&mine); err != nil || !mine {
			return err
		}
		return fn(ctx, tx)
	})
}
