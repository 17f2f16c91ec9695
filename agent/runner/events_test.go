package runner

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// eventWords are an immediate kind, a less severe one, rules on each stat, and
// the agent's own.
func eventWords() *inspector.Registry {
	var r inspector.Registry
	r.Add(inspector.Component{Name: "c", Title: "C", Metrics: []inspector.Metric{
		{Name: "c.drops", Kind: inspector.Delta, Unit: inspector.Count, Help: "h", Labels: []string{"reason", "benign"}},
		{Name: "c.level", Kind: inspector.Gauge, Unit: inspector.Ratio, Help: "h"},
		{Name: "c.wait", Kind: inspector.Histogram, Unit: inspector.Nanoseconds, Help: "h"},
	}, Events: []inspector.EventKind{
		{Name: "boom", Title: "t", Help: "h", Severity: inspector.Warning, Immediate: true, Labels: []string{"exe"}},
		{Name: "hint", Title: "t", Help: "h", Severity: inspector.Info, Immediate: true, Labels: []string{"exe"}},
		{Name: "drop_burst", Title: "t", Help: "h", Severity: inspector.Warning, Labels: []string{"reason"},
			Rule: &inspector.Rule{Metric: "c.drops", Stat: inspector.StatRate, Above: 10, K: 2, N: 3, Skip: map[string]string{"benign": "true"}}},
		{Name: "level_high", Title: "t", Help: "h", Severity: inspector.Warning,
			Rule: &inspector.Rule{Metric: "c.level", Stat: inspector.StatValue, Above: 0.9, K: 1, N: 1}},
		{Name: "wait_long", Title: "t", Help: "h", Severity: inspector.Critical,
			Rule: &inspector.Rule{Metric: "c.wait", Stat: inspector.StatP99, Above: 1000, K: 1, N: 2, Floor: 10}},
	}})
	r.Add(inspector.Component{Name: "host", Title: "H", Events: []inspector.EventKind{
		{Name: "event_loss", Title: "t", Help: "h", Severity: inspector.Warning, Immediate: true, Labels: []string{"component"}},
		{Name: "inspector_stuck", Title: "t", Help: "h", Severity: inspector.Warning, Immediate: true, Labels: []string{"component"}},
		{Name: "agent_budget", Title: "t", Help: "h", Severity: inspector.Warning, Immediate: true, Labels: []string{"resource"}},
	}})
	return &r
}

type recordKey struct {
	fp    inspector.Fingerprint
	begun int64
}

// wire is the other end of push: it may be full, acknowledge at once or never.
type wire struct {
	mu      sync.Mutex
	full    bool
	silent  bool
	reports []inspector.EventReport
	dones   []func()
}

func (w *wire) push(r inspector.EventReport, done func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full {
		return false
	}
	w.reports = append(w.reports, r)
	if w.silent {
		w.dones = append(w.dones, done)
	} else {
		done()
	}
	return true
}

func (w *wire) set(full, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full, w.silent = full, silent
}

// take returns what came since the last call.
func (w *wire) take() []inspector.EventReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.reports
	w.reports = nil
	return out
}

// final is the last word on each record of the reports.
func final(reports []inspector.EventReport) map[recordKey]inspector.EventReport {
	out := map[recordKey]inspector.EventReport{}
	for _, r := range reports {
		out[recordKey{r.Fingerprint, r.Begun.UnixNano()}] = r
	}
	return out
}

// keep runs a keeper until stop, inside a bubble or not.
func keep(t *testing.T, dir string, w *wire) (e *Events, stop func()) {
	t.Helper()
	e = NewEvents(EventConfig{Dir: dir}, eventWords(), w.push, quiet())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return e, stop
}

func boom(exe string) inspector.Occurrence {
	return inspector.Occurrence{Kind: "boom", Labels: map[string]string{"exe": exe, "pid": "77"}, At: time.Now(),
		Sample: &inspector.EventSample{At: time.Now(), Labels: map[string]string{"pid": "77", "comm": "bad\x1bname\xff"}}}
}

func TestOneRecordForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, "", w)
		e.Emit(boom("a"))
		synctest.Wait()
		first := w.take()
		if len(first) != 1 || first[0].SampleCount != 1 || first[0].State != inspector.EventOpen || first[0].Severity != inspector.Warning {
			t.Fatalf("first sighting: %+v", first)
		}
		if _, pid := first[0].Labels["pid"]; pid || first[0].Fingerprint != inspector.FingerprintOf("boom", map[string]string{"exe": "a"}) {
			t.Errorf("scope %v", first[0].Labels)
		}
		if c := first[0].Samples[0].Labels["comm"]; inspector.CleanText(c) != c {
			t.Errorf("sample says %q", c)
		}
		for range 40 {
			after(time.Second)
			o := boom("a")
			o.Count = 3
			e.Emit(o)
		}
		synctest.Wait()
		later := w.take()
		if len(later) < 6 || len(later) > 8 {
			t.Errorf("%d reports in 40 s", len(later))
		}
		crit := boom("a")
		crit.Severity = inspector.Critical
		e.Emit(crit)
		synctest.Wait()
		if worse := w.take(); len(worse) != 1 || worse[0].Severity != inspector.Critical {
			t.Errorf("a worse one is told as %+v", worse)
		}
		after(30 * time.Second)
		last := w.take()
		end := last[len(last)-1]
		if end.State != inspector.EventEnded || end.SampleCount != 42 || end.Truncated != 80 || len(end.Samples) != inspector.MaxEventSamples || !end.Begun.Equal(first[0].Begun) {
			t.Errorf("ended as %+v", end)
		}
		e.Emit(boom("a"))
		e.Emit(boom("b"))
		synctest.Wait()
		again := final(w.take())
		if len(again) != 2 {
			t.Errorf("a new sighting and another scope make %d records", len(again))
		}
		for k := range again {
			if k.begun == first[0].Begun.UnixNano() {
				t.Error("the old record goes on")
			}
		}
		after(10 * time.Minute)
		if n := e.Stats().Records; n != 0 {
			t.Errorf("%d records are kept", n)
		}
	})
}

func TestLastingConditionOfTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, dir := &wire{}, t.TempDir()
		e, stop := keep(t, dir, w)
		stuck := inspector.Occurrence{Kind: "inspector_stuck", Labels: map[string]string{"component": "c"}}
		e.Set(stuck, true)
		after(5 * time.Minute)
		if r := w.take(); len(r) != 1 || r[0].State != inspector.EventOpen {
			t.Errorf("stuck: %+v", r)
		}
		e.Set(stuck, false)
		e.Set(stuck, false)
		synctest.Wait()
		if r := w.take(); len(r) != 1 || r[0].State != inspector.EventEnded {
			t.Errorf("answers: %+v", r)
		}
		e.Set(stuck, true)
		after(time.Second)
		if r := w.take(); len(r) != 1 || r[0].SampleCount != 1 {
			t.Errorf("stuck again: %+v", r)
		}
		stop()
		_, _ = keep(t, dir, w)
		after(time.Second)
		if r := w.take(); len(r) != 1 || r[0].State != inspector.EventEnded {
			t.Errorf("after a restart: %+v", r)
		}
	})
}

func TestAFullUplinkIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{full: true}
		e, _ := keep(t, "", w)
		e.Emit(boom("a"))
		after(20 * time.Second)
		e.Emit(boom("a"))
		after(time.Second)
		w.set(false, true)
		after(retryMax)
		r := w.take()
		if len(r) != 1 || r[0].SampleCount != 2 {
			t.Fatalf("told as %+v", r)
		}
		// Nobody acknowledges: it is not told again and again.
		after(4 * time.Minute)
		if r := w.take(); len(r) != 0 {
			t.Errorf("told again: %+v", r)
		}
		after(2 * time.Minute)
		if r := w.take(); len(r) != 1 || r[0].State != inspector.EventEnded {
			t.Errorf("unacknowledged for long: %+v", r)
		}
	})
}

func TestLossesOfAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, "", w)
		e.Emit(boom("a"))
		e.Emit(inspector.Occurrence{Kind: "event_loss", Labels: map[string]string{"component": "c"}, Count: 7})
		after(10 * time.Second)
		for _, r := range final(w.take()) {
			switch r.Kind {
			case "boom":
				if r.Lost != 7 || r.SampleCount != 1 {
					t.Errorf("%+v", r)
				}
			case "event_loss":
				if r.SampleCount+r.Truncated != 7 || r.Labels["component"] != "c" {
					t.Errorf("%+v", r)
				}
			}
		}
	})
}
