// Package inspector holds the words that agent and server share: components,
// metrics, layouts, windows with their packed codec, and capabilities.
//
// It imports the standard library only. Each component's own words live in a
// folder below (network, storage, process, host, …) with a Register function
// that is handed the registry it fills; nothing registers itself. Start
// reading at Registry, then Window.
package inspector

import (
	"fmt"
	"regexp"
	"slices"
	"sync"
)

// Kind says how a metric's values combine. The zero value is unspecified and
// is never shown as a rate.
type Kind uint8

// The kinds of metric.
const (
	Unspecified Kind = iota
	Gauge            // a float64 level; over windows: last, average, maximum
	Delta            // a uint64 increase inside one window; over windows: sum and rate
	Histogram        // counts per power of two of the unit, plus the sum
)

var kindNames = [...]string{"unspecified", "gauge", "delta", "histogram"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[0]
}

// Unit is what a metric's number counts.
type Unit string

// The units. A histogram's bucket i counts values v with 2^i <= v < 2^(i+1);
// bucket 0 also holds v = 0.
const (
	Count       Unit = "count"
	Bytes       Unit = "bytes"
	Nanoseconds Unit = "ns"
	Ratio       Unit = "ratio" // 0 to 1
	Seconds     Unit = "seconds"
)

// MaxBuckets is the most buckets a histogram may have: one per bit of uint64.
const MaxBuckets = 64

// Metric is one measured quantity. Name is "<component>.<noun>" in lower
// snake case; Labels lists the label keys that its series may carry.
type Metric struct {
	Name   string
	Kind   Kind
	Unit   Unit
	Help   string   // one sentence for people and models: what it counts and from where
	Signal string   // the capability signal it depends on, for example "retransmits"
	Labels []string // empty: one series per node
	// Headline marks the few (at most 16 over all components) whose latest
	// value per node is kept in the node's head row; only label-free gauges
	// and deltas may be headlines.
	Headline bool
}

// Component is one module or inspector: its words, nothing that runs.
type Component struct {
	Name    string // "network", "storage", "process", "host", …
	Title   string
	Probe   bool     // part of the eBPF probe
	Signals []string // capability signals, in display order
	Metrics []Metric
	Tasks   []TaskKind
	Events  []EventKind
}

// Registry collects components. The zero value is ready. Adding is not safe
// for concurrent use; reading after the last Add is.
type Registry struct {
	components []Component
	once       sync.Once
	metrics    map[string]Metric
}

var metricName = regexp.MustCompile(`^[a-z][a-z0-9]*\.[a-z][a-z0-9_]*$`)

// Add takes one component in. It panics on a duplicate or malformed name:
// that is a defect of the program, found by the first test that builds it.
func (r *Registry) Add(c Component) {
	if slices.ContainsFunc(r.components, func(o Component) bool { return o.Name == c.Name }) {
		panic("inspector: component " + c.Name + " added twice")
	}
	for _, m := range c.Metrics {
		if !metricName.MatchString(m.Name) || m.Kind == Unspecified || m.Kind > Histogram || m.Unit == "" || m.Help == "" {
			panic(fmt.Sprintf("inspector: metric %q of %s lacks a proper name, kind, unit or help", m.Name, c.Name))
		}
		if m.Signal != "" && !slices.Contains(c.Signals, m.Signal) {
			panic(fmt.Sprintf("inspector: metric %q names the unknown signal %q", m.Name, m.Signal))
		}
	}
	c.Tasks, c.Events = slices.Clone(c.Tasks), slices.Clone(c.Events)
	for i := range c.Tasks {
		r.checkTask(c, &c.Tasks[i])
	}
	for i := range c.Events {
		r.checkEvent(c, &c.Events[i])
	}
	r.components = append(r.components, c)
}

var word = regexp.MustCompile(`^[a-z][a-z0-9_]{2,39}$`)

