package runner

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// due collects the reports to push now and says when the next one is.
func (e *Events) due(now time.Time) (out []delivery, wait time.Duration) {
	e.tokens = min(pushBurst, e.tokens+pushRate*max(0, now.Sub(e.filled).Seconds()))
	e.filled = now
	wait = staleAfter
	var ready []*record
	for _, r := range e.records {
		at, ok := r.dueAt(now)
		if !ok {
			continue
		}
		if in := at.Sub(now); in > 0 {
			wait = min(wait, in)
		} else {
			ready = append(ready, r)
		}
	}
	for _, r := range e.records { // those with nothing to say end, too
		if r.ends() {
			wait = min(wait, max(time.Millisecond, r.opened.Add(inspector.DedupFor).Sub(now)))
		}
	}
	if in := e.retryAt.Sub(now); in > 0 && len(ready) > 0 {
		return nil, min(wait, in)
	}
	ready = e.inTurn(ready)
	if room := int(e.tokens); len(ready) > room {
		ready = ready[:room]
		wait = min(wait, time.Duration(math.Ceil(float64(time.Second)/pushRate)))
	}
	for _, r := range ready {
		out = append(out, delivery{r, r.version, r.report()})
	}
	return out, wait
}

// inTurn orders reports so that a storm of one kind delays no other kind: the
// first of each kind, then the second of each, …, and the kinds in the order
// in which they were served last. Of one kind those come first that nobody was
// told of, then the worst, then the oldest.
func (e *Events) inTurn(ready []*record) []*record {
	slices.SortStableFunc(ready, func(a, b *record) int {
		return cmp.Or(cmp.Compare(min(a.sent, 1), min(b.sent, 1)), cmp.Compare(b.rank(), a.rank()), a.opened.Compare(b.opened))
	})
	turn, of := make(map[*record]int, len(ready)), map[string]int{}
	for _, r := range ready {
		turn[r] = of[r.kind.Name]
		of[r.kind.Name]++
	}
	slices.SortStableFunc(ready, func(a, b *record) int {
		return cmp.Or(cmp.Compare(turn[a], turn[b]), e.served[a.kind.Name].Compare(e.served[b.kind.Name]), cmp.Compare(b.rank(), a.rank()))
	})
	return ready
}

// sayLosses makes event_loss occurrences of what was counted as lost.
func (e *Events) sayLosses(now time.Time) {
	if e.kinds[kindLoss] == nil {
		clear(e.lost)
		return
	}
	for component, n := range e.lost {
		delete(e.lost, component)
		e.spread(component, n)
		k := e.kinds[kindLoss]
		o := inspector.Occurrence{Kind: kindLoss, Count: n, Labels: map[string]string{lossLabel: component}}
		e.see(k, scope(k, o.Labels), o, now)
	}
}

// lose counts sightings as lost; the next flush says so.
func (e *Events) lose(component string, n uint64) {
	if n == 0 {
		return
	}
	e.stats.Lost = inspector.Plus(e.stats.Lost, n)
	e.lost[component] = inspector.Plus(e.lost[component], n)
	token(e.kick)
}

// delivery is one report on its way to the uplink.
type delivery struct {
	r       *record
	version uint64
	report  inspector.EventReport
}
