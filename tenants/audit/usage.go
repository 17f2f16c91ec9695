package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// A write that waits for its row has two: one that it started, which counts
// nowhere, and one of how it ended.
const sqlCountDay = `select coalesce(sum(count), 0)::bigint, coalesce(sum(count) filter (where outcome = 'refused'), 0)::bigint
	from audit where tenant_id = $1 and at >= $2 and outcome <> 'started'`

// Day is what a tenant's callers did within 24 hours, on all replicas.
type Day struct{ Calls, Refused int64 }

// LastDay counts the tenant's calls of the last 24 hours as they are recorded:
// up to a second late, each write once, folded refusals in full. The caller
// needs admin.
func (s *Service) LastDay(ctx context.Context, scope tenants.Scope) (Day, error) {
	if err := scope.Require(tenants.Admin); err != nil {
		return Day{}, err
	}
	d, _, err := tenantdb.QueryOne(ctx, s.db, scope.Tenant, sqlCountDay, []any{scope.Tenant, s.now().UTC().Add(-24 * time.Hour)},
		func(row pgx.CollectableRow) (d Day, err error) { return d, row.Scan(&d.Calls, &d.Refused) })
	if err != nil {
		return Day{}, fmt.Errorf("count the audit of a day: %w", err)
	}
	return d, nil
}
