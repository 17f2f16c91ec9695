package runner

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
)

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// taskWords are a trace, a heavy trace, a query and a kind of a scope that is
// not allowed by default.
func taskWords() *inspector.Registry {
	args := append(inspector.TraceArgs(60), inspector.Arg{Name: "device", Kind: inspector.TextArg, Max: 32})
	kind := func(name string, scope inspector.TaskScope, cost inspector.Cost, targets ...string) inspector.TaskKind {
		return inspector.TaskKind{Name: name, Title: name, Help: name, Scope: scope, Cost: cost, Args: args, Targets: targets, Signals: []string{"one"}}
	}
	var r inspector.Registry
	r.Add(inspector.Component{Name: "c", Title: "C", Signals: []string{"one"}, Tasks: []inspector.TaskKind{
		kind("trace_it", inspector.ScopeDiagnose, inspector.CostTrace),
		kind("trace_target", inspector.ScopeDiagnose, inspector.CostTrace, "device"),
		kind("heavy_it", inspector.ScopeDiagnose, inspector.CostHeavy),
		kind("ask_it", inspector.ScopeRead, inspector.CostQuery),
		kind("act_it", inspector.ScopeAct, inspector.CostQuery),
		kind("not_built", inspector.ScopeRead, inspector.CostQuery),
	}})
	return &r
}

var allKinds = []string{"trace_it", "trace_target", "heavy_it", "ask_it", "act_it"}

// desk is an executor under test; all its kinds run the same code.
type desk struct {
	*Tasks
	t    *testing.T
	last uint64
}

func newDesk(t *testing.T, cfg TaskConfig, run inspector.TaskRun) *desk {
	runs := map[string]inspector.TaskRun{}
	for _, k := range allKinds {
		runs[k] = run
	}
	runs["not_named"] = run
	d := &desk{Tasks: NewTasks(cfg, taskWords(), []Module{{Component: "c", Tasks: runs}}, quiet()), t: t}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return d
}

func (d *desk) order(kind, args string) inspector.TaskOrder {
	d.last++
	o := inspector.TaskOrder{Kind: kind, Args: []byte(args), Principal: "user:u", Scopes: []string{"telltale:read", "telltale:diagnose"},
		StartBefore: time.Now().Add(10 * time.Second), Deadline: time.Now().Add(90 * time.Second)}
	binary.BigEndian.PutUint64(o.ID[:], d.last)
	return o
}

func (d *desk) start(kind, args string) inspector.TaskID {
	d.t.Helper()
	o := d.order(kind, args)
	if r := d.Start(o); r != nil {
		d.t.Fatalf("%s %s refused: %+v", kind, args, r)
	}
	return o.ID
}

// ends returns the ends among the updates.
func (d *desk) ends(fresh bool) map[inspector.TaskID]*inspector.TaskEnd {
	out := map[inspector.TaskID]*inspector.TaskEnd{}
	for _, u := range d.Updates(fresh) {
		if u.End != nil {
			out[u.ID] = u.End
		}
	}
	return out
}

// untilTold looks until its context ends, then gives what it has.
func untilTold(ctx context.Context, _ inspector.Args, _ func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	<-ctx.Done()
	return &inspector.TaskResult{Totals: map[string]uint64{"seen": 1}}, ctx.Err()
}

