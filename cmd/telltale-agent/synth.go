package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/uplink"
)

// synthesizer makes plausible numbers for every registered metric. The same
// seed, agent and time give the same numbers. Safe for concurrent use.
type synthesizer struct {
	seed       uint64
	interval   time.Duration
	registry   *inspector.Registry
	components []inspector.Component
	layouts    []*inspector.Layout // parallel to components; shared by all agents
}

func newSynthesizer(seed uint64, interval time.Duration) *synthesizer {
	reg := simulatedRegistry()
	s := &synthesizer{seed: seed, interval: interval, registry: reg, components: reg.Components()}
	for _, c := range s.components {
		var series []inspector.Series
		for _, m := range c.Metrics {
			if strings.HasPrefix(m.Name, "host.cgroup_") {
				continue // these machines are no containers
			}
			for _, labels := range labelSets(m.Labels) {
				series = append(series, inspector.Series{Metric: m.Name, Kind: m.Kind, Unit: m.Unit, Labels: labels})
			}
		}
		s.layouts = append(s.layouts, inspector.NewLayout(c.Name, series))
	}
	return s
}

// labelRows are the rows of well-known sets of label keys, as on a small
// server. Any other key gets two values.
var labelRows = map[string][][]string{
	"device op": {{"vda", "read"}, {"vda", "write"}, {"vda", "discard"}, {"vda", "flush"}, {"vdb", "read"}, {"vdb", "write"}, {"vdb", "discard"}, {"vdb", "flush"}},
	"interface": {{"eth0"}, {"lo"}},
	"reason benign location": {{"NO_SOCKET", "true", ""}, {"NO_SOCKET", "false", ""}, {"NETFILTER_DROP", "false", ""}, {"SOCKET_RCVBUFF", "false", ""},
		{"NOT_SPECIFIED", "true", "ip6_mc_input"}},
	"signal":                {{"ABRT"}, {"BUS"}, {"FPE"}, {"ILL"}, {"KILL"}, {"SEGV"}, {"TERM"}},
	"mode":                  {{"user"}, {"nice"}, {"system"}, {"idle"}, {"iowait"}, {"irq"}, {"softirq"}, {"steal"}, {"guest"}},
	"mount mount_id fstype": {{"/", "29", "ext4"}, {"/var/lib", "31", "xfs"}},
	"kind":                  {{"tcp"}, {"udp"}, {"udplite"}, {"raw"}},
	"resource stalled":      {{"cpu", "some"}, {"memory", "some"}, {"memory", "full"}, {"io", "some"}, {"io", "full"}},
	"boot_id":               {{"simulated"}},
}

// labelSets combines the keys' values.
func labelSets(keys []string) [][]inspector.Label {
	if len(keys) == 0 {
		return [][]inspector.Label{nil}
	}
	rows, ok := labelRows[strings.Join(keys, " ")]
	if !ok {
		for _, v := range []string{"a", "b"} {
			rows = append(rows, slices.Repeat([]string{v}, len(keys)))
		}
	}
	out := make([][]inspector.Label, len(rows))
	for i, row := range rows {
		for j, v := range row {
			if v != "" {
				out[i] = append(out[i], inspector.Label{Key: keys[j], Value: v})
			}
		}
	}
	return out
}

// windows are what an agent saw in the interval that ended at end.
func (s *synthesizer) windows(agent int, end time.Time) []*inspector.Window {
	m := newMachine(s.seed, uint64(agent), end, s.interval)
	out := make([]*inspector.Window, len(s.layouts))
	for i, l := range s.layouts {
		w := &inspector.Window{Layout: l, Start: end.Add(-s.interval), End: end, Values: make([]inspector.Value, len(l.Series))}
		for j, series := range l.Series {
			w.Values[j] = m.value(series)
			w.Samples += w.Values[j].Delta + inspector.HistCount(w.Values[j].Hist)
		}
		out[i] = w
	}
	return out
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
