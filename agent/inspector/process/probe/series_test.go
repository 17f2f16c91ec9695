package probe

import (
	"testing"

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
