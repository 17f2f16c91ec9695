package fleet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const maxSearch = 128 // bytes of ListQuery.Search

// row is a Node with what is not shown as it is.
type row struct {
	Node
	id      tenants.NodeID
	machine string
	raw     string // the name as it is stored
}

// times are the parameters $1 to $3 of a statement built on sqlNodes.
func (s *Service) times(scope tenants.Scope) (now time.Time, args []any) {
	now = s.now()
	return now, []any{[16]byte(scope.Tenant), now.Add(-tenants.NodeStaleAfter), now.Add(-OfflineAfter)}
}

// scan reads the columns of sqlRow, and further ones into more.
func (n *row) scan(r pgx.CollectableRow, now time.Time, more ...any) error {
	err := r.Scan(append([]any{(*[16]byte)(&n.id), &n.Name, &n.Status, &n.LastSeen, &n.AgentVersion, &n.Kernel, &n.OS, &n.Arch, &n.SkewMS, &n.EnrolledAt, &n.machine}, more...)...)
	n.raw = n.Name
	n.Node.Node, n.Name, n.EnrolledAt = n.id.String(), inspector.CleanText(n.Name), n.EnrolledAt.UTC()
	n.Labels = map[string]string{}
	if n.LastSeen != nil {
		seen := n.LastSeen.UTC()
		n.LastSeen, n.FreshnessS = &seen, age(now, seen)
	}
	if n.SkewMS != nil {
		skew := (time.Duration(*n.SkewMS) * time.Millisecond).Abs()
		n.SkewMarked = skew > tenants.SkewIgnored && skew <= tenants.SkewCorrected
	}
	return err
}

// label takes in keys and values in turn.
func (n *Node) label(words []string) {
	for i := 0; i+1 < len(words); i += 2 {
		n.Labels[inspector.CleanText(words[i])] = inspector.CleanText(words[i+1])
	}
}

// age is the time from t to now in seconds, to the millisecond, never negative.
func age(now, t time.Time) *float64 {
	a := float64(max(0, now.Sub(t).Milliseconds())) / 1000
	return &a
}

// List answers one page of nodes in order of name. It needs telltale:read. The
// answer may be shared with other callers: do not change its maps and slices.
func (s *Service) List(ctx context.Context, scope tenants.Scope, lq ListQuery) (Page, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Page{}, err
	}
	if err := lq.check(); err != nil {
		return Page{}, err
	}
	key := fmt.Sprintf("%s\x02%q %q %q %d %q", overviewKey(scope), lq.Status, lq.Labels, lq.Search, lq.Limit, lq.Cursor)
	return s.lists.Do(ctx, key, func(ctx context.Context) (Page, error) { return s.list(ctx, scope, lq) })
}

func (s *Service) list(ctx context.Context, scope tenants.Scope, lq ListQuery) (Page, error) {
	limit, clamped := tenants.ClampRows(lq.Limit)
	now, args := s.times(scope)
	q := newQuery(sqlPage, args...)
	if len(lq.Status) > 0 { // materialized, as in sqlByStatus
		q.add("with x as materialized (")
	}
	q.add(sqlRow, sqlNodes).in(scope.Nodes).labels(lq.Labels)
	if lq.Search != "" {
		q.add(" and (starts_with(n.name, ", q.arg(lq.Search), ")")
		if id, err := tenants.ParseNodeID(lq.Search); err == nil {
			q.add(" or n.node_id = ", q.arg([16]byte(id)))
		}
		q.add(")")
	}
	if lq.Cursor != "" {
		name, id, err := readCursor(lq.Cursor)
		if err != nil {
			return Page{}, err
		}
		q.add(" and (n.name, n.node_id) > (", q.arg(name), ", ", q.arg([16]byte(id)), ")")
	}
	if len(lq.Status) > 0 {
		q.add(") select * from x n where status = any(", q.arg(lq.Status), "::text[])")
	}
	q.add(" order by n.name, n.node_id limit ", q.arg(limit+1), sqlPageSame).in(scope.Nodes).add(sqlPageTail)
	b := &pgx.Batch{}
	var rows []row
	b.Queue(q.sql.String(), q.args...).Query(func(r pgx.Rows) (err error) {
		rows, err = pgx.AppendRows(rows, r, func(r pgx.CollectableRow) (n row, err error) {
			var labels []string
			err = n.scan(r, now, &labels, &n.SameMachine)
			n.label(labels)
			return n, err
		})
		return err
	})
	if err := s.db.ReadKept(ctx, scope.Tenant, b); err != nil {
		return Page{}, err
	}
	p := Page{Nodes: []Node{}}
	if clamped {
		p.Notes = append(p.Notes, fmt.Sprintf("limit was clamped to %d", limit))
	}
	if len(rows) > limit {
		rows = rows[:limit]
		p.NextCursor = writeCursor(rows[limit-1].raw, rows[limit-1].id)
		p.Truncated = &tenants.Truncated{Returned: limit, NextCursor: p.NextCursor, Hint: "ask again with the cursor, or filter by status, labels or search"}
	}
	for _, r := range rows {
		p.Nodes = append(p.Nodes, r.Node)
	}
	return p, nil
}

func (q ListQuery) check() error {
	for _, st := range q.Status {
		if !slices.Contains(Statuses(), st) {
			return fault.Bad("status", "no status %q: want one of %v", clip(string(st), 40), Statuses())
		}
	}
	if len(q.Status) > len(Statuses()) {
		return fault.Bad("status", "at most %d statuses", len(Statuses()))
	}
	if len(q.Search) > maxSearch || strings.ContainsRune(q.Search, 0) || !utf8.ValidString(q.Search) {
		return fault.Bad("search", "search is text of at most %d bytes", maxSearch)
	}
	return checkLabels("labels", q.Labels)
}

// pick chooses the row that ref means of those that bear it as id or name:
// never one of several live ones. whole is ref as an id, when it is one.
func pick(ref, whole string, rows []row) (int, error) {
	live := 0
	for _, r := range rows {
		if r.Status != Revoked {
			live++
		}
	}
	switch {
	case len(rows) == 0:
		return 0, noNode(ref)
	case len(rows) == 1, rows[0].Node.Node == whole, live == 1:
		return 0, nil
	case live > 1:
		rows = rows[:live]
	}
	var list []string
	for _, r := range rows[:min(len(rows), 10)] {
		list = append(list, r.Node.Node+" ("+r.Name+")")
	}
	if len(rows) > 10 {
		list = append(list, "and more")
	}
	return 0, &fault.Error{Kind: fault.Invalid, Reason: "ambiguous_node", Field: "node",
		Msg:  fmt.Sprintf("several nodes are called %q: %s", inspector.CleanText(ref), strings.Join(list, ", ")),
		Next: "name the node by its id"}
}
