package main

import (
	"math"
	"strings"
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
			if !seen[m.Name] && !strings.HasPrefix(m.Name, "host.cgroup_") {
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

// headlines are the label-free values of one window, by metric.
func headlines(s *synthesizer, agent int, end time.Time) map[string]float64 {
	out := map[string]float64{}
	for _, w := range s.windows(agent, end) {
		for i, sr := range w.Layout.Series {
			if len(sr.Labels) == 0 {
				out[sr.Metric] = w.Values[i].Gauge + float64(w.Values[i].Delta)
			}
		}
	}
	return out
}

// A machine keeps its own levels, machines differ, and what is rare is rare.
func TestSyntheticNumbersArePlausible(t *testing.T) {
	s := newSynthesizer(1, 10*time.Second)
	start := time.Unix(1_800_000_000, 0)
	ratios := map[float64]int{}
	troubled := 0
	for agent := 1; agent <= 200; agent++ {
		first := headlines(s, agent, start)
		ratios[math.Round(first["host.memory_used_ratio"]*1000)]++
		planted := troubleOf(1, uint64(agent)) != healthy
		if planted {
			troubled++
		}
		oom, errs := 0.0, 0.0
		for i := 1; i <= 30; i++ {
			h := headlines(s, agent, start.Add(time.Duration(i)*10*time.Second))
			for _, m := range []string{"host.memory_used_ratio", "host.disk_fullest_ratio"} {
				if d := math.Abs(h[m] - first[m]); d > 0.02 || h[m] < 0.1 || h[m] >= 1 {
					t.Fatalf("agent %d: %s goes from %v to %v in %d windows", agent, m, first[m], h[m], i)
				}
			}
			if h["host.memory_total_bytes"] != first["host.memory_total_bytes"] || h["host.cpus"] != first["host.cpus"] {
				t.Fatalf("agent %d changes its size", agent)
			}
			oom, errs = oom+h["process.oom_kills"], errs+h["storage.total_errors"]
			if !planted && (h["host.cpu_busy_ratio"] > 0.9 || h["network.packets_dropped"] > 5 || h["network.listen_overflows"] > 0) {
				t.Fatalf("agent %d is healthy and has %v", agent, h)
			}
		}
		if !planted && oom+errs > 0 {
			t.Errorf("agent %d is healthy and has %v OOM kills and %v I/O errors", agent, oom, errs)
		}
	}
	if len(ratios) < 120 {
		t.Errorf("200 machines have %d levels of memory use", len(ratios))
	}
	if troubled < 5 || troubled > 10 {
		t.Errorf("%d of 200 machines are in trouble", troubled)
	}
}

func TestTroubleIsChosenByTheSeed(t *testing.T) {
	where := func(seed uint64) (out [1000]trouble) {
		for i := range out {
			out[i] = troubleOf(seed, uint64(i))
		}
		return out
	}
	first, again := where(1), where(1)
	if first != again || first == where(2) {
		t.Error("the seed does not decide where trouble is")
	}
	found := map[trouble]bool{}
	for _, tr := range first {
		found[tr] = true
	}
	if len(found) < len(troubles) {
		t.Errorf("only %d kinds of trouble among 1000 machines", len(found))
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
