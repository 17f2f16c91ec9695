package network_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/agent/inspector/network"
)

// What the events name exists, and their rules fit their metrics.
func TestEventsNameWhatIs(t *testing.T) {
	var r inspector.Registry
	all.Register(&r)
	for _, k := range network.Events() {
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
		if _, ok := r.Task(k.Tool); !ok {
			t.Errorf("%s: no task %q", k.Name, k.Tool)
		}
		m, ok := r.Metric(k.Rule.Metric)
		if !ok || m.Kind != inspector.Delta || k.Rule.Stat != inspector.StatRate {
			t.Errorf("%s: its rule does not fit the metric %q", k.Name, k.Rule.Metric)
		}
		for _, l := range k.Labels {
			if !slices.Contains(m.Labels, l) {
				t.Errorf("%s: %s has no label %q", k.Name, m.Name, l)
			}
		}
		for l := range k.Rule.Skip {
			if !slices.Contains(m.Labels, l) {
				t.Errorf("%s: skips by the label %q, which %s has not", k.Name, l, m.Name)
			}
		}
	}
}

func TestTasksCheckTheirArguments(t *testing.T) {
	var r inspector.Registry
	network.Register(&r)
	for _, c := range []struct {
		kind, reason string
		raw          map[string]any
	}{
		{network.MonitorInterface, "no_target", map[string]any{}},
		{network.MonitorInterface, "no_target", map[string]any{"pid": 1}},
		{network.MonitorInterface, "malformed", map[string]any{"interface": strings.Repeat("x", 16)}},
		{network.MonitorInterface, "malformed", map[string]any{"interface": "eth\n0"}},
		{network.TraceDrops, "out_of_bounds", map[string]any{"port": 65_536}},
		{network.TraceDrops, "out_of_bounds", map[string]any{"port": 0}},
		{network.TraceDrops, "out_of_bounds", map[string]any{"duration_s": 0}},
		{network.TraceDrops, "out_of_bounds", map[string]any{"duration_s": 1_000_000}},
		{network.TraceDrops, "out_of_bounds", map[string]any{"max_events": 1_000_000_000}},
		{network.TraceRetransmits, "unknown_argument", map[string]any{"reason": "NETFILTER_DROP"}},
		{network.MonitorTCP, "out_of_bounds", map[string]any{"pid": -1}},
		{network.MonitorTCP, "malformed", map[string]any{"address": 7}},
	} {
		k, ok := r.Task(c.kind)
		if !ok {
			t.Fatalf("no task %s", c.kind)
		}
		var bad *inspector.ArgError
		if _, err := k.Check(c.raw); !errors.As(err, &bad) || bad.Reason != c.reason {
			t.Errorf("%s %v: %v, want %s", c.kind, c.raw, err, c.reason)
		}
	}
}
