package main

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
)

func TestSyntheticWindows(t *testing.T) {
	s := newSynthesizer(1, 10*time.Second)
	end := time.Unix(1_800_000_000, 0)
	var reg inspector.Registry
	all.Register(&reg)
	seen := map[string]bool{}
	for _, w := range s.windows(7, end) {
		if err := w.Layout.Check(); err != nil {
			t.Errorf("%s: %v", w.Layout.Component, err)
		}
		if w.End != end || w.End.Sub(w.Start) != 10*time.Second {
			t.Errorf("window from %v to %v", w.Start, w.End)
		}
		_, refused, err := inspector.DecodeValues(inspector.AppendValues(nil, w.Layout.Series, w.Values), w.Layout.Series)
		if err != nil || refused != 0 {
			t.Errorf("%s: %d refused, %v", w.Layout.Component, refused, err)
		}
		for i, series := range w.Layout.Series {
			seen[series.Metric] = true
			m, ok := reg.Metric(series.Metric)
			if !ok || m.Kind != series.Kind || m.Unit != series.Unit {
				t.Errorf("%s differs from the registry", series)
			}
			v := w.Values[i]
			if !v.OK || m.Unit == inspector.Ratio && (v.Gauge < 0 || v.Gauge > 1) || math.IsNaN(v.Gauge) {
				t.Errorf("%s = %+v", series, v)
			}
		}
	}
	for _, c := range reg.Components() {
		for _, m := range c.Metrics {
			if !seen[m.Name] {
				t.Errorf("%s is not simulated", m.Name)
			}
		}
	}
}

func TestSyntheticNumbersFollowFromTheSeed(t *testing.T) {
	end := time.Unix(1_800_000_000, 0)
	a, b := newSynthesizer(1, 10*time.Second), newSynthesizer(1, 10*time.Second)
	if d := cmp.Diff(a.windows(3, end), b.windows(3, end)); d != "" {
		t.Errorf("the same seed differs:\n%s", d)
	}
	first := a.windows(3, end)[0].Values
	for name, other := range map[string][]*inspector.Window{
		"another agent": a.windows(4, end), "another time": a.windows(3, end.Add(10*time.Second)), "another seed": newSynthesizer(2, 10*time.Second).windows(3, end),
	} {
		if cmp.Equal(first, other[0].Values) {
			t.Errorf("%s has the same numbers", name)
		}
	}
}

func TestSyntheticCapabilitiesNameEverySignal(t *testing.T) {
	s := newSynthesizer(1, 10*time.Second)
	degraded := 0
	for agent := range 10 {
		for _, c := range s.capabilities(agent) {
			if c.Level != inspector.Full {
				degraded++
				if c.Reason == "" {
					t.Errorf("%+v has no reason", c)
				}
			}
		}
	}
	if degraded == 0 {
		t.Error("no simulated machine is degraded")
	}
}
