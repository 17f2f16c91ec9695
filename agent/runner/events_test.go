package runner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
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

// What restarts remember: a kill may come at any moment, so every case goes
// on from the files alone, without a clean stop of the keeper before.
func TestRestartsAnnounceNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		killed := func() string { // a copy of the files as they are now
			to := t.TempDir()
			raw, err := os.ReadFile(filepath.Join(dir, eventFile))
			if err != nil {
				t.Fatal(err)
			}
			if len(raw) > maxEventFile {
				t.Errorf("the file has %d bytes", len(raw))
			}
			if err := os.WriteFile(filepath.Join(to, eventFile), raw, 0o600); err != nil {
				t.Fatal(err)
			}
			return to
		}
		w := &wire{}
		e, _ := keep(t, dir, w)
		e.Emit(boom("held by the server"))
		for range 2 {
			after(10 * time.Second)
			e.Observe(drops(time.Now(), map[string]int{"x": 500, "y": 0}))
		}
		after(time.Second)
		w.set(false, true)
		e.Emit(boom("pushed and not acknowledged"))
		after(time.Second)
		before := final(w.take())
		if len(before) != 3 {
			t.Fatalf("%d records", len(before))
		}

		again := &wire{}
		next, _ := keep(t, killed(), again)
		after(time.Second)
		r := again.take()
		if len(r) != 1 || r[0].Labels["exe"] != "pushed and not acknowledged" {
			t.Fatalf("after a kill: %+v", r)
		}
		if _, same := before[recordKey{r[0].Fingerprint, r[0].Begun.UnixNano()}]; !same {
			t.Error("it is another record")
		}
		// The condition still holds: no news. Another one was born meanwhile.
		for range 2 {
			after(10 * time.Second)
			next.Observe(drops(time.Now(), map[string]int{"x": 500, "y": 500}))
		}
		after(time.Second)
		var kinds []string
		for _, r := range again.take() {
			if r.Kind == "drop_burst" {
				kinds = append(kinds, r.Labels["reason"])
			}
		}
		if len(kinds) != 1 || kinds[0] != "y" {
			t.Errorf("conditions announced after the restart: %v", kinds)
		}
		// It ended while nobody looked.
		for range 3 {
			after(10 * time.Second)
			next.Observe(drops(time.Now(), map[string]int{"x": 0, "y": 500}))
		}
		synctest.Wait()
		ended := false
		for _, r := range again.take() {
			if r.Labels["reason"] == "x" {
				_, same := before[recordKey{r.Fingerprint, r.Begun.UnixNano()}]
				ended = same && r.State == inspector.EventEnded
			}
		}
		if !ended {
			t.Error("the end of the old condition was not told as such")
		}
	})
}

func TestDamagedFileIsAFreshStart(t *testing.T) {
	for name, content := range map[string]string{"torn": `{"sum":1,"bo`, "empty": "", "decayed": `{"sum":1,"body":{"form":1,"records":[],"rings":[]}}`, "zeros": strings.Repeat("\x00", 100)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, w := t.TempDir(), &wire{}
				path := filepath.Join(dir, eventFile)
				if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				e, stop := keep(t, dir, w)
				e.Emit(boom("a"))
				after(time.Second)
				if r := w.take(); len(r) != 1 {
					t.Errorf("%+v", r)
				}
				stop()
				if _, err := readEvents(path); err != nil {
					t.Errorf("not replaced: %v", err)
				}
			})
		})
	}
}

func TestReadOnlyDirectoryHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, filepath.Join(t.TempDir(), "gone"), w)
		e.Emit(boom("a"))
		after(2 * time.Minute)
		if r := w.take(); len(r) != 2 {
			t.Errorf("%+v", r)
		}
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// sums adds up what the reports say: of the kind of event, and of losses.
func sums(reports []inspector.EventReport) (seen, lost uint64) {
	for _, r := range final(reports) {
		if r.Kind == "event_loss" {
			lost += r.SampleCount + r.Truncated
		} else {
			seen += r.SampleCount + r.Truncated
		}
	}
	return seen, lost
}

