package process_test

import (
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

// What the events and the task name exists.
func TestWordsNameWhatIs(t *testing.T) {
	var r inspector.Registry
	all.Register(&r)
	for _, k := range process.Events() {
		for _, m := range k.Related {
			if _, ok := r.Metric(m); !ok {
				t.Errorf("%s: no metric %q", k.Name, m)
			}
		}
		for _, c := range k.CausedBy {
			if _, ok := r.Event(c); !ok {
				t.Errorf("%s: no event %q", k.Name, c)
			}
		}
		if rule := k.Rule; rule != nil {
			m, ok := r.Metric(rule.Metric)
			if !ok || (m.Kind == inspector.Histogram) != (rule.Stat == inspector.StatP99) {
				t.Errorf("%s: its rule does not fit the metric %q", k.Name, rule.Metric)
			}
		}
	}
	k, ok := r.Task(process.ProfileOnCPU)
	if !ok || k.Component != process.Name {
		t.Fatalf("%+v", k)
	}
	if _, err := k.Check(map[string]any{"hz": 99}); err == nil {
		t.Error("a profile without a target is taken")
	}
	args, err := k.Check(map[string]any{"pid": 1})
	if err != nil || args.Int(process.ArgHz) != 99 || args.Int(inspector.ArgDuration) != 5 {
		t.Errorf("%v, %v", args, err)
	}
}
