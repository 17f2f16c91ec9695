package tasks

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// The ticket's life: a result for a day, the task for a week.
func TestTicketLife(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	id := w.began(w.s, w.me(), drops("n1", 5))
	w.must(ch.Finished(ctx, id, done(1)))
	count := func(table string) (n int) {
		w.must(w.conn.QueryRow(ctx, `select count(*) from `+table).Scan(&n))
		return n
	}
	w.advance(TicketLife - time.Second)
	w.must(w.s.expire(ctx))
	w.check("within its life", w.get(w.s, id), Completed, "")
	w.advance(time.Second)
	for range 2 { // before and after the result is deleted
		task := w.get(w.s, id)
		w.check("over", task, Expired, "ticket_expired")
		if task.Runs[0].Result != nil || task.Runs[0].Next == "" {
			t.Errorf("%+v", task.Runs[0])
		}
		w.must(w.s.expire(ctx))
	}
	if task, result := count("task"), count("task_result"); task != 1 || result != 0 {
		t.Error(task, result)
	}
	w.advance(keptFor)
	w.must(w.s.expire(ctx))
	if task, run := count("task"), count("task_run"); task != 0 || run != 0 {
		t.Error(task, run)
	}
	if _, err := w.s.Get(ctx, w.me(), id); ofError(err) != "NOT_FOUND unknown_ticket ticket_id" {
		t.Error(err)
	}
}

// What a node sends is kept within the product's bounds.
func TestResultBounds(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	big := result(1)
	for i := range 150 {
		big.Rows = append(big.Rows, inspector.ResultRow{Count: uint64(i)})
		big.Samples = append(big.Samples, inspector.ResultSample{At: start})
	}
	id := w.began(w.s, w.me(), drops("n1", 5))
	w.must(ch.Finished(ctx, id, Outcome{State: Completed, Result: big}))
	r := w.get(w.s, id).Runs[0].Result
	if len(r.Rows) != inspector.MaxResultRows || len(r.Samples) != inspector.MaxResultSamples || r.OtherRows != 51 || r.Truncated != 100 || r.Rows[1].Labels == nil {
		t.Errorf("%d rows, %d samples, %d other, %d truncated", len(r.Rows), len(r.Samples), r.OtherRows, r.Truncated)
	}
	huge := result(1)
	huge.Profile = &inspector.Profile{Folded: []inspector.FoldedStack{{Stack: string(make([]byte, inspector.MaxResultBytes/2))}}}
	id = w.began(w.s, w.me(), drops("n1", 5))
	w.must(ch.Finished(ctx, id, Outcome{State: Completed, Result: huge}))
	w.check("too large", w.get(w.s, id), Failed, inspector.ReasonResultTooLarge)
	id = w.began(w.s, w.me(), drops("n1", 5))
	w.must(ch.Finished(ctx, id, Outcome{State: Completed}))
	w.check("no result", w.get(w.s, id), Failed, inspector.ReasonTaskFailed)
}

