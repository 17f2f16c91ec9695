package host

import "github.com/telltale-dev/telltale/agent/inspector"

// The kinds of events that the agent makes of itself.
const (
	AgentBudget    = "agent_budget"
	EventLoss      = "event_loss"
	InspectorStuck = "inspector_stuck"
)

// The label keys of these events.
const (
	LabelResource  = "resource"  // cpu, memory or crashes: what the agent had too much of
	LabelComponent = "component" // the module that lost events, or does not answer
)

func events() []inspector.EventKind {
	self := []string{AgentCPU, AgentRSS, AgentRoutines, CPUBusy, MemoryUsedRatio}
	return []inspector.EventKind{
		{
			Name: AgentBudget, Title: "Agent over its budget", Severity: inspector.Warning, Immediate: true, Lasting: true,
			Labels: []string{LabelResource}, Related: self, Signals: []string{Agent},
			CausedBy: []string{"exec_burst", EventLoss},
			Help: "The agent used more CPU or memory than its budget, or crashed three times in ten minutes, and does less until it is well again. " +
				"The samples say what it gave up: running traces first, then the modules process, network and storage; what they would have shown is missing, not zero.",
			Tool: "metrics_summary",
		},
		{
			Name: EventLoss, Title: "Events were lost", Severity: inspector.Warning, Immediate: true,
			Labels: []string{LabelComponent}, Related: self, Signals: []string{Agent},
			CausedBy: []string{AgentBudget, "exec_burst", "run_queue_saturation"},
			Help: "More events of the module came than the agent could take, so that some were counted and not looked at. " +
				"Counts of the module's events in this time are lower bounds; the count of this event is how many were lost.",
			Tool: "list_events",
		},
		{
			Name: InspectorStuck, Title: "Collector does not answer", Severity: inspector.Warning, Immediate: true, Lasting: true,
			Labels: []string{LabelComponent}, Related: []string{AgentRoutines, DisksStuck, PressureIO, CPUBusy, Load1, ProcsBlocked}, Signals: []string{Agent},
			CausedBy: []string{"slow_io", "io_error", "run_queue_saturation"},
			Help: "A module has not answered for most of a window, often because something that it reads hangs (a dead mount, a saturated machine). " +
				"Its numbers are missing until it answers, which ends this event.",
			Tool: "metrics_summary",
		},
	}
}
