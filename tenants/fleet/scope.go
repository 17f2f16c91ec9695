package fleet

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// query is one statement under construction: conditions on the node n are
// added with their parameters. All of them are equalities or keysets, which
// row-level security lets an index answer.
type query struct {
	sql  strings.Builder
	args []any
}

func newQuery(sql string, args ...any) *query {
	q := &query{args: args}
	q.sql.WriteString(sql)
	return q
}

// arg adds a parameter and returns its placeholder.
func (q *query) arg(v any) string {
	q.args = append(q.args, v)
	return "$" + strconv.Itoa(len(q.args))
}

func (q *query) add(parts ...string) *query {
	for _, p := range parts {
		q.sql.WriteString(p)
	}
	return q
}

// labels keeps the nodes that bear every label. Keys are sorted so that equal
// sets make one statement.
func (q *query) labels(want map[string]string) *query {
	keys := make([]string, 0, len(want))
	for k := range want {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		q.add(" and exists (select from node_label l where l.tenant_id = $1 and l.node_id = n.node_id and l.key = ",
			q.arg(k), " and l.value = ", q.arg(want[k]), ")")
	}
	return q
}

// in keeps the nodes that a principal's selector selects.
func (q *query) in(sel tenants.Selector) *query {
	if len(sel.IDs) > 0 {
		ids := make([][16]byte, len(sel.IDs))
		for i, id := range sel.IDs {
			ids[i] = id
		}
		q.add(" and n.node_id = any(", q.arg(ids), "::uuid[])")
	}
	return q.labels(sel.Labels)
}

// only keeps the rows whose column is a node that the selector selects. An
// unrestricted principal costs no join.
func (q *query) only(column string, sel tenants.Selector) *query {
	if sel.All() {
		return q
	}
	return q.add(" and ", column, sqlOnlyOf).in(sel).add(")")
}

// named keeps the nodes that ref may mean: its id or its name.
func (q *query) named(ref string) *query {
	q.add(" and (n.name = ", q.arg(ref))
	if id, err := tenants.ParseNodeID(ref); err == nil {
		q.add(" or n.node_id = ", q.arg([16]byte(id)))
	}
	return q.add(")")
}

// meaning ends a statement on the nodes that ref may mean: first the one with
// this id, then those that are not revoked.
func (q *query) meaning(ref, whole string) *query {
	return q.named(ref).add(" order by n.node_id::text <> ", q.arg(whole), ", n.revoked_at is not null, n.node_id limit 12")
}

func checkRef(ref string) error {
	if ref == "" || len(ref) > 255 {
		return fault.Bad("node", "want a node's id or name of 1 to 255 bytes")
	}
	if strings.ContainsRune(ref, 0) || !utf8.ValidString(ref) {
		return noNode(ref)
	}
	return nil
}

func noNode(ref string) error {
	return fault.Newf(fault.NotFound, "unknown_node", "no node %.80q", inspector.CleanText(ref)).Do("list the nodes to see their ids and names")
}

// checkLabels refuses label filters that no node can match by their size.
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
