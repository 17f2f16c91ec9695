package runner

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Times and bounds of tasks.
const (
	taskGrace    = 15 * time.Second // beyond its duration, for loading programs and naming symbols
	orderGrace   = time.Minute      // a deadline further away than MaxTaskSeconds and this is refused
	abandonAfter = 5 * time.Second  // how long a task may take to stop once it was told to
	stopGrace    = time.Second      // the same when the agent itself stops
	takeGrace    = time.Second      // how long Run waits at the end for the server to take what ended
	partialEvery = time.Second      // between partial results, and between reports of progress

	rememberTasks = 1024 // ids that are not started a second time
	maxEnds       = 64   // ends that wait to be taken
	maxEndBytes   = 8 << 20
	endLife       = 24 * time.Hour
)

// AllowNone in TaskConfig.Allow forbids every task.
const AllowNone = "none"

// TaskConfig tunes Tasks.
type TaskConfig struct {
	// Allow names the task kinds that this node does on request. Empty: all
	// that only look (scopes read and diagnose).
	Allow []string
	// Off says why a component, or one of the signals that a task stands on,
	// is off; empty: it is not. Nil: nothing is ever off.
	Off func(component string, signals []string) string
}

// Tasks does what the server asks of this node, within a white list: the
// kinds that the registry names and a module of this node can do. It trusts
// nothing in an order. Make it with NewTasks; its methods are safe for
// concurrent use and do not block.
type Tasks struct {
	cfg    TaskConfig
	log    *slog.Logger
	kinds  *inspector.Registry
	runs   map[string]inspector.TaskRun
	ready  chan struct{} // one token: Updates has something
	taken  chan struct{} // one token: Taken was called
	halted chan struct{} // closed when the agent no longer waits for tasks to stop
	ending sync.WaitGroup

	mu       sync.Mutex
	tasks    map[inspector.TaskID]*task // running, or ended and not taken
	seen     map[inspector.TaskID]bool
	seenRing []inspector.TaskID
	slots    map[inspector.Cost]int
	working  map[string]int // TaskRuns that have not returned, by kind
	shed     string         // why traces are refused; empty: they are not
	stopping bool
}

// task is one accepted order. Its fields below end change under Tasks.mu.
type task struct {
	id       inspector.TaskID
	kind     inspector.TaskKind
	args     inspector.Args
	ctx      context.Context
	cancel   context.CancelCauseFunc
	began    time.Time
	lasts    time.Duration // 0: no duration was asked for
	deadline time.Time

	end        *inspector.TaskEnd
	ended      time.Time
	news       bool
	partial    []byte
	newPartial bool
	encoded    time.Time // when a partial result was last encoded
}

// NewTasks makes the executor; it starts nothing. What a module can do and the
// registry does not name is left out.
func NewTasks(cfg TaskConfig, kinds *inspector.Registry, modules []Module, log *slog.Logger) *Tasks {
	t := &Tasks{
		cfg: cfg, log: log, kinds: kinds, runs: map[string]inspector.TaskRun{},
		ready: make(chan struct{}, 1), taken: make(chan struct{}, 1), halted: make(chan struct{}),
		tasks: map[inspector.TaskID]*task{}, seen: map[inspector.TaskID]bool{},
		slots: map[inspector.Cost]int{}, working: map[string]int{},
	}
	for _, m := range modules {
		for name, run := range m.Tasks {
			if k, ok := kinds.Task(name); ok && k.Component == m.Component && run != nil {
				t.runs[name] = run
			}
		}
	}
	return t
}

// Hello says which tasks run or have ended and were not taken, and which kinds
// this node does.
func (t *Tasks) Hello() (running []inspector.TaskID, kinds []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.inOrder() {
		running = append(running, k.id)
	}
	for _, name := range slices.Sorted(maps.Keys(t.runs)) {
		if k, _ := t.kinds.Task(name); t.allowed(k) {
			kinds = append(kinds, name)
		}
	}
	return running, kinds
}

