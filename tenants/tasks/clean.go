package tasks

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// What a node says is untrusted: every text is cleaned again, every list and
// every number cut to its bound.

const (
	maxText   = 500 // bytes of a message
	maxWords  = 20  // entries of a list among the arguments of a step
	maxLabels = 32  // of a row, a sample, a map of totals
	maxNotes  = 10
	maxNext   = 3

	// A profile beyond these is none that an agent took: their product is the
	// number of samples that there could have been.
	maxHz   = 1 << 20
	maxCPUs = 1 << 16
)

// encode cleans the result of a run and answers it, and as JSON of at most
// limit bytes, which reads as the same.
func encode(r *inspector.TaskResult, limit int, ran span) (*inspector.TaskResult, []byte, *inspector.Refusal) {
	clean := cleanTimes(cleanResult(*r), ran)
	b, err := json.Marshal(clean)
	switch {
	case err != nil: // a number that JSON cannot hold
		return nil, nil, &inspector.Refusal{Kind: fault.Internal.String(), Reason: inspector.ReasonTaskFailed, Msg: "the node's result cannot be read"}
	case len(b) > limit:
		return nil, nil, &inspector.Refusal{Kind: fault.Exhausted.String(), Reason: inspector.ReasonResultTooLarge,
			Msg: fmt.Sprintf("the node's result has %d bytes, more than %d", len(b), limit), Next: "narrow the target, or ask for fewer events"}
	}
	return &clean, b, nil
}

func cleanResult(r inspector.TaskResult) inspector.TaskResult {
	r.Totals = cleanMap(r.Totals)
	if r.Totals == nil {
		r.Totals = map[string]uint64{}
	}
	for k, n := range r.Totals {
		r.Totals[k] = count(n)
	}
	rows := make([]inspector.ResultRow, 0, min(len(r.Rows), inspector.MaxResultRows))
	for i, row := range r.Rows {
		if i >= inspector.MaxResultRows {
			r.OtherRows = inspector.Plus(r.OtherRows, 1)
			r.OtherCount = inspector.Plus(r.OtherCount, row.Count)
			continue
		}
		row.Count = count(row.Count)
		row.Labels, row.Values, row.Stack = cleanLabels(row.Labels), cleanValues(row.Values), cleanStack(row.Stack)
		rows = append(rows, row)
	}
	r.Rows = rows
	var samples []inspector.ResultSample
	for i, e := range r.Samples {
		if i >= inspector.MaxResultSamples {
			r.Truncated = inspector.Plus(r.Truncated, 1)
			continue
		}
		e.Labels, e.Values, e.Stack = cleanLabels(e.Labels), cleanValues(e.Values), cleanStack(e.Stack)
		samples = append(samples, e)
	}
	r.Samples = samples
	for _, n := range []*uint64{&r.Lost, &r.OtherRows, &r.OtherCount, &r.Truncated, &r.SampleRate, &r.Unknown} {
		*n = count(*n)
	}
	r.StoppedFor = clip(r.StoppedFor, 40)
	r.Notes = cleanList(r.Notes, maxNotes, maxText)
	var next []inspector.NextStep
	for _, n := range r.Next[:min(len(r.Next), maxNext)] {
		next = append(next, inspector.NextStep{Tool: clip(n.Tool, 40), Args: cleanArgs(n.Args), Why: clip(n.Why, maxText)})
	}
	r.Next = next
	r.Profile = cleanProfile(r.Profile)
	return r
}

// span is when a run was at work, by the server's clock.
type span struct{ from, to time.Time }

const (
	longestRun = inspector.MaxTaskSeconds*time.Second + RunGrace + DeadlineGrace
	timeSlack  = time.Minute // of what a node says, beside the skew that is corrected everywhere
)

// cleanTimes holds a result to the times of its run. A result may bear the
// clock of a node that is off as far as the server corrects; times beyond that,
// or a span that is longer than the run, are no clock's.
func cleanTimes(r inspector.TaskResult, ran span) inspector.TaskResult {
	const off = tenants.SkewCorrected + timeSlack
	within := func(t, from, to time.Time, slack time.Duration) bool {
		return !t.Before(from.Add(-slack)) && !t.After(to.Add(slack))
	}
	if !within(r.From, ran.from, ran.to, off) || !within(r.To, ran.from, ran.to, off) || r.To.Before(r.From) || r.To.Sub(r.From) > ran.to.Sub(ran.from)+timeSlack {
		r.From, r.To = ran.from, ran.to
		r.Notes = noted(r.Notes, "the node gave no possible times for what it found: from and to are those of the run, by the server's clock")
	}
	known := len(r.Samples)
	r.Samples = slices.DeleteFunc(r.Samples, func(e inspector.ResultSample) bool { return !within(e.At, r.From, r.To, timeSlack) })
	if n := known - len(r.Samples); n > 0 {
		if len(r.Samples) == 0 {
			r.Samples = nil
		}
		r.Truncated = count(inspector.Plus(r.Truncated, uint64(n)))
		r.Notes = noted(r.Notes, fmt.Sprintf("%d samples were left out: their times lie outside the run", n))
	}
	return r
}

