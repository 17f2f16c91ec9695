package directory

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// LoadCAs reads the certificate authorities of a tenant, the oldest first.
// None, or a tenant that does not exist, is an empty list.
func (s *Service) LoadCAs(ctx context.Context, tenant tenants.TenantID) ([]tenants.CARecord, error) {
	cas, err := tenantdb.Query(ctx, s.db, tenant, selectCAs, []any{tenant}, func(row pgx.CollectableRow) (r tenants.CARecord, err error) {
		return r, row.Scan(&r.ID, &r.Cert, &r.SealedKey, &r.NotBefore, &r.NotAfter)
	})
	if err != nil {
		return nil, fmt.Errorf("load certificate authorities: %w", err)
	}
	return cas, nil
}

// StoreCA adds a certificate authority if the newest one is still the one with
// the id after (empty: if there is none), and reports whether it did. Of
// replicas that make one at the same time, one wins and the others load it.
func (s *Service) StoreCA(ctx context.Context, tenant tenants.TenantID, r tenants.CARecord, after string) (stored bool, err error) {
	err = s.db.InTenant(ctx, tenant, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockCAs, tenant.String()); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, insertCA, tenant, r.ID, r.Cert, r.SealedKey, r.NotBefore, r.NotAfter, after)
		stored = err == nil && tag.RowsAffected() == 1
		return err
	})
	if err != nil {
		return false, fmt.Errorf("store certificate authority: %w", err)
	}
	return stored, nil
}
