package events

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestRecord(t *testing.T) {
	w := newWorld(t)
	r := w.report("eth0", 5*time.Second)
	r.Labels["interface"] = "eth\x1b[0"
	r.SampleCount, r.Truncated, r.Lost = 2, 3, 1
	w.record(w.n1, r)
	w.record(w.other, w.report("eth0", 5*time.Second))
	p := w.list(reader(w.a), ListQuery{})
	if len(p.Events) != 1 {
		t.Fatalf("%+v", p)
	}
	e := p.Events[0]
	want := Event{ID: e.ID, Node: w.n1.Principal.ID, Name: "n1", Kind: "drop_burst", Title: "Packets dropped", Severity: inspector.Warning, State: inspector.EventOpen,
		Origin: FromProbe, Scope: map[string]string{"interface": `eth\u001b[0`}, First: start.Add(-5 * time.Second), Last: start.Add(-5 * time.Second),
		Samples: 2, Truncated: 3, Cumulative: 5, Lost: 1, Fingerprint: r.Fingerprint.String(), Context: pending, NextTool: "trace_drops"}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Error(diff)
	}
	r.Last, r.State, r.SampleCount, r.Severity = w.now(), inspector.EventEnded, 9, inspector.Critical
	w.record(w.n1, r)
	d := w.get(reader(w.a), e.ID)
	if d.Severity != inspector.Critical || d.State != inspector.EventEnded || d.Samples != 9 || !d.Last.Equal(start) || d.ID != e.ID || len(d.Contexts) != 2 || d.Contexts[1].Why != whySeverity {
		t.Errorf("%+v", d)
	}
	if d.Help != "Packets were dropped." || len(d.Evidence) != 1 || d.Evidence[0].Labels["pid"] != "7" {
		t.Errorf("%+v", d)
	}
}

func TestRecurrence(t *testing.T) {
	w := newWorld(t)
	reports := []inspector.EventReport{}
	for i := range 4 {
		reports = append(reports, w.report("eth0", time.Duration(4-i)*time.Minute))
	}
	for _, i := range []int{2, 0, 3, 1} { // as they come
		w.record(w.n1, reports[i])
	}
	w.record(w.n1, w.report("eth1", time.Minute))
	w.record(w.n2, w.report("eth0", 30*time.Second))
	var got []int
	for _, e := range w.list(reader(w.a), ListQuery{Node: "n1"}).Events {
		if e.Scope["interface"] == "eth0" {
			got = append(got, e.Recurrence)
		}
	}
	if diff := cmp.Diff([]int{3, 2, 1, 0}, got); diff != "" {
		t.Error(diff)
	}
	if n := w.count(`select count(*) from event_context where why = 'recurrence'`); n != 2 {
		t.Errorf("%d snapshots of a recurrence, want those that were seen to recur when they came", n)
	}
}

