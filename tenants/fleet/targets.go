package fleet

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// sqlTarget are the columns of a Target; sqlNodes follows. $4 is a component,
// $5 the signals of it that matter: none means all of them together.
const sqlTarget = `select n.node_id, n.name, ` + sqlStatus + ` as status, coalesce(s.replica, ''), count(*) over (), coalesce(
  (select 'switched off from the server by ' || m.by from module_switch m
    where m.tenant_id = $1 and m.node_id = n.node_id and m.module = $4::text and m.off),
  (select c.signal || ': ' || coalesce(nullif(c.reason, ''), 'reported as off') from capability c
    where c.tenant_id = $1 and c.node_id = n.node_id and c.component = $4::text and c.level = 'off' and c.signal = any($5::text[])
    order by c.signal limit 1),
  (select max(coalesce(nullif(c.reason, ''), 'reported as off')) from capability c
    where c.tenant_id = $1 and c.node_id = n.node_id and c.component = $4::text and cardinality($5::text[]) = 0
    having bool_and(c.level = 'off')), '')`

// sqlFound sets the transaction's setting found to the Key of what a look for
// a named node finds, which goes between its parts.
const (
	sqlFound = `select set_config('telltale.found', coalesce((
  select f.node_id::text || '/' || f.name from (`
	sqlFoundEnd = `) as f(node_id, name, status, replica, matched, off)
   where f.matched = 1 and f.status = 'online' and f.off = ''), ''), true)`
)

// Targets answers the nodes in scope that a query is meant for, with what
// decides whether work can reach them: one for a name, in order of name for
// labels. Nothing found by labels is an empty answer; a name that nobody or
// more than one node bears is a fault. It needs telltale:read.
func (s *Service) Targets(ctx context.Context, scope tenants.Scope, tq tenants.TargetQuery) ([]tenants.Target, error) {
	q, whole, err := s.targets(sqlTarget, scope, tq)
	if err != nil {
		return nil, err
	}
	list := []tenants.Target{}
	var b pgx.Batch
	if tq.Node != "" { // found by keys; the statement takes longer to plan than to run
		b.Queue(tenantdb.KeepPlans)
	}
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		list, err = pgx.AppendRows(list, rows, scanTarget)
		return err
	})
	err = s.db.Read(ctx, scope.Tenant, &b)
	if err != nil || tq.Node == "" {
		return list, err
	}
	rows := make([]row, len(list))
	for i, t := range list {
		rows[i] = row{Node: Node{Node: t.Node.String(), Name: t.Name, Status: Status(t.Status)}}
	}
	i, err := pick(tq.Node, whole, rows)
	if err != nil {
		return nil, err
	}
	list[i].Matched = 1
	return list[i : i+1], nil
}

// QueueTarget queues the look of Targets for a named node in a batch that
// writes. What follows in the batch finds in the setting telltale.found the Key
// of the Target, when Targets would answer that one, online and with nothing
// off, and the name is meant by no other node in scope; else it is empty. It
// needs telltale:read.
func (s *Service) QueueTarget(b *pgx.Batch, scope tenants.Scope, tq tenants.TargetQuery) error {
	q, _, err := s.targets(sqlFound+sqlTarget, scope, tq)
	if err != nil {
		return err
	}
	b.Queue(q.add(sqlFoundEnd).sql.String(), q.args...)
	return nil
}

// targets checks a query and makes its statement, which begins with head.
// whole is the id when the node is named by one.
func (s *Service) targets(head string, scope tenants.Scope, tq tenants.TargetQuery) (q *query, whole string, err error) {
	if err := scope.Require(tenants.Read); err != nil {
		return nil, "", err
	}
	if (tq.Node == "") == (len(tq.Labels) == 0) {
		return nil, "", fault.Bad("node", "give either a node or labels").Do("name one node, or a selector of labels")
	}
	if err := checkLabels("selector", tq.Labels); err != nil {
		return nil, "", err
	}
	limit, _ := tenants.ClampRows(tq.Limit)
	if tq.Limit == 0 {
		limit = tenants.MaxListRows
	}
	if tq.Signals == nil {
		tq.Signals = []string{}
	}
	_, args := s.times(scope)
	q = newQuery(head, append(args, tq.Component, tq.Signals)...).add(sqlNodes).in(scope.Nodes)
	if tq.Node == "" {
		q.labels(tq.Labels).add(" and n.revoked_at is null order by n.name, n.node_id limit ", q.arg(limit))
		return q, "", nil
	}
	if err := checkRef(tq.Node); err != nil {
		return nil, "", err
	}
	if id, err := tenants.ParseNodeID(tq.Node); err == nil {
		whole = id.String()
	}
	q.named(tq.Node).add(" order by n.node_id::text <> ", q.arg(whole), ", n.revoked_at is not null, n.node_id limit 12")
	return q, whole, nil
}

func scanTarget(r pgx.CollectableRow) (t tenants.Target, err error) {
	err = r.Scan((*[16]byte)(&t.Node), &t.Name, &t.Status, &t.Replica, &t.Matched, &t.Off)
	t.Name, t.Off = inspector.CleanText(t.Name), inspector.CleanText(t.Off)
	return t, err
}
