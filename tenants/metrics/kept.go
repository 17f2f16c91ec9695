package metrics

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// KeptOut counts for each of the reasons the nodes of which reports were kept
// out for it, the last one since a time. Nil nodes are all of the tenant. It
// is for other slices, which know whom they ask about, and checks no scope.
func (s *Service) KeptOut(ctx context.Context, tenant tenants.TenantID, nodes [][16]byte, reasons []string, since time.Time) (map[string]int, error) {
	out := map[string]int{}
	_, err := tenantdb.Query(ctx, s.db, tenant, sqlKeptOut, []any{uid(tenant), reasons, since, nodes}, func(r pgx.CollectableRow) (n int, err error) {
		var reason string
		err = r.Scan(&reason, &n)
		out[reason] = n
		return n, err
	})
	return out, err
}

const sqlKeptOut = `
select reason, count(*) from win_quarantine
 where tenant_id = $1 and reason = any($2::text[]) and last_at >= $3 and ($4::uuid[] is null or node_id = any($4::uuid[]))
 group by reason`
