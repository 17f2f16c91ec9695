package metrics

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// A top-N of the latest values of headline metrics over many nodes is answered
// from the head rows: one small row a node instead of its windows. Only the
// winners' windows are read, for their points.

// onHeads reports whether the head rows hold what a query compares.
func (q *Query) onHeads(s *Service) bool {
	if q.Top == 0 || q.By != ByLast || q.Node != "" || len(q.Labels) > 0 || s.now().Sub(q.To) > tenants.WindowLength {
		return false
	}
	for _, m := range q.Metrics {
		if _, ok := s.heads.pos[m]; !ok {
			return false
		}
	}
	return true
}

const (
	// $1 tenant, $2 start of the span, $3 head_set, $4 position, $5 rows.
	sqlTopHeads = `
select h.node_id, h.vals[$4::int], count(*) over ()
  from node_head h
 where h.tenant_id = $1 and h.last_ts > $2 and h.head_set = $3 and h.vals[$4::int] is not null`
	sqlTopHeadsTail = ` order by 2 desc, 1 limit $5::int`

	sqlOnlyOf = ` and h.node_id in (select n.node_id from node n where n.tenant_id = $1 and n.revoked_at is null`

	sqlCountNodes = `select count(*) from node n where n.tenant_id = $1 and n.revoked_at is null`

	// Nodes that sent nothing since the start of the span, $5. Materialized,
	// so that the limit leads to no look-up of every single node.
	sqlSilent = ` and n.revoked_at is null and not exists (select from node_head h where h.tenant_id = $1 and h.node_id = n.node_id and h.last_ts > $5)`
)

// topNow is top from the head rows. Coverage counts a node as answering when
// it sent any window within the span; freshness and loss are those of the
// series shown.
func (a *asking) topNow(ctx context.Context, scope tenants.Scope) error {
	s := a.s
	best := map[string][]winner{}
	total, silent := 0, 0
	var list []target
	b := &pgx.Batch{}
	for _, m := range a.q.Metrics {
		q := &scoped{args: []any{uid(scope.Tenant), a.q.From, s.heads.set, s.heads.pos[m] + 1, a.q.Top}}
		q.sql.WriteString(sqlTopHeads + sqlOnlyOf)
		q.in(scope.Nodes)
		q.labels(a.q.NodeLabels)
		q.sql.WriteString(")" + sqlTopHeadsTail)
		b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error {
			var id tenants.NodeID
			var v float64
			n := 0
			_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&id), &v, &n}, func() error {
				best[m] = append(best[m], winner{pageKey{Node: id.String(), Metric: m}, v})
				return nil
			})
			total += n
			return err
		})
	}
	q := &scoped{args: []any{uid(scope.Tenant)}}
	q.sql.WriteString(sqlCountNodes)
	q.in(scope.Nodes)
	q.labels(a.q.NodeLabels)
	b.Queue(q.sql.String(), q.args...).QueryRow(func(row pgx.Row) error { return row.Scan(&a.out.Coverage.Asked) })
	q = targetsHead(scope, "", s.now())
	q.sql.WriteString(sqlSilent)
	q.args = append(q.args, a.q.From)
	q.in(scope.Nodes)
	q.labels(a.q.NodeLabels)
	sql := "with x as materialized (" + q.sql.String() + ") select *, count(*) over () from x order by 1 limit " + q.arg(tenants.MaxNotCovered)
	b.Queue(sql, q.args...).Query(func(rows pgx.Rows) (err error) {
		list, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (t target, err error) {
			err = r.Scan((*[16]byte)(&t.id), &t.name, &t.enrolled, &t.state, &t.group, &silent)
			t.name = inspector.CleanText(t.name)
			return t, err
		})
		return err
	})
	if err := s.db.Read(ctx, scope.Tenant, b); err != nil {
		return err
	}
	a.out.Coverage.Answered = max(0, a.out.Coverage.Asked-silent)
	for i := range list {
		a.silent = append(a.silent, &list[i])
	}
	a.out.Coverage.More = silent - len(list)
	return a.winners(ctx, scope, best, total)
}

// winners finds the nodes of the winners and reads their points.
func (a *asking) winners(ctx context.Context, scope tenants.Scope, best map[string][]winner, total int) error {
	var ids [][16]byte
	for _, l := range best {
		for _, w := range l {
			id, err := tenants.ParseNodeID(w.key.Node)
			if err != nil {
				return err
			}
			ids = append(ids, uid(id))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	q := targetsHead(scope, "", a.s.now())
	q.in(scope.Nodes)
	q.sql.WriteString(" and n.node_id = any(" + q.arg(ids) + "::uuid[]) order by n.node_id")
	targets, err := tenantdb.Query(ctx, a.s.db, scope.Tenant, q.sql.String(), q.args, scanTarget)
	if err != nil {
		return err
	}
	a.r.targets = targets
	return a.points(ctx, best, total)
}
