package metrics

import (
	"math"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// acc sums up values of one series, or of several together. Windows come node
// by node in order of time; what belongs to one node is folded in when the
// next one begins.
type acc struct {
	kind  inspector.Kind
	n     int   // values
	durMS int64 // covered time, summed over nodes

	wsum, max float64 // gauge: Σ value·time; the highest value or rate
	sum       uint64  // delta: total; histogram: total of the values
	count     uint64  // histogram
	hist      *[inspector.MaxBuckets]uint64

	// of the node under way
	node    int // 0: none
	last    float64
	nodeN   uint64 // delta: total; histogram: count
	nodeDur int64
	// of the nodes before
	lastSum float64
	lastN   int
	rates   float64
	rateOK  bool
}

// add takes in one value of one window. node is any number above 0 that is
// the same for all windows of a node.
func (a *acc) add(node int, durMS int32, v *inspector.Value) {
	if a.node != node {
		a.fold()
		a.node = node
	}
	a.n++
	a.durMS += int64(durMS)
	a.nodeDur += int64(durMS)
	level := v.Gauge
	switch a.kind {
	case inspector.Gauge:
		a.wsum += v.Gauge * float64(durMS)
	case inspector.Histogram:
		n := uint64(0)
		if a.hist == nil {
			a.hist = new([inspector.MaxBuckets]uint64)
		}
		for i, c := range v.Hist {
			a.hist[i] = plus(a.hist[i], c)
			n = plus(n, c)
		}
		a.count, a.sum, a.nodeN = plus(a.count, n), plus(a.sum, v.Sum), plus(a.nodeN, n)
		level = perSecond(n, int64(durMS))
	default:
		a.sum, a.nodeN = plus(a.sum, v.Delta), plus(a.nodeN, v.Delta)
		level = perSecond(v.Delta, int64(durMS))
	}
	a.last = level
	if a.n == 1 || level > a.max {
		a.max = level
	}
}

// fold ends the node under way; its rate is over the time of its own values.
func (a *acc) fold() { a.foldOver(a.nodeDur) }

// foldOver ends the node under way; its rate is over durMS.
func (a *acc) foldOver(durMS int64) {
	if a.node == 0 {
		return
	}
	a.lastSum += a.last
	a.lastN++
	if durMS > 0 {
		a.rates += perSecond(a.nodeN, durMS)
		a.rateOK = true
	}
	a.node, a.nodeN, a.nodeDur = 0, 0, 0
}

// merge takes in another accumulator of the same kind. Both must be folded.
func (a *acc) merge(b *acc) {
	if b.n == 0 {
		return
	}
	if a.n == 0 || b.max > a.max {
		a.max = b.max
	}
	a.n, a.durMS, a.wsum = a.n+b.n, a.durMS+b.durMS, a.wsum+b.wsum
	a.sum, a.count = plus(a.sum, b.sum), plus(a.count, b.count)
	if b.hist != nil {
		if a.hist == nil {
			a.hist = new([inspector.MaxBuckets]uint64)
		}
		for i, c := range b.hist {
			a.hist[i] = plus(a.hist[i], c)
		}
	}
	a.lastSum, a.lastN = a.lastSum+b.lastSum, a.lastN+b.lastN
	a.rates, a.rateOK = a.rates+b.rates, a.rateOK || b.rateOK
}

func plus(a, b uint64) uint64 { return inspector.Plus(a, b) }

func perSecond(n uint64, durMS int64) float64 { return float64(n) * 1000 / float64(durMS) }

// stats renders the numbers of a folded accumulator. perNode makes rates the
// mean per node instead of the total over nodes.
func (a *acc) stats(perNode bool) Stats {
	s := Stats{CoveredS: float64(a.durMS) / 1000}
	if a.n == 0 || a.durMS == 0 {
		return s
	}
	rate := a.rates
	if perNode && a.lastN > 0 {
		rate /= float64(a.lastN)
	}
	switch a.kind {
	case inspector.Gauge:
		s.Last, s.Avg, s.Max = ptr(a.lastSum/float64(a.lastN)), ptr(a.wsum/float64(a.durMS)), ptr(a.max)
	case inspector.Delta:
		s.Sum, s.SumStr = whole(a.sum)
		s.RatePerS, s.Max = ptr(rate), ptr(a.max)
	case inspector.Histogram:
		s.Sum, s.SumStr = whole(a.sum)
		s.Count, s.CountStr = whole(a.count)
		s.RatePerS = ptr(rate)
		if a.count > 0 {
			s.Mean = ptr(float64(a.sum) / float64(a.count))
			for _, q := range []struct {
				q   float64
				n   **uint64
				str *string
			}{{0.5, &s.P50, &s.P50Str}, {0.95, &s.P95, &s.P95Str}, {0.99, &s.P99, &s.P99Str}} {
				if upper, ok := inspector.Quantile(a.hist[:], q.q); ok {
					*q.n, *q.str = whole(upper)
				}
			}
		}
	}
	return s
}

// score is what a top-N question compares; ok is false without a value.
func (a *acc) score(by By) (float64, bool) {
	if a.n == 0 || a.lastN == 0 {
		return 0, false
	}
	switch by {
	case ByMax:
		return a.max, true
	case ByLast:
		return a.lastSum / float64(a.lastN), true
	case BySum:
		return float64(a.sum), a.kind != inspector.Gauge
	}
	if a.kind == inspector.Gauge {
		return a.wsum / float64(a.durMS), a.durMS > 0
	}
	return a.rates, a.rateOK
}

// ptr renders a number; one that is not finite has no place in an answer.
func ptr(f float64) *float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return &f
}

// whole renders a count; one of 2^53 or more, which a reader of JSON numbers
// would round, goes as text.
func whole(n uint64) (*uint64, string) {
	if n >= 1<<53 {
		return nil, formatUint(n)
	}
	return &n, ""
}
