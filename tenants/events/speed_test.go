package events

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// TestListStaysFast: a page costs no more for the rows around it. The bound is
// generous, for a busy machine; the log shows the figures.
func TestListStaysFast(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a hundred thousand rows")
	}
	w := newWorld(t)
	w.advance(11 * time.Hour)
	for d := range 30 { // as after a month
		for _, table := range []string{"event", "event_context"} {
			lo := w.now().Truncate(day).Add(-time.Duration(d+1) * day)
			w.exec(`select telltale_make_partition($1, $2, $3)`, table, lo, lo.Add(day))
		}
	}
	w.flood(w.n1, 100_000, 20*time.Hour)
	w.flood(w.n2, 2_000, 20*time.Hour)
	w.flood(w.other, 10_000, 20*time.Hour)
	for name, q := range map[string]ListQuery{
		"all": {}, "node": {Node: "n2"}, "busy node": {Node: "n1"}, "kind": {Kinds: []string{"slow_io"}}, "severity": {MinSeverity: inspector.Warning},
		"none": {MinSeverity: inspector.Critical}, "state": {State: inspector.EventEnded}, "deep": {To: w.now().Add(-15 * time.Hour)},
		"month": {From: w.now().Add(-30 * day)}, "month of a node": {From: w.now().Add(-30 * day), Node: "n2"},
	} {
		var took []time.Duration
		for range 40 {
			begun := time.Now()
			if _, err := w.s.List(context.Background(), reader(w.a), q); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		t.Logf("%-15s p50 %v p95 %v", name, took[20], took[37])
		if took[20] > 200*time.Millisecond {
			t.Errorf("%s: p50 %v", name, took[20])
		}
	}
}
