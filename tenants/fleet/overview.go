package fleet

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

const (
	maxShares = 10 // rows of ByVersion and ByKernel
	maxWorst  = 3  // nodes of one Worst
)

// Overview sums up every node in scope. It needs telltale:read. The answer may
// be shared with other callers: do not change its maps and slices.
func (s *Service) Overview(ctx context.Context, scope tenants.Scope) (Overview, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Overview{}, err
	}
	key := overviewKey(scope)
	return s.summaries.Do(ctx, key, func(ctx context.Context) (Overview, error) { return s.overview(ctx, scope, key) })
}

func (s *Service) overview(ctx context.Context, scope tenants.Scope, key string) (Overview, error) {
	now, args := s.times(scope)
	if o, ok := s.overviews.get(key, now); ok {
		return o, nil
	}
	t := [16]byte(scope.Tenant)
	o := Overview{At: now.UTC(), ByStatus: map[Status]int{}, Unhealthy: []CapabilityShare{}, Kept: []QuarantineShare{}, Worst: []Worst{},
		Coverage: tenants.Coverage{NotCovered: []tenants.NotCovered{}}}
	b := &pgx.Batch{}
	large := s.overviews.large(key)
	read, states, tail := s.db.ReadKept, sqlByStatus, sqlByStatusTail
	if large { // plans for just this tenant pay
		read, states, tail = s.db.Read, sqlShares, sqlSharesTail
	}
	q := newQuery(states, args...).in(scope.Nodes).add(tail)
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error { return o.shares(rows, now) })
	if large {
		q = newQuery(sqlHeads, t, now.Add(-headFresh), s.heads.set).only("h.node_id", scope.Nodes)
	} else {
		q = newQuery(sqlHeadsNamed, t, now.Add(-headFresh), s.heads.set).in(scope.Nodes)
	}
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		o.Worst, err = s.worst(rows)
		return err
	})
	q = newQuery(sqlUnhealthy, t).only("c.node_id", scope.Nodes).add(sqlUnhealthyExample).in(scope.Nodes).add(sqlUnhealthyTail)
	b.Queue(q.sql.String(), q.args...).Query(o.unhealthy)
	q = newQuery(sqlKept, t).only("q.node_id", scope.Nodes).add(sqlKeptTail)
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		o.Kept, err = pgx.AppendRows(o.Kept, rows, pgx.RowToStructByPos[QuarantineShare])
		return err
	})
	if err := read(ctx, scope.Tenant, b); err != nil {
		return Overview{}, err
	}
	o.Coverage.Asked, o.Coverage.Answered = o.Nodes, o.ByStatus[Online]
	if large {
		if err := s.second(ctx, scope, &o, args); err != nil {
			return Overview{}, err
		}
	}
	o.Coverage.More = max(0, o.Nodes-o.ByStatus[Online]-len(o.Coverage.NotCovered))
	s.overviews.put(key, o)
	return o, nil
}

// second is the second round for a large fleet, of which the first one does
// not read every name: the nodes that are away, and the names of the worst.
func (s *Service) second(ctx context.Context, scope tenants.Scope, o *Overview, args []any) error {
	b := &pgx.Batch{}
	if o.Nodes > o.ByStatus[Online] {
		q := newQuery(sqlAway, args...).in(scope.Nodes).add(sqlAwayTail)
		b.Queue(q.sql.String(), q.args...).Query(o.away)
	}
	if len(o.Worst) > 0 {
		var ids []string
		for _, w := range o.Worst {
			for _, n := range w.Nodes {
				ids = append(ids, n.Node)
			}
		}
		b.Queue(sqlNames, [16]byte(scope.Tenant), ids).Query(o.worstNames)
	}
	if b.Len() == 0 {
		return nil
	}
	return s.db.Read(ctx, scope.Tenant, b)
}

func (o *Overview) worstNames(rows pgx.Rows) error {
	names := map[string]string{}
	var id tenants.NodeID
	var name string
	_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&id), &name}, func() error {
		names[id.String()] = inspector.CleanText(name)
		return nil
	})
	for _, w := range o.Worst {
		for i := range w.Nodes {
			w.Nodes[i].Name = names[w.Nodes[i].Node]
		}
	}
	return err
}

// share is a row about nodes: how many have a status, version and kernel, and
// when any of them was last seen; or one of them that is away.
type share struct {
	id              *[16]byte
	name            string
	status          Status
	version, kernel string
	nodes           int
	seen            *time.Time
}

