package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

func TestHowTasksEnd(t *testing.T) {
	boom := errors.New("map create: \xff no room")
	for name, c := range map[string]struct {
		run     inspector.TaskRun
		do      func(*desk, inspector.TaskID)
		outcome inspector.TaskOutcome
		reason  string
		result  bool
	}{
		"panic": {run: func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
			panic("torn map")
		}, outcome: inspector.TaskFailed, reason: "task_panicked"},
		"panic after a partial result": {run: func(_ context.Context, _ inspector.Args, p func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
			p(nil)
			panic(nil)
		}, outcome: inspector.TaskFailed, reason: "task_panicked"},
		"error": {run: func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
			return nil, boom
		}, outcome: inspector.TaskFailed, reason: "task_failed"},
		"refusal": {run: func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
			return nil, &inspector.Refusal{Kind: "NOT_FOUND", Reason: inspector.ReasonPidGone, Msg: "gone"}
		}, outcome: inspector.TaskFailed, reason: "pid_gone"},
		"nothing": {run: func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
			return nil, nil
		}, outcome: inspector.TaskFailed, reason: "task_failed"},
		"cancelled":        {run: untilTold, do: func(d *desk, id inspector.TaskID) { d.Cancel(id) }, outcome: inspector.TaskCancelled, reason: "cancelled", result: true},
		"shed":             {run: untilTold, do: func(d *desk, _ inspector.TaskID) { d.Shed("CPU") }, outcome: inspector.TaskFailed, reason: "agent_budget", result: true},
		"its time is over": {run: untilTold, do: func(*desk, inspector.TaskID) { after(5*time.Second + taskGrace + time.Millisecond) }, outcome: inspector.TaskFailed, reason: "task_failed", result: true},
		"too large": {run: func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
			r := &inspector.TaskResult{StoppedFor: "cpu", Totals: map[string]uint64{}}
			for i := range 100_000 {
				r.Rows = append(r.Rows, inspector.ResultRow{Count: uint64(i)})
			}
			return r, nil
		}, outcome: inspector.TaskCompleted, result: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t, TaskConfig{}, c.run)
				id := d.start("trace_it", `{"duration_s":5}`)
				synctest.Wait()
				if c.do != nil {
					c.do(d, id)
					synctest.Wait()
				}
				end := d.ends(false)[id]
				if end == nil || end.Outcome != c.outcome || (len(end.Result) > 0) != c.result {
					t.Fatalf("ended as %+v", end)
				}
				if r := end.Refusal; c.reason != "" && (r == nil || r.Reason != c.reason || inspector.CleanText(r.Msg) != r.Msg) || c.reason == "" && r != nil {
					t.Errorf("refusal %+v", r)
				}
				d.Shed("")
				d.start("heavy_it", "{}") // the agent lives, and the place is free
			})
		})
	}
}

func TestATaskThatDoesNotStopIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		d := newDesk(t, TaskConfig{}, func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
			<-release
			return &inspector.TaskResult{}, nil
		})
		id := d.start("heavy_it", `{"duration_s":5}`)
		after(5*time.Second + taskGrace + abandonAfter - time.Second)
		if len(d.ends(false)) != 0 {
			t.Fatal("given up too soon")
		}
		after(2 * time.Second)
		end := d.ends(false)[id]
		if end == nil || end.Outcome != inspector.TaskFailed || end.Refusal.Reason != "task_failed" || !strings.Contains(end.Refusal.Msg, "heavy_it") {
			t.Fatalf("ended as %+v", end)
		}
		d.Taken(id)
		if r := d.Start(d.order("heavy_it", "{}")); r == nil || r.Reason != "too_many_heavy" {
			t.Errorf("its place was given away: %+v", r)
		}
		close(release)
		synctest.Wait()
		d.start("heavy_it", "{}")
		if len(d.ends(false)) != 0 {
			t.Error("its late result was told as a second end")
		}
	})
}

func TestTasksEndWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		tasks := NewTasks(TaskConfig{}, taskWords(), []Module{{Component: "c", Tasks: map[string]inspector.TaskRun{
			"trace_it": untilTold,
			"heavy_it": func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
				<-release
				return nil, nil
			},
		}}}, quiet())
		d := &desk{Tasks: tasks, t: t}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		good, stuck := d.start("trace_it", "{}"), d.start("heavy_it", "{}")
		synctest.Wait()
		began := time.Now()
		cancel()
		synctest.Wait()
		if end := d.ends(false)[good]; end == nil || end.Refusal.Reason != "agent_stopping" || len(end.Result) == 0 {
			t.Errorf("ended as %+v", end)
		}
		if r := d.Start(d.order("trace_it", "{}")); r == nil || r.Reason != "agent_stopping" {
			t.Errorf("started while stopping: %+v", r)
		}
		d.Taken(good)
		after(stopGrace)
		if end := d.ends(false)[stuck]; end == nil || end.Refusal.Reason != "agent_stopping" {
			t.Errorf("the stuck one ended as %+v", end)
		}
		d.Taken(stuck)
		if err := <-done; err == nil || !strings.Contains(err.Error(), "heavy_it") {
			t.Errorf("Run returned %v", err)
		}
		if took := time.Since(began); took > stopGrace {
			t.Errorf("took %v", took)
		}
		close(release)
	})
}

