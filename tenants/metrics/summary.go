package metrics

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	maxRows      = 10   // label rows of one metric in a Summary
	maxRowsHeld  = 5000 // label sets of one metric told apart while reading
	maxStrangers = 20   // names in Summary.Unregistered
)

// Summary answers the state of one module. It needs telltale:read. The answer
// may be shared with other callers: do not change its maps and slices.
func (s *Service) Summary(ctx context.Context, scope tenants.Scope, q SummaryQuery) (Summary, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return Summary{}, err
	}
	key := fmt.Sprintf("%q %d %d %d %d %s", q.Module, q.From.Unix(), q.From.Nanosecond(), q.To.Unix(), q.To.Nanosecond(), companyKey(scope, q.Node, q.Labels))
	return s.summaries.Do(ctx, key, func(ctx context.Context) (Summary, error) { return s.summary(ctx, scope, q) })
}

func (s *Service) summary(ctx context.Context, scope tenants.Scope, q SummaryQuery) (Summary, error) {
	c, ok := s.reg.Component(q.Module)
	if !ok {
		var names []string
		for _, c := range s.reg.Components() {
			names = append(names, c.Name)
		}
		return Summary{}, fault.Bad("module", "no module %.40q: want one of %v", inspector.CleanText(q.Module), names)
	}
	now := s.now()
	from, to, err := bounds(q.From, q.To, now)
	if err != nil {
		return Summary{}, err
	}
	if err := checkLabels("labels", q.Labels); err != nil {
		return Summary{}, err
	}
	r := &reading{s: s, scope: scope, from: from, to: to, components: []string{c.Name}}
	var off map[tenants.NodeID]offState
	along, err := r.find(ctx, q.Node, q.Labels, "", func(b *pgx.Batch, ids [][16]byte) {
		b.Queue(sqlOffSince, uid(scope.Tenant), ids, c.Name).Query(func(rows pgx.Rows) (err error) {
			off, err = readOff(rows)
			return err
		})
	})
	if err != nil {
		return Summary{}, err
	}
	targets := r.targets
	if err := r.admit(); err != nil {
		return Summary{}, err
	}
	sum := newSumming(c, now, from, to)
	if err := r.each(ctx, 0, sum.visit, sum.done); err != nil {
		return Summary{}, err
	}
	out := sum.out
	if q.Node != "" {
		ref := targets[0].ref()
		out.Node = &ref
	}
	out.Coverage.Asked = len(targets)
	if err := s.missing(ctx, scope, &out.Coverage, sum.silent, r.components); err != nil {
		return Summary{}, err
	}
	sum.finish(&out)
	if !along && len(targets) > 0 {
		if off, err = s.offSince(ctx, scope, targets, c.Name); err != nil {
			return Summary{}, err
		}
	}
	ended(&out, sum, off)
	return out, s.reasons(ctx, scope, &out, targets)
}

// summing is a Summary under way.
type summing struct {
	c        inspector.Component
	now      time.Time
	out      Summary
	metrics  map[string]*metricAcc
	slots    map[*table][]slot
	stranger map[string]bool
	silent   []*target
	reached  []reach // of the nodes that answered

	node  int       // ordinal of the node under way, from 1
	ts    time.Time // of its newest window
	seen  int       // its distinct windows
	worst time.Time // newest window of the node furthest behind
	parts []*metricAcc
	rowed map[*metricAcc]bool // metrics with rows of the node under way
}

// metricAcc sums up one metric; rows are per label set.
type metricAcc struct {
	m     inspector.Metric
	all   acc
	busy  []*acc // rows that have values of the node under way
	rows  map[string]*rowAcc
	over  *acc // label sets beyond maxRowsHeld
	part  inspector.Value
	hist  [inspector.MaxBuckets]uint64
	parts int
}

type rowAcc struct {
	acc
	labels []inspector.Label
}

type slot struct {
	m   *metricAcc
	row *acc // nil: a series without labels
}

func newSumming(c inspector.Component, now, from, to time.Time) *summing {
	s := &summing{c: c, now: now, metrics: map[string]*metricAcc{}, slots: map[*table][]slot{}, stranger: map[string]bool{}, rowed: map[*metricAcc]bool{}, node: 1}
	for _, m := range c.Metrics {
		s.metrics[m.Name] = &metricAcc{m: m, all: acc{kind: m.Kind}, rows: map[string]*rowAcc{}}
	}
	s.out = Summary{Module: c.Name, Title: c.Title, Window: tenants.Window{From: from, To: to}, Metrics: []MetricSummary{},
		Coverage: tenants.Coverage{NotCovered: []tenants.NotCovered{}}}
	return s
}

