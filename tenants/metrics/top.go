package metrics

import (
	"cmp"
	"context"
	"slices"

	"github.com/telltale-dev/telltale/tenants"
)

// winner is a series that is among the greatest of its metric.
type winner struct {
	key   pageKey
	score float64
}

// top reads twice: first the totals of every series, of which only the
// greatest are kept, then the points of the winners' nodes.
func (a *asking) top(ctx context.Context) error {
	if err := a.r.admit(); err != nil {
		return err
	}
	best := map[string][]winner{} // by metric, greatest first
	total := 0
	err := a.r.each(ctx, 0, func(t *target, w *window, tb *table) { a.visit(t, w, tb, 0) }, func(t *target) bool {
		a.done(t)
		for _, c := range a.take() {
			c.total.fold()
			total++
			score, ok := c.total.score(a.q.By)
			if !ok {
				continue
			}
			w := winner{c.key, score}
			l := best[c.key.Metric]
			at, _ := slices.BinarySearchFunc(l, w, compareWinners)
			if l = slices.Insert(l, at, w); len(l) > a.q.Top {
				l = l[:a.q.Top]
			}
			best[c.key.Metric] = l
		}
		return true
	})
	if err != nil {
		return err
	}
	return a.points(ctx, best, total)
}

func compareWinners(x, y winner) int {
	return cmp.Or(cmp.Compare(y.score, x.score), x.key.compare(y.key))
}

// points reads the winners again, with their points, and ranks them.
func (a *asking) points(ctx context.Context, best map[string][]winner, total int) error {
	rank := map[pageKey]int{}
	nodes := map[string]bool{}
	n := 0
	for _, m := range a.q.Metrics {
		for _, w := range best[m] {
			rank[w.key], n = n, n+1
			nodes[w.key.Node] = true
		}
	}
	again := *a.r
	again.targets = slices.DeleteFunc(slices.Clone(a.r.targets), func(t target) bool { return !nodes[t.id.String()] })
	second := &asking{s: a.s, q: a.q, r: &again, now: a.now, node: 1, slots: map[*table][]querySlot{}, curves: map[pageKey]*curve{}}
	list := make([]*curve, n)
	err := again.each(ctx, 0, func(t *target, w *window, tb *table) { second.visit(t, w, tb, a.q.points()) }, func(t *target) bool {
		second.done(t)
		for _, c := range second.take() {
			if i, ok := rank[c.key]; ok {
				list[i] = c
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	if a.node == 1 { // the winners come from the head rows: nothing was read before
		a.worst, a.out.Lost, a.out.SkewCorrected = second.worst, second.out.Lost, second.out.SkewCorrected
	}
	for _, c := range list {
		if c != nil { // nil: its partition was dropped between the readings
			a.out.Series = append(a.out.Series, c.render(a.q.From))
		}
	}
	if total > len(a.out.Series) {
		a.out.Truncated = &tenants.Truncated{Returned: len(a.out.Series), Total: &total, Hint: "these are the greatest; ask without top for all, page by page"}
	}
	return nil
}
