package runner

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Times and shares of the agent's budget.
const (
	budgetEvery   = 5 * time.Second  // between two readings
	budgetOver    = 30 * time.Second // what is judged, and the least time between two steps
	releaseAfter  = 5 * time.Minute  // below releaseBelow for this long undoes one step
	releaseBelow  = 60               // percent of the budget
	releaseAnyway = 30 * time.Minute // below the budget, if not so far: what an agent needs at rest may be more
	snapshotAbove = 80               // percent of the memory budget
	budgetKind    = "agent_budget"
	resourceLabel = "resource"
	resourceCPU   = "cpu"
	resourceMem   = "memory"
	budgetBy      = "budget"
)

// Usage is what a process used: CPU since its start, resident memory now.
type Usage struct {
	CPU time.Duration
	RSS uint64
}

// BudgetConfig tunes a Budget.
type BudgetConfig struct {
	CPUPercent int      // of one core, over 30 s; 0: no bound
	MemoryMiB  int      // resident; 0: no bound
	Order      []string // modules to switch off, the first one first, after the traces
	Dir        string   // where heap snapshots go; empty: none are taken

	Usage   func() (Usage, error) // nil: this process
	Relieve func()                // gives unused memory back; nil: the Go runtime does
}

// shedTasks and shedModules are what a Budget can take from.
type shedTasks interface{ Shed(reason string) }
type shedModules interface {
	Protect(by string, reasons map[string]string)
}

// Budget holds the agent to its own bounds. Over them it gives up one thing
// after the other: first running traces, then a module at a time; far below
// them for long enough it takes them up again in reverse, and a little below
// them for much longer it tries. Make it with NewBudget.
type Budget struct {
	cfg     BudgetConfig
	log     *slog.Logger
	tasks   shedTasks
	modules shedModules
	tell    func(o inspector.Occurrence, on bool)
	heap    *heapKeeper

	level    int // steps taken
	readings []reading
	causes   map[string]bool // resources that were over since the first step
	why      string
	calm     time.Time // far below the bounds since; zero: not
	under    time.Time // below the bounds since the latest step; zero: not
	relieved time.Time
}

type reading struct {
	Usage
	at time.Time
}

// NewBudget makes a budget; it starts nothing. tell is told of the event
// agent_budget, and when it is over.
func NewBudget(cfg BudgetConfig, tasks shedTasks, modules shedModules, tell func(inspector.Occurrence, bool), log *slog.Logger) *Budget {
	if cfg.Usage == nil {
		cfg.Usage = ownUsage
	}
	if cfg.Relieve == nil {
		cfg.Relieve = debug.FreeOSMemory
	}
	return &Budget{cfg: cfg, log: log, tasks: tasks, modules: modules, tell: tell, causes: map[string]bool{}, heap: newHeapKeeper(cfg.Dir, log)}
}

