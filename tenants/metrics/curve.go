package metrics

import (
	"strconv"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// curve is one series under way: its points and its totals.
type curve struct {
	key     pageKey
	total   acc
	series  inspector.Series
	strange bool
	steps   []acc
	group   *Group
	name    string
}

func (c *curve) add(node, step int, durMS int32, v *inspector.Value) {
	c.total.add(node, durMS, v)
	if step < len(c.steps) {
		st := &c.steps[step]
		st.kind = c.series.Kind
		st.add(node, durMS, v)
	}
}

// stepOf is the step in which the middle of a window lies: the ends of windows
// jitter around a boundary, their middles do not.
func stepOf(w *window, from time.Time, step time.Duration) int {
	mid := w.ts.Add(-time.Duration(w.durMS) * time.Millisecond / 2)
	if mid.Before(from) {
		return -1
	}
	return int(mid.Sub(from) / step)
}

// render turns a curve into an answer. Points of a cohort are means per node.
func (c *curve) render(start time.Time) Series {
	c.total.fold()
	s := Series{Metric: c.series.Metric, Kind: c.series.Kind.String(), Unit: string(c.series.Unit), Unregistered: c.strange, Node: c.key.Node, Name: c.name,
		Group: c.group, Labels: labelMap(c.series.Labels), Start: start, Points: make([]*float64, len(c.steps)), Stats: c.total.stats(c.group != nil)}
	switch c.series.Kind {
	case inspector.Gauge:
		s.Stat, s.PointsMax = "avg", make([]*float64, len(c.steps))
	case inspector.Histogram:
		s.Stat, s.PointsCount = "p95", make([]*float64, len(c.steps))
	default:
		s.Stat = "rate_per_s"
	}
	for i := range c.steps {
		st := &c.steps[i]
		st.fold()
		if st.n == 0 {
			continue
		}
		switch c.series.Kind {
		case inspector.Gauge:
			s.Points[i], s.PointsMax[i] = ptr(st.wsum/float64(st.durMS)), ptr(st.max)
		case inspector.Histogram:
			if upper, ok := inspector.Quantile(st.hist[:], 0.95); ok {
				s.Points[i] = ptr(float64(upper))
			}
			s.PointsCount[i] = ptr(perSecond(st.count, st.durMS))
		default:
			s.Points[i] = ptr(perSecond(st.sum, st.durMS))
		}
	}
	return s
}

func formatUint(n uint64) string { return strconv.FormatUint(n, 10) }

// labelKey makes one comparable string of a label set. Keys and values hold no
// zero byte that matters: two sets with equal keys differ nowhere a reader sees.
func labelKey(labels []inspector.Label) string {
	if len(labels) == 0 {
		return ""
	}
	var b strings.Builder
	for _, l := range labels {
		b.WriteString(strconv.Quote(l.Key))
		b.WriteByte('=')
		b.WriteString(strconv.Quote(l.Value))
		b.WriteByte(',')
	}
	return b.String()
}

// labelMap renders labels of untrusted origin.
func labelMap(labels []inspector.Label) map[string]string {
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[inspector.CleanText(l.Key)] = inspector.CleanText(l.Value)
	}
	return m
}

// bears reports whether a series has all these labels, as stored or as shown.
func bears(labels []inspector.Label, want map[string]string) bool {
	have := 0
	for _, l := range labels {
		v, ok := want[l.Key]
		if !ok {
			v, ok = want[inspector.CleanText(l.Key)]
		}
		if ok && (v == l.Value || v == inspector.CleanText(l.Value)) {
			have++
		}
	}
	return have == len(want)
}