// forItsTime looks for the duration asked for.
func forItsTime(ctx context.Context, args inspector.Args, _ func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
	select {
	case <-time.After(time.Duration(args.Int(inspector.ArgDuration)) * time.Second):
		return &inspector.TaskResult{Totals: map[string]uint64{"seconds": uint64(args.Int(inspector.ArgDuration))}}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestEachRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		off := ""
		d := newDesk(t, TaskConfig{Off: func(string, []string) string { return off }}, untilTold)
		for name, c := range map[string]struct {
			kind, args   string
			change       func(*inspector.TaskOrder)
			reason, word string
		}{
			"unknown kind":      {kind: "rm_rf", reason: "unknown_task"},
			"not in a module":   {kind: "not_built", reason: "unknown_task"},
			"not in the words":  {kind: "not_named", reason: "unknown_task"},
			"not allowed":       {kind: "act_it", reason: "not_allowed", word: "tasks-allow"},
			"scope missing":     {kind: "trace_it", change: func(o *inspector.TaskOrder) { o.Scopes = []string{"telltale:read"} }, reason: "insufficient_scope", word: "telltale:diagnose"},
			"late":              {kind: "trace_it", change: func(o *inspector.TaskOrder) { o.StartBefore = time.Now() }, reason: "past_deadline"},
			"no start deadline": {kind: "trace_it", change: func(o *inspector.TaskOrder) { o.StartBefore = time.Time{} }, reason: "past_deadline"},
			"over":              {kind: "trace_it", change: func(o *inspector.TaskOrder) { o.Deadline = time.Now().Add(-time.Second) }, reason: "past_deadline"},
			"for ever":          {kind: "trace_it", change: func(o *inspector.TaskOrder) { o.Deadline = time.Now().Add(time.Hour) }, reason: "invalid_argument", word: "360"},
			"no object":         {kind: "trace_it", args: `[1]`, reason: "invalid_argument"},
			"no JSON":           {kind: "trace_it", args: `{"duration_s":`, reason: "invalid_argument"},
			"empty":             {kind: "trace_it", args: ` `, reason: "invalid_argument"},
			"two objects":       {kind: "trace_it", args: `{}{}`, reason: "invalid_argument", word: "follows"},
			"a key twice":       {kind: "trace_it", args: `{"duration_s":1,"duration_s":2}`, reason: "invalid_argument", word: "twice"},
			"not UTF-8":         {kind: "trace_it", args: "{\"device\":\"\xff\"}", reason: "invalid_argument", word: "UTF-8"},
			"too long":          {kind: "trace_it", args: `{"device":"` + strings.Repeat("x", 64<<10) + `"}`, reason: "invalid_argument", word: "65536"},
			"unknown argument":  {kind: "trace_it", args: `{"colour":"red"}`, reason: "unknown_argument", word: "duration_s"},
			"out of bounds":     {kind: "trace_it", args: `{"duration_s":61}`, reason: "out_of_bounds", word: "60"},
			"zero":              {kind: "trace_it", args: `{"duration_s":0}`, reason: "out_of_bounds"},
			"negative":          {kind: "trace_it", args: `{"duration_s":-5}`, reason: "out_of_bounds"},
			"events":            {kind: "trace_it", args: `{"max_events":1000000000}`, reason: "out_of_bounds"},
			"malformed":         {kind: "trace_it", args: `{"duration_s":{"a":1}}`, reason: "malformed"},
			"no target":         {kind: "trace_target", args: `{}`, reason: "no_target", word: "device"},
		} {
			o := d.order(c.kind, c.args)
			if c.args == "" {
				o.Args = []byte("{}")
			}
			if c.change != nil {
				c.change(&o)
			}
			r := d.Start(o)
			if r == nil {
				t.Errorf("%s: accepted", name)
				continue
			}
			if r.Reason != c.reason || r.Kind == "" || r.Msg == "" || r.Next == "" || !strings.Contains(r.Msg+r.Next, c.word) {
				t.Errorf("%s: refused as %+v, want %s with %q", name, *r, c.reason, c.word)
			}
		}
		if running, kinds := d.Hello(); len(running) != 0 || !cmp.Equal(kinds, []string{"ask_it", "heavy_it", "trace_it", "trace_target"}) {
			t.Errorf("hello: %v %v", running, kinds)
		}

		off = "switched off by a test"
		if r := d.Start(d.order("ask_it", "{}")); r == nil || r.Reason != "feature_off" || !strings.Contains(r.Msg, off) {
			t.Errorf("module off: %+v", r)
		}
		off = ""
		o := d.order("ask_it", "{}")
		if r := d.Start(o); r != nil {
			t.Fatal(r)
		}
		if r := d.Start(o); r == nil || r.Reason != "duplicate_task" {
			t.Errorf("twice: %+v", r)
		}
		d.Cancel(o.ID)
		synctest.Wait()
		d.Taken(o.ID)
		if r := d.Start(o); r == nil || r.Reason != "duplicate_task" {
			t.Errorf("again after its end was taken: %+v", r)
		}
		d.Shed("over by a test")
		if r := d.Start(d.order("trace_it", "{}")); r == nil || r.Reason != "agent_budget" || !strings.Contains(r.Msg, "over by a test") {
			t.Errorf("over the budget: %+v", r)
		}
		if r := d.Start(d.order("ask_it", "{}")); r != nil {
			t.Errorf("a query while over the budget: %+v", r)
		}
	})
}

