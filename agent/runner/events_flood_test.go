package runner

import (
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

// A storm of one kind neither pushes out nor delays another, however mild.
func TestStormLeavesRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, t.TempDir(), w)
		storm := func(from, to int) {
			for i := from; i < to; i++ {
				e.Emit(boom(fmt.Sprint("exe", i)))
			}
			synctest.Wait()
		}
		storm(0, 2000)
		o := boom("quiet")
		o.Kind = "hint"
		e.Emit(o)
		storm(2000, 4000)
		after(time.Second)
		for _, r := range w.take() {
			if r.Kind == "hint" {
				return
			}
		}
		t.Error("the one event of another kind was not told within a second")
	})
}

// What was lost in a storm makes counts of the storm's own kind lower bounds,
// and no single event of another kind.
func TestLossBelongsToTheStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{}
		e, _ := keep(t, t.TempDir(), w)
		other := boom("quiet")
		other.Kind = "hint"
		e.Emit(other)
		for range 20 {
			e.Emit(boom("storm"))
		}
		synctest.Wait()
		component := e.kinds["boom"].Component
		if e.kinds["hint"].Component != component {
			t.Fatal("the kinds are of different components")
		}
		e.Emit(inspector.Occurrence{Kind: kindLoss, Count: 500, Labels: map[string]string{lossLabel: component}})
		after(time.Second)
		for _, r := range e.everything(nil) {
			if want := map[string]uint64{"boom": 500}[r.Kind]; r.Kind != kindLoss && r.Lost != want {
				t.Errorf("%s lost %d, want %d", r.Kind, r.Lost, want)
			}
		}
	})
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
		if crit > maxOfKind+1 {
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
