package tasks

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const sqlActiveTasks = `select count(*) from task where tenant_id = $1 and ended_at is null`

// Active counts the tenant's tasks that are not over; at most 128 can be. The
// caller needs admin.
func (s *Service) Active(ctx context.Context, scope tenants.Scope) (int64, error) {
	if err := scope.Require(tenants.Admin); err != nil {
		return 0, err
	}
	n, _, err := tenantdb.QueryOne(ctx, s.db, scope.Tenant, sqlActiveTasks, []any{scope.Tenant}, pgx.RowTo[int64])
	if err != nil {
		return 0, fmt.Errorf("count active tasks: %w", err)
	}
	return n, nil
}
