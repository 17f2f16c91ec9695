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

// Overview sums up every node in scope. It needs telltale:read.
func (s *Service) Overview(ctx context.Context, scope tenants.Scope) (Overview, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Overview{}, err
	}
	now, args := s.times(scope)
	t := [16]byte(scope.Tenant)
	o := Overview{At: now.UTC(), ByStatus: map[Status]int{}, Unhealthy: []CapabilityShare{}, Kept: []QuarantineShare{}, Worst: []Worst{},
		Coverage: tenants.Coverage{NotCovered: []tenants.NotCovered{}}}
	b := &pgx.Batch{}
	q := newQuery(sqlByStatus, args...).in(scope.Nodes).add(sqlByStatusTail)
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error { return o.shares(rows, now) })
	q = newQuery(sqlAway, args...).in(scope.Nodes).add(sqlAwayTail)
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
	q = newQuery(sqlHeads, t, now.Add(-headFresh), s.heads.set).in(scope.Nodes)
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		o.Worst, err = s.worst(rows)
		return err
	})
	q = newQuery(sqlUnhealthy, t).in(scope.Nodes).add(sqlUnhealthyTail)
	b.Queue(q.sql.String(), q.args...).Query(o.unhealthy)
	q = newQuery(sqlKept, t).in(scope.Nodes).add(sqlKeptTail)
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[QuarantineShare])
		o.Kept = append(o.Kept, got...)
		return err
	})
	if err := s.db.Read(ctx, scope.Tenant, b); err != nil {
		return Overview{}, err
	}
	o.Coverage.Asked, o.Coverage.Answered = o.Nodes, o.ByStatus[Online]
	o.Coverage.More = max(0, o.Nodes-o.ByStatus[Online]-len(o.Coverage.NotCovered))
	return o, s.examples(ctx, scope, &o)
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

// worst finds the nodes with the highest value of each headline metric. Names
// are copied only for nodes that make it into a list.
func (s *Service) worst(rows pgx.Rows) ([]Worst, error) {
	lists := make([][]NodeValue, len(s.heads.metrics))
	defer rows.Close()
	for rows.Next() {
		raw := rows.RawValues()
		take := func(i int, v float64) {
			if i >= len(lists) || len(lists[i]) == maxWorst && v <= lists[i][maxWorst-1].Value {
				return
			}
			var id tenants.NodeID
			copy(id[:], raw[0])
			lists[i] = insert(lists[i], NodeValue{tenants.NodeRef{Node: id.String(), Name: inspector.CleanText(string(raw[1]))}, v})
		}
		if rows.FieldDescriptions()[2].Format == pgx.BinaryFormatCode {
			eachFloat(raw[2], take)
			continue
		}
		var id [16]byte // a pooler stands between and everything travels as text
		var name string
		var vals []*float64
		if err := rows.Scan(&id, &name, &vals); err != nil {
			return nil, err
		}
		raw = [][]byte{id[:], []byte(name)}
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
		err = r.Scan(&c.Component, &c.Signal, &c.Level, &c.Nodes, &c.Example.Node)
		return c, err
	})
	o.Unhealthy = append(o.Unhealthy, got...)
	return err
}

// examples names the example nodes of the unhealthy signals and gives their
// reasons.
func (s *Service) examples(ctx context.Context, scope tenants.Scope, o *Overview) error {
	if len(o.Unhealthy) == 0 {
		return nil
	}
	var ids [][16]byte
	var components, signals []string
	for _, c := range o.Unhealthy {
		id, err := tenants.ParseNodeID(c.Example.Node)
		if err != nil {
			return err
		}
		ids, components, signals = append(ids, id), append(components, c.Component), append(signals, c.Signal)
	}
	b := &pgx.Batch{}
	b.Queue(sqlExample, [16]byte(scope.Tenant), ids, components, signals).Query(func(rows pgx.Rows) error {
		var id tenants.NodeID
		var name, component, signal, reason string
		_, err := pgx.ForEachRow(rows, []any{(*[16]byte)(&id), &name, &component, &signal, &reason}, func() error {
			for i := range o.Unhealthy {
				if c := &o.Unhealthy[i]; c.Component == component && c.Signal == signal && c.Example.Node == id.String() {
					c.Example.Name, c.Reason = inspector.CleanText(name), reason
				}
			}
			return nil
		})
		return err
	})
	return s.db.Read(ctx, scope.Tenant, b)
}
