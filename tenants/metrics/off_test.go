package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// What is off gives no number of now, whatever it sent earlier in the span.
func TestSummaryOfWhatIsOff(t *testing.T) {
	w := newWorld(t)
	all, end := reader(w.a, tenants.Selector{}), w.now()
	nodes := map[string]tenants.Scope{}
	for _, name := range []string{"server", "config", "signal", "fine", "foreign"} {
		tenant := w.a
		if name == "foreign" {
			tenant = w.b
		}
		nodes[name] = w.node(tenant, name, "env", map[bool]string{true: "prod", false: "test"}[name == "fine"])
		w.fill(nodes[name], 6, 2)
	}
	at := end.Add(5 * time.Second)
	for _, name := range []string{"server", "foreign"} {
		w.exec(`insert into module_switch values ($1, $2, 'network', true, 'token ci', $3)`, uid(nodes[name].Tenant), uid(idOf(nodes[name])), at)
		w.exec(`insert into capability values ($1, $2, 'network', 'tcp', 'off', '', 'switched off from the server', $3)`, uid(nodes[name].Tenant), uid(idOf(nodes[name])), at)
	}
	w.exec(`insert into capability values ($1, $2, 'network', 'tcp', 'off', '', 'switched off by the node''s configuration', $3)`, uid(w.a), uid(idOf(nodes["config"])), at)
	for signal, level := range map[string]string{"tcp": "off", "drops": "full"} {
		w.exec(`insert into capability values ($1, $2, 'network', $4, $5, '', 'the agent is over its budget', $3)`, uid(w.a), uid(idOf(nodes["signal"])), at, signal, level)
	}

	// It was switched off a moment ago: the numbers go to the end of the span.
	w.set(end.Add(8 * time.Second))
	s := w.summary(all, SummaryQuery{Node: "server"})
	if s.Coverage.Answered != 1 || len(s.Notes) != 1 || s.Notes[0] != "module network is off on server since "+moment(at)+" (switched off from the server by token ci); its numbers end at "+moment(end) {
		t.Errorf("just off: %+v %q", s.Coverage, s.Notes)
	}
	// Later it is not covered, though numbers lie within the span.
	w.set(end.Add(2 * time.Minute))
	for node, why := range map[string]string{"server": "switched off from the server by token ci", "config": "switched off by the node's configuration"} {
		s = w.summary(all, SummaryQuery{Node: node})
		if s.Coverage.Answered != 0 || len(s.Coverage.NotCovered) != 1 || s.Coverage.NotCovered[0].Reason != "off" || *s.FreshnessS != 120 || *metric(t, s, "network.opens").Sum != 120 {
			t.Errorf("%s: %+v", node, s)
		}
		if len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "off on "+node+" since "+moment(at)+" ("+why+"); its numbers end at "+moment(end)) {
			t.Errorf("%s: %q", node, s.Notes)
		}
	}
	if s = w.summary(all, SummaryQuery{Node: "signal"}); len(s.Notes) != 1 || s.Coverage.Answered != 1 ||
		s.Notes[0] != "of module network the signal tcp is off on signal since "+moment(at)+" (the agent is over its budget); the numbers that stand on them end then" {
		t.Errorf("a signal: %+v %q", s.Coverage, s.Notes)
	}
	// A span before that says nothing of it.
	if s = w.summary(all, SummaryQuery{Node: "server", From: end.Add(-time.Minute), To: end}); s.Coverage.Answered != 1 || len(s.Notes) != 0 {
		t.Errorf("before: %+v %q", s.Coverage, s.Notes)
	}
	// Long after, nothing is left but the reason.
	w.set(end.Add(10 * time.Minute))
	w.live(nodes["server"])
	s = w.summary(all, SummaryQuery{Node: "server"})
	if s.FreshnessS != nil || s.Coverage.NotCovered[0].Reason != "off" || len(s.Notes) != 1 || !strings.Contains(s.Notes[0], "by token ci); it sent no numbers within the span") {
		t.Errorf("silent: %+v %q", s.Coverage, s.Notes)
	}

	// Of a fleet, those that go on give the freshness; others are not seen.
	w.set(end.Add(20 * time.Second))
	s = w.summary(all, SummaryQuery{})
	if s.Coverage.Asked != 4 || s.Coverage.Answered != 4 || len(s.Notes) != 3 || strings.Contains(strings.Join(s.Notes, " "), "foreign") {
		t.Errorf("fleet: %+v %q", s.Coverage, s.Notes)
	}
	if s = w.summary(reader(w.a, tenants.Selector{Labels: map[string]string{"env": "prod"}}), SummaryQuery{}); s.Coverage.Asked != 1 || len(s.Notes) != 0 {
		t.Errorf("restricted: %+v %q", s.Coverage, s.Notes)
	}
}
