package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/symbols"
)

// Slots of a task's counts map; they mirror enum count in bpf/task.h.
const (
	countSeen = iota
	countMatched
	countUnknown
	countOverflow
	countRingLost
	countTruncated
	countSpent
	countOwnersMade
	countListenersMade
	countConnsMade
	taskCounts // the kind's own begin here
	countSlots = taskCounts + 16
)

// plan is what tells one kind of task from another.
type plan struct {
	load     func() (*ebpf.CollectionSpec, error)
	programs []bpfload.Program // in the order in which they attach
	needed   []string          // without these the task cannot be done
	claimed  int               // slot of counts that takes off the unknown ones; 0: none
	vars     map[string]any
	begin    func(*trace)     // once, before it counts; may be nil
	budget   uint64           // events of one CPU
	sample   func(raw []byte) // one record of the ring; called by one goroutine at a time, under lock
	result   func(*trace, *inspector.TaskResult) error
}

// owning are the programs that learn who owns a socket.
var owning = []bpfload.Program{{Name: "own_files", Attach: bpfload.Iterator}, {Name: "own_state"}, {Name: "own_send"}, {Name: "own_recv"}}

// trace is one task while it runs.
type trace struct {
	*tracer
	plan   plan
	facts  *facts
	filter *filter
	args   inspector.Args
	set    *bpfload.Set
	counts []uint64
	naming context.Context // set when the looking is over: for naming all that is shown
	named  time.Time       // when names were last looked up

	mu      sync.Mutex // of what sample and result share
	records uint64     // out of the ring
}

// tick is how often a task says what it knows.
const tick = time.Second

// run does a task from load to unload.
func (t *tracer) run(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult), prepare func(*trace) error) (*inspector.TaskResult, error) {
	f, err := t.facts()
	if err != nil {
		return nil, off(err.Error())
	}
	tr := &trace{tracer: t, facts: f, args: args}
	if tr.filter, err = t.newFilter(args, f); err != nil {
		return nil, err
	}
	if err := prepare(tr); err != nil {
		return nil, err
	}
	if err := tr.open(); err != nil {
		return nil, err
	}
	defer func() {
		if err := tr.set.Close(); err != nil {
			t.log.Warn("task not unloaded cleanly", "error", err)
		}
	}()
	t.names.Name(1) // groups that go away while the task runs keep their names
	tr.owners()
	return tr.watch(ctx, partial)
}

func off(reason string) error {
	return &inspector.Refusal{Kind: "FAILED_PRECONDITION", Reason: inspector.ReasonFeatureOff, Msg: reason, Next: "call get_node to see what this node can do; metrics_summary works without it"}
}

func (tr *trace) open() error {
	spec, err := tr.plan.load()
	if err != nil {
		return fmt.Errorf("prepare the task's programs: %w", err)
	}
	tr.plan.vars["event_budget"] = tr.plan.budget
	for _, vars := range []map[string]any{tr.filter.vars, tr.plan.vars} {
		for name, v := range vars {
			if variable := spec.Variables[name]; variable == nil {
				continue // this kind's programs do not look at it
			} else if err := variable.Set(v); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
		}
	}
	if tr.tune != nil {
		tr.tune(spec)
	}
	if err := bake(spec); err != nil {
		return err
	}
	tr.set = tr.cfg.Kernel.Open(spec, tr.plan.programs, nil, tr.log)
	for _, p := range tr.plan.needed {
		if f := tr.set.Failure(p); f != nil {
			_ = tr.set.Close()
			return off(f.Reason)
		}
	}
	if tr.filter.byOwner && !tr.set.Running("own_files") && !tr.set.Running("own_send") {
		f := tr.set.Failure("own_files")
		_ = tr.set.Close()
		return off("sockets cannot be told by their owner: " + f.Reason)
	}
	return nil
}

// bake writes the variables into their maps' first contents and forgets them:
// the library would map them into memory and so keep the maps alive until the
// next garbage collection.
func bake(spec *ebpf.CollectionSpec) error {
	for name, v := range spec.Variables {
		m := spec.Maps[v.SectionName]
		if m == nil || len(m.Contents) != 1 {
			return fmt.Errorf("variable %s has no place", name)
		}
		data, ok := m.Contents[0].Value.([]byte)
		if !ok || int(v.Offset)+len(v.Value) > len(data) {
			return fmt.Errorf("variable %s has no place", name)
		}
		copy(data[v.Offset:], v.Value)
	}
	spec.Variables = nil
	return nil
}

// owners learns who has which socket open now.
func (tr *trace) owners() (took time.Duration) {
	began := time.Now()
	if !tr.set.Running("own_files") {
		return 0
	}
	it, err := tr.set.Iterate("own_files")
	if err == nil {
		_, err = io.Copy(io.Discard, it)
		_ = it.Close()
	}
	if err != nil {
		tr.log.Debug("open sockets not looked through", "error", err)
	}
	return time.Since(began)
}

// maxLookThrough is how long looking through all open files may take to be
// done again while the task runs.
const maxLookThrough = 10 * time.Millisecond

// watch counts for the task's duration.
func (tr *trace) watch(ctx context.Context, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	read := make(chan error, 1)
	go func() { read <- bpfload.ReadRing(reading, tr.set.Map("ring"), tr.take) }()
	if tr.plan.begin != nil {
		tr.plan.begin(tr)
	}
	from := time.Now()
	if err := tr.arm(1); err != nil {
		return nil, err
	}
	note, ended := tr.wait(ctx, from, partial)
	err := tr.arm(0)
	to := time.Now()
	stop()
	err = errors.Join(err, <-read)
	if err != nil {
		return nil, err
	}
	naming, done := symbols.Until(ctx)
	defer done()
	tr.naming = naming
	tr.owners()
	res, err := tr.result(from, to)
	if err != nil {
		return nil, err
	}
	if naming.Err() != nil {
		res.Notes = append(res.Notes, "the time for naming ran out: kernel functions without a name may have one")
	}
	for _, slow := range []string{bpfload.Slow("loading the programs", tr.set.Took()), bpfload.Slow("reading and naming what was found", time.Since(to))} {
		if slow != "" {
			res.Notes = append(res.Notes, slow)
		}
	}
	if note != "" {
		res.Notes = append(res.Notes, note)
	}
	return res, ended
}