// Numbers that no machine counts neither wrap around nor reach a reader that
// would read others; what follows from them is a number.
func TestResultNumbers(t *testing.T) {
	const huge = math.MaxUint64
	r := &inspector.TaskResult{Totals: map[string]uint64{"a": huge, "b": 7}, Lost: huge, OtherRows: huge, OtherCount: huge, Truncated: huge, Unknown: huge, SampleRate: huge,
		Samples: []inspector.ResultSample{{Values: map[string]float64{"big": 1 << 60, "ok": 1}}},
		Next:    []inspector.NextStep{{Args: map[string]any{"big": 1e300, "ok": 1.0, "metrics": []any{"a.b", 1.0}, "none": []any{}}}},
		Profile: &inspector.Profile{Hz: huge, CPUs: huge, Seconds: math.MaxFloat64, Samples: huge, Kernel: huge, Unnamed: huge, LeftOut: huge,
			Top: []inspector.ProfileFrame{{Self: huge, Total: huge, Share: 1e308}}, Folded: []inspector.FoldedStack{{Count: huge}}}}
	for range inspector.MaxResultRows + 2 {
		r.Rows = append(r.Rows, inspector.ResultRow{Count: huge, Values: map[string]float64{"big": -1e308, "ok": -1}})
	}
	_, b, refusal := encode(r, inspector.MaxResultBytes, span{start, start.Add(time.Second)})
	if refusal != nil {
		t.Fatal(refusal)
	}
	var check func(at string, v any)
	check = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, v := range v {
				check(at+"."+k, v)
			}
		case []any:
			for _, v := range v {
				check(at, v)
			}
		case json.Number:
			if f, err := v.Float64(); err != nil || math.Abs(f) >= 1<<53 {
				t.Errorf("%s: %s", at, v)
			}
		}
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var all map[string]any
	if err := d.Decode(&all); err != nil {
		t.Fatal(err)
	}
	check("", all)
	c := cleanResult(*r)
	if c.Totals["b"] != 7 || c.OtherCount != inspector.MaxCount || len(c.Rows[0].Values) != 1 || len(c.Samples[0].Values) != 1 || len(c.Next[0].Args) != 2 || len(c.Next[0].Args["metrics"].([]any)) != 1 {
		t.Errorf("%+v", c)
	}
	if p := c.Profile; math.IsInf(float64(p.Hz*p.CPUs)*p.Seconds, 0) || p.Hz*p.CPUs/p.CPUs != p.Hz || p.Top[0].Share != 1 {
		t.Errorf("%+v", p)
	}
}

// Times that a node makes up reach nobody; those of a clock that is an hour
// off at most stay as they are.
func TestResultTimes(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	year := func(y int) time.Time { return time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC) }
	at := func(d time.Duration) time.Time { return start.Add(d) }
	for name, c := range map[string]struct {
		from, to time.Time
		samples  []time.Time
		keep     bool // from and to
		left     int
	}{
		"exact":              {at(0), at(5 * time.Second), []time.Time{at(time.Second)}, true, 1},
		"skewed":             {at(50 * time.Minute), at(50*time.Minute + 5*time.Second), []time.Time{at(50*time.Minute + time.Second), at(0)}, true, 1},
		"behind":             {at(-time.Hour), at(5*time.Second - time.Hour), []time.Time{at(-time.Hour)}, true, 1},
		"before its run":     {at(-2 * time.Hour), at(time.Second), []time.Time{at(time.Second)}, false, 1},
		"after its run":      {at(0), at(2 * time.Hour), []time.Time{at(-2 * time.Minute)}, false, 0},
		"longer":             {at(-30 * time.Minute), at(30 * time.Minute), nil, false, 0},
		"backwards":          {at(5 * time.Second), at(0), nil, false, 0},
		"the first year":     {time.Time{}, year(1), []time.Time{{}, year(1), at(time.Second)}, false, 1},
		"the last year":      {year(1), year(8999), []time.Time{year(8999), year(2262)}, false, 0},
		"an overflow":        {year(1677), year(2262), []time.Time{year(2262)}, false, 0},
		"samples of another": {at(0), at(5 * time.Second), []time.Time{year(1), at(time.Second), year(2262)}, true, 1},
	} {
		w.clock.Store(start.UnixNano())
		id := w.began(w.s, w.me(), drops("n1", 5))
		w.must(ch.Accepted(ctx, id))
		w.advance(5 * time.Second)
		r := result(1)
		r.From, r.To = c.from, c.to
		for _, e := range c.samples {
			r.Samples = append(r.Samples, inspector.ResultSample{At: e})
		}
		w.must(ch.Progress(ctx, id, Progress{Partial: r}))
		w.must(w.s.write(ctx))
		for range 2 { // the partial result, then the whole
			got := w.get(w.s, id).Runs[0].Result
			from, to := c.from, c.to
			if !c.keep {
				from, to = at(0), at(5*time.Second)
			}
			notes := 0
			if !c.keep {
				notes++
			}
			if c.left < len(c.samples) {
				notes++
			}
			if got == nil || !got.From.Equal(from) || !got.To.Equal(to) || len(got.Samples) != c.left || len(got.Notes) != notes || int(got.Truncated) != len(c.samples)-c.left {
				t.Errorf("%s: %+v", name, got)
			}
			w.must(ch.Finished(ctx, id, Outcome{State: Completed, Result: r}))
		}
	}
	// The end of a run that this channel was not told of.
	id := w.began(w.s, w.me(), drops("n1", 5))
	ch.drop(id)
	r := result(1)
	r.From, r.To = year(1), year(9000)
	w.must(ch.Finished(ctx, id, Outcome{State: Completed, Result: r}))
	if got := w.get(w.s, id).Runs[0].Result; !got.To.Equal(w.now()) || got.To.Sub(got.From) != longestRun {
		t.Errorf("%v to %v", got.From, got.To)
	}
}

