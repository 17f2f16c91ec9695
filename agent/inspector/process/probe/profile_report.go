package probe

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/inspector/process"
	"github.com/telltale-dev/telltale/agent/symbols"
)

// maxFoldedBytes bounds the folded stacks as JSON, so that the whole stays
// within a result; maxFunction bounds one name.
const (
	maxFoldedBytes = inspector.MaxResultBytes * 5 / 8
	maxFunction    = 240
)

// report names what was sampled and lays it out.
func (s *sampling) report(ctx context.Context, t *target, known map[profileProcessKey]*symbols.Process) (*inspector.TaskResult, error) {
	sum, err := s.totals()
	if err != nil {
		return nil, err
	}
	all, err := s.stacks()
	if err != nil {
		return nil, err
	}
	proc := s.proc
	if proc == "" {
		proc = "/proc"
	}
	names := name(ctx, all, known, filepath.Join(proc, "kallsyms"))
	took := s.to.Sub(s.from)
	p := &inspector.Profile{Hz: s.hz, CPUs: uint64(s.events.cpus()), Seconds: took.Seconds(), Samples: sum.Samples, Kernel: sum.Kernel, LeftOut: sum.LeftOut}
	r := &inspector.TaskResult{From: s.from, To: s.to, Totals: s.counts(sum, took), Profile: p, Unknown: names.unwatched}
	fold(p, all, names, known, t.process == nil)
	r.Rows, r.OtherRows, r.OtherCount = processRows(all, known, p)
	r.Notes = notes(p, all, names, sum)
	if s.waitKnown {
		r.Totals["runq_wait_ms"] = uint64(s.waited.Milliseconds())
	}
	if note := s.waitNote(p.Samples); note != "" {
		r.Notes = slices.Insert(r.Notes, 1, note)
	}
	r.Next = s.next(t, p)
	return r, nil
}

// fold sums the stacks up by name.
func fold(p *inspector.Profile, all []sampled, names *namer, known map[profileProcessKey]*symbols.Process, byProcess bool) {
	type function struct{ name, module string }
	self, total := map[function]uint64{}, map[function]uint64{}
	folded := map[string]uint64{}
	kept := 0
	for _, e := range all {
		frames := names.frames(e)
		innermost := frames[len(frames)-1]
		if !innermost.named {
			p.Unnamed += e.count
		}
		once := map[function]bool{}
		for _, f := range frames {
			once[function{f.text(), f.module}] = true
		}
		for f := range once {
			total[f] += e.count
		}
		self[function{innermost.text(), innermost.module}] += e.count
		root := ""
		if byProcess {
			root = processName(known[e.process]) + ";"
		}
		text := root + foldedText(frames, len(e.user) >= maxDepth)
		if _, known := folded[text]; !known {
			if kept += len(text); len(folded) >= 2*inspector.MaxFoldedStacks || kept > 4*maxFoldedBytes {
				p.LeftOut += e.count // the most frequent came first
				continue
			}
		}
		folded[text] += e.count
	}
	for f, n := range total {
		p.Top = append(p.Top, inspector.ProfileFrame{Function: f.name, Module: f.module, Self: self[f], Total: n, Share: share(self[f], p.Samples)})
	}
	slices.SortFunc(p.Top, func(a, b inspector.ProfileFrame) int {
		return cmp.Or(cmp.Compare(b.Self, a.Self), cmp.Compare(b.Total, a.Total), cmp.Compare(a.Function, b.Function), cmp.Compare(a.Module, b.Module))
	})
	p.Top = append([]inspector.ProfileFrame{}, p.Top[:min(len(p.Top), inspector.MaxResultRows)]...)
	stacks := make([]inspector.FoldedStack, 0, len(folded))
	for text, n := range folded {
		stacks = append(stacks, inspector.FoldedStack{Stack: text, Count: n})
	}
	slices.SortFunc(stacks, func(a, b inspector.FoldedStack) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Stack, b.Stack))
	})
	p.Folded = []inspector.FoldedStack{}
	bytes := 0
	for _, f := range stacks {
		text, _ := json.Marshal(f)
		if len(p.Folded) == inspector.MaxFoldedStacks || bytes+len(text) > maxFoldedBytes {
			p.LeftOut += f.Count
			continue
		}
		bytes += len(text) + 1
		p.Folded = append(p.Folded, f)
	}
}

// text is a frame's function, or what stands for one.
func (f frame) text() string {
	switch {
	case f.function != "":
		if len(f.function) > maxFunction {
			return strings.ToValidUTF8(f.function[:maxFunction], "") + "…"
		}
		return f.function
	case f.module != "":
		return "[" + strings.Trim(f.module, "[]") + "]"
	}
	return "[unknown]"
}

