package events

import (
	"cmp"
	"context"
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
	m  map[string]crowd
}

func (c *crowds) get(key string, now time.Time) (crowd, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	got, ok := c.m[key]
	return got, ok && now.Sub(got.at).Abs() < crowdLife
}

func (c *crowds) put(key string, got crowd) {
	if got.coverage.Asked < largeCrowd {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for old := range c.m {
		if len(c.m) < maxCrowds {
			break
		}
		delete(c.m, old)
	}
	if c.m == nil {
		c.m = map[string]crowd{}
	}
	c.m[key] = got
}

// crowdOf finds the nodes of a question and how many of them can have told
// everything: a node that is away may hold events back.
func (s *Service) crowdOf(ctx context.Context, scope tenants.Scope, node tenants.NodeID, labels map[string]string) (crowd, error) {
	now := s.now()
	key := fmt.Sprintf("%v %v %q %q %v", scope.Tenant, node, scope.Nodes.Labels, labels, scope.Nodes.IDs)
	if c, ok := s.crowds.get(key, now); ok {
		return c, nil
	}
	c := crowd{at: now, all: node.IsZero() && len(labels) == 0 && scope.Nodes.All()}
	t := uid(scope.Tenant)
	head := newStatement(sqlAudience, t, now.Add(-tenants.NodeStaleAfter), now.Add(-offlineAfter)).in(scope.Nodes).labels(labels)
	ids := newStatement(sqlIDs, t).in(scope.Nodes).labels(labels)
	if node.IsZero() {
		head.add(" and n.revoked_at is null")
	} else {
		head.add(" and n.node_id = ", head.arg(uid(node)))
		ids.add(" and n.node_id = ", ids.arg(uid(node)))
	}
	var b pgx.Batch
	b.Queue(head.add(sqlAudienceTail).String(), head.args...).Query(func(rows pgx.Rows) (err error) {
		c.coverage, err = readCoverage(rows)
		return err
	})
	if !c.all {
		b.Queue(ids.String(), ids.args...).Query(func(rows pgx.Rows) (err error) {
			c.ids, err = pgx.CollectRows(rows, pgx.RowTo[[16]byte])
			return err
		})
	}
	if err := s.db.Read(ctx, scope.Tenant, &b); err != nil {
		return crowd{}, err
	}
	s.crowds.put(key, c)
	return c, nil
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
