package rig

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
)

// Numbers makes windows of the product's own metrics. Its values repeat after
// some windows, so that making them costs nothing while something is timed.
// Safe for concurrent use.
type Numbers struct {
	Layouts  []*inspector.Layout // one a component; each Window is of one of them
	variants [][][]inspector.Value
}

const variantsKept = 32

// NewNumbers makes layouts of n series each: every metric of the component,
// the labelled ones over as many label values as it takes. n = 0 means three
// label values, about what a small machine reports.
func NewNumbers(n int) (*Numbers, error) {
	var reg inspector.Registry
	all.Register(&reg)
	m := &Numbers{}
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range reg.Components() {
		l := inspector.NewLayout(c.Name, seriesOf(c, n))
		if err := l.Check(); err != nil {
			return nil, err
		}
		variants := make([][]inspector.Value, variantsKept)
		for i := range variants {
			variants[i] = make([]inspector.Value, len(l.Series))
			for j, s := range l.Series {
				variants[i][j] = value(s, r)
			}
		}
		m.Layouts, m.variants = append(m.Layouts, l), append(m.variants, variants)
	}
	return m, nil
}

func seriesOf(c inspector.Component, n int) []inspector.Series {
	var out, labelled []inspector.Series
	for _, m := range c.Metrics {
		s := inspector.Series{Metric: m.Name, Kind: m.Kind, Unit: m.Unit}
		for _, k := range m.Labels {
			s.Labels = append(s.Labels, inspector.Label{Key: k, Value: "some " + k})
		}
		if len(s.Labels) > 0 {
			labelled = append(labelled, s)
		} else {
			out = append(out, s)
		}
	}
	limit := n
	if n == 0 {
		limit = len(out) + 3*len(labelled)
	}
	for i := 0; len(out) < limit && len(labelled) > 0; i++ {
		s := labelled[i%len(labelled)]
		s.Labels = append([]inspector.Label{}, s.Labels...)
		s.Labels[0].Value = fmt.Sprintf("%s%03d", s.Labels[0].Key, i/len(labelled))
		out = append(out, s)
	}
	return out[:min(limit, len(out))]
}

// value draws one number: a quarter of the counters stand still, the others
// spread over eight decades of binary size; a histogram fills a dozen buckets.
func value(s inspector.Series, r *rand.Rand) inspector.Value {
	v := inspector.Value{OK: true}
	switch s.Kind {
	case inspector.Gauge:
		v.Gauge = math.Exp2(30 * r.Float64())
		if s.Unit == inspector.Ratio {
			v.Gauge = r.Float64()
		}
	case inspector.Histogram:
		v.Hist = make([]uint64, 24)
		for range 200 {
			b := min(23, max(0, int(16+3*r.NormFloat64())))
			v.Hist[b]++
			v.Sum += 3 << b / 2
		}
	default:
		if r.IntN(4) > 0 {
			v.Delta = uint64(math.Exp2(27 * r.Float64()))
		}
	}
	return v
}

// Window is the i-th window of some node, of the component i modulo their
// number. Its values are shared: read them only.
func (m *Numbers) Window(i int, end time.Time, length time.Duration) *inspector.Window {
	c := i % len(m.Layouts)
	return &inspector.Window{
		Layout: m.Layouts[c], Start: end.Add(-length), End: end,
		Values: m.variants[c][i/len(m.Layouts)%variantsKept], Samples: uint64(i%7 + 1),
	}
}

// Describe says what a window holds on average.
func (m *Numbers) Describe() string {
	var series, bytes int
	kinds := map[inspector.Kind]int{}
	for c, l := range m.Layouts {
		series += len(l.Series)
		for _, s := range l.Series {
			kinds[s.Kind]++
		}
		for _, v := range m.variants[c] {
			bytes += len(inspector.AppendValues(nil, l.Series, v))
		}
	}
	n := float64(len(m.Layouts))
	part := func(k inspector.Kind) float64 { return 100 * float64(kinds[k]) / float64(series) }
	return fmt.Sprintf("%.0f series a window (%.0f %% deltas, %.0f %% gauges, %.0f %% histograms), %.2f packed bytes a sample",
		float64(series)/n, part(inspector.Delta), part(inspector.Gauge), part(inspector.Histogram), float64(bytes)/variantsKept/float64(series))
}
