package metrics

import (
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
)

// KeptOut adds to a batch what counts for each of the reasons the nodes of
// which reports were kept out for it, the last one since a time, and hands the
// counts to each. Nil nodes are all of the tenant. It is for other slices,
// which know whom they ask about, and checks no scope.
func (s *Service) KeptOut(b *pgx.Batch, tenant tenants.TenantID, nodes [][16]byte, reasons []string, since time.Time, each func(reason string, nodes int)) {
	b.Queue(sqlKeptOut, uid(tenant), reasons, since, nodes).Query(func(rows pgx.Rows) error {
		var reason string
		var n int
		_, err := pgx.ForEachRow(rows, []any{&reason, &n}, func() error { each(reason, n); return nil })
		return err
	})
}

const sqlKeptOut = `
select reason, count(*) from win_quarantine
 where tenant_id = $1 and reason = any($2::text[]) and last_at >= $3 and ($4::uuid[] is null or node_id = any($4::uuid[]))
 group by reason`
