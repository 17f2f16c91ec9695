package metrics

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// winner is a series that is among the greatest of its metric.
type winner struct {
	key   pageKey
	score float64
}

// top reads twice: first the totals of every series, of which only the
// greatest are kept, then the points of the winners' nodes.
func (a *asking) top(ctx context.Context) error {
	if err := a.r.admit(); err != nil {
		return err
	}
	best := map[string][]winner{} // by metric, greatest first
	total := 0
	err := a.r.each(ctx, 0, func(t *target, w *window, tb *table) { a.visit(t, w, tb, 0) }, func(t *target) bool {
		a.done(t)
		for _, c := range a.take() {
			c.total.fold()
			total++
			score, ok := c.total.score(a.q.By)
			if !ok {
				continue
			}
			w := winner{c.key, score}
			l := best[c.key.Metric]
			at, _ := slices.BinarySearchFunc(l, w, compareWinners)
			if l = slices.Insert(l, at, w); len(l) > a.q.Top {
				l = l[:a.q.Top]
			}
			best[c.key.Metric] = l
		}
		return true
	})
	if err != nil {
		return err
	}
	return a.points(ctx, best, total)
}

func compareWinners(x, y winner) int {
	return cmp.Or(cmp.Compare(y.score, x.score), x.key.compare(y.key))
}

// points reads the winners again, with their points, and ranks them.
func (a *asking) points(ctx context.Context, best map[string][]winner, total int) error {
	rank := map[pageKey]int{}
	nodes := map[string]bool{}
	n := 0
	for _, m := range a.q.Metrics {
		for _, w := range best[m] {
			rank[w.key], n = n, n+1
			nodes[w.key.Node] = true
		}
	}
	again := *a.r
	again.targets = slices.DeleteFunc(slices.Clone(a.r.targets), func(t target) bool { return !nodes[t.id.String()] })
	second := &asking{s: a.s, q: a.q, r: &again, now: a.now, node: 1, slots: map[*table][]querySlot{}, curves: map[pageKey]*curve{}}
	list := make([]*curve, n)
	err := again.each(ctx, 0, func(t *target, w *window, tb *table) { second.visit(t, w, tb, a.q.points()) }, func(t *target) bool {
		second.done(t)
		for _, c := range second.take() {
			if i, ok := rank[c.key]; ok {
				list[i] = c
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	if a.node == 1 { // the winners come from the head rows: nothing was read before
		a.worst, a.out.Lost, a.out.SkewCorrected = second.worst, second.out.Lost, second.out.SkewCorrected
	}
	for _, c := range list {
		if c != nil { // nil: its partition was dropped between the readings
			a.out.Series = append(a.out.Series, c.render(a.q.From))
		}
	}
	if total > len(a.out.Series) {
		a.out.Truncated = &tenants.Truncated{Returned: len(a.out.Series), Total: &total, Hint: "these are the greatest; ask without top for all, page by page"}
	}
	return nil
}

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
select h.node_id, h.vals[$4::int] from node_head h
 where h.tenant_id = $1 and h.last_ts > $2 and h.head_set = $3 and h.vals[$4::int] is not null`
	sqlTopHeadsTail = ` order by 2 desc, 1 limit $5::int`

	// How many nodes sent anything in the span, and how many have a value at
	// one of the positions $4 (added up over the positions).
	sqlCountHeads = `
select count(*), coalesce(sum(case when h.head_set = $3 then (select count(h.vals[p]) from unnest($4::int[]) p) else 0 end), 0)::bigint
  from node_head h where h.tenant_id = $1 and h.last_ts > $2`

	sqlNotRevoked = ` and h.node_id not in (select node_id from node where tenant_id = $1 and revoked_at is not null)`
	sqlOnlyOf     = ` and h.node_id in (select n.node_id from node n where n.tenant_id = $1 and n.revoked_at is null`

	sqlCountNodes = `select count(*) from node n where n.tenant_id = $1 and n.revoked_at is null`

	// Nodes that sent nothing since the start of the span, $5. Materialized,
	// so that the limit leads to no look-up of every single node.
	sqlSilent = ` and n.revoked_at is null and not exists (select from node_head h where h.tenant_id = $1 and h.node_id = n.node_id and h.last_ts > $5)`
)

// ofHeads keeps the head rows of the nodes that a question is about.
func (a *asking) ofHeads(q *scoped, sel tenants.Selector) {
	if sel.All() && len(a.q.NodeLabels) == 0 {
		q.sql.WriteString(sqlNotRevoked)
		return
	}
	q.sql.WriteString(sqlOnlyOf)
	q.in(sel)
	q.labels(a.q.NodeLabels)
	q.sql.WriteString(")")
}

// topNow is top from the head rows. Coverage counts a node as answering when
// it sent any window within the span; freshness and loss are those of the
// series shown.
func (a *asking) topNow(ctx context.Context, scope tenants.Scope) error {
	s := a.s
	best := map[string][]winner{}
	total := 0
	var positions []int32
	b := &pgx.Batch{}
	for _, m := range a.q.Metrics {
		pos := int32(s.heads.pos[m] + 1)
		positions = append(positions, pos)
		q := &scoped{args: []any{uid(scope.Tenant), a.q.From, s.heads.set, pos, a.q.Top}}
		q.sql.WriteString(sqlTopHeads)
		a.ofHeads(q, scope.Nodes)
		q.sql.WriteString(sqlTopHeadsTail)
		b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error {
			var id tenants.NodeID
			var v float64
			_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&id), &v}, func() error {
				best[m] = append(best[m], winner{pageKey{Node: id.String(), Metric: m}, v})
				return nil
			})
			return err
		})
	}
	cov := &a.out.Coverage
	q := &scoped{args: []any{uid(scope.Tenant), a.q.From, s.heads.set, positions}}
	q.sql.WriteString(sqlCountHeads)
	a.ofHeads(q, scope.Nodes)
	b.Queue(q.sql.String(), q.args...).QueryRow(func(row pgx.Row) error { return row.Scan(&cov.Answered, &total) })
	q = &scoped{args: []any{uid(scope.Tenant)}}
	q.sql.WriteString(sqlCountNodes)
	q.in(scope.Nodes)
	q.labels(a.q.NodeLabels)
	b.Queue(q.sql.String(), q.args...).QueryRow(func(row pgx.Row) error { return row.Scan(&cov.Asked) })
	if err := s.db.Read(ctx, scope.Tenant, b); err != nil {
		return err
	}
	if silent := cov.Asked - cov.Answered; silent > 0 {
		if err := a.quiet(ctx, scope); err != nil {
			return err
		}
		cov.More = max(0, silent-len(a.silent))
	}
	return a.winners(ctx, scope, best, total)
}

// quiet lists the first nodes that sent nothing.
func (a *asking) quiet(ctx context.Context, scope tenants.Scope) error {
	q := targetsHead(scope, "", a.s.now())
	q.sql.WriteString(sqlSilent)
	q.args = append(q.args, a.q.From)
	q.in(scope.Nodes)
	q.labels(a.q.NodeLabels)
	sql := "with x as materialized (" + q.sql.String() + ") select * from x order by 1 limit " + q.arg(tenants.MaxNotCovered)
	list, err := tenantdb.Query(ctx, a.s.db, scope.Tenant, sql, q.args, scanTarget)
	for i := range list {
		a.silent = append(a.silent, &list[i])
	}
	return err
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
