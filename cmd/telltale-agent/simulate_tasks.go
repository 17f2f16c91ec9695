package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/agent/runner"
)

// simulatedNote stands in every result of a simulated node.
const simulatedNote = "synthetic data of a simulated node"

// tasks is the executor of a simulated agent: the real one, with every task
// kind of the registry made up.
func (s *synthesizer) tasks(agent int, log *slog.Logger) *runner.Tasks {
	var modules []runner.Module
	for _, c := range s.components {
		m := runner.Module{Component: c.Name, Tasks: map[string]inspector.TaskRun{}}
		for _, k := range c.Tasks {
			m.Tasks[k.Name] = s.pretend(agent, k)
		}
		modules = append(modules, m)
	}
	return runner.NewTasks(runner.TaskConfig{}, s.registry, modules, log)
}

// pretend makes a task that takes its time and finds made-up rows: the more
// of them, the more the machine's planted trouble is of its kind.
func (s *synthesizer) pretend(agent int, k inspector.TaskKind) inspector.TaskRun {
	return func(ctx context.Context, args inspector.Args, partial func(*inspector.TaskResult)) (*inspector.TaskResult, error) {
		began := time.Now()
		end := time.NewTimer(time.Duration(args.Int(inspector.ArgDuration)) * time.Second)
		defer end.Stop()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				partial(s.finding(agent, k, args, began, time.Now()))
			case <-end.C:
				return s.finding(agent, k, args, began, time.Now()), nil
			case <-ctx.Done():
				return s.finding(agent, k, args, began, time.Now()), context.Cause(ctx)
			}
		}
	}
}

// taskTroubles says which planted trouble a task finds much of.
var taskTroubles = map[string]trouble{
	"trace_network_drops": dropping, "trace_tcp_retransmits": lossy, "monitor_tcp_connections": overrun,
	"trace_slow_io": badDisk, "monitor_device_io": badDisk, "profile_on_cpu": cpuHot,
}

// finding is what a task has found up to now. The same seed, agent, kind and
// arguments find the same in the same time.
func (s *synthesizer) finding(agent int, k inspector.TaskKind, args inspector.Args, began, now time.Time) *inspector.TaskResult {
	name := fnv.New64a()
	name.Write([]byte(k.Name))
	r := rand.New(rand.NewPCG(s.seed<<20^uint64(agent), name.Sum64()))
	factor := 1.0
	if t, ok := taskTroubles[k.Name]; ok && t == troubleOf(s.seed, uint64(agent)) {
		factor = 25
	}
	out := &inspector.TaskResult{
		From: began, To: now, Totals: map[string]uint64{}, Rows: []inspector.ResultRow{},
		SampleRate: uint64(args.Int(inspector.ArgSampleRate)), Notes: []string{simulatedNote},
	}
	total := uint64(0)
	for i := range 3 {
		count := uint64((1 + 4*r.Float64()) * factor * float64(3-i) * now.Sub(began).Seconds())
		if count == 0 {
			continue
		}
		total += count
		row := inspector.ResultRow{Labels: fakeLabels(k.Component, args, i), Count: count, Values: map[string]float64{"p99_us": 100 * factor * (1 + r.Float64())}}
		out.Rows = append(out.Rows, row)
	}
	slices.SortFunc(out.Rows, func(a, b inspector.ResultRow) int { return int(b.Count) - int(a.Count) })
	out.Totals["events"] = total
	if k.Cost == inspector.CostHeavy {
		out.Profile = fakeProfile(out.Rows, args, now.Sub(began))
	}
	return out
}

