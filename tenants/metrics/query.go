package metrics

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Query answers series, top-N and comparisons. It needs telltale:read. Without
// Top and Group the series come in order of node, metric and labels, and
// Coverage speaks of the nodes that the page went through.
func (s *Service) Query(ctx context.Context, scope tenants.Scope, q Query) (Result, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Result{}, err
	}
	now := s.now()
	if err := q.check(s.reg, now); err != nil {
		return Result{}, err
	}
	after, err := readCursor(q.Cursor)
	if err != nil {
		return Result{}, err
	}
	// A window that ends a little after the span may lie in it by its middle.
	r := &reading{s: s, scope: scope, from: q.From, to: q.To.Add(tenants.WindowLength), components: q.components(s.owner)}
	heads := q.onHeads(s)
	if !heads {
		if _, err = r.find(ctx, q.Node, q.NodeLabels, q.Group, nil); err != nil {
			return Result{}, err
		}
	} else if err := checkLabels("node_labels", q.NodeLabels); err != nil {
		return Result{}, err
	}
	a := &asking{s: s, q: q, now: now, node: 1, out: Result{Window: tenants.Window{From: q.From, To: q.To}, StepS: int(q.Step / time.Second), Series: []Series{},
		Coverage: tenants.Coverage{NotCovered: []tenants.NotCovered{}}}, slots: map[*table][]querySlot{}, curves: map[pageKey]*curve{}}
	limit, clamped := tenants.ClampRows(q.Limit)
	if clamped {
		a.note("limit was clamped to %d", limit)
	}
	if most := max(1, maxAnswer/q.points()); limit > most {
		limit = most
		a.note("limit was clamped to %d series of %d points", limit, q.points())
	}
	a.r = r
	switch {
	case heads:
		err = a.topNow(ctx, scope)
	case q.Top > 0:
		err = a.top(ctx)
	case q.Group != "":
		err = a.cohorts(ctx, after, limit)
	default:
		err = a.page(ctx, after, limit)
	}
	if err != nil {
		return Result{}, err
	}
	return a.finish(ctx)
}

