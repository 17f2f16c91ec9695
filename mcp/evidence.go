package mcp

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// accepted is the status of a task's first answer when it goes on; afterwards
// a ticket is in one of the task's own states.
const accepted = "ACCEPTED"

// taskAnswer is what a task found, merged over its nodes. Rows carry their
// node, so that one answer can speak of fifty.
type taskAnswer struct {
	Status     string         `json:"status"`
	Ticket     string         `json:"ticket_id"`
	Task       string         `json:"task"`
	Arguments  map[string]any `json:"arguments"`
	StartedBy  string         `json:"started_by"`
	CreatedAt  time.Time      `json:"created_at"`
	EndedAt    *time.Time     `json:"ended_at,omitempty"`
	ExpiresAt  time.Time      `json:"expires_at"`
	Window     *winSpan       `json:"window,omitempty"`
	FreshnessS *float64       `json:"freshness_s,omitempty"`
	// Conclude is false while more may come: what is there is partial.
	Conclude bool             `json:"conclude"`
	Progress *float64         `json:"progress,omitempty"`
	Coverage tenants.Coverage `json:"coverage"`
	Nodes    []nodeOutcome    `json:"nodes"`
	Evidence
	Truncated *tenants.Truncated `json:"truncated,omitempty"`
	Notes     []string           `json:"notes"`
	Next      []Next             `json:"next,omitempty"`

	counts map[string]string // what a row's count counts, by level
}

// winSpan is the span that the evidence covers, by the clocks of the nodes.
type winSpan struct {
	tenants.Window
	Clock string `json:"clock"` // always "node"
}

// Evidence is data of untrusted origin.
type Evidence struct {
	Totals     map[string]uint64 `json:"totals"`
	Rows       []evidenceRow     `json:"rows"`
	Samples    []evidenceSample  `json:"samples,omitempty"`
	Profiles   []nodeProfile     `json:"profiles,omitempty"`
	Lost       uint64            `json:"lost"`
	OtherRows  uint64            `json:"other_rows,omitempty"`
	OtherCount uint64            `json:"other_count,omitempty"`
	Unsampled  uint64            `json:"truncated_events,omitempty"`
	SampleRate uint64            `json:"sample_rate,omitempty"`
	Unknown    uint64            `json:"unattributed,omitempty"`
}

// nodeOutcome is how the task stands on one node.
type nodeOutcome struct {
	Node     string `json:"node"`
	Name     string `json:"name"`
	Outcome  string `json:"outcome"` // answered, running, connection_lost, refused, unsupported, offline, failed, cancelled, timed_out, not_started
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
	NextStep string `json:"next_step,omitempty"`
	Lost     uint64 `json:"lost,omitempty"`
	Stopped  string `json:"stopped_for,omitempty"`
}

// told reports whether there is anything to say of the node beyond its rows.
func (n nodeOutcome) told() bool { return n.Outcome != "answered" || n.Stopped != "" }

type evidenceRow struct {
	Node string `json:"node"`
	Name string `json:"name"`
	Row  int    `json:"row"` // its number on its node, for promote_evidence
	inspector.ResultRow
	Share *float64 `json:"share,omitempty"` // of the counts of all rows of its level on all nodes
}

type evidenceSample struct {
	Node string `json:"node"`
	Name string `json:"name"`
	inspector.ResultSample
}

type nodeProfile struct {
	Node string `json:"node"`
	Name string `json:"name"`
	inspector.Profile
	Possible float64 `json:"possible_samples"` // hz × CPUs × seconds
}

