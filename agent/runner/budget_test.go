package runner

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// load is an agent's use that the test sets, and what the budget does about it.
type load struct {
	mu       sync.Mutex
	percent  float64
	rss      uint64
	cpu      time.Duration
	at       time.Time
	fails    bool
	relieved int

	tasks string
	off   map[string]string
	told  []inspector.Occurrence
	ended []string
}

func (l *load) set(percent float64, mib uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.percent, l.rss = percent, mib<<20
}

func (l *load) advance() {
	now := time.Now()
	if !l.at.IsZero() {
		l.cpu += time.Duration(float64(now.Sub(l.at)) * l.percent / 100)
	}
	l.at = now
}

func (l *load) usage() (Usage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails {
		return Usage{}, errors.New("no /proc")
	}
	l.advance()
	return Usage{CPU: l.cpu, RSS: l.rss}, nil
}

func (l *load) relieve() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.relieved++
}

func (l *load) Shed(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks = reason
}

func (l *load) Protect(_ string, reasons map[string]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.off = maps.Clone(reasons)
}

func (l *load) tell(o inspector.Occurrence, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if on {
		l.told = append(l.told, o)
	} else {
		l.ended = append(l.ended, o.Labels["resource"])
	}
}

func (l *load) state() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Sorted(maps.Keys(l.off))
	if l.tasks != "" {
		out = append([]string{"traces"}, out...)
	}
	return out
}

// events returns what was told and what ended.
func (l *load) events() ([]inspector.Occurrence, []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told, l.ended
}

// reasons returns why traces and a module are off, and how often memory was
// given back.
func (l *load) reasons(module string) (string, string, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tasks, l.off[module], l.relieved
}

func budget(t *testing.T, dir string) *load {
	t.Helper()
	l := &load{}
	b := NewBudget(BudgetConfig{CPUPercent: 20, MemoryMiB: 100, Order: []string{"process", "network", "storage"}, Dir: dir,
		Usage: l.usage, Relieve: l.relieve}, l, l, l.tell, quiet())
	b.heap.write = func(w io.Writer) error { _, err := w.Write([]byte("profile")); return err }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return l
}

func TestBudgetShedsInOrderAndReleasesInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := budget(t, "")
		l.set(19, 40)
		after(5 * time.Minute)
		if told, _ := l.events(); len(l.state()) != 0 || len(told) != 0 {
			t.Fatalf("below the budget: %v", l.state())
		}
		l.set(50, 40)
		for i, want := range [][]string{{"traces"}, {"traces", "process"}, {"traces", "network", "process"}, {"traces", "network", "process", "storage"}, {"traces", "network", "process", "storage"}} {
			after(budgetOver)
			if d := cmp.Diff(want, l.state()); d != "" {
				t.Errorf("step %d (-want +got):\n%s", i+1, d)
			}
		}
		if traces, module, _ := l.reasons("process"); !strings.Contains(module, "budget is 20 %") || !strings.Contains(traces, "20 %") {
			t.Errorf("reasons %q, %q", module, traces)
		}
		told, _ := l.events()
		first, last := told[0], told[len(told)-1]
		if first.Severity != inspector.Warning || last.Severity != inspector.Critical || first.Labels["resource"] != "cpu" || last.Sample.Labels["given_up"] != "traces, process, network, storage" {
			t.Errorf("told %+v and at last %+v", first, last)
		}
		l.set(15, 40) // below the budget, and not low enough to do more
		after(10 * time.Minute)
		if n := len(l.state()); n != 4 {
			t.Errorf("at three quarters of the budget: %v", l.state())
		}
		after(releaseAnyway - 9*time.Minute) // an agent that needs as much at rest is not kept down for ever
		if d := cmp.Diff([]string{"traces", "network", "process"}, l.state()); d != "" {
			t.Errorf("tried again (-want +got):\n%s", d)
		}
		l.set(50, 40)
		after(2 * budgetOver)
		if n := len(l.state()); n != 4 {
			t.Errorf("tried in vain: %v", l.state())
		}
		l.set(1, 40)
		after(40 * time.Second)
		for _, want := range [][]string{{"traces", "network", "process"}, {"traces", "process"}, {"traces"}, nil} {
			after(releaseAfter)
			if d := cmp.Diff(want, l.state()); d != "" {
				t.Errorf("released (-want +got):\n%s", d)
			}
		}
		if _, ended := l.events(); !cmp.Equal(ended, []string{"cpu"}) {
			t.Errorf("ended %v", ended)
		}
	})
}

func TestBudgetOfMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		l := budget(t, dir)
		l.set(1, 79)
		after(time.Minute)
		if n := len(HeapSnapshots(dir)); n != 0 {
			t.Errorf("%d snapshots below 80 %%", n)
		}
		l.set(1, 80)
		after(2 * budgetEvery)
		if n := len(HeapSnapshots(dir)); n != 1 || len(l.state()) != 0 {
			t.Errorf("%d snapshots at 80 %%, %v", n, l.state())
		}
		after(25 * time.Minute)
		if n := len(HeapSnapshots(dir)); n != keptHeaps {
			t.Errorf("%d snapshots after 25 minutes", n)
		}
		l.set(1, 130)
		after(2 * budgetOver)
		told, _ := l.events()
		_, _, relieved := l.reasons("")
		if relieved == 0 || len(l.state()) == 0 || told[0].Labels["resource"] != "memory" || told[0].Sample.Values["budget_mib"] != 100 {
			t.Errorf("over the budget: relieved %d times, %v, %+v", relieved, l.state(), told)
		}
	})
}

func TestHeapSnapshotsOutliveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		h := newHeapKeeper(dir, quiet())
		h.take(time.Now())
		old := HeapSnapshots(dir)
		if raw, err := os.ReadFile(old[0]); len(old) != 1 || err != nil || len(raw) == 0 {
			t.Fatalf("%v: %v", old, err)
		}
		after(5 * time.Minute)
		newHeapKeeper(dir, quiet()).take(time.Now())
		if d := cmp.Diff(old, HeapSnapshots(dir)); d != "" {
			t.Errorf("another one within ten minutes:\n%s", d)
		}
		for range 3 {
			after(heapPause)
			newHeapKeeper(dir, quiet()).take(time.Now())
		}
		if kept := HeapSnapshots(dir); len(kept) != keptHeaps || kept[0] == old[0] {
			t.Errorf("kept %v", kept)
		}
		endless := newHeapKeeper(dir, quiet())
		endless.write = func(w io.Writer) error {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return err
				}
			}
		}
		after(heapPause)
		endless.take(time.Now())
		if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 || len(HeapSnapshots(dir)) != keptHeaps {
			t.Errorf("a snapshot without end left %v", left)
		}
	})
}

func TestBudgetWithoutReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := budget(t, "")
		l.mu.Lock()
		l.fails = true
		l.mu.Unlock()
		l.set(90, 500)
		after(5 * time.Minute)
		if len(l.state()) != 0 {
			t.Errorf("shed without knowing: %v", l.state())
		}
	})
}

func TestOwnUsage(t *testing.T) {
	u, err := ownUsage()
	if err != nil || u.CPU <= 0 || u.RSS < 1<<20 {
		t.Errorf("%+v, %v", u, err)
	}
}

// The real parts together: the traces are cancelled, the modules closed with
// the reason in their report.
func TestBudgetWithRealParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := &fake{name: "c"}, &fake{name: "host"}
		m := f.module()
		m.Tasks = map[string]inspector.TaskRun{"trace_it": untilTold, "ask_it": untilTold}
		s := &sink{}
		r, stop := run(t, Config{}, s, m, h.module())
		d := newDesk(t, TaskConfig{Off: r.Off}, untilTold)
		id := d.start("trace_it", `{"duration_s":60}`)
		l := &load{}
		b := NewBudget(BudgetConfig{CPUPercent: 20, Order: []string{"c"}, Usage: l.usage}, d.Tasks, r, l.tell, quiet())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- b.Run(ctx) }()
		l.set(100, 0)
		after(budgetOver + budgetEvery)
		if end := d.ends(true)[id]; end == nil || end.Refusal.Reason != "agent_budget" {
			t.Errorf("the trace ended as %+v", end)
		}
		after(budgetOver + budgetEvery)
		if c := report(r, "c"); c.Level != inspector.Off || !strings.Contains(c.Reason, "budget") {
			t.Errorf("the module reports %+v", c)
		}
		if c := report(r, "host"); c.Level != inspector.Full {
			t.Errorf("host reports %+v", c)
		}
		if refused := d.Start(d.order("ask_it", "{}")); refused == nil || refused.Reason != "feature_off" {
			t.Errorf("a query of a module that is off: %+v", refused)
		}
		l.set(0, 0)
		after(2*releaseAfter + time.Minute)
		_, ended := l.events()
		if c := report(r, "c"); c.Level != inspector.Full || len(ended) != 1 {
			t.Errorf("released: %+v, %v", c, ended)
		}
		cancel()
		<-done
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
