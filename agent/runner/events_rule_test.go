package runner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// drops is a window of the rate rule: deltas of 10 s by reason; below zero is
// unknown.
func drops(end time.Time, deltas map[string]int) *inspector.Window {
	w := &inspector.Window{Start: end.Add(-10 * time.Second), End: end}
	var series []inspector.Series
	for reason := range deltas {
		labels := []inspector.Label{{Key: "reason", Value: reason}}
		if strings.HasPrefix(reason, "benign") {
			labels = append(labels, inspector.Label{Key: "benign", Value: "true"})
		}
		series = append(series, inspector.Series{Metric: "c.drops", Kind: inspector.Delta, Unit: inspector.Count, Labels: labels})
	}
	w.Layout = inspector.NewLayout("c", series)
	for _, s := range w.Layout.Series {
		for _, l := range s.Labels {
			if l.Key == "reason" {
				n := deltas[l.Value]
				w.Values = append(w.Values, inspector.Value{OK: n >= 0, Delta: uint64(max(0, n))})
			}
		}
	}
	return w
}

func TestRulesDebounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, "", w)
		states := func(n ...int) (out []inspector.EventState) {
			for _, d := range n {
				after(10 * time.Second)
				e.Observe(drops(time.Now(), map[string]int{"x": d, "benign": 1000}))
				synctest.Wait()
				for _, r := range w.take() {
					out = append(out, r.State)
				}
			}
			return out
		}
		if s := states(100, 101, 0, 0, 0); len(s) != 0 {
			t.Errorf("one window above made %v", s)
		}
		if s := states(101, 0, 101); len(s) != 1 || s[0] != inspector.EventOpen {
			t.Errorf("two of three made %v", s)
		}
		if s := states(0, 0); len(s) != 0 {
			t.Errorf("going on made %v", s)
		}
		if s := states(0); len(s) != 1 || s[0] != inspector.EventEnded {
			t.Errorf("three windows without made %v", s)
		}
		after(time.Minute)
		if s := states(101, -1, 101); len(s) != 1 {
			t.Errorf("an unknown window between made %v", s)
		}
		if s := states(-1, -1, -1); len(s) != 1 || s[0] != inspector.EventEnded {
			t.Errorf("nothing known for long made %v", s)
		}
	})
}

func TestRuleOfVanishedSeriesEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, "", w)
		for range 3 {
			after(10 * time.Second)
			e.Observe(drops(time.Now(), map[string]int{"x": 500, "y": 1}))
		}
		synctest.Wait()
		r := w.take()
		if len(r) == 0 || r[0].Labels["reason"] != "x" || len(r[0].Samples) == 0 || r[0].Samples[0].Values["rate"] != 50 {
			t.Fatalf("%+v", r)
		}
		for range 3 {
			after(10 * time.Second)
			e.Observe(drops(time.Now(), map[string]int{"y": 1}))
		}
		synctest.Wait()
		if r := w.take(); len(r) != 1 || r[0].State != inspector.EventEnded {
			t.Errorf("a series that went: %+v", r)
		}
		// The windows themselves stop while it holds.
		for range 2 {
			after(10 * time.Second)
			e.Observe(drops(time.Now(), map[string]int{"x": 500}))
		}
		after(7 * time.Minute)
		all := w.take()
		if len(all) == 0 || all[len(all)-1].State != inspector.EventEnded {
			t.Errorf("no more windows: %+v", all)
		}
	})
}

func TestStatsOfRules(t *testing.T) {
	gauge := inspector.Series{Metric: "c.level", Kind: inspector.Gauge, Unit: inspector.Ratio}
	hist := inspector.Series{Metric: "c.wait", Kind: inspector.Histogram, Unit: inspector.Nanoseconds}
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, "", w)
		look := func(s inspector.Series, v inspector.Value) []inspector.EventReport {
			after(10 * time.Second)
			e.Observe(&inspector.Window{Layout: inspector.NewLayout("c", []inspector.Series{s}), Values: []inspector.Value{v}, Start: time.Now().Add(-10 * time.Second), End: time.Now()})
			synctest.Wait()
			return w.take()
		}
		if r := look(gauge, inspector.Value{OK: true, Gauge: 0.9}); len(r) != 0 {
			t.Errorf("at the bound: %+v", r)
		}
		if r := look(gauge, inspector.Value{OK: true, Gauge: 0.91}); len(r) != 1 || r[0].Kind != "level_high" {
			t.Errorf("above: %+v", r)
		}
		slow := make([]uint64, 15)
		slow[14] = 9
		if r := look(hist, inspector.Value{OK: true, Hist: slow}); len(final(r)) != 1 { // level_high ends
			t.Errorf("below the floor: %+v", r)
		}
		slow[14] = 10
		r := look(hist, inspector.Value{OK: true, Hist: slow})
		if len(r) != 1 || r[0].Kind != "wait_long" || r[0].Severity != inspector.Critical || r[0].Samples[0].Values["p99"] != 1<<15-1 {
			t.Errorf("slow: %+v", r)
		}
	})
}

func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, "", w)
		level := func(v float64) {
			after(10 * time.Second)
			e.Observe(&inspector.Window{Layout: inspector.NewLayout("c", []inspector.Series{{Metric: "c.level", Kind: inspector.Gauge, Unit: inspector.Ratio}}),
				Values: []inspector.Value{{OK: true, Gauge: v}}, Start: time.Now().Add(-10 * time.Second), End: time.Now()})
			synctest.Wait()
		}
		for range 3 {
			level(1)
			level(0)
		}
		for _, r := range w.take() {
			if r.State == inspector.EventFlapping {
				t.Fatal("three begins are flapping")
			}
		}
		for range 20 {
			level(1)
			level(0)
		}
		records := final(w.take())
		flapping := 0
		for _, r := range records {
			if r.State == inspector.EventFlapping {
				flapping++
			}
		}
		if flapping != 1 || len(records) > 2 {
			t.Errorf("23 begins make %d records, %d of them flapping", len(records), flapping)
		}
		for range 70 {
			level(0)
		}
		if r := w.take(); len(r) == 0 || r[len(r)-1].State != inspector.EventEnded {
			t.Errorf("ten minutes of calm: %+v", r)
		}
		if len(e.rings) != 0 {
			t.Errorf("%d rings are kept", len(e.rings))
		}
	})
}
