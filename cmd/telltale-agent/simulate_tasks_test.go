package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/runner"
)

// order asks for a task, with arguments that satisfy any kind.
func order(id byte, k inspector.TaskKind, seconds int) inspector.TaskOrder {
	args := map[string]any{inspector.ArgDuration: seconds}
	for _, a := range k.Args {
		if slices.Contains(k.Targets, a.Name) {
			if args[a.Name] = any("vda"); a.Kind == inspector.IntArg {
				args[a.Name] = 1
			}
		}
	}
	raw, _ := json.Marshal(args)
	now := time.Now()
	return inspector.TaskOrder{ID: inspector.TaskID{id}, Kind: k.Name, Args: raw, Principal: "operator:test", Scopes: []string{string(k.Scope)},
		StartBefore: now.Add(time.Second), Deadline: now.Add(time.Duration(seconds)*time.Second + 5*time.Second)}
}

// ends waits for a task's end and returns it with the partial results before.
func ends(t *testing.T, x *runner.Tasks) (e *inspector.TaskEnd, partial int) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		select {
		case <-x.Ready():
		case <-late:
			t.Fatal("no end")
		}
		for _, u := range x.Updates(false) {
			if len(u.Partial) > 0 {
				partial++
			}
			if u.End != nil {
				x.Taken(u.ID)
				return u.End, partial
			}
		}
	}
}

func traces(s *synthesizer) (out []inspector.TaskKind) {
	for _, c := range s.components {
		out = append(out, c.Tasks...)
	}
	return out
}

func TestSimulatedTasks(t *testing.T) {
	s := newSynthesizer(1, 10*time.Second)
	if len(traces(s)) < 8 {
		t.Fatalf("%d task kinds", len(traces(s)))
	}
	for _, k := range traces(s) {
		synctest.Test(t, func(t *testing.T) {
			x := s.tasks(7, slog.New(slog.DiscardHandler))
			began := time.Now()
			if r := x.Start(order(1, k, 3)); r != nil {
				t.Fatalf("%s: %v", k.Name, r)
			}
			e, partial := ends(t, x)
			if d := time.Since(began); d < 3*time.Second || d > 4*time.Second || partial == 0 {
				t.Errorf("%s: took %v, %d partial results", k.Name, d, partial)
			}
			var r inspector.TaskResult
			if err := json.Unmarshal(e.Result, &r); err != nil || e.Outcome != inspector.TaskCompleted {
				t.Fatalf("%s: %v, %+v", k.Name, err, e)
			}
			if len(r.Rows) == 0 || !slices.Equal(r.Notes, []string{simulatedNote}) || (r.Profile != nil) != (k.Cost == inspector.CostHeavy) {
				t.Errorf("%s: %+v", k.Name, r)
			}
			for _, row := range r.Rows {
				if row.Labels["simulated"] != "true" {
					t.Errorf("%s: a row that could be mistaken for a real one: %v", k.Name, row.Labels)
				}
			}
		})
	}
}

func TestSimulatedTasksKeepTheLimitsAndStop(t *testing.T) {
	s := newSynthesizer(1, 10*time.Second)
	k, _ := s.registry.Task("trace_network_drops")
	synctest.Test(t, func(t *testing.T) {
		x := s.tasks(7, slog.New(slog.DiscardHandler))
		for i := range inspector.NodeTraces {
			if r := x.Start(order(byte(i+1), k, 60)); r != nil {
				t.Fatal(r)
			}
		}
		if r := x.Start(order(99, k, 60)); r == nil || r.Reason != inspector.ReasonTooManyTraces {
			t.Errorf("one too many: %v", r)
		}
		x.Cancel(inspector.TaskID{1})
		if e, _ := ends(t, x); e.Outcome != inspector.TaskCancelled || len(e.Result) == 0 {
			t.Errorf("cancelled: %+v", e)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := x.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestMuteNodeAcceptsAndNeverAnswers(t *testing.T) {
	m := newSynthesizer(1, 10*time.Second).mute()
	for i := range 10 {
		if r := m.Start(inspector.TaskOrder{ID: inspector.TaskID{byte(i)}}); r != nil {
			t.Fatal(r)
		}
	}
	running, kinds := m.Hello()
	if len(running) != inspector.NodeTraces || running[3] != (inspector.TaskID{9}) || len(kinds) < 8 || m.Updates(true) != nil {
		t.Errorf("running %v, kinds %v", running, kinds)
	}
}

func TestSimulatedEvents(t *testing.T) {
	s := newSynthesizer(1, 10*time.Second)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Millisecond)
		defer cancel()
		n := 0
		s.happen(ctx, 7, 30, func(o inspector.Occurrence) {
			n++
			if k, ok := s.registry.Event(o.Kind); !ok || !k.Immediate || len(o.Labels) != len(k.Labels) || o.Sample.Labels["simulated"] != "true" {
				t.Errorf("%+v", o)
			}
		})
		if n != 30 {
			t.Errorf("%d events in a minute", n)
		}
	})
}
