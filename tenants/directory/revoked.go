package directory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	selectRevokedSince = `select node_id from node where tenant_id = any($1) and revoked_at >= $2`
	selectSuspended    = `select tenant_id from tenant where tenant_id = any($1) and suspended`
)

// RevokedSince lists the nodes of the tenants that were revoked at or after
// since, and those of the tenants that are suspended now. A replica polls it
// for all tenants whose nodes it holds, to cut their live streams: one round
// trip however many the nodes are.
func (s *Service) RevokedSince(ctx context.Context, ids []tenants.TenantID, since time.Time) (nodes []tenants.NodeID, suspended []tenants.TenantID, err error) {
	for chunk := range slices.Chunk(ids, tenantdb.MaxTenants) {
		err = s.db.InTenants(ctx, chunk, func(ctx context.Context, tx pgx.Tx) error {
			gone, err := collect[tenants.NodeID](ctx, tx, selectRevokedSince, chunk, since)
			nodes = append(nodes, gone...)
			if err != nil {
				return err
			}
			closed, err := collect[tenants.TenantID](ctx, tx, selectSuspended, chunk)
			suspended = append(suspended, closed...)
			return err
		})
		if err != nil {
			return nil, nil, fmt.Errorf("look for revocations: %w", err)
		}
	}
	return nodes, suspended, nil
}

func collect[T ~[16]byte](ctx context.Context, tx pgx.Tx, sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	raw, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	out := make([]T, len(raw))
	for i, id := range raw {
		out[i] = T(id)
	}
	return out, err
}