// slotsOf finds once for each layout where its series belong.
func (s *summing) slotsOf(t *table) []slot {
	if sl, ok := s.slots[t]; ok {
		return sl
	}
	sl := make([]slot, len(t.series))
	for i, se := range t.series {
		if t.unknown[i] {
			s.stranger[se.Metric] = true
		}
		m := s.metrics[se.Metric]
		if m == nil || t.barred[i] {
			continue
		}
		sl[i].m = m
		if len(se.Labels) == 0 {
			continue
		}
		key := labelKey(se.Labels)
		row := m.rows[key]
		switch {
		case row != nil:
			sl[i].row = &row.acc
		case len(m.rows) < maxRowsHeld:
			row = &rowAcc{acc: acc{kind: m.m.Kind}, labels: se.Labels}
			m.rows[key] = row
			sl[i].row = &row.acc
		default:
			if m.over == nil {
				m.over = &acc{kind: m.m.Kind}
			}
			sl[i].row = m.over
		}
	}
	s.slots[t] = sl
	return sl
}

func (s *summing) visit(_ *target, w *window, t *table) {
	if !w.ts.Equal(s.ts) {
		s.ts, s.seen = w.ts, s.seen+1
	}
	o := &s.out
	o.Samples, o.Lost, o.Folded, o.Refused = plus(o.Samples, uint64(w.samples)), plus(o.Lost, uint64(w.lost)), plus(o.Folded, uint64(w.folded)), plus(o.Refused, uint64(w.refused))
	o.SkewCorrected = o.SkewCorrected || w.skewed
	slots := s.slotsOf(t)
	// The window was checked when it came in; a later mistake of ours must not
	// fail the whole answer, so an unreadable one is a window without values.
	_, _ = walk(w.vals, t.kinds, func(i int, v *inspector.Value) {
		sl := slots[i]
		if sl.m == nil {
			return
		}
		if sl.row != nil {
			if sl.row.node != s.node {
				sl.m.busy = append(sl.m.busy, sl.row)
				s.rowed[sl.m] = true
			}
			sl.row.add(s.node, w.durMS, v)
		}
		if sl.m.parts == 0 {
			s.parts = append(s.parts, sl.m)
		}
		sl.m.take(s.node, w.durMS, v)
	})
	for _, m := range s.parts {
		m.flush(s.node, w.durMS)
	}
	s.parts = s.parts[:0]
}

// take adds a value to the window's total: a metric with many label sets
// covers the window's time once.
func (m *metricAcc) take(node int, durMS int32, v *inspector.Value) {
	m.parts++
	switch m.m.Kind {
	case inspector.Gauge:
		m.all.add(node, durMS, v)
	case inspector.Delta:
		m.part.Delta = plus(m.part.Delta, v.Delta)
	case inspector.Histogram:
		m.part.Sum = plus(m.part.Sum, v.Sum)
		for i, c := range v.Hist {
			m.hist[i] = plus(m.hist[i], c)
		}
	}
}

func (m *metricAcc) flush(node int, durMS int32) {
	if m.m.Kind != inspector.Gauge {
		m.part.Hist = m.hist[:]
		m.all.add(node, durMS, &m.part)
		m.part, m.hist = inspector.Value{}, [inspector.MaxBuckets]uint64{}
	}
	m.parts = 0
}

// foldRows ends the node under way for the rows of a metric. A row's rate is
// its share of the metric's: what was counted for the label set over all the
// time for which the metric is known on the node. A label set that a window
// does not name had no part in that window's total, so the shares add up to
// the whole, whenever a label set first appeared.
func (m *metricAcc) foldRows() {
	for _, row := range m.busy {
		row.foldOver(m.all.nodeDur)
	}
	m.busy = m.busy[:0]
}

// done ends one node.
func (s *summing) done(t *target) bool {
	for m := range s.rowed {
		m.foldRows()
	}
	clear(s.rowed)
	if s.seen == 0 {
		s.silent = append(s.silent, t)
		return true
	}
	s.out.Coverage.Answered++
	s.reached = append(s.reached, reach{t, s.ts})
	from := s.out.Window.From
	if t.enrolled.After(from) {
		from = t.enrolled
	}
	s.out.Received += s.seen
	s.out.Expected += max(s.seen, int(s.out.Window.To.Sub(from)/tenants.WindowLength))
	if s.worst.IsZero() || s.ts.Before(s.worst) {
		s.worst = s.ts
	}
	s.node, s.seen, s.ts = s.node+1, 0, time.Time{}
	return true
}