// noted puts a note of the server before those of the node.
func noted(notes []string, note string) []string {
	return append([]string{note}, notes[:min(len(notes), maxNotes-1)]...)
}

func cleanProfile(p *inspector.Profile) *inspector.Profile {
	if p == nil {
		return nil
	}
	c := *p
	c.Hz, c.CPUs, c.Seconds = min(p.Hz, maxHz), min(p.CPUs, maxCPUs), min(max(p.Seconds, 0), 2*inspector.MaxTaskSeconds)
	c.Top = make([]inspector.ProfileFrame, 0, min(len(p.Top), inspector.MaxResultRows))
	for _, f := range p.Top[:min(len(p.Top), inspector.MaxResultRows)] {
		f.Function, f.Module = clip(f.Function, maxText), clip(f.Module, maxText)
		f.Self, f.Total, f.Share = count(f.Self), count(f.Total), min(max(f.Share, 0), 1)
		c.Top = append(c.Top, f)
	}
	c.Folded = make([]inspector.FoldedStack, 0, min(len(p.Folded), inspector.MaxFoldedStacks))
	for i, f := range p.Folded {
		if i >= inspector.MaxFoldedStacks {
			c.LeftOut = inspector.Plus(c.LeftOut, f.Count)
			continue
		}
		f.Stack, f.Count = inspector.CleanText(f.Stack), count(f.Count)
		c.Folded = append(c.Folded, f)
	}
	for _, n := range []*uint64{&c.Samples, &c.Kernel, &c.Unnamed, &c.LeftOut} {
		*n = count(*n)
	}
	return &c
}

// count cuts a number to what a reader of JSON numbers reads as it is. No
// machine counts so far in the time that a task has.
func count(n uint64) uint64 { return min(n, inspector.MaxCount) }

// cleanValues leaves out numbers that a reader of JSON would read as others,
// or not at all: unknown is absent.
func cleanValues(m map[string]float64) map[string]float64 {
	out := cleanMap(m)
	for k, v := range out {
		if !readable(v) {
			delete(out, k)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func readable(v float64) bool { return math.Abs(v) <= inspector.MaxCount } // false for NaN

// cleanMap keeps at most maxLabels entries of numbers, by clean names.
func cleanMap[V any](m map[string]V) map[string]V {
	if m == nil {
		return nil
	}
	out := make(map[string]V, len(m))
	for k, v := range m {
		if len(out) >= maxLabels {
			break
		}
		k, _ = inspector.CleanLabel(k)
		out[k] = v
	}
	return out
}

func cleanLabels(m map[string]string) map[string]string {
	out := cleanMap(m)
	for k, v := range out {
		out[k] = clip(v, maxText)
	}
	if out == nil {
		out = map[string]string{}
	}
	return out
}

func cleanStack(list []string) []string { return cleanList(list, inspector.MaxStackDepth, maxText) }

func cleanList(list []string, rows, bytes int) []string {
	var out []string
	for _, s := range list[:min(len(list), rows)] {
		out = append(out, clip(s, bytes))
	}
	return out
}

// cleanArgs keeps the arguments of a step that are plain values.
func cleanArgs(m map[string]any) map[string]any {
	out := map[string]any{}
	for k, v := range cleanMap(m) {
		switch v := v.(type) {
		case string:
			out[k] = clip(v, maxText)
		case float64:
			if readable(v) {
				out[k] = v
			}
		case int64, int, bool, json.Number:
			out[k] = v
		case []any: // such as the names of metrics
			words := []any{}
			for _, w := range v[:min(len(v), maxWords)] {
				if s, ok := w.(string); ok {
					words = append(words, clip(s, maxText))
				}
			}
			if len(words) > 0 {
				out[k] = words
			}
		}
	}
	return out
}

var word = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// cleanRefusal makes a node's refusal one of ours: a known kind, a reason that
// is a word, safe text.
func cleanRefusal(r *inspector.Refusal) *inspector.Refusal {
	if r == nil {
		return nil
	}
	c := inspector.Refusal{Kind: r.Kind, Reason: r.Reason, Arg: clip(r.Arg, 64), Msg: clip(r.Msg, maxText), Next: clip(r.Next, maxText)}
	if k, ok := fault.ParseKind(r.Kind); !ok || k == fault.Unauthorized { // which would ask the caller to log in
		c.Kind = fault.Internal.String()
	}
	if !word.MatchString(r.Reason) {
		c.Reason = inspector.ReasonTaskFailed
	}
	if c.Msg == "" {
		c.Msg = "the node gave no reason in words"
	}
	if c.Next == "" {
		c.Next = "call get_node to see how the node is and what it can do, then start the task again"
	}
	return &c
}

// clip cleans text and cuts it to n bytes at a rune boundary.
func clip(s string, n int) string {
	s = inspector.CleanText(cut(s, n))
	return cut(s, n)
}

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