func (r *Registry) checkTask(c Component, k *TaskKind) {
	k.Component = c.Name
	if _, twice := r.Task(k.Name); twice || !word.MatchString(k.Name) || len(k.Name) > 25 || k.Title == "" || k.Help == "" || k.Scope == "" || k.Cost == "" {
		panic(fmt.Sprintf("inspector: task %q of %s is there twice, or lacks a proper name, title, help, scope or cost", k.Name, c.Name))
	}
	for _, t := range k.Targets {
		if !slices.ContainsFunc(k.Args, func(a Arg) bool { return a.Name == t }) {
			panic(fmt.Sprintf("inspector: task %q has no argument for its target %q", k.Name, t))
		}
	}
	for _, s := range k.Signals {
		if !slices.Contains(c.Signals, s) {
			panic(fmt.Sprintf("inspector: task %q names the unknown signal %q", k.Name, s))
		}
	}
}

func (r *Registry) checkEvent(c Component, k *EventKind) {
	k.Component = c.Name
	if _, twice := r.Event(k.Name); twice || !word.MatchString(k.Name) || k.Title == "" || k.Help == "" || k.Severity.Rank() < 0 {
		panic(fmt.Sprintf("inspector: event %q of %s is there twice, or lacks a proper name, title, help or severity", k.Name, c.Name))
	}
	if k.Immediate == (k.Rule != nil) || len(k.Labels) > MaxEventLabels || len(k.Related) > MaxRelatedMetrics {
		panic(fmt.Sprintf("inspector: event %q is neither immediate nor ruled, or over a bound", k.Name))
	}
	if rule := k.Rule; rule != nil && (rule.K < 1 || rule.N < rule.K || rule.N > 60 || rule.Metric == "") {
		panic(fmt.Sprintf("inspector: event %q has a rule without sense", k.Name))
	}
	for _, s := range k.Signals {
		if !slices.Contains(c.Signals, s) {
			panic(fmt.Sprintf("inspector: event %q names the unknown signal %q", k.Name, s))
		}
	}
}

// Task finds a task kind by its name.
func (r *Registry) Task(name string) (TaskKind, bool) {
	for _, c := range r.components {
		for _, k := range c.Tasks {
			if k.Name == name {
				return k, true
			}
		}
	}
	return TaskKind{}, false
}

// Event finds an event kind by its name.
func (r *Registry) Event(name string) (EventKind, bool) {
	for _, c := range r.components {
		for _, k := range c.Events {
			if k.Name == name {
				return k, true
			}
		}
	}
	return EventKind{}, false
}

// Components lists all components in the order they were added.
func (r *Registry) Components() []Component { return slices.Clone(r.components) }

// Component finds one by name.
func (r *Registry) Component(name string) (Component, bool) {
	i := slices.IndexFunc(r.components, func(c Component) bool { return c.Name == name })
	if i < 0 {
		return Component{}, false
	}
	return r.components[i], true
}

// Metric finds one by its full name.
func (r *Registry) Metric(name string) (Metric, bool) {
	r.once.Do(func() {
		r.metrics = map[string]Metric{}
		for _, c := range r.components {
			for _, m := range c.Metrics {
				r.metrics[m.Name] = m
			}
		}
	})
	m, ok := r.metrics[name]
	return m, ok
}

// Level is how much of a signal works.
type Level string

// The levels.
const (
	Full     Level = "full"
	Degraded Level = "degraded"
	Off      Level = "off"
)

// Source says where a signal's numbers come from.
type Source string

// The sources.
const (
	SourceBPF  Source = "bpf"  // an eBPF program
	SourceProc Source = "proc" // /proc or /sys
	SourceNone Source = ""     // nothing: the signal is off
)

// Capability is what one signal of a component can do on a node now.
// Reason is empty only when Level is Full.
type Capability struct {
	Component string
	Signal    string
	Level     Level
	Source    Source
	Reason    string // a sentence for people, from the kernel's own error where there is one
}