// fakeLabels names a group: what the caller asked for, and addresses and
// devices that nobody has.
func fakeLabels(component string, args inspector.Args, i int) map[string]string {
	labels := map[string]string{"simulated": "true"}
	switch component {
	case "network":
		labels["remote"], labels["reason"] = fmt.Sprintf("192.0.2.%d:443", i+1), []string{"NETFILTER_DROP", "SOCKET_RCVBUFF", "NO_SOCKET"}[i]
	case "storage":
		labels["device"], labels["op"] = "vda", []string{"read", "write", "flush"}[i]
	case "process":
		labels["function"] = []string{"main.work", "runtime.mallocgc", "memcpy"}[i]
	}
	for k := range args {
		if v := args.Text(k); v != "" {
			labels[k] = v
		}
	}
	return labels
}

func fakeProfile(rows []inspector.ResultRow, args inspector.Args, lasted time.Duration) *inspector.Profile {
	p := &inspector.Profile{Hz: uint64(max(args.Int("hz"), 1)), CPUs: 4, Seconds: lasted.Seconds(), Top: []inspector.ProfileFrame{}, Folded: []inspector.FoldedStack{}}
	for _, row := range rows {
		p.Samples += row.Count
	}
	for _, row := range rows {
		f := row.Labels["function"]
		p.Top = append(p.Top, inspector.ProfileFrame{Function: f, Module: "simulated", Self: row.Count, Total: row.Count, Share: float64(row.Count) / float64(p.Samples)})
		p.Folded = append(p.Folded, inspector.FoldedStack{Stack: "simulated;" + f, Count: row.Count})
	}
	return p
}

// mute is an executor that accepts what comes and never says another word.
type mute struct {
	kinds []string

	mu      sync.Mutex
	running []inspector.TaskID
}

func (s *synthesizer) mute() *mute {
	m := &mute{}
	for _, c := range s.components {
		for _, k := range c.Tasks {
			m.kinds = append(m.kinds, k.Name)
		}
	}
	return m
}

// Hello lists what was accepted.
func (m *mute) Hello() ([]inspector.TaskID, []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.running), m.kinds
}

// Start accepts, and remembers no more tasks than a node runs.
func (m *mute) Start(o inspector.TaskOrder) *inspector.Refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = append(m.running, o.ID)
	m.running = m.running[max(0, len(m.running)-inspector.NodeTraces):]
	return nil
}

// Cancel does nothing.
func (m *mute) Cancel(inspector.TaskID) {}

// Taken does nothing: no task ends.
func (m *mute) Taken(inspector.TaskID) {}

// Ready never has a token.
func (m *mute) Ready() <-chan struct{} { return nil }

// Updates has no news.
func (m *mute) Updates(bool) []inspector.TaskUpdate { return nil }

// happen emits made-up sightings of immediate kinds, so many a minute, until
// ctx ends.
func (s *synthesizer) happen(ctx context.Context, agent int, perMinute int, emit func(inspector.Occurrence)) {
	var kinds []inspector.EventKind
	for _, c := range s.components {
		for _, k := range c.Events {
			if k.Immediate && c.Probe {
				kinds = append(kinds, k)
			}
		}
	}
	if len(kinds) == 0 {
		return
	}
	tick := time.NewTicker(time.Minute / time.Duration(perMinute))
	defer tick.Stop()
	for i := agent; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		k := kinds[i%len(kinds)]
		o := inspector.Occurrence{Kind: k.Name, At: time.Now(), Labels: map[string]string{}}
		for _, l := range k.Labels {
			o.Labels[l] = fmt.Sprintf("simulated-%d", i%64)
		}
		o.Sample = &inspector.EventSample{At: o.At, Labels: map[string]string{"simulated": "true", "note": simulatedNote}}
		emit(o)
	}
}

// simulatedRegistry is the registry of all components.
func simulatedRegistry() *inspector.Registry {
	var reg inspector.Registry
	all.Register(&reg)
	return &reg
}

// quiet keeps the executors of thousands of agents from logging each task.
func quiet(log *slog.Logger, level string) *slog.Logger {
	if strings.EqualFold(level, "debug") {
		return log
	}
	return slog.New(slog.DiscardHandler)
}
