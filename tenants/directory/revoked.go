package directory

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	selectRevoked = `select n.node_id from unnest($1::uuid[], $2::uuid[]) u(t, n)
		join node n on n.tenant_id = u.t and n.node_id = u.n where n.revoked_at is not null`
	selectSuspended = `select tenant_id from tenant where tenant_id = any($1) and suspended`
)

// Gone lists which of the nodes are revoked and which of the tenants are
// suspended now. A replica polls it for the nodes whose streams it holds, to
// cut them: it asks for the state and not for what changed lately, because the
// clock that stamped a change may be any. A tenant without nodes is only looked
// at for its suspension.
func (s *Service) Gone(ctx context.Context, live map[tenants.TenantID][]tenants.NodeID) (revoked []tenants.NodeID, suspended []tenants.TenantID, err error) {
	for chunk := range slices.Chunk(slices.Collect(maps.Keys(live)), tenantdb.MaxTenants) {
		var ts, ns [][16]byte
		for _, t := range chunk {
			for _, n := range live[t] {
				ts, ns = append(ts, t), append(ns, n)
			}
		}
		err = s.db.InTenants(ctx, chunk, func(ctx context.Context, tx pgx.Tx) error {
			gone, err := collect[tenants.NodeID](ctx, tx, selectRevoked, ts, ns)
			if err != nil {
				return err
			}
			closed, err := collect[tenants.TenantID](ctx, tx, selectSuspended, chunk)
			revoked, suspended = append(revoked, gone...), append(suspended, closed...)
			return err
		})
		if err != nil {
			return nil, nil, fmt.Errorf("look for revocations: %w", err)
		}
	}
	return revoked, suspended, nil
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