// Start begins a task, or says why not.
func (t *Tasks) Start(o inspector.TaskOrder) *inspector.Refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	k, args, refusal := t.check(o, now)
	if refusal != nil {
		t.log.Info("task refused", "task", o.ID, "kind", inspector.CleanText(clip(o.Kind, 64)), "by", principal(o), "reason", refusal.Reason)
		return refusal
	}
	x := &task{id: o.ID, kind: k, args: args, began: now, deadline: o.Deadline, lasts: time.Duration(args.Int(inspector.ArgDuration)) * time.Second}
	if x.lasts > 0 && now.Add(x.lasts+taskGrace).Before(x.deadline) {
		x.deadline = now.Add(x.lasts + taskGrace)
	}
	// It belongs to no caller's context: an end is an end of the task, of its
	// time, or of the agent, and the cause says which.
	x.ctx, x.cancel = context.WithCancelCause(context.Background())
	t.remember(o.ID)
	t.tasks[o.ID] = x
	t.slots[k.Cost]++
	t.working[k.Name]++
	t.ending.Add(1)
	t.log.Info("task started", "task", o.ID, "kind", k.Name, "by", principal(o))
	go t.supervise(x, t.runs[k.Name])
	return nil
}

func principal(o inspector.TaskOrder) string { return inspector.CleanText(clip(o.Principal, 128)) }

func (t *Tasks) remember(id inspector.TaskID) {
	if len(t.seenRing) == rememberTasks {
		delete(t.seen, t.seenRing[0])
		t.seenRing = t.seenRing[1:]
	}
	t.seen[id], t.seenRing = true, append(t.seenRing, id)
}

// Cancel asks a running task to end. One that has ended stays as it is.
func (t *Tasks) Cancel(id inspector.TaskID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.tasks[id]; x != nil && x.end == nil {
		x.cancel(errCancelled)
	}
}

// Taken forgets the end of a task, which the server now holds.
func (t *Tasks) Taken(id inspector.TaskID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.tasks[id]; x != nil && x.end != nil {
		delete(t.tasks, id)
		token(t.taken)
	}
}

// Ready holds one token when Updates has something to say.
func (t *Tasks) Ready() <-chan struct{} { return t.ready }

// Updates are the news since the last call. fresh says that the channel to the
// server is a new one, which has heard nothing yet.
func (t *Tasks) Updates(fresh bool) (out []inspector.TaskUpdate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prune(time.Now())
	for _, x := range t.inOrder() {
		if !x.news && !fresh {
			continue
		}
		u := inspector.TaskUpdate{ID: x.id, Permille: x.permille(time.Now()), End: x.end}
		if x.end == nil && (x.newPartial || fresh) {
			u.Partial = x.partial
		}
		x.news, x.newPartial = false, false
		out = append(out, u)
	}
	return out
}

func (x *task) permille(now time.Time) uint32 {
	switch {
	case x.end != nil:
		return 1000
	case x.lasts <= 0:
		return 0
	}
	return uint32(min(999, max(0, 1000*now.Sub(x.began)/x.lasts)))
}

func (t *Tasks) inOrder() []*task {
	return slices.SortedFunc(maps.Values(t.tasks), func(a, b *task) int {
		return cmp.Or(a.began.Compare(b.began), slices.Compare(a.id[:], b.id[:]))
	})
}

// Shed cancels the running traces and refuses new ones, for the given reason,
// because the agent is over its budget. An empty reason allows them again.
func (t *Tasks) Shed(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shed = reason
	for _, x := range t.tasks {
		if reason != "" && x.end == nil && x.kind.Cost != inspector.CostQuery {
			x.cancel(refuseBudget(reason))
		}
	}
}

// Run waits for ctx to end. Then it ends every task with the reason
// agent_stopping and gives the ends a moment to be taken. It returns an error
// only when a task did not stop, naming it.
func (t *Tasks) Run(ctx context.Context) error {
	<-ctx.Done()
	t.mu.Lock()
	t.stopping = true
	for _, x := range t.tasks {
		x.cancel(refuseStopping())
	}
	t.mu.Unlock()
	stopped := make(chan struct{})
	go func() { t.ending.Wait(); close(stopped) }()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-stopped:
	case <-grace.C:
	}
	close(t.halted)
	<-stopped
	t.awaitTaken()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.working) > 0 {
		return fmt.Errorf("tasks that did not stop: %s", strings.Join(slices.Sorted(maps.Keys(t.working)), ", "))
	}
	return nil
}

// awaitTaken returns when every end has been taken, or after takeGrace.
func (t *Tasks) awaitTaken() {
	late := time.NewTimer(takeGrace)
	defer late.Stop()
	for {
		t.mu.Lock()
		left := len(t.tasks)
		t.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-t.taken:
		case <-late.C:
			return
		}
	}
}

// token puts a token into a channel that holds one.
func token(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
