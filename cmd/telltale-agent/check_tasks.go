package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/all"
	"github.com/telltale-dev/telltale/agent/runner"
)

// checkTask is one task kind and whether this node does it.
type checkTask struct {
	Task      string `json:"task"`
	Component string `json:"component"`
	Level     string `json:"level"` // as of the worst signal that it stands on
	Scope     string `json:"scope"` // what a caller must hold
	Cost      string `json:"cost"`
	Reason    string `json:"reason,omitempty"`
}

// checkProtection is what the agent does against itself.
type checkProtection struct {
	CPUPercent int      `json:"cpu_percent"` // budget, of one core
	MemoryMiB  int      `json:"memory_mib"`  // budget, resident
	ShedOrder  []string `json:"shed_order"`  // what goes first when it is over
	Crashes    int      `json:"crashes"`     // unclean ends noticed within ten minutes
	CrashLimit int      `json:"crash_limit"` // 0: the breaker is off
	LifeFile   string   `json:"life_file"`
	// Tripped says why the probe stays off, and until when.
	Tripped       string     `json:"tripped,omitempty"`
	TrippedUntil  *time.Time `json:"tripped_until,omitempty"`
	Unknown       string     `json:"unknown,omitempty"` // why nothing is known of crashes
	HeapSnapshots []string   `json:"heap_snapshots,omitempty"`
}

// protection reads what the agent of this configuration's directory noted.
func (c *runConfig) protection() checkProtection {
	p := checkProtection{CPUPercent: c.cpuPercent, MemoryMiB: c.memoryMiB, ShedOrder: append([]string{"traces"}, shedOrder()...), CrashLimit: c.crashes}
	life, err := runner.ReadBreaker(c.dir, c.crashes)
	p.Crashes, p.LifeFile, p.Tripped = life.Crashes, life.File, life.Reason
	if err != nil {
		p.Unknown = err.Error()
	}
	if !life.Until.IsZero() {
		p.TrippedUntil = &life.Until
	}
	p.HeapSnapshots = runner.HeapSnapshots(c.dir)
	return p
}

// offered says of every task kind whether this node does it, and why not.
func (c *runConfig) offered(modules []runner.Module, report checkReport) []checkTask {
	var words inspector.Registry
	all.Register(&words)
	out := []checkTask{}
	for _, comp := range words.Components() {
		for _, k := range comp.Tasks {
			t := checkTask{Task: k.Name, Component: comp.Name, Level: string(inspector.Full), Scope: string(k.Scope), Cost: string(k.Cost)}
			if tripped := report.Protection.Tripped; comp.Probe && tripped != "" {
				t.Level, t.Reason = string(inspector.Off), tripped
			} else {
				t.judge(c, k, modules, report)
			}
			out = append(out, t)
		}
	}
	return out
}

func (t *checkTask) judge(c *runConfig, k inspector.TaskKind, modules []runner.Module, report checkReport) {
	off := func(reason string) { t.Level, t.Reason = string(inspector.Off), reason }
	built := slices.ContainsFunc(modules, func(m runner.Module) bool { return m.Component == k.Component && m.Tasks[k.Name] != nil })
	switch {
	case !built:
		off("this agent does not do it yet")
		return
	case !runner.Allowed(c.allow, k):
		off("not allowed by tasks-allow")
		return
	case slices.Contains(c.off, k.Component):
		off("the module is switched off by modules-off")
		return
	}
	if len(k.Signals) == 0 && len(report.Lacking) > 0 {
		t.Level, t.Reason = string(inspector.Degraded), "the agent lacks "+strings.Join(report.Lacking, " and ")
	}
	for _, cap := range report.Capabilities {
		if cap.Component != k.Component || !slices.Contains(k.Signals, cap.Signal) {
			continue
		}
		switch inspector.Level(cap.Level) {
		case inspector.Off:
			off(cap.Signal + " is off: " + cap.Reason)
			return
		case inspector.Degraded:
			t.Level, t.Reason = cap.Level, cap.Signal+" is degraded: "+cap.Reason
		}
	}
}

func printTasks(out io.Writer, report checkReport, colour bool) {
	if len(report.Tasks) == 0 {
		return
	}
	rows := [][5]string{{"TASK", "COST", "LEVEL", "SCOPE", "REASON"}}
	for _, t := range report.Tasks {
		rows = append(rows, [5]string{t.Task, t.Cost, t.Level, t.Scope, report.short(t.Reason)})
	}
	fmt.Fprintln(out)
	printTable(out, rows, colour)
}

func printProtection(out io.Writer, p checkProtection) {
	if p.LifeFile == "" {
		return
	}
	fmt.Fprintf(out, "\nBudget: %d %% of one core over 30 s, %d MiB of memory; above it the agent gives up ", p.CPUPercent, p.MemoryMiB)
	for i, s := range p.ShedOrder {
		if i > 0 {
			fmt.Fprint(out, ", then ")
		}
		fmt.Fprint(out, s)
	}
	fmt.Fprintln(out, ".")
	for _, h := range p.HeapSnapshots {
		fmt.Fprintf(out, "Heap snapshot taken near that bound: %s\n", h)
	}
	switch {
	case p.Tripped != "":
		fmt.Fprintf(out, "Breaker: %s\n", p.Tripped)
	case p.Unknown != "":
		fmt.Fprintf(out, "Breaker: not known: %s\n", p.Unknown)
	case p.CrashLimit == 0:
		fmt.Fprintln(out, "Breaker: off.")
	default:
		fmt.Fprintf(out, "Breaker: %d of %d crashes within ten minutes (%s).\n", p.Crashes, p.CrashLimit, p.LifeFile)
	}
}
