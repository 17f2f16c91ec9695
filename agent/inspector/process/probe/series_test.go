package probe

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
)

func TestSignalNames(t *testing.T) {
	for n := range 128 {
		name := signalName(n)
		if back := signalNumber(name); n != 0 && back != n {
			t.Errorf("signal %d is called %q, which is %d", n, name, back)
		}
	}
	if got := signalName(11); got != "SEGV" {
		t.Errorf("signal 11 is called %q", got)
	}
}

func TestLayoutChangesOnlyWithANewSignal(t *testing.T) {
	offered := map[string]bool{}
	bpf := map[string]inspector.Source{}
	for _, s := range signals {
		offered[s], bpf[s] = true, inspector.SourceBPF
	}
	s := newSeries(offered, true, true)
	v := &reading{source: bpf}
	first, values := s.values(v)
	if err := first.Check(); err != nil {
		t.Fatal(err)
	}
	for i, sr := range first.Series {
		if !values[i].OK {
			t.Errorf("%s is unknown, want 0", sr)
		}
	}
	v.bpf.bySignal[11] = 2
	if again, _ := s.values(v); again != first {
		t.Error("a signal shown from the start gave another layout")
	}
	v.bpf.bySignal[40] = 3
	next, values := s.values(v)
	if next == first {
		t.Fatal("a new signal gave no series")
	}
	at := next.Find(inspector.Series{Metric: process.ExitsBySignal, Labels: []inspector.Label{{Key: process.LabelSignal, Value: "40"}}})
	if at < 0 || values[at].Delta != 3 {
		t.Errorf("real-time signal at %d, values %v", at, values)
	}
	v.bpf.bySignal[40] = 0
	if after, _ := s.values(v); after != next {
		t.Error("a signal seen once went away")
	}
}

// What the module sends is what its words promise, and all of it.
func TestSeriesMatchTheWords(t *testing.T) {
	var words inspector.Registry
	process.Register(&words)
	c, _ := words.Component(process.Name)
	if diff := cmp.Diff(c.Signals, signals); diff != "" {
		t.Errorf("signals (-words +probe):\n%s", diff)
	}
	offered := map[string]bool{}
	for _, signal := range signals {
		offered[signal] = true
	}
	layout, _ := newSeries(offered, true, true).values(&reading{})
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
