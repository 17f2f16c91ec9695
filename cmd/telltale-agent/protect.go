package main

import (
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/host"
)

// byBreaker names the breaker among those that keep modules off.
const byBreaker = "breaker"

// probes names the modules that load programs into the kernel.
func probes(words *inspector.Registry) (out []string) {
	for _, c := range words.Components() {
		if c.Probe {
			out = append(out, c.Name)
		}
	}
	return out
}

// trip keeps the probe off and says so in an event.
func (a *agent) trip(modules []string, why string) {
	reasons := map[string]string{}
	for _, m := range modules {
		reasons[m] = why
	}
	a.collect.Protect(byBreaker, reasons)
	a.events.Set(crashesEvent(&inspector.EventSample{At: time.Now(), Labels: map[string]string{
		"given_up": strings.Join(modules, ", "), "why": why,
	}}), true)
}

// rearmed lets the probe run again.
func (a *agent) rearmed() {
	a.collect.Protect(byBreaker, nil)
	a.events.Set(crashesEvent(nil), false)
}

func crashesEvent(s *inspector.EventSample) inspector.Occurrence {
	return inspector.Occurrence{Kind: host.AgentBudget, Severity: inspector.Critical, At: time.Now(), Labels: map[string]string{host.LabelResource: "crashes"}, Sample: s}
}

// stuck makes an event of a collector that does not answer.
func (a *agent) stuck(component string, since time.Time, stuck bool) {
	a.events.Set(inspector.Occurrence{Kind: host.InspectorStuck, At: time.Now(), Labels: map[string]string{host.LabelComponent: component},
		Sample: &inspector.EventSample{At: since, Labels: map[string]string{"module": component}}}, stuck)
}