func (q *Query) components(owner map[string]string) []string {
	var list []string
	for _, m := range q.Metrics {
		c, ok := owner[m]
		if !ok {
			c, _, _ = strings.Cut(m, ".")
		}
		list = append(list, c)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// asking is a Query under way.
type asking struct {
	s      *Service
	q      Query
	r      *reading
	now    time.Time
	out    Result
	slots  map[*table][]querySlot
	curves map[pageKey]*curve // of the node under way; of a comparison all
	silent []*target
	found  map[string]bool // metrics that have a series

	node  int // ordinal of the node under way, from 1
	seen  bool
	ts    time.Time
	worst time.Time
	full  bool // more cohorts than are told apart
}

// querySlot is a series of a layout that the query asks for.
type querySlot struct {
	wanted  bool
	strange bool
	labels  string
	curve   *curve // of node number at
	at      int
}

func (a *asking) note(format string, args ...any) {
	a.out.Notes = append(a.out.Notes, fmt.Sprintf(format, args...))
}

func (a *asking) slotsOf(t *table) []querySlot {
	if sl, ok := a.slots[t]; ok {
		return sl
	}
	sl := make([]querySlot, len(t.series))
	for i, se := range t.series {
		_, named := slices.BinarySearch(a.q.Metrics, se.Metric)
		if named && !t.barred[i] && bears(se.Labels, a.q.Labels) {
			sl[i] = querySlot{wanted: true, strange: t.unknown[i], labels: labelKey(se.Labels)}
		}
	}
	a.slots[t] = sl
	return sl
}

// visit takes one window in; steps is the number of points a curve gets.
func (a *asking) visit(t *target, w *window, tb *table, steps int) {
	step := stepOf(w, a.q.From, a.q.Step)
	if step < 0 || step >= a.q.points() {
		return
	}
	slots := a.slotsOf(tb)
	any := false
	_, _ = walk(w.vals, tb.kinds, func(i int, v *inspector.Value) { // see summing.visit
		sl := &slots[i]
		if !sl.wanted {
			return
		}
		any = true
		if sl.at != a.node {
			sl.curve, sl.at = a.curve(t, tb, i, sl, steps), a.node
		}
		if c := sl.curve; c != nil {
			if c.group != nil && c.total.node != a.node {
				c.group.Nodes++
			}
			c.add(a.node, step, w.durMS, v)
		}
	})
	if !any {
		return
	}
	a.seen, a.ts = true, w.ts
	a.out.Lost = plus(a.out.Lost, uint64(w.lost))
	a.out.SkewCorrected = a.out.SkewCorrected || w.skewed
}

// curve finds or begins the curve of a series of a node; nil when it has no
// place.
func (a *asking) curve(t *target, tb *table, i int, sl *querySlot, steps int) *curve {
	key := pageKey{Metric: tb.series[i].Metric, Labels: sl.labels}
	if a.q.Group == "" {
		key.Node = t.id.String()
	} else {
		key.Group = t.group
	}
	c := a.curves[key]
	if c == nil {
		if a.q.Group != "" && len(a.curves) >= maxCohorts {
			a.full = true
			return nil
		}
		c = &curve{key: key, series: tb.series[i], strange: sl.strange, steps: make([]acc, steps), total: acc{kind: tb.kinds[i]}}
		if a.q.Group == "" {
			c.name = t.name
		} else {
			c.group = &Group{Key: a.q.Group, Value: t.group}
		}
		a.curves[key] = c
	}
	if c.series.Kind != tb.kinds[i] {
		return nil // an unregistered metric that changed its kind: the first one stands
	}
	return c
}

// done ends one node.
func (a *asking) done(t *target) {
	a.out.Coverage.Asked++
	if !a.seen {
		a.silent = append(a.silent, t)
		return
	}
	a.out.Coverage.Answered++
	if a.worst.IsZero() || a.ts.Before(a.worst) {
		a.worst = a.ts
	}
	a.node, a.seen = a.node+1, false
}

// take empties the curves into a list in order of their keys.
func (a *asking) take() []*curve {
	list := make([]*curve, 0, len(a.curves))
	for _, c := range a.curves {
		list = append(list, c)
		a.find(c.series.Metric)
	}
	clear(a.curves)
	slices.SortFunc(list, func(x, y *curve) int { return x.key.compare(y.key) })
	return list
}

func (a *asking) find(metric string) {
	if a.found == nil {
		a.found = map[string]bool{}
	}
	a.found[metric] = true
}

// page answers the series after a key, node by node, until the limit.
func (a *asking) page(ctx context.Context, after pageKey, limit int) error {
	first := 0
	if after.Node != "" {
		first, _ = slices.BinarySearchFunc(a.r.targets, after.Node, func(t target, id string) int { return strings.Compare(t.id.String(), id) })
	}
	budget := maxWindows / max(1, a.r.perNode()) // nodes of one page
	var last pageKey
	more := false
	err := a.r.each(ctx, first, func(t *target, w *window, tb *table) { a.visit(t, w, tb, a.q.points()) }, func(t *target) bool {
		a.done(t)
		for _, c := range a.take() {
			if c.key.compare(after) <= 0 {
				continue
			}
			if len(a.out.Series) == limit {
				more = true
				return false
			}
			a.out.Series, last = append(a.out.Series, c.render(a.q.From)), c.key
		}
		if budget--; budget <= 0 {
			more = t.id != a.r.targets[len(a.r.targets)-1].id
			last = pageKey{Node: t.id.String(), Metric: "zzz.z", Labels: "\U0010ffff"}
			return false
		}
		return true
	})
	if more {
		a.out.NextCursor = last.cursor()
		a.out.Truncated = &tenants.Truncated{Returned: len(a.out.Series), NextCursor: a.out.NextCursor, Hint: "ask again with the cursor, ask for top, or narrow by node, node labels or labels"}
	}
	return err
}

// cohorts answers one series for each metric, label set and value of the
// node label, over all nodes that bear the value.
func (a *asking) cohorts(ctx context.Context, after pageKey, limit int) error {
	if err := a.r.admit(); err != nil {
		return err
	}
	err := a.r.each(ctx, 0, func(t *target, w *window, tb *table) { a.visit(t, w, tb, a.q.points()) }, func(t *target) bool {
		a.done(t)
		return len(a.curves)*a.q.points() <= 4*maxAnswer
	})
	if err != nil {
		return err
	}
	if a.full || len(a.curves)*a.q.points() > 4*maxAnswer {
		return fault.Newf(fault.Exhausted, "too_many_series", "the comparison has more than %d series", len(a.curves)).Do("filter by labels, or take a longer step")
	}
	list := a.take()
	total := len(list)
	list = slices.DeleteFunc(list, func(c *curve) bool { return c.key.compare(after) <= 0 })
	for _, c := range list[:min(len(list), limit)] {
		a.out.Series = append(a.out.Series, c.render(a.q.From))
	}
	if len(list) > limit {
		a.out.NextCursor = list[limit-1].key.cursor()
		a.out.Truncated = &tenants.Truncated{Returned: limit, Total: &total, NextCursor: a.out.NextCursor, Hint: "ask again with the cursor, or filter by labels"}
	}
	return nil
}

// finish adds what an answer says of itself.
func (a *asking) finish(ctx context.Context) (Result, error) {
	o := &a.out
	o.LowerBound = o.Lost > 0
	if !a.worst.IsZero() {
		o.FreshnessS = age(a.now, a.worst)
	}
	if a.q.Cursor == "" {
		for _, m := range a.q.Metrics {
			if _, ok := a.s.reg.Metric(m); ok || a.found[m] {
				continue
			}
			if o.Truncated == nil {
				return Result{}, fault.Bad("metrics", "no metric %q: this server does not know it and no node in reach sent it", m).Do("see metrics_summary for the names of a module's metrics")
			}
			a.note("%s is not known to this server", m)
		}
	}
	return *o, a.s.missing(ctx, a.r.scope, &o.Coverage, a.silent, a.r.components)
}
