package metrics

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// target is one node that a question is about.
type target struct {
	id       tenants.NodeID
	name     string // clean
	enrolled time.Time
	state    string // why it may have no data: never, offline, stale, quarantined, revoked, or no_data
	group    string // value of the label that a comparison splits by
}

func (t *target) ref() tenants.NodeRef { return tenants.NodeRef{Node: t.id.String(), Name: t.name} }

// offlineAfter is the silence after which an open stream counts as gone, as
// in the fleet slice.
const offlineAfter = 5 * time.Minute

// sqlTargets lists nodes; conditions and order follow. $1 tenant, $2 now -
// NodeStaleAfter, $3 now - offlineAfter, $4 the label key of a comparison.
const sqlTargets = `
select n.node_id, n.name, n.enrolled_at, case
    when n.revoked_at is not null then 'revoked'
    when s.session_id is null then 'never'
    when s.closed_at is not null or s.last_seen <= $3::timestamptz then 'offline'
    when s.last_seen <= $2::timestamptz then 'stale'
    when abs(s.skew_ms) > 3600000 then 'quarantined'
    else 'no_data' end as state,
  coalesce((select g.value from node_label g where g.tenant_id = $1 and g.node_id = n.node_id and g.key = $4::text), '')
  from node n left join node_session s on s.tenant_id = $1 and s.node_id = n.node_id and s.current
 where n.tenant_id = $1`

// scoped is a statement on the node n with the scope's conditions added: all
// equalities, which row-level security lets an index answer.
type scoped struct {
	sql  strings.Builder
	args []any
}

func (q *scoped) arg(v any) string {
	q.args = append(q.args, v)
	return "$" + strconv.Itoa(len(q.args))
}

func (q *scoped) labels(want map[string]string) {
	keys := make([]string, 0, len(want))
	for k := range want {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		q.sql.WriteString(" and exists (select from node_label l where l.tenant_id = $1 and l.node_id = n.node_id and l.key = " +
			q.arg(k) + " and l.value = " + q.arg(want[k]) + ")")
	}
}

func (q *scoped) in(sel tenants.Selector) {
	if len(sel.IDs) > 0 {
		ids := make([][16]byte, len(sel.IDs))
		for i, id := range sel.IDs {
			ids[i] = id
		}
		q.sql.WriteString(" and n.node_id = any(" + q.arg(ids) + "::uuid[])")
	}
	q.labels(sel.Labels)
}

func targetsHead(scope tenants.Scope, group string, now time.Time) *scoped {
	q := &scoped{args: []any{uid(scope.Tenant), now.Add(-tenants.NodeStaleAfter), now.Add(-offlineAfter), group}}
	q.sql.WriteString(sqlTargets)
	return q
}

func scanTarget(r pgx.CollectableRow) (t target, err error) {
	err = r.Scan((*[16]byte)(&t.id), &t.name, &t.enrolled, &t.state, &t.group)
	t.name, t.group = inspector.CleanText(t.name), inspector.CleanText(t.group)
	return t, err
}

func targetsQuery(scope tenants.Scope, ref string, labels map[string]string, group string, now time.Time) *scoped {
	q := targetsHead(scope, group, now)
	q.in(scope.Nodes)
	if ref == "" {
		q.labels(labels)
		q.sql.WriteString(" and n.revoked_at is null order by n.node_id")
		return q
	}
	q.sql.WriteString(" and (n.name = " + q.arg(ref))
	if id, err := tenants.ParseNodeID(ref); err == nil {
		q.sql.WriteString(" or n.node_id = " + q.arg(uid(id)))
	}
	q.sql.WriteString(") order by n.node_id::text <> " + q.arg(strings.ToLower(ref)) + ", n.revoked_at is not null, n.node_id limit 12")
	return q
}

