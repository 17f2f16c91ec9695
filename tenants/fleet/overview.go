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
	now, args := s.times(scope)
	key := overviewKey(scope)
	if o, ok := s.overviews.get(key, now); ok {
		return o, nil
	}
	t := [16]byte(scope.Tenant)
	o := Overview{At: now.UTC(), ByStatus: map[Status]int{}, Unhealthy: []CapabilityShare{}, Kept: []QuarantineShare{}, Worst: []Worst{},
		Coverage: tenants.Coverage{NotCovered: []tenants.NotCovered{}}}
	b := &pgx.Batch{}
	q := newQuery(sqlByStatus, args...).in(scope.Nodes).add(sqlByStatusTail)
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error { return o.shares(rows, now) })
	q = newQuery(sqlHeads, t, now.Add(-headFresh), s.heads.set).only("h.node_id", scope.Nodes)
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		o.Worst, err = s.worst(rows)
		return err
	})
	q = newQuery(sqlUnhealthy, t).only("c.node_id", scope.Nodes).add(sqlUnhealthyTail)
	b.Queue(q.sql.String(), q.args...).Query(o.unhealthy)
	q = newQuery(sqlKept, t).only("q.node_id", scope.Nodes).add(sqlKeptTail)
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[QuarantineShare])
		o.Kept = append(o.Kept, got...)
		return err
	})
	if err := s.db.Read(ctx, scope.Tenant, b); err != nil {
		return Overview{}, err
	}
	o.Coverage.Asked, o.Coverage.Answered = o.Nodes, o.ByStatus[Online]
	if err := s.name(ctx, scope, &o, args); err != nil {
		return Overview{}, err
	}
	o.Coverage.More = max(0, o.Nodes-o.ByStatus[Online]-len(o.Coverage.NotCovered))
	s.overviews.put(key, o)
	return o, nil
}

// name is the second round: the nodes that are away, the names of the worst
// ones, and an example of each unhealthy signal.
func (s *Service) name(ctx context.Context, scope tenants.Scope, o *Overview, args []any) error {
	b := &pgx.Batch{}
	if o.Nodes > o.ByStatus[Online] {
		q := newQuery(sqlAway, args...).in(scope.Nodes).add(sqlAwayTail)
		b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error {
			got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (n tenants.NotCovered, err error) {
				var id tenants.NodeID
				err = r.Scan((*[16]byte)(&id), &n.Name, &n.Reason)
				n.Node, n.Name = id.String(), inspector.CleanText(n.Name)
				return n, err
			})
			o.Coverage.NotCovered = append(o.Coverage.NotCovered, got...)
			return err
		})
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
	if len(o.Unhealthy) > 0 {
		var index []int32
		var components, signals, levels []string
		for i, c := range o.Unhealthy {
			index, components, signals, levels = append(index, int32(i)), append(components, c.Component), append(signals, c.Signal), append(levels, c.Level)
		}
		q := newQuery(sqlExample, [16]byte(scope.Tenant), index, components, signals, levels).in(scope.Nodes).add(sqlExampleTail)
		b.Queue(q.sql.String(), q.args...).Query(o.examples)
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

func (o *Overview) examples(rows pgx.Rows) error {
	var i int
	var id tenants.NodeID
	var name, reason string
	_, err := pgx.ForEachRow(rows, []any{&i, (*[16]byte)(&id), &name, &reason}, func() error {
		o.Unhealthy[i].Example = tenants.NodeRef{Node: id.String(), Name: inspector.CleanText(name)}
		o.Unhealthy[i].Reason = reason
		return nil
	})
	return err
}

// shares counts the nodes by status, version and kernel.
func (o *Overview) shares(rows pgx.Rows, now time.Time) error {
	for _, st := range Statuses() {
		o.ByStatus[st] = 0
	}
	version, kernel := map[string]int{}, map[string]int{}
	var (
		st   Status
		v, k string
		n    int
		seen *time.Time
		last time.Time
	)
	_, err := pgx.ForEachRow(rows, []any{&st, &v, &k, &n, &seen}, func() error {
		o.Nodes += n
		o.ByStatus[st] += n
		version[v] += n
		kernel[k] += n
		if seen != nil && seen.After(last) {
			last = *seen
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

// worst finds the nodes with the highest value of each headline metric; their
// names are still to come.
func (s *Service) worst(rows pgx.Rows) ([]Worst, error) {
	lists := make([][]NodeValue, len(s.heads.metrics))
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		id := raw[0]
		take := func(i int, v float64) {
			if i < len(lists) && (len(lists[i]) < maxWorst || v > lists[i][maxWorst-1].Value) {
				lists[i] = insert(lists[i], NodeValue{tenants.NodeRef{Node: tenants.NodeID(id).String()}, v})
			}
		}
		if rows.FieldDescriptions()[1].Format == pgx.BinaryFormatCode {
			eachFloat(raw[1], take)
			continue
		}
		var text [16]byte // a pooler stands between and values travel as text
		var vals []*float64
		if err := rows.Scan(&text, &vals); err != nil {
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

func (o *Overview) unhealthy(rows pgx.Rows) error {
	got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (c CapabilityShare, err error) {
		err = r.Scan(&c.Component, &c.Signal, &c.Level, &c.Nodes)
		return c, err
	})
	o.Unhealthy = append(o.Unhealthy, got...)
	return err
}