// foldedText joins frames; kernel functions are marked as flame graphs know
// it. Of a very deep stack the innermost frames stay.
func foldedText(frames []frame, cut bool) string {
	var parts []string
	if cut || len(frames) > inspector.MaxStackDepth {
		parts = append(parts, "[deeper]")
		frames = frames[max(0, len(frames)-inspector.MaxStackDepth+1):]
	}
	for _, f := range frames {
		text := strings.ReplaceAll(f.text(), ";", ",")
		if f.kernel {
			text += "_[k]"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ";")
}

func processName(p *symbols.Process) string {
	if p == nil {
		return "[ended]"
	}
	return strings.ReplaceAll(p.Comm, ";", ",")
}

func share(n, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return float64(n) / float64(of)
}

// processRows sums the samples up by process.
func processRows(all []sampled, known map[profileProcessKey]*symbols.Process, p *inspector.Profile) (rows []inspector.ResultRow, other, count uint64) {
	by := map[profileProcessKey]uint64{}
	for _, e := range all {
		by[e.process] += e.count
	}
	keys := slices.SortedFunc(maps.Keys(by), func(a, b profileProcessKey) int {
		return cmp.Or(cmp.Compare(by[b], by[a]), cmp.Compare(a.Tgid, b.Tgid), cmp.Compare(a.Start, b.Start), cmp.Compare(a.Program, b.Program))
	})
	rows = []inspector.ResultRow{}
	for _, key := range keys {
		if len(rows) == inspector.MaxResultRows {
			other, count = other+1, count+by[key]
			continue
		}
		labels := map[string]string{process.ArgPid: strconv.Itoa(int(key.Tgid))}
		if known[key] != nil {
			labels[process.LabelComm] = known[key].Comm
		}
		rows = append(rows, inspector.ResultRow{Labels: labels, Count: by[key], Values: map[string]float64{
			"share":     share(by[key], p.Samples),
			"cpus_used": float64(by[key]) / (float64(p.Hz) * p.Seconds),
		}})
	}
	return rows, other, count
}

// notes says what to know when reading the profile.
func notes(p *inspector.Profile, all []sampled, names *namer, sum profileProfileTotals) []string {
	possible := float64(p.Hz*p.CPUs) * p.Seconds
	out := []string{fmt.Sprintf("%d of %.0f possible samples (%d a second on each of %d CPUs for %.1f s) hit the target: it used %.2f CPUs.",
		p.Samples, possible, p.Hz, p.CPUs, p.Seconds, float64(p.Samples)/(float64(p.Hz)*p.Seconds))}
	if names.noKernel != nil {
		out = append(out, "Kernel functions have no names: "+inspector.CleanText(names.noKernel.Error())+".")
	}
	if names.unwatched > 0 {
		out = append(out, fmt.Sprintf("%d samples are of processes that ended before their files could be looked at: their user code has no names.", names.unwatched))
	}
	if names.hidden > 0 {
		out = append(out, fmt.Sprintf("%d samples are of processes that the agent may not look into (it lacks CAP_SYS_PTRACE): their user code has no names.", names.hidden))
	}
	list := func(files []string) string { return strings.Join(files[:min(5, len(files))], ", ") }
	if len(names.unread) > 0 {
		out = append(out, "These files could not be read (gone, or the agent lacks CAP_SYS_PTRACE and CAP_SYS_ADMIN), so nothing of them has a name: "+list(names.unread)+".")
	}
	if len(names.bare) > 0 {
		out = append(out, "These files have no table of symbols, so only what they export has a name: "+list(names.bare)+".")
	}
	var shallow, c, golang uint64
	for _, e := range all {
		if len(e.user) == 0 {
			continue
		}
		if f := names.user[e.process][e.user[0]]; f.Go {
			golang += e.count
		} else if c += e.count; len(e.user)-names.astray(e) <= 2 && !names.reachesRoot(e) {
			shallow += e.count
		}
	}
	switch {
	case c > 0 && shallow*2 > c:
		out = append(out, "Most stacks of C code end after one or two frames, before main: it was built without frame pointers (build it with -fno-omit-frame-pointer), so the innermost function is right and its callers are missing.")
	case c+golang > 0:
		out = append(out, "Stacks follow frame pointers: an innermost function that keeps none hides its direct caller, as small ones that call nothing do.")
	}
	if golang > 0 {
		out = append(out, "Go functions that the compiler put into their callers count as those callers.")
	}
	if sum.StacksLost > 0 {
		out = append(out, fmt.Sprintf("%d samples have no stack: there were more distinct ones than there is room for.", sum.StacksLost))
	}
	if sum.LeftOut > 0 {
		out = append(out, fmt.Sprintf("%d samples are in no stack below: there were more processes and stacks than there is room for.", sum.LeftOut))
	}
	return out
}

// next suggests where to look now.
func (s *sampling) next(t *target, p *inspector.Profile) []inspector.NextStep {
	used := float64(p.Samples) / (float64(p.Hz) * p.Seconds)
	var out []inspector.NextStep
	_, starved := s.starved(p.Samples)
	switch {
	case starved:
		out = append(out, inspector.NextStep{Tool: "metrics_summary", Args: map[string]any{"module": process.Name},
			Why: "it is runnable and waits for a CPU: see how many others do (process.runq_wait_ns, process.runq_latency)"},
			inspector.NextStep{Tool: process.ProfileOnCPU, Args: map[string]any{process.ArgCgroup: "/"},
				Why: "see which processes have the CPUs that it waits for"})
	case used < 0.3:
		if t.process != nil {
			out = append(out, inspector.NextStep{Tool: "monitor_process_io", Args: map[string]any{"pid": t.process.Pid},
				Why: "it computes little, so it waits: see whether for a disk"})
		}
		out = append(out, inspector.NextStep{Tool: "metrics_summary", Args: map[string]any{"module": process.Name},
			Why: "see whether tasks wait for a CPU (process.runq_wait_ns)"})
	default:
		out = append(out, inspector.NextStep{Tool: "query_metrics", Args: map[string]any{"metrics": []string{"host.cpu_busy_ratio", process.RunqWaitNS}},
			Why: "see since when the CPUs are busy and whether tasks wait for them"})
	}
	if share(p.Kernel, p.Samples) > 0.5 && p.Samples > 0 {
		out = append(out, inspector.NextStep{Tool: "metrics_summary", Args: map[string]any{"module": "network"},
			Why: "most samples are in the kernel: compare with packets and connections"})
	}
	return out
}