// Run reads and judges until ctx ends.
func (b *Budget) Run(ctx context.Context) error {
	tick := time.NewTicker(budgetEvery)
	defer tick.Stop()
	failed := false
	for {
		u, err := b.cfg.Usage()
		if err != nil && !failed {
			b.log.Warn("cannot read what the agent itself uses: its budget does not bound it", "error", err)
		}
		if failed = err != nil; !failed {
			b.check(u, time.Now())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// check takes a reading and does at most one step.
func (b *Budget) check(u Usage, now time.Time) {
	limit := uint64(b.cfg.MemoryMiB) << 20
	if limit > 0 && u.RSS*100 >= limit*snapshotAbove {
		b.heap.take(now)
	}
	if limit > 0 && u.RSS > limit && now.Sub(b.relieved) >= budgetOver {
		b.relieved = now
		b.cfg.Relieve() // what is not in use does not count, from the next reading on
	}
	b.readings = append(b.readings, reading{u, now})
	for len(b.readings) > 1 && now.Sub(b.readings[1].at) >= budgetOver {
		b.readings = b.readings[1:]
	}
	first := b.readings[0]
	passed := now.Sub(first.at)
	if passed < budgetOver {
		return
	}
	cpu := 100 * float64(u.CPU-first.CPU) / float64(passed)
	rss := uint64(0)
	for _, r := range b.readings {
		rss += r.RSS / uint64(len(b.readings))
	}
	over := map[string]string{}
	if b.cfg.CPUPercent > 0 && cpu > float64(b.cfg.CPUPercent) {
		over[resourceCPU] = fmt.Sprintf("it used %.1f %% of one core over %.0f s, and its budget is %d %%", cpu, passed.Seconds(), b.cfg.CPUPercent)
	}
	if limit > 0 && rss > limit {
		over[resourceMem] = fmt.Sprintf("it held %d MiB of memory over %.0f s, and its budget is %d MiB", rss>>20, passed.Seconds(), b.cfg.MemoryMiB)
	}
	if len(over) > 0 {
		b.calm, b.under = time.Time{}, time.Time{}
		b.shed(over, cpu, rss, now)
		return
	}
	if b.under.IsZero() {
		b.under = now
	}
	high := b.causes[resourceCPU] && cpu*100 >= float64(b.cfg.CPUPercent*releaseBelow) ||
		b.causes[resourceMem] && rss*100 >= limit*releaseBelow
	switch {
	case b.level == 0:
	case high && now.Sub(b.under) < releaseAnyway:
		b.calm = time.Time{}
	case high:
		b.under = now
		b.release()
	case b.calm.IsZero():
		b.calm = now
	case now.Sub(b.calm) >= releaseAfter:
		b.calm, b.under = now, now
		b.release()
	}
}

// shed does one step, or says that none is left.
func (b *Budget) shed(over map[string]string, cpu float64, rss uint64, now time.Time) {
	b.readings = b.readings[len(b.readings)-1:] // the next step is judged without this time
	resource := slices.Sorted(maps.Keys(over))[0]
	b.why = over[resource]
	for r := range over {
		b.causes[r] = true
	}
	last := b.level > len(b.cfg.Order)
	if !last {
		b.level++
	}
	b.apply()
	b.log.Warn("the agent is over its budget and does less", "why", b.why, "given_up", b.givenUp(), "nothing_left", last)
	severity := inspector.Warning
	if b.level > 1 {
		severity = inspector.Critical
	}
	for r, why := range over {
		s := &inspector.EventSample{At: now, Labels: map[string]string{"given_up": b.givenUp(), "why": why}, Values: map[string]float64{}}
		if r == resourceCPU {
			s.Values["cpu_percent"], s.Values["budget_percent"] = cpu, float64(b.cfg.CPUPercent)
		} else {
			s.Values["rss_mib"], s.Values["budget_mib"] = float64(rss>>20), float64(b.cfg.MemoryMiB)
		}
		b.tell(inspector.Occurrence{Kind: budgetKind, Severity: severity, At: now, Labels: map[string]string{resourceLabel: r}, Sample: s}, true)
	}
}

// release undoes the last step.
func (b *Budget) release() {
	b.level--
	b.apply()
	b.log.Info("the agent is below its budget again and does more", "given_up", b.givenUp())
	if b.level > 0 {
		return
	}
	for r := range b.causes {
		b.tell(inspector.Occurrence{Kind: budgetKind, At: time.Now(), Labels: map[string]string{resourceLabel: r}}, false)
	}
	clear(b.causes)
}

// apply brings tasks and modules in line with the level.
func (b *Budget) apply() {
	reasons := map[string]string{}
	for _, m := range b.off() {
		reasons[m] = "off to keep the agent within its budget: " + b.why
	}
	if b.level > 0 {
		b.tasks.Shed("the node's agent is over its own budget and runs no traces: " + b.why)
	} else {
		b.tasks.Shed("")
	}
	b.modules.Protect(budgetBy, reasons)
}

func (b *Budget) off() []string { return b.cfg.Order[:max(0, min(b.level-1, len(b.cfg.Order)))] }

// givenUp names what the level costs.
func (b *Budget) givenUp() string {
	if b.level == 0 {
		return "nothing"
	}
	return strings.Join(append([]string{"traces"}, b.off()...), ", ")
}

// ownUsage reads what this process used.
func ownUsage() (u Usage, err error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return u, fmt.Errorf("getrusage: %w", err)
	}
	u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return u, err
	}
	f := bytes.Fields(raw)
	if len(f) < 2 {
		return u, fmt.Errorf("/proc/self/statm: %q", raw)
	}
	pages, err := strconv.ParseUint(string(f[1]), 10, 64)
	if err != nil {
		return u, fmt.Errorf("/proc/self/statm: %w", err)
	}
	u.RSS = pages * uint64(os.Getpagesize())
	return u, nil
}