// merge gathers what the runs of a task found.
func merge(t tasks.Task) (Evidence, *winSpan, []string) {
	e := Evidence{Totals: map[string]uint64{}, Rows: []evidenceRow{}}
	var span *winSpan
	notes := []string{}
	all := map[string]uint64{} // by level
	for _, run := range t.Runs {
		r := run.Result
		if r == nil {
			continue
		}
		if span == nil {
			span = &winSpan{tenants.Window{From: r.From, To: r.To}, "node"}
		}
		if r.From.Before(span.From) {
			span.From = r.From
		}
		if r.To.After(span.To) {
			span.To = r.To
		}
		for k, v := range r.Totals {
			e.Totals[k] = plus(e.Totals[k], v)
		}
		for i, row := range r.Rows {
			e.Rows = append(e.Rows, evidenceRow{Node: run.Node, Name: run.Name, Row: i, ResultRow: row})
			all[level(row.Labels)] = inspector.Plus(all[level(row.Labels)], row.Count)
		}
		for _, s := range r.Samples {
			e.Samples = append(e.Samples, evidenceSample{run.Node, run.Name, s})
		}
		if p := r.Profile; p != nil {
			e.Profiles = append(e.Profiles, nodeProfile{run.Node, run.Name, *p, float64(p.Hz*p.CPUs) * p.Seconds})
		}
		e.Lost = plus(e.Lost, r.Lost)
		e.OtherRows = plus(e.OtherRows, r.OtherRows)
		e.OtherCount = plus(e.OtherCount, r.OtherCount)
		e.Unsampled = plus(e.Unsampled, r.Truncated)
		e.Unknown = plus(e.Unknown, r.Unknown)
		e.SampleRate = max(e.SampleRate, r.SampleRate)
		for _, n := range r.Notes {
			if len(notes) < 10 && !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
	}
	for i := range e.Rows {
		sum := all[level(e.Rows[i].Labels)]
		if len(all) == 1 { // else nobody knows of which level the others are
			sum = inspector.Plus(sum, e.OtherCount)
		}
		if sum > 0 {
			share := float64(e.Rows[i].Count) / float64(sum)
			e.Rows[i].Share = &share
		}
	}
	slices.SortStableFunc(e.Rows, func(a, b evidenceRow) int {
		switch {
		case a.Benign != b.Benign: // daily life comes after what may be a fault
			if a.Benign {
				return 1
			}
			return -1
		case a.Count > b.Count:
			return -1
		case a.Count < b.Count:
			return 1
		}
		return 0
	})
	slices.SortStableFunc(e.Samples, func(a, b evidenceSample) int { return a.At.Compare(b.At) })
	slices.SortStableFunc(e.Profiles, func(a, b nodeProfile) int {
		return int(min(max(int64(b.Samples)-int64(a.Samples), -1), 1))
	})
	return e, span, notes
}

// levelLabel tells rows apart that say the same thing at different levels,
// such as a device and the processes that use it. eventLabel tells apart rows
// that count different things.
const (
	levelLabel = "row"
	eventLabel = "event"
)

// level is the heading under which a row stands: its counts add up with those
// of the rows there, and with no others.
func level(labels map[string]string) string {
	switch {
	case labels[levelLabel] != "":
		return "by " + labels[levelLabel]
	case labels[eventLabel] != "":
		return eventLabel + " " + labels[eventLabel]
	}
	return ""
}

// plus adds what nodes counted, up to what a reader of JSON numbers reads as
// it is: no sum of what one node made up may hide what others saw.
func plus(a, b uint64) uint64 { return min(inspector.Plus(a, b), inspector.MaxCount) }

// shown bounds what one answer holds of each list.
type shown struct{ rows, samples, frames, tops, stacks, profiles int }

var (
	concise  = shown{rows: 10, samples: 3, frames: 6, tops: 10, profiles: 10}
	detailed = shown{rows: 200, samples: inspector.MaxResultSamples, frames: inspector.MaxStackDepth, tops: 50, stacks: inspector.MaxFoldedStacks, profiles: tasks.MaxRuns}
)

// cut keeps the first of each list and says what it left out.
func (e *Evidence) cut(s shown) *tenants.Truncated {
	known := len(e.Rows)
	total := int(plus(uint64(known), e.OtherRows))
	e.Rows = e.Rows[:min(len(e.Rows), s.rows)]
	for i := range e.Rows {
		e.Rows[i].Stack = frames(e.Rows[i].Stack, s.frames)
	}
	samples := len(e.Samples)
	e.Samples = e.Samples[:min(samples, s.samples)]
	for i := range e.Samples {
		e.Samples[i].Stack = frames(e.Samples[i].Stack, s.frames)
	}
	hint := ""
	if len(e.Samples) < samples {
		hint = fmt.Sprintf("%d of %s shown; ", len(e.Samples), counted(samples, "sample"))
	}
	e.Profiles = slices.Clone(e.Profiles[:min(len(e.Profiles), s.profiles)])
	for i := range e.Profiles {
		p := &e.Profiles[i]
		if len(p.Top) > s.tops {
			hint += fmt.Sprintf("%d of %d functions of %s shown; ", s.tops, len(p.Top), p.Name)
			p.Top = p.Top[:s.tops]
		}
		keep := min(len(p.Folded), s.stacks)
		for _, f := range p.Folded[keep:] {
			p.LeftOut += f.Count
		}
		p.Folded = p.Folded[:keep]
	}
	if len(e.Rows) == total && hint == "" {
		return nil
	}
	if len(e.Rows) < known || hint != "" {
		hint += "format detailed and a larger max_bytes show more"
	} else {
		hint = "the nodes list their greatest groups only; narrow the task to see others"
	}
	return &tenants.Truncated{Returned: len(e.Rows), Total: &total, Hint: hint}
}

// frames keeps the innermost frames of a stack.
func frames(stack []string, n int) []string {
	if len(stack) <= n {
		return stack
	}
	return append(slices.Clone(stack[:n]), fmt.Sprintf("… %d more", len(stack)-n))
}

// size counts the rows of all lists, for the byte budget.
func (e Evidence) size() int {
	n := len(e.Rows) + len(e.Samples)
	for _, p := range e.Profiles {
		n += 1 + len(p.Top) + len(p.Folded)
	}
	return n
}

// squeeze shares n rows among the lists as they stand.
func (e Evidence) squeeze(s shown, n int) shown {
	all := max(1, e.size())
	part := func(have int) int { return max(1, have*n/all) }
	tops, stacks := 0, 0
	for _, p := range e.Profiles {
		tops, stacks = max(tops, len(p.Top)), max(stacks, len(p.Folded))
	}
	out := shown{rows: part(len(e.Rows)), samples: part(len(e.Samples)), frames: s.frames, tops: max(1, part(tops)), stacks: 0, profiles: max(1, part(len(e.Profiles)))}
	if stacks > 0 && s.stacks > 0 {
		out.stacks = part(stacks)
	}
	if n < all/2 {
		out.frames = min(s.frames, 8)
	}
	return out
}

// outcomes says for each node how the task stands there.
func outcomes(t tasks.Task) []nodeOutcome {
	out := []nodeOutcome{}
	for _, r := range t.Runs {
		o := nodeOutcome{Node: r.Node, Name: r.Name, Outcome: outcome(r), Reason: r.Reason, Message: r.Message, NextStep: r.Next}
		if r.Result != nil {
			o.Lost, o.Stopped = r.Result.Lost, r.Result.StoppedFor
		}
		out = append(out, o)
	}
	for _, n := range t.Coverage.NotCovered { // those that got no run at all
		if !slices.ContainsFunc(t.Runs, func(r tasks.Run) bool { return r.Node == n.Node }) {
			o := nodeOutcome{Node: n.Node, Name: n.Name, Outcome: "offline", Reason: n.Reason}
			if strings.HasPrefix(n.Reason, inspector.ReasonFeatureOff) || n.Reason == "off" {
				o.Outcome = "unsupported"
			}
			out = append(out, o)
		}
	}
	return out
}

func outcome(r tasks.Run) string {
	switch r.Status {
	case tasks.Completed:
		return "answered"
	case tasks.Cancelled:
		return "cancelled"
	case tasks.TimedOut:
		return "timed_out"
	case tasks.Disconnected:
		return "offline"
	case tasks.Expired:
		return "not_started"
	case tasks.Failed:
		switch {
		case r.Reason == inspector.ReasonFeatureOff || r.Reason == inspector.ReasonUnknownKind:
			return "unsupported"
		case r.Reason == "offline" || r.Reason == "node_offline":
			return "offline"
		case r.StartedAt == nil:
			return "refused"
		}
		return "failed"
	}
	if r.Reason != "" { // the node is away and may come back within its lease
		return "connection_lost"
	}
	return "running"
}

// progressOf is the mean over the nodes.
func progressOf(t tasks.Task) float64 {
	sum := 0.0
	for _, r := range t.Runs {
		if r.Status.Terminal() {
			sum++
		} else {
			sum += min(max(r.Progress, 0), 1)
		}
	}
	return sum / float64(max(1, len(t.Runs)))
}

// describe makes the answer about a task: everything that its runs found, in
// the size that s allows.
func describe(t tasks.Task, s shown, now time.Time) taskAnswer {
	ev, span, notes := merge(t)
	a := taskAnswer{Status: string(t.Status), Ticket: t.Ticket, Task: t.Kind, Arguments: maps.Clone(t.Args), StartedBy: t.By, CreatedAt: t.CreatedAt, EndedAt: t.EndedAt, ExpiresAt: t.ExpiresAt,
		Window: span, Conclude: t.Status.Terminal(), Coverage: t.Coverage, Nodes: outcomes(t), Evidence: ev, Notes: notes}
	if span != nil {
		f := max(0, now.Sub(span.To).Seconds())
		a.FreshnessS = &f
	}
	if !a.Conclude {
		p := progressOf(t)
		a.Progress = &p
		a.Notes = append(a.Notes, "the task goes on: do not conclude yet, what is shown is partial and absence means nothing before it has ended")
	}
	a.Truncated = a.Evidence.cut(s)
	return a
}