// What is handed to who waits on the replica that stored it is what the rows
// say, however the run ended.
func TestTheHandedEndIsTheStoredOne(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	why := &inspector.Refusal{Kind: "UNAVAILABLE", Reason: "task_failed", Arg: "pid", Msg: "it broke", Next: "mend it"}
	rich := func() *inspector.TaskResult { // everything that a result can have, and everything empty
		at := w.now().In(time.FixedZone("", 3600)).Add(123456789)
		return &inspector.TaskResult{From: at.Add(-time.Second), To: at, Totals: map[string]uint64{"drops": 1, "most": 1 << 63},
			Rows: []inspector.ResultRow{
				{Labels: map[string]string{"reason": "X\xff"}, Count: 3, Values: map[string]float64{"p99_us": 1.25, "odd": math.NaN()}, Stack: []string{"a", "b"}, Benign: true},
				{Labels: map[string]string{}, Values: map[string]float64{"odd": math.Inf(1)}, Stack: []string{}},
			},
			Samples: []inspector.ResultSample{{At: at, Labels: map[string]string{"a": "b"}, Values: map[string]float64{}, Stack: []string{"c"}}, {At: at.Add(time.Hour)}},
			Profile: &inspector.Profile{Hz: 99, CPUs: 2, Seconds: 1.5, Samples: 7, Top: []inspector.ProfileFrame{{Function: "f", Module: "m", Self: 1, Total: 2, Share: 0.5}}},
			Lost:    1, OtherRows: 2, OtherCount: 3, Truncated: 4, SampleRate: 5, Unknown: 6, StoppedFor: "cpu", Notes: []string{"note\u202e", ""},
			Next: []inspector.NextStep{{Tool: "list_events", Args: map[string]any{"n": 2.0, "yes": true, "s": "x", "list": []any{"a", 1.0}, "none": nil}, Why: "why"}, {}}}
	}
	late := func() *inspector.TaskResult { // every sample lies outside of the run
		r := rich()
		r.Samples, r.Profile, r.Notes, r.Next, r.Rows = r.Samples[1:], &inspector.Profile{}, []string{}, []inspector.NextStep{}, nil
		return r
	}
	for name, o := range map[string]Outcome{
		"completed": done(9),
		"rich":      {State: Completed, Result: rich()},
		"late":      {State: Completed, Result: late()},
		"and bad":   {State: Failed, Result: rich(), Refusal: why},
		"failed":    {State: Failed, Result: result(3), Refusal: why},
		"cancelled": {State: Cancelled, Result: result(4)},
		"bare":      {State: Failed, Refusal: why}, // its partial result is in the database alone
	} {
		for _, begun := range []bool{true, false} {
			for _, who := range []tenants.Scope{w.me(), caller(w.a, tenants.Diagnose, tenants.Selector{Labels: map[string]string{"env": "test"}})} {
				req := drops("n1", 2)
				req.Args["max_events"] = 17.0
				got := w.do(ctx, w.s, who, req, DoOptions{})
				d := w.n1.order()
				if begun {
					w.must(ch.Accepted(ctx, d.ID))
					w.must(ch.Progress(ctx, d.ID, Progress{Permille: 300, Partial: result(1)}))
					w.must(w.s.write(ctx))
				}
				w.advance(time.Second + 1234567)
				w.must(ch.Finished(ctx, d.ID, o))
				a := w.wait(got)
				if a.err != nil {
					t.Fatalf("%s: %v", name, a.err)
				}
				if diff := cmp.Diff(w.get(w.s2, d.ID), a.t); diff != "" {
					t.Errorf("%s: stored and handed: %s", name, diff)
				}
			}
		}
	}
}