func TestKeptOut(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	for name, c := range map[string]struct {
		change func(*inspector.EventReport)
		skew   time.Duration
		reason string
	}{
		"unknown kind":     {change: func(r *inspector.EventReport) { r.Kind = "x\x00y" }, reason: ReasonUnknown},
		"clock":            {skew: time.Hour + time.Second, reason: ReasonSkew},
		"clock behind":     {skew: -time.Hour - time.Second, reason: ReasonSkew},
		"too old":          {change: func(r *inspector.EventReport) { r.Begun, r.Last = start.Add(-25*time.Hour), start.Add(-25*time.Hour) }, reason: ReasonTooOld},
		"begun long ago":   {change: func(r *inspector.EventReport) { r.Begun = start.Add(-31 * day) }, reason: ReasonTooOld},
		"future":           {change: func(r *inspector.EventReport) { r.Last = start.Add(time.Minute) }, reason: ReasonFuture},
		"no beginning":     {change: func(r *inspector.EventReport) { r.Begun = time.Time{} }, reason: ReasonMalformed},
		"ends first":       {change: func(r *inspector.EventReport) { r.Last = r.Begun.Add(-1) }, reason: ReasonMalformed},
		"severity":         {change: func(r *inspector.EventReport) { r.Severity = "bad" }, reason: ReasonMalformed},
		"state":            {change: func(r *inspector.EventReport) { r.State = "" }, reason: ReasonMalformed},
		"no fingerprint":   {change: func(r *inspector.EventReport) { r.Fingerprint = inspector.Fingerprint{} }, reason: ReasonMalformed},
		"too many samples": {change: func(r *inspector.EventReport) { r.Samples = make([]inspector.EventSample, 11) }, reason: ReasonMalformed},
	} {
		r := w.report("eth0", time.Second)
		if c.change != nil {
			c.change(&r)
		}
		err := w.s.Record(ctx, w.n1, r, c.skew)
		if !fault.Is(err, fault.Invalid) || fault.Of(err).Reason != c.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.s.Record(ctx, reader(w.a), w.report("eth0", 0), 0); !fault.Is(err, fault.Denied) {
		t.Errorf("a reader reports: %v", err)
	}
	if n := w.count(`select count(*) from event`); n != 0 {
		t.Errorf("%d rows", n)
	}
	s := w.service(nil, Config{PerHour: 2})
	for i, want := range []string{"", "", ReasonTooMany} {
		err := s.Record(ctx, w.n1, w.report(fmt.Sprint("eth", i), 0), 0)
		if got := fault.Of(err); (got == nil) != (want == "") || got != nil && got.Reason != want {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if err := s.Record(ctx, w.n1, w.report("eth0", 0), 0); err != nil {
		t.Errorf("more of a record that is there: %v", err)
	}
	if err := s.Record(ctx, w.n1, w.reportOf("slow_io", map[string]string{"device": "sda"}, 0), 0); err != nil {
		t.Errorf("another kind meanwhile: %v", err)
	}
	for i, want := range []string{"", "", ReasonTooMany} { // that it began long ago is no way around the bound
		r := w.report(fmt.Sprint("old", i), 0)
		r.Begun = start.Add(-9*day + time.Duration(i)*time.Minute)
		if got := fault.Of(s.Record(ctx, w.n1, r, 0)); (got == nil) != (want == "") || got != nil && got.Reason != want {
			t.Errorf("old record %d: %v", i, got)
		}
	}
}

// Numbers that no node can have counted come out as ones that every reader of
// JSON reads as they are.
func TestHugeNumbers(t *testing.T) {
	w := newWorld(t)
	r := w.report("eth0", 0)
	r.SampleCount, r.Truncated, r.Lost = math.MaxUint64, math.MaxUint64, math.MaxUint64
	r.Samples = []inspector.EventSample{{At: start, Values: map[string]float64{"big": 1 << 60, "small": -1e308, "nan": math.NaN(), "ok": 5}}}
	w.record(w.n1, r)
	p := w.list(reader(w.a), ListQuery{})
	if len(p.Events) != 1 {
		t.Fatalf("%+v", p)
	}
	e := p.Events[0]
	if most := uint64(inspector.MaxCount); e.Samples > most || e.Cumulative > most || e.Cumulative < e.Samples || e.Lost > most {
		t.Errorf("%+v", e)
	}
	if d := w.get(reader(w.a), e.ID); len(d.Evidence) != 1 || len(d.Evidence[0].Values) != 1 || d.Evidence[0].Values["ok"] != 5 {
		t.Errorf("%+v", d.Evidence)
	}
}

func TestSkewIsCorrectedAndMarked(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	r := w.report("eth0", -30*time.Minute) // a clock half an hour ahead
	if err := w.s.Record(ctx, w.n1, r, 30*time.Minute); err != nil {
		t.Fatal(err)
	}
	// The estimate moves between two exchanges; the record stays one.
	r.Last, r.SampleCount = r.Last.Add(time.Second), 2
	w.advance(time.Second)
	if err := w.s.Record(ctx, w.n1, r, 30*time.Minute+40*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	p := w.list(reader(w.a), ListQuery{})
	if len(p.Events) != 1 || !p.Events[0].Corrected || !p.Events[0].First.Equal(start) || p.Events[0].Samples != 2 {
		t.Errorf("%+v", p.Events)
	}
	if n := w.count(`select count(*) from event where begun = $1 and skew_ms = 1800000`, r.Begun); n != 1 {
		t.Error("the node's own time is not kept")
	}
}

// TestExactlyOnce: whatever is repeated and in whatever order and at whatever
// replica it comes, the rows are the same.
func TestExactlyOnce(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	var reports []inspector.EventReport
	rnd := rand.New(rand.NewPCG(1, 2))
	for spell := range 6 {
		r := w.report(fmt.Sprint("eth", spell%2), time.Duration(60-9*spell)*time.Minute)
		for step := range 5 {
			r.Last = r.Begun.Add(time.Duration(step/2) * 20 * time.Second)
			r.SampleCount, r.Truncated = r.SampleCount+uint64(rnd.IntN(3)), r.Truncated+uint64(rnd.IntN(2))
			r.Lost = uint64(step)
			r.Samples = []inspector.EventSample{{At: r.Last, Labels: map[string]string{"step": fmt.Sprint(step)}}}
			switch {
			case step == 4:
				r.State = inspector.EventEnded
			case step == 2:
				r.State, r.Severity = inspector.EventFlapping, inspector.Critical
			}
			r.SampleCount++
			reports = append(reports, r)
		}
	}
	rows := func() string {
		var text string
		if err := w.conn.QueryRow(ctx, `select string_agg(x::text, E'\n' order by x.ts) from (select ts, id, severity, state, last_said, last_seen, sample_count, truncated, lost, recurrence, labels, samples from event) x`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		w.exec(`delete from event_context`)
		w.exec(`delete from event`)
		return text
	}
	for _, r := range reports {
		w.record(w.n1, r)
	}
	want := rows()
	other := w.service(nil, Config{})
	for round := range 8 {
		var list []inspector.EventReport
		for _, r := range reports {
			for range 1 + rnd.IntN(3) {
				list = append(list, r)
			}
		}
		rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		var wg sync.WaitGroup
		for k, s := range []*Service{w.s, other} {
			wg.Go(func() {
				for i := k; i < len(list); i += 2 {
					if err := s.Record(ctx, w.n1, list[i], 0); err != nil {
						t.Errorf("record: %v", err)
					}
				}
			})
		}
		wg.Wait()
		if diff := cmp.Diff(want, rows()); diff != "" {
			t.Fatalf("round %d: %s", round, diff)
		}
	}
}

// A report that changes nothing tells nobody, and a fingerprint is a node's.
func TestSameFingerprintElsewhere(t *testing.T) {
	w := newWorld(t)
	r := w.report("eth0", time.Minute)
	for _, n := range []tenants.Scope{w.n1, w.n2, w.other, w.n1, w.n2, w.other} {
		w.record(n, r)
	}
	if n := w.count(`select count(*) from event`); n != 3 {
		t.Errorf("%d records of three nodes", n)
	}
	if n := w.count(`select count(*) from event where recurrence > 0`); n != 0 {
		t.Errorf("%d recur", n)
	}
	if got := w.s.Stats(); got.Begun != 3 || got.Repeated != 3 || got.Moved != 0 {
		t.Errorf("%+v", got)
	}
}