// wait lets the task run: until its time is over, it is cancelled, its budget
// is spent or its process is gone.
func (tr *trace) wait(ctx context.Context, from time.Time, partial func(*inspector.TaskResult)) (note string, err error) {
	end := time.NewTimer(time.Duration(tr.args.Int(inspector.ArgDuration)) * time.Second)
	defer end.Stop()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	took := time.Duration(0)
	for {
		if res, err := tr.result(from, time.Now()); err == nil {
			partial(res)
		} else {
			tr.log.Debug("no partial result", "error", err)
		}
		if tr.counts[countSpent] > 0 {
			return "the node's budget for one task was spent and it ended early: give filters that fewer packets pass, or a shorter duration", nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-end.C:
			return "", nil
		case <-ticks.C:
		}
		if p := tr.filter.process; p != nil && !p.alive() {
			return fmt.Sprintf("process %d ended after %.1f s, and the task with it", p.pid, time.Since(from).Seconds()), nil
		}
		if took < maxLookThrough {
			took = tr.owners()
		}
	}
}

// arm lets the programs count, or no more.
func (tr *trace) arm(on uint64) error {
	if err := tr.set.Map("control").Put(uint32(0), on); err != nil {
		return fmt.Errorf("switch the task's programs: %w", err)
	}
	return nil
}

// nameEvery is how often a running task looks up the names of what it found
// since: each time is a pass over all of the kernel's symbols.
const nameEvery = 5 * time.Second

// mayName says whether it is time to look names up, and how long that may go
// on.
func (tr *trace) mayName(from time.Time) (context.Context, bool) {
	if tr.naming != nil {
		return tr.naming, true
	}
	if tr.named.IsZero() {
		tr.named = from
	}
	if time.Since(tr.named) < nameEvery {
		return nil, false
	}
	tr.named = time.Now()
	return context.Background(), true
}

func (tr *trace) take(raw []byte) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.records++
	tr.plan.sample(raw)
}

// result is what is known now.
func (tr *trace) result(from, to time.Time) (*inspector.TaskResult, error) {
	counts, err := bpfload.Sums(tr.set.Map("counts"), countSlots)
	if err != nil {
		return nil, err
	}
	costs, err := tr.set.Costs()
	if err != nil {
		return nil, err
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.counts = counts
	r := &inspector.TaskResult{From: from, To: to, Totals: map[string]uint64{}, Rows: []inspector.ResultRow{},
		Lost: counts[countRingLost], Truncated: counts[countTruncated], Unknown: counts[countUnknown]}
	if tr.plan.claimed != 0 {
		r.Unknown -= min(r.Unknown, counts[tr.plan.claimed])
	}
	for _, c := range costs {
		if slices.Contains(tr.plan.needed, c.Program) {
			r.Lost += c.Missed // the kernel does not run a program inside itself
		}
	}
	if rate := tr.args.Int(inspector.ArgSampleRate); rate > 1 {
		r.SampleRate = uint64(rate)
	}
	if counts[countSpent] > 0 {
		r.StoppedFor = "cpu"
	}
	if n := counts[countRingLost]; n > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d samples found no room; totals and rows are counted in the kernel and hold them", n))
	}
	if r.Unknown > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d events belong to no known process or group and may be the target's; they are in no row", r.Unknown))
	}
	if err := tr.forgotten(r); err != nil {
		return nil, err
	}
	return r, tr.plan.result(tr, r)
}

// forgotten counts what the kernel's bounded memories of owners and
// connections gave up for want of room, once the looking is over.
func (tr *trace) forgotten(r *inspector.TaskResult) error {
	if tr.naming == nil {
		return nil
	}
	for _, m := range []struct {
		name, total, note string
		made              int
	}{
		{"owners", "owners_forgotten", "owners of sockets were forgotten for want of room: what their sockets did since may be in rows without a process, or among the unknown", countOwnersMade},
		{"listeners", "listeners_forgotten", "listening sockets were forgotten for want of room: connections that they accepted since may be in rows without a process", countListenersMade},
		{"conns", "connections_forgotten", "connections were forgotten for want of room: their lifetime is in no row, and their direction may be missing", countConnsMade},
	} {
		held := tr.set.Map(m.name)
		made := tr.counts[m.made]
		if held == nil || made == 0 {
			continue
		}
		there, err := entries(held)
		if err != nil {
			return fmt.Errorf("count %s: %w", m.name, err)
		}
		if made > there {
			r.Totals[m.total] = made - there
			r.Notes = append(r.Notes, fmt.Sprintf("%d %s", made-there, m.note))
		}
	}
	return nil
}

// entries counts what a map holds.
func entries(m *ebpf.Map) (n uint64, err error) {
	key := make([]byte, m.KeySize())
	for err = m.NextKey(nil, key); err == nil; err = m.NextKey(key, key) {
		if n++; n > uint64(m.MaxEntries()) {
			break // entries moved about under the walk
		}
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	return n, err
}

// wallClock turns the kernel's monotonic time into this machine's.
func wallClock(ns uint64) time.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(int64(ns) - ts.Nano()))
}