func TestOwnAllowList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, TaskConfig{Allow: []string{"act_it"}}, untilTold)
		o := d.order("act_it", "{}")
		o.Scopes = []string{"telltale:act"}
		if r := d.Start(o); r != nil {
			t.Errorf("listed: %+v", r)
		}
		if r := d.Start(d.order("trace_it", "{}")); r == nil || r.Reason != "not_allowed" {
			t.Errorf("not listed: %+v", r)
		}
		none := newDesk(t, TaskConfig{Allow: []string{AllowNone}}, untilTold)
		if r := none.Start(none.order("ask_it", "{}")); r == nil || r.Reason != "not_allowed" {
			t.Errorf("none: %+v", r)
		}
		if _, kinds := none.Hello(); len(kinds) != 0 {
			t.Errorf("none offers %v", kinds)
		}
	})
}

func TestLimitsUnderParallelStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, TaskConfig{}, untilTold)
		var orders []inspector.TaskOrder
		for range 100 {
			for _, k := range []string{"heavy_it", "trace_it", "ask_it"} {
				orders = append(orders, d.order(k, "{}"))
			}
		}
		var mu sync.Mutex
		accepted, reasons := map[string]int{}, map[string]int{}
		var ids []inspector.TaskID
		var all sync.WaitGroup
		for _, o := range orders {
			all.Go(func() {
				r := d.Start(o)
				mu.Lock()
				defer mu.Unlock()
				if r != nil {
					reasons[r.Reason]++
					return
				}
				accepted[o.Kind]++
				ids = append(ids, o.ID)
			})
		}
		all.Wait()
		if traces := accepted["heavy_it"] + accepted["trace_it"]; accepted["heavy_it"] > 1 || traces != 4 || accepted["ask_it"] != 16 {
			t.Errorf("accepted %v", accepted)
		}
		if len(reasons) < 2 || reasons["too_many_queries"] != 84 {
			t.Errorf("refused for %v", reasons)
		}
		for _, id := range ids {
			d.Cancel(id)
			d.Cancel(id)
		}
		synctest.Wait()
		if ends := d.ends(false); len(ends) != 20 {
			t.Errorf("%d ends", len(ends))
		}
		for range 4 {
			d.start("trace_it", "{}") // the places are free again
		}
		if r := d.Start(d.order("heavy_it", "{}")); r == nil || r.Reason != "too_many_traces" {
			t.Errorf("a fifth trace: %+v", r)
		}
	})
}

func TestHeavyOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, TaskConfig{}, untilTold)
		d.start("heavy_it", "{}")
		if r := d.Start(d.order("heavy_it", "{}")); r == nil || r.Reason != "too_many_heavy" || !strings.Contains(r.Msg, "1") {
			t.Errorf("a second one: %+v", r)
		}
		d.start("trace_it", "{}")
	})
}

func TestATaskThatEndsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, TaskConfig{}, forItsTime)
		id := d.start("trace_it", `{"duration_s":10}`)
		after(5*time.Second + time.Millisecond)
		<-d.Ready()
		if u := d.Updates(false); len(u) != 1 || u[0].Permille < 490 || u[0].Permille > 510 || u[0].End != nil {
			t.Errorf("half way: %+v", u)
		}
		if running, _ := d.Hello(); len(running) != 1 || running[0] != id {
			t.Errorf("running %v", running)
		}
		after(5 * time.Second)
		<-d.Ready()
		end := d.ends(false)[id]
		if end == nil || end.Outcome != inspector.TaskCompleted || end.Refusal != nil || !strings.Contains(string(end.Result), `"seconds":10`) {
			t.Fatalf("ended as %+v", end)
		}
		if len(d.Updates(false)) != 0 {
			t.Error("the end was told twice on one channel")
		}
		if d.ends(true)[id] == nil {
			t.Error("a new channel does not hear of the end")
		}
		d.Taken(id)
		d.Taken(id)
		if running, _ := d.Hello(); len(running) != 0 || len(d.Updates(true)) != 0 {
			t.Error("a taken end is still kept")
		}
	})
}