// finish renders what was summed up.
func (s *summing) finish(o *Summary) {
	o.LowerBound = o.Lost > 0
	if !s.worst.IsZero() {
		o.FreshnessS = age(s.now, s.worst)
	}
	for _, m := range s.c.Metrics {
		a := s.metrics[m.Name]
		a.all.fold()
		ms := MetricSummary{Metric: m.Name, Kind: m.Kind.String(), Unit: string(m.Unit), Help: m.Help, Stats: a.all.stats(false)}
		ms.Rows, ms.Other = a.ranked()
		o.Metrics = append(o.Metrics, ms)
	}
	for name := range s.stranger {
		o.Unregistered = append(o.Unregistered, name)
	}
	slices.Sort(o.Unregistered)
	if n := len(o.Unregistered); n > maxStrangers {
		o.Unregistered = o.Unregistered[:maxStrangers]
		o.Notes = append(o.Notes, fmt.Sprintf("%d further metrics are not known to this server", n-maxStrangers))
	}
}

// ranked puts the label rows in order, greatest first, and sums up the rest. A
// gauge is ranked by its average, all else by its total.
func (m *metricAcc) ranked() ([]LabelRow, *Stats) {
	type ranked struct {
		*rowAcc
		score float64
		key   string
	}
	var list []ranked
	for key, r := range m.rows {
		r.fold()
		if r.n == 0 {
			continue
		}
		by := BySum
		if r.kind == inspector.Gauge {
			by = ByAvg
		} else if r.kind == inspector.Histogram {
			by = ByAvg
		}
		score, _ := r.score(by)
		list = append(list, ranked{r, score, key})
	}
	slices.SortFunc(list, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.key, b.key)) })
	var rows []LabelRow
	rest := acc{kind: m.m.Kind}
	for i, r := range list {
		if i < maxRows {
			rows = append(rows, LabelRow{Labels: labelMap(r.labels), Stats: r.stats(false)})
			continue
		}
		rest.merge(&r.acc)
	}
	if m.over != nil {
		m.over.fold()
		rest.merge(m.over)
	}
	if rest.n == 0 {
		return rows, nil
	}
	other := rest.stats(false)
	// The label sets cover the same time side by side.
	other.CoveredS = min(other.CoveredS, float64(m.all.durMS)/1000)
	return rows, &other
}

// sqlSignals says of a component's signals whether every node asked reports
// them off, with one node's reason.
const sqlSignals = `
select signal, bool_and(level = 'off'), coalesce(min(reason) filter (where level = 'off'), '')
  from capability where tenant_id = $1 and component = $2 and node_id = any($3::uuid[]) group by signal limit 500`

// reasons says of each metric without a value why it has none.
func (s *Service) reasons(ctx context.Context, scope tenants.Scope, o *Summary, targets []target) error {
	common := "no_data"
	if len(targets) == 0 {
		common = "no_nodes"
	} else if o.Coverage.Answered == 0 && !slices.ContainsFunc(o.Coverage.NotCovered, func(n tenants.NotCovered) bool { return n.Reason != o.Coverage.NotCovered[0].Reason }) {
		common = o.Coverage.NotCovered[0].Reason
	}
	off := map[string]string{}
	asked := false
	for i := range o.Metrics {
		m := &o.Metrics[i]
		if m.CoveredS > 0 {
			continue
		}
		m.Reason = common
		meta, _ := s.reg.Metric(m.Metric)
		if meta.Signal == "" || len(targets) == 0 {
			continue
		}
		if !asked {
			asked = true
			ids := make([][16]byte, len(targets))
			for i, t := range targets {
				ids[i] = uid(t.id)
			}
			type row struct {
				Signal string
				Off    bool
				Reason string
			}
			rows, err := tenantdb.Query(ctx, s.db, scope.Tenant, sqlSignals, []any{uid(scope.Tenant), o.Module, ids}, pgx.RowToStructByPos[row])
			if err != nil {
				return err
			}
			for _, r := range rows {
				if r.Off {
					off[r.Signal] = r.Reason
				}
			}
		}
		if why, ok := off[meta.Signal]; ok {
			m.Reason, m.Why = "off", inspector.CleanText(why)
		}
	}
	return nil
}
