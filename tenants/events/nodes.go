package events

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// statement is SQL with conditions added: all of them equalities and keysets,
// which row-level security lets an index answer.
type statement struct {
	strings.Builder
	args []any
}

func newStatement(sql string, args ...any) *statement {
	q := &statement{args: args}
	q.WriteString(sql)
	return q
}

func (q *statement) arg(v any) string {
	q.args = append(q.args, v)
	return "$" + strconv.Itoa(len(q.args))
}

func (q *statement) add(parts ...string) *statement {
	for _, p := range parts {
		q.WriteString(p)
	}
	return q
}

// labels keeps the nodes n that bear every label.
func (q *statement) labels(want map[string]string) *statement {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		q.add(" and exists (select from node_label l where l.tenant_id = $1 and l.node_id = n.node_id and l.key = ",
			q.arg(k), " and l.value = ", q.arg(want[k]), ")")
	}
	return q
}

// in keeps the nodes n that a principal's selector selects.
func (q *statement) in(sel tenants.Selector) *statement {
	if len(sel.IDs) > 0 {
		ids := make([][16]byte, len(sel.IDs))
		for i, id := range sel.IDs {
			ids[i] = id
		}
		q.add(" and n.node_id = any(", q.arg(ids), "::uuid[])")
	}
	return q.labels(sel.Labels)
}

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

// offlineAfter is the silence after which an open stream counts as gone, as in
// the fleet slice.
const offlineAfter = 5 * time.Minute

// crowd is the nodes that a list is about.
type crowd struct {
	at       time.Time
	all      bool       // every node of the tenant
	ids      [][16]byte // unless all
	coverage tenants.Coverage
}

// A large crowd is asked for again only after a while: counting 10,000 nodes
// costs more than a page of events.
const (
	crowdLife  = 2 * time.Second
	largeCrowd = 1000
	maxCrowds  = 256
)

type crowds struct {
	mu sync.Mutex
	m  map[string]crowd      // large ones
	n  map[string][][16]byte // of small ones the nodes, see few
}

func (c *crowds) get(key string, now time.Time) (crowd, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	got, ok := c.m[key]
	if !ok || now.Sub(got.at).Abs() >= crowdLife {
		return crowd{}, false
	}
	return got, true
}

// few are the nodes of a small crowd when it was last asked for. They decide
// nothing: whoever reads along by them compares them with those of now.
func (c *crowds) few(key string) [][16]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[key]
}

func (c *crowds) put(key string, got crowd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if got.coverage.Asked >= largeCrowd {
		c.m = room(c.m)
		c.m[key] = got
	}
	if !got.all && len(got.ids) > 0 && len(got.ids) <= fewNodes {
		c.n = room(c.n)
		c.n[key] = got.ids
	}
}

// room is m with a place for one more.
func room[V any](m map[string]V) map[string]V {
	if m == nil {
		m = map[string]V{}
	}
	for old := range m {
		if len(m) < maxCrowds {
			break
		}
		delete(m, old)
	}
	return m
}

func crowdKey(scope tenants.Scope, node tenants.NodeID, labels map[string]string) string {
	return fmt.Sprintf("%v %v %q %q %v", scope.Tenant, node, scope.Nodes.Labels, labels, scope.Nodes.IDs)
}

// queue adds what finds the nodes of a question and how many of them can have
// told everything: a node that is away may hold events back. ids come in order.
func (c *crowd) queue(b *pgx.Batch, scope tenants.Scope, node tenants.NodeID, labels map[string]string) {
	t := uid(scope.Tenant)
	head := newStatement(sqlAudience, t, c.at.Add(-tenants.NodeStaleAfter), c.at.Add(-offlineAfter)).in(scope.Nodes).labels(labels)
	ids := newStatement(sqlIDs, t).in(scope.Nodes).labels(labels)
	if node.IsZero() {
		head.add(" and n.revoked_at is null")
	} else {
		head.add(" and n.node_id = ", head.arg(uid(node)))
		ids.add(" and n.node_id = ", ids.arg(uid(node)))
	}
	b.Queue(head.add(sqlAudienceTail).String(), head.args...).Query(func(rows pgx.Rows) (err error) {
		c.coverage, err = readCoverage(rows)
		return err
	})
	if !c.all {
		b.Queue(ids.String(), ids.args...).Query(func(rows pgx.Rows) (err error) {
			c.ids, err = pgx.CollectRows(rows, pgx.RowTo[[16]byte])
			slices.SortFunc(c.ids, func(x, y [16]byte) int { return bytes.Compare(x[:], y[:]) })
			return err
		})
	}
}

func readCoverage(rows pgx.Rows) (tenants.Coverage, error) {
	c := tenants.Coverage{NotCovered: []tenants.NotCovered{}}
	var id tenants.NodeID
	var name, state string
	var asked, away int
	_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&id), &name, &state, &asked, &away}, func() error {
		if id.IsZero() {
			c.Asked, c.Answered, c.More = asked, asked-away, away
			return nil
		}
		c.NotCovered = append(c.NotCovered, tenants.NotCovered{Node: id.String(), Name: inspector.CleanText(name), Reason: state})
		c.More--
		return nil
	})
	slices.SortFunc(c.NotCovered, func(a, b tenants.NotCovered) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node, b.Node))
	})
	return c, err
}