func TestEndsThatNobodyTakesAreBounded(t *testing.T) {
	rows := make([]inspector.ResultRow, 90)
	for i := range rows {
		rows[i].Labels = map[string]string{}
		for j := range 8 {
			rows[i].Labels[strings.Repeat("k", j+1)] = strings.Repeat("v", 512)
		}
	}
	for name, c := range map[string]struct{ rows, tasks, ends int }{"large ones": {90, 30, 30}, "many": {1, 200, maxEnds}} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t, TaskConfig{}, func(context.Context, inspector.Args, func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
				return &inspector.TaskResult{Rows: rows[:c.rows]}, nil
			})
			for range c.tasks {
				d.start("ask_it", "{}")
				synctest.Wait()
			}
			ends := d.ends(true)
			whole := 0
			for _, e := range ends {
				whole += len(e.Result)
				if len(e.Result) == 0 && e.Refusal.Reason != "memory_budget" {
					t.Errorf("%s: an end without its result: %+v", name, e.Refusal)
				}
			}
			if len(ends) != c.ends || whole > maxEndBytes || c.rows == 90 && whole < maxEndBytes/2 {
				t.Errorf("%s: %d ends with %d bytes are kept", name, len(ends), whole)
			}
			after(endLife + time.Second)
			if n := len(d.Updates(true)); n != 0 {
				t.Errorf("%s: %d ends are kept after a day", name, n)
			}
		})
	}
}

// Nothing is said of a task in the moment in which it ends but its end; one
// that goes on beyond its time is heard of again.
func TestNoNewsRightBeforeTheEnd(t *testing.T) {
	for name, over := range map[string]time.Duration{"in time": 0, "late": 1500 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t, TaskConfig{}, func(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
				r := &inspector.TaskResult{Totals: map[string]uint64{"seen": 1}}
				for end := time.Now().Add(time.Duration(args.Int(inspector.ArgDuration))*time.Second + over); time.Now().Before(end); {
					time.Sleep(10 * time.Millisecond)
					partial(r)
				}
				return r, nil
			})
			d.start("trace_it", `{"duration_s":2}`)
			began := time.Now()
			var news []time.Duration
			var end time.Duration
			for end == 0 {
				<-d.Ready()
				for _, u := range d.Updates(false) {
					if u.End != nil {
						end = time.Since(began)
						continue
					}
					news = append(news, time.Since(began))
				}
			}
			if want := 2*time.Second + over; end != want || len(news) == 0 {
				t.Errorf("%s: ended after %v, news %v", name, end, news)
			}
			late := false
			for _, at := range news {
				if (at - 2*time.Second).Abs() < 250*time.Millisecond {
					t.Errorf("%s: news after %v", name, at)
				}
				late = late || at > 2*time.Second
			}
			if late != (over > 0) {
				t.Errorf("%s: news %v", name, news)
			}
		})
	}
}

func TestPartialResultsAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, TaskConfig{}, func(ctx context.Context, _ inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
			r := &inspector.TaskResult{Totals: map[string]uint64{}}
			for i := range 400 {
				r.Rows = append(r.Rows, inspector.ResultRow{Count: 1, Labels: map[string]string{"a": strings.Repeat("x", 300)}})
				r.Totals["n"] = uint64(i)
				partial(r)
				time.Sleep(10 * time.Millisecond)
			}
			return r, nil
		})
		id := d.start("trace_it", "{}")
		var partials []inspector.TaskUpdate
		for range 80 {
			after(50 * time.Millisecond)
			for _, u := range d.Updates(false) {
				if len(u.Partial) > 0 {
					partials = append(partials, u)
				}
			}
		}
		if len(partials) < 3 || len(partials) > 5 {
			t.Errorf("%d partial results in 4 s", len(partials))
		}
		for _, p := range partials {
			var r inspector.TaskResult
			if err := json.Unmarshal(p.Partial, &r); err != nil || len(p.Partial) > inspector.MaxPartialBytes || p.ID != id {
				t.Errorf("%d bytes, %v", len(p.Partial), err)
			}
			if got := r.OtherCount + uint64(len(r.Rows)); got != r.Totals["n"]+1 {
				t.Errorf("rows and other rows count %d of %d", got, r.Totals["n"]+1)
			}
		}
		if bytes.Equal(partials[0].Partial, partials[1].Partial) {
			t.Error("the same partial result twice")
		}
	})
}
