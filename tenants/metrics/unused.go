package metrics

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Bounds of one round of maintenance.
const (
	useRows  = 1000 // layouts of one statement
	dropRows = 1000 // layouts removed in a round
)

// useLayouts writes down which layouts this process has used.
func (s *Service) useLayouts(ctx context.Context) error {
	l := s.layouts
	l.mu.Lock()
	var keys []shapeKey
	for k := range l.due {
		keys = append(keys, k)
	}
	l.mu.Unlock()
	for chunk := range slices.Chunk(keys, useRows) {
		now := s.now()
		var ts [][16]byte
		var ids []int64
		for _, k := range chunk {
			ts, ids = append(ts, uid(k.tenant)), append(ids, layoutID(k.hash))
		}
		err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sqlUseLayouts, ts, ids, now)
			return err
		})
		if err != nil {
			return tenantdb.Fault(err)
		}
		l.mu.Lock()
		for _, k := range chunk {
			if sh := l.due[k]; sh != nil {
				sh.used = now
				delete(l.due, k)
			}
		}
		l.mu.Unlock()
	}
	return nil
}

// dropLayouts removes layouts that no replica has used for layoutLife. Their
// last windows are gone long before; a node that comes back sends its layout
// again.
func (s *Service) dropLayouts(ctx context.Context) error {
	err := s.alone(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlDropLayouts, s.now().Add(-layoutLife), dropRows)
		return err
	})
	return tenantdb.Fault(err)
}
