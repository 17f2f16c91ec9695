package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/agent/uplink"
)

// synthesizer makes plausible numbers for every registered metric. The same
// seed, agent and time give the same numbers. Safe for concurrent use.
type synthesizer struct {
	seed       uint64
	interval   time.Duration
	components []inspector.Component
	layouts    []*inspector.Layout // parallel to components; shared by all agents
}

func newSynthesizer(seed uint64, interval time.Duration) *synthesizer {
	var reg inspector.Registry
	all.Register(&reg)
	s := &synthesizer{seed: seed, interval: interval, components: reg.Components()}
	for _, c := range s.components {
		var series []inspector.Series
		for _, m := range c.Metrics {
			for _, labels := range labelSets(m.Labels) {
				series = append(series, inspector.Series{Metric: m.Name, Kind: m.Kind, Unit: m.Unit, Labels: labels})
			}
		}
		s.layouts = append(s.layouts, inspector.NewLayout(c.Name, series))
	}
	return s
}

// examples are values of well-known label keys; any other key gets two.
var examples = map[string][]string{
	"device": {"sda", "nvme0n1"}, "interface": {"eth0", "lo"}, "reason": {"NO_SOCKET", "TCP_OLD_DATA", "NETFILTER_DROP"},
	"cpu": {"0", "1"}, "mount": {"/", "/var"}, "op": {"read", "write"}, "signal": {"SIGSEGV", "SIGTERM"}, "direction": {"in", "out"},
}

// labelSets combines the keys' examples, three sets at most.
func labelSets(keys []string) [][]inspector.Label {
	sets := 1
	for _, k := range keys {
		sets = max(sets, len(examples[k]), 2)
	}
	if len(keys) == 0 {
		return [][]inspector.Label{nil}
	}
	out := make([][]inspector.Label, min(sets, 3))
	for i := range out {
		for _, k := range keys {
			values := examples[k]
			if values == nil {
				values = []string{"a", "b"}
			}
			out[i] = append(out[i], inspector.Label{Key: k, Value: values[i%len(values)]})
		}
	}
	return unique(out)
}

func unique(sets [][]inspector.Label) [][]inspector.Label {
	seen := map[string]bool{}
	var out [][]inspector.Label
	for _, s := range sets {
		if k := fmt.Sprint(s); !seen[k] {
			seen[k] = true
			out = append(out, s)
		}
	}
	return out
}

// windows are what an agent saw in the interval that ended at end.
func (s *synthesizer) windows(agent int, end time.Time) []*inspector.Window {
	number := uint64(end.UnixNano() / int64(s.interval))
	r := rand.New(rand.NewPCG(s.seed<<20^uint64(agent), number))
	// How busy this machine is: its own level, a slow wave, and noise.
	own := 0.2 + 0.6*rand.New(rand.NewPCG(s.seed, uint64(agent))).Float64()
	wave := 1 + 0.4*math.Sin(2*math.Pi*(float64(end.Unix())/3600+own))
	load := min(own*wave*(0.9+0.2*r.Float64()), 1)
	out := make([]*inspector.Window, len(s.layouts))
	for i, l := range s.layouts {
		w := &inspector.Window{Layout: l, Start: end.Add(-s.interval), End: end, Values: make([]inspector.Value, len(l.Series))}
		for j, series := range l.Series {
			w.Values[j] = s.value(series, load, r)
			w.Samples += w.Values[j].Delta + inspector.HistCount(w.Values[j].Hist)
		}
		out[i] = w
	}
	return out
}

// value draws one number; size is what is usual for its unit.
func (s *synthesizer) value(series inspector.Series, load float64, r *rand.Rand) inspector.Value {
	seconds := s.interval.Seconds()
	noise := 0.7 + 0.6*r.Float64()
	switch series.Kind {
	case inspector.Gauge:
		size := map[inspector.Unit]float64{inspector.Bytes: 4 << 30, inspector.Nanoseconds: 2e6, inspector.Ratio: 1, inspector.Seconds: 86400}[series.Unit]
		if size == 0 {
			size = 200
		}
		v := size * load
		if series.Unit != inspector.Ratio {
			v *= noise
		}
		return inspector.Value{OK: true, Gauge: v}
	case inspector.Histogram:
		v := inspector.Value{OK: true}
		peak := 14 + 6*load // 16 µs to 1 ms in nanoseconds
		for range int(20 + 180*load) {
			x := math.Exp2(peak + 2*r.NormFloat64())
			n := uint64(min(max(x, 1), 1e12))
			b := inspector.Bucket(n)
			for len(v.Hist) <= b {
				v.Hist = append(v.Hist, 0)
			}
			v.Hist[b]++
			v.Sum += n
		}
		return v
	}
	rate := 40.0
	switch series.Unit {
	case inspector.Bytes:
		rate = 2 << 20
	case inspector.Nanoseconds:
		rate = 3e8
	}
	return inspector.Value{OK: true, Delta: uint64(rate * seconds * load * noise)}
}

// capabilities of an agent: one machine in ten lacks privileges.
func (s *synthesizer) capabilities(agent int) []inspector.Capability {
	var out []inspector.Capability
	for _, c := range s.components {
		for _, sig := range c.Signals {
			k := inspector.Capability{Component: c.Name, Signal: sig, Level: inspector.Full, Source: inspector.SourceProc}
			if c.Probe {
				k.Source = inspector.SourceBPF
				if agent%10 == 0 {
					k.Level, k.Source, k.Reason = inspector.Degraded, inspector.SourceProc, "simulated: no privilege for eBPF"
				}
			}
			out = append(out, k)
		}
	}
	return out
}

// facts of an agent: a machine of its own that never reboots.
func (s *synthesizer) facts(agent int, name string, real uplink.Facts) uplink.Facts {
	kernels := []string{"6.1.0-38-amd64", "6.12.41+deb13-amd64", "5.15.0-153-generic"}
	r := rand.New(rand.NewPCG(s.seed, uint64(agent)))
	return uplink.Facts{
		MachineID: fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64()), BootID: fmt.Sprintf("simulated-%016x", r.Uint64()), Hostname: name,
		Kernel: kernels[agent%len(kernels)], OS: "Simulated Linux", Arch: real.Arch, AgentVersion: real.AgentVersion,
	}
}