// targets lists the nodes that a question is about in order of id: all in
// scope with these labels, or the one that ref means, found as
// directory.ResolveNode finds it. When the last such question was about most
// nodes at most, queue adds what is to be read of those along with it; along is
// true when they still are the ones.
func (s *Service) targets(ctx context.Context, scope tenants.Scope, ref string, labels map[string]string, group string, most int, queue func(b *pgx.Batch, ids [][16]byte)) (list []target, along bool, err error) {
	if len(ref) > 255 {
		return nil, false, fault.Bad("node", "want a node's id or name of at most 255 bytes")
	}
	if strings.ContainsRune(ref, 0) || !utf8.ValidString(ref) {
		return nil, false, noNode(ref)
	}
	if err := checkLabels("node_labels", labels); err != nil {
		return nil, false, err
	}
	q := targetsQuery(scope, ref, labels, group, s.now())
	b := &pgx.Batch{}
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		list, err = pgx.AppendRows([]target{}, rows, scanTarget)
		return err
	})
	read, key := s.db.Read, companyKey(scope, ref, labels)
	guess := s.companies.get(key)
	if len(guess) > 0 && len(guess) <= most {
		read = s.db.ReadKept
		queue(b, guess)
	}
	if err := read(ctx, scope.Tenant, b); err != nil {
		return nil, false, err
	}
	if ref != "" {
		if list, err = meant(ref, list); err != nil {
			return nil, false, err
		}
	}
	ids := idsOf(list)
	if slices.Equal(ids, guess) {
		return list, len(guess) > 0 && len(guess) <= most, nil
	}
	s.companies.put(key, ids)
	return list, false, nil
}

func idsOf(list []target) [][16]byte {
	ids := make([][16]byte, len(list))
	for i, t := range list {
		ids[i] = uid(t.id)
	}
	return ids
}

// meant chooses the node that ref means of those that bear it as id or name.
func meant(ref string, list []target) ([]target, error) {
	live := 0
	for _, t := range list {
		if t.state != "revoked" {
			live++
		}
	}
	switch {
	case len(list) == 0:
		return nil, noNode(ref)
	case len(list) == 1, list[0].id.String() == strings.ToLower(ref), live == 1:
		return list[:1], nil
	case live > 1:
		list = list[:live]
	}
	var names []string
	for _, t := range list[:min(len(list), 10)] {
		names = append(names, t.id.String()+" ("+t.name+")")
	}
	if len(list) > 10 {
		names = append(names, "and more")
	}
	return nil, &fault.Error{Kind: fault.Invalid, Reason: "ambiguous_node", Field: "node",
		Msg:  fmt.Sprintf("several nodes are called %q: %s", inspector.CleanText(ref), strings.Join(names, ", ")),
		Next: "name the node by its id"}
}

func noNode(ref string) error {
	return fault.Newf(fault.NotFound, "unknown_node", "no node %.80q", inspector.CleanText(ref)).Do("list the nodes to see their ids and names")
}

// checkLabels refuses label filters that nothing can match by their size.
func checkLabels(field string, want map[string]string) error {
	if len(want) > tenants.MaxNodeLabels {
		return fault.Bad(field, "at most %d labels", tenants.MaxNodeLabels)
	}
	for k, v := range want {
		if k == "" || len(k) > inspector.MaxLabelBytes || len(v) > inspector.MaxLabelBytes || strings.ContainsRune(k+v, 0) || !utf8.ValidString(k+v) {
			return fault.Bad(field, "a label key has 1 to %d bytes, a value at most %d", inspector.MaxLabelBytes, inspector.MaxLabelBytes)
		}
	}
	return nil
}

// sqlOff finds the nodes of $2 on which a component is off: switched off from
// the server, or every signal of it reported off.
const sqlOff = `
select node_id from module_switch where tenant_id = $1 and node_id = any($2::uuid[]) and module = any($3::text[]) and off
union
select node_id from capability where tenant_id = $1 and node_id = any($2::uuid[]) and component = any($3::text[])
 group by node_id having bool_and(level = 'off')`

// missing adds the nodes without data to a coverage, each with its reason.
func (s *Service) missing(ctx context.Context, scope tenants.Scope, c *tenants.Coverage, silent []*target, components []string) error {
	ids := make([][16]byte, 0, len(silent))
	for _, t := range silent {
		if t.state == "no_data" {
			ids = append(ids, uid(t.id))
		}
	}
	off := map[tenants.NodeID]bool{}
	if len(ids) > 0 {
		list, err := tenantdb.Query(ctx, s.db, scope.Tenant, sqlOff, []any{uid(scope.Tenant), ids, components}, pgx.RowTo[[16]byte])
		if err != nil {
			return err
		}
		for _, id := range list {
			off[id] = true
		}
	}
	for _, t := range silent {
		reason := t.state
		if reason == "no_data" && off[t.id] {
			reason = "off"
		}
		c.Miss(tenants.NotCovered{Node: t.id.String(), Name: t.name, Reason: reason})
	}
	return nil
}