func (s *share) columns() []any {
	return []any{&s.id, &s.name, &s.status, &s.version, &s.kernel, &s.nodes, &s.seen}
}

func (o *Overview) miss(s share) {
	o.Coverage.NotCovered = append(o.Coverage.NotCovered, tenants.NotCovered{Node: tenants.NodeID(*s.id).String(), Name: inspector.CleanText(s.name), Reason: string(s.status)})
}

func (o *Overview) away(rows pgx.Rows) error {
	var s share
	_, err := pgx.ForEachRow(rows, s.columns(), func() error { o.miss(s); return nil })
	return err
}

// shares counts the nodes by status, version and kernel, and takes those that
// are away, if they are among the rows.
func (o *Overview) shares(rows pgx.Rows, now time.Time) error {
	for _, st := range Statuses() {
		o.ByStatus[st] = 0
	}
	version, kernel := map[string]int{}, map[string]int{}
	var s share
	var last time.Time
	_, err := pgx.ForEachRow(rows, s.columns(), func() error {
		if s.id != nil {
			o.miss(s)
			return nil
		}
		o.Nodes += s.nodes
		o.ByStatus[s.status] += s.nodes
		version[s.version] += s.nodes
		kernel[s.kernel] += s.nodes
		if s.seen != nil && s.seen.After(last) {
			last = *s.seen
		}
		return nil
	})
	if !last.IsZero() {
		o.FreshnessS = age(now, last)
	}
	o.ByVersion, o.ByKernel = top(version), top(kernel)
	return err
}

func top(m map[string]int) []Share {
	out := []Share{}
	for v, n := range m {
		if v == "" {
			v = "unknown"
		}
		out = append(out, Share{v, n})
	}
	slices.SortFunc(out, func(a, b Share) int { return cmp.Or(b.Nodes-a.Nodes, cmp.Compare(a.Value, b.Value)) })
	return out[:min(len(out), maxShares)]
}

// worst finds the nodes with the highest value of each headline metric. Their
// names are read along when there is a third column.
func (s *Service) worst(rows pgx.Rows) ([]Worst, error) {
	lists := make([][]NodeValue, len(s.heads.metrics))
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		id := raw[0]
		var ref tenants.NodeRef
		take := func(i int, v float64) {
			if i < len(lists) && (len(lists[i]) < maxWorst || v > lists[i][maxWorst-1].Value) {
				if ref.Node == "" {
					ref.Node = tenants.NodeID(id).String()
					if len(raw) > 2 {
						ref.Name = inspector.CleanText(string(raw[2]))
					}
				}
				lists[i] = insert(lists[i], NodeValue{ref, v})
			}
		}
		if rows.FieldDescriptions()[1].Format == pgx.BinaryFormatCode {
			eachFloat(raw[1], take)
			continue
		}
		var text [16]byte // a pooler stands between and values travel as text
		var vals []*float64
		if err := rows.Scan(append([]any{&text, &vals}, make([]any, len(raw)-2)...)...); err != nil {
			return nil, err
		}
		id = text[:]
		for i, v := range vals {
			if v != nil {
				take(i, *v)
			}
		}
	}
	out := []Worst{}
	for i, l := range lists {
		if m := s.heads.metrics[i]; len(l) > 0 {
			out = append(out, Worst{Metric: m.Name, Unit: string(m.Unit), Stat: s.heads.stat(i), Nodes: l})
		}
	}
	return out, rows.Err()
}

// insert puts nv in its place, highest first, and keeps maxWorst.
func insert(l []NodeValue, nv NodeValue) []NodeValue {
	at, _ := slices.BinarySearchFunc(l, nv, func(a, b NodeValue) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Node, b.Node))
	})
	l = slices.Insert(l, at, nv)
	return l[:min(len(l), maxWorst)]
}

func (o *Overview) unhealthy(rows pgx.Rows) (err error) {
	o.Unhealthy, err = pgx.AppendRows(o.Unhealthy, rows, func(r pgx.CollectableRow) (c CapabilityShare, err error) {
		var id *[16]byte // null: the last such node was revoked meanwhile
		var name, reason *string
		err = r.Scan(&c.Component, &c.Signal, &c.Level, &c.Nodes, &id, &name, &reason)
		if id != nil {
			c.Example, c.Reason = tenants.NodeRef{Node: tenants.NodeID(*id).String(), Name: inspector.CleanText(*name)}, *reason
		}
		return c, err
	})
	return err
}