func TestAFloodIsCountedInBoundedMemory(t *testing.T) {
	const flood = 1_000_000
	w := &wire{}
	e, stop := keep(t, t.TempDir(), w)
	before := heap()
	began := time.Now()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			labels := map[string]string{"exe": fmt.Sprint("p", i)}
			for range flood / 4 {
				e.Emit(inspector.Occurrence{Kind: "boom", Labels: labels, At: began})
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	grew := int64(heap()) - int64(before)
	stop()
	e.flush() // what the end of Run counted as lost
	reports := w.take()
	seen, lost := sums(e.everything(reports))
	t.Logf("%d occurrences in %v: %d kept, %d lost, %d reports, heap %+d KiB", flood, took, seen, lost, len(reports), grew>>10)
	if seen+lost != flood {
		t.Errorf("%d kept and %d lost are not %d", seen, lost, flood)
	}
	if grew > 8<<20 || took > 3*time.Minute {
		t.Errorf("the heap grew by %d KiB in %v", grew>>10, took)
	}
}

// everything adds the records as they are now to the reports, as the pushes to
// come would.
func (e *Events) everything(reports []inspector.EventReport) []inspector.EventReport {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.records {
		reports = append(reports, r.report())
	}
	return reports
}

func TestManyScopesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, t.TempDir(), w)
		const scopes = 50_000 // far more than there is room for
		for i := range scopes {
			o := boom(fmt.Sprint("exe", i, strings.Repeat("x", 300)))
			o.Kind = []string{"boom", "hint"}[i%2]
			e.Emit(o)
			if i%4000 == 3999 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if s := e.Stats(); s.Records > maxRecords || s.Evicted < scopes-2*maxRecords {
			t.Errorf("%+v", s)
		}
		crit := 0
		for _, r := range e.everything(nil) {
			if r.Kind == "hint" {
				crit++
			}
			if len(r.Labels["exe"]) > inspector.MaxLabelBytes {
				t.Errorf("a label of %d bytes", len(r.Labels["exe"]))
			}
		}
		if crit > 1 {
			t.Errorf("%d records of the lesser kind took room", crit)
		}
		after(5 * time.Second)
		reports := w.take()
		if n := len(reports); n > pushBurst+6*pushRate {
			t.Errorf("%d reports in 5 s", n)
		}
		seen, lost := sums(e.everything(reports))
		if seen+lost != scopes {
			t.Errorf("%d reported and %d lost are not %d", seen, lost, scopes)
		}
		if raw, err := os.ReadFile(filepath.Join(e.cfg.Dir, eventFile)); err != nil || len(raw) > maxEventFile {
			t.Errorf("%d bytes, %v", len(raw), err)
		}
	})
}

// Whatever comes, in whatever order: what is reported and what is lost add up
// to what was emitted, over restarts, too.
func TestCountsAddUp(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			dir, w := t.TempDir(), &wire{}
			e, stop := keep(t, dir, w)
			var emitted, probeLost uint64
			var all []inspector.EventReport
			for range 600 {
				switch n := rng.IntN(100); {
				case n < 80:
					o := boom(fmt.Sprint(rng.IntN(1 + int(seed)*40)))
					o.Count = rng.Uint64N(5)
					if n < 10 {
						o.Severity = inspector.Critical
					}
					emitted += max(1, o.Count)
					e.Emit(o)
				case n < 84:
					n := rng.Uint64N(100) + 1
					probeLost += n
					e.Emit(inspector.Occurrence{Kind: "event_loss", Labels: map[string]string{"component": "c"}, Count: n})
				case n < 90:
					w.set(rng.IntN(2) == 0, rng.IntN(2) == 0)
				case n < 99:
					after(time.Duration(rng.IntN(5000)) * time.Millisecond)
				case n == 99 && rng.IntN(4) == 0:
					after(time.Second)
					stop()
					all = append(all, w.take()...)
					e, stop = keep(t, dir, w)
				}
			}
			w.set(false, false)
			after(10 * time.Minute)
			all = append(all, w.take()...)
			seen, lost := sums(all)
			if seen+lost != emitted+probeLost {
				t.Errorf("seed %d: %d seen and %d lost, emitted %d and lost in the probe %d", seed, seen, lost, emitted, probeLost)
			}
			if s := e.Stats(); s.Records != 0 {
				t.Errorf("seed %d: %d records are left", seed, s.Records)
			}
		})
	}
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
