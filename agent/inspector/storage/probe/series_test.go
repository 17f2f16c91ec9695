package probe

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/storage"
)

func everything(string) bool { return true }

func TestLayoutChangesOnlyWithTheDevices(t *testing.T) {
	s := newSeries(everything)
	window := func(seen map[string]*device) *inspector.Layout {
		w := &inspector.Window{}
		layout, values := s.values(seen, w, everything)
		if err := layout.Check(); err != nil {
			t.Fatal(err)
		}
		if len(values) != len(layout.Series) {
			t.Fatalf("%d values for %d series", len(values), len(layout.Series))
		}
		return layout
	}
	first := window(map[string]*device{"sda": {}})
	if again := window(map[string]*device{"sda": {{ios: 5}}}); again != first {
		t.Error("the same series gave another layout")
	}
	if flush := window(map[string]*device{"sda": {3: {ios: 1}}}); flush != first {
		t.Error("a first flush gave another layout")
	}
	two := window(map[string]*device{"sda": {}, "sdb": {}})
	if two == first || len(window(map[string]*device{"sda": {}}).Series) >= len(two.Series) {
		t.Error("a device came or went without a new layout")
	}
}

// Disks that do nothing take no name from one that works.
func TestBusyDevicesAreNamed(t *testing.T) {
	s := newSeries(everything)
	seen := map[string]*device{"vda": {{ios: 3}}}
	for i := range 100 {
		seen[fmt.Sprintf("loop%d", i)] = &device{}
	}
	layout, values := s.values(seen, &inspector.Window{}, everything)
	at := layout.Find(inspector.Series{Metric: storage.IOs, Labels: []inspector.Label{{Key: "device", Value: "vda"}, {Key: "op", Value: "read"}}})
	if at < 0 || values[at].Delta != 3 {
		t.Errorf("vda is at %d", at)
	}
	// vda goes: its series are unknown or gone, never 0.
	delete(seen, "vda")
	for range 30 {
		layout, values = s.values(seen, &inspector.Window{}, everything)
		for i, sr := range layout.Series {
			if len(sr.Labels) > 0 && sr.Labels[0].Value == "vda" && values[i].OK {
				t.Fatalf("%s = %+v", sr, values[i])
			}
		}
	}
}

// However many devices and operations there are, a layout is acceptable and
// nothing is left out of the totals.
func TestSeriesBound(t *testing.T) {
	s := newSeries(everything)
	seen := map[string]*device{storage.Other: {{ios: 1}, {ios: 1}, {ios: 1}, {ios: 1}}}
	for i := range 200 {
		seen[fmt.Sprintf("sd%03d", i)] = &device{{ios: 1}, {ios: 1}, {ios: 1}, {ios: 1, latencySum: 7}}
	}
	w := &inspector.Window{}
	layout, values := s.values(seen, w, everything)
	if err := layout.Check(); err != nil {
		t.Fatal(err)
	}
	if w.Truncated != 200-maxDevices {
		t.Errorf("%d devices folded, want %d", w.Truncated, 200-maxDevices)
	}
	got := map[string]inspector.Value{}
	for i, sr := range layout.Series {
		got[sr.String()] = values[i]
	}
	if v := got[storage.TotalIOs]; v.Delta != 804 {
		t.Errorf("total %+v, want 804", v)
	}
	if v := got[seriesOf(storage.IOs, storage.Other, "read")]; v.Delta != 201-maxDevices {
		t.Errorf("other %+v, want %d", v, 201-maxDevices)
	}
}

// What the module sends is what its words promise, and all of it.
func TestSeriesMatchTheWords(t *testing.T) {
	var words inspector.Registry
	storage.Register(&words)
	c, _ := words.Component(storage.Name)
	if diff := cmp.Diff(c.Signals, signals); diff != "" {
		t.Errorf("signals (-words +probe):\n%s", diff)
	}
	s := newSeries(everything)
	layout, _ := s.values(map[string]*device{"sda": {{ios: 1}, {ios: 1}, {ios: 1}, {ios: 1}}}, &inspector.Window{}, everything)
	sent := map[string]bool{}
	for _, sr := range layout.Series {
		m, ok := words.Metric(sr.Metric)
		if !ok || m.Kind != sr.Kind || m.Unit != sr.Unit {
			t.Errorf("%s is %v in %s, the words say %+v", sr, sr.Kind, sr.Unit, m)
		}
		var keys []string
		for _, l := range sr.Labels {
			keys = append(keys, l.Key)
		}
		if diff := cmp.Diff(m.Labels, keys); diff != "" {
			t.Errorf("labels of %s (-words +sent):\n%s", sr, diff)
		}
		sent[sr.Metric] = true
	}
	headlines := 0
	for _, m := range c.Metrics {
		if !sent[m.Name] {
			t.Errorf("%s is promised and never sent", m.Name)
		}
		if m.Headline {
			headlines++
			if m.Kind == inspector.Histogram || len(m.Labels) > 0 {
				t.Errorf("%s cannot be a headline", m.Name)
			}
		}
	}
	if headlines > 3 {
		t.Errorf("%d headlines", headlines)
	}
}

func TestUnknownSignal(t *testing.T) {
	if _, err := New(Config{Disable: []string{"no_such"}}, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a misspelt signal is taken for a switch")
	}
}
