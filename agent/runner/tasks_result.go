package runner

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Bounds of a result's text beyond those of package inspector.
const (
	maxText    = 512 // bytes of one label, frame or note
	maxEntries = 32  // labels, values or arguments of one row, sample or step
	maxTotals  = 64
	maxNotes   = 10
	maxNext    = 3
)

// encodeResult makes a result fit to travel: text cleaned, numbers that are
// none left out, everything within its bound, and the whole at most limit
// bytes as JSON. What is cut is counted. The result itself is not changed.
func encodeResult(r *inspector.TaskResult, limit int) ([]byte, error) {
	out := cleanResult(r)
	cutRows(out, inspector.MaxResultRows)
	cutSamples(out, inspector.MaxResultSamples)
	cutFolded(out, inspector.MaxFoldedStacks)
	noted := false
	for {
		raw, err := json.Marshal(out)
		if err != nil {
			return nil, fmt.Errorf("encode the result: %w", err)
		}
		if len(raw) <= limit {
			return raw, nil
		}
		if !noted && len(out.Notes) < maxNotes {
			out.Notes, noted = append(out.Notes, fmt.Sprintf("Cut to fit %d KiB: the least frequent rows, stacks or samples are counted only.", limit>>10)), true
		}
		if !halve(out) {
			return nil, refuse("RESOURCE_EXHAUSTED", inspector.ReasonResultTooLarge, fmt.Sprintf("the result does not fit %d bytes", limit), "ask for a shorter time or a narrower target")
		}
	}
}

// halve cuts the part that takes the most room; false: nothing is left to cut.
func halve(r *inspector.TaskResult) bool {
	part := []func(){
		func() { cutRows(r, len(r.Rows)/2) },
		func() { cutSamples(r, len(r.Samples)/2) },
		func() {},
		func() {},
		func() { r.Notes, r.Next = nil, nil },
	}
	sizes := []int{size(r.Rows), size(r.Samples), 0, 0, size(r.Notes) + size(r.Next)}
	if p := r.Profile; p != nil {
		sizes[2], sizes[3] = size(p.Folded), size(p.Top)
		part[2] = func() { cutFolded(r, len(p.Folded)/2) }
		part[3] = func() { p.Top = p.Top[:len(p.Top)/2] }
	}
	greatest := slices.Max(sizes)
	if greatest <= 8 { // two empty lists
		return false
	}
	part[slices.Index(sizes, greatest)]()
	return true
}

func size(v any) int {
	raw, _ := json.Marshal(v)
	return len(raw)
}

func cutRows(r *inspector.TaskResult, n int) {
	if len(r.Rows) <= n {
		return
	}
	for _, row := range r.Rows[n:] {
		r.OtherRows = inspector.Plus(r.OtherRows, 1)
		r.OtherCount = inspector.Plus(r.OtherCount, row.Count)
	}
	r.Rows = r.Rows[:n]
}

func cutSamples(r *inspector.TaskResult, n int) {
	if len(r.Samples) > n {
		r.Truncated = inspector.Plus(r.Truncated, uint64(len(r.Samples)-n))
		r.Samples = r.Samples[:n]
	}
}

func cutFolded(r *inspector.TaskResult, n int) {
	if r.Profile == nil || len(r.Profile.Folded) <= n {
		return
	}
	for _, f := range r.Profile.Folded[n:] {
		r.Profile.LeftOut = inspector.Plus(r.Profile.LeftOut, f.Count)
	}
	r.Profile.Folded = r.Profile.Folded[:n]
}

// cleanResult copies a result, its text cleaned. Lists that are cut to their
// bound later are copied no further than the bound needs.
func cleanResult(r *inspector.TaskResult) *inspector.TaskResult {
	out := *r
	out.Totals = map[string]uint64{}
	for i, k := range slices.Sorted(maps.Keys(r.Totals)) {
		if i < maxTotals {
			out.Totals[cleanText(k)] = r.Totals[k]
		}
	}
	out.Rows = make([]inspector.ResultRow, len(r.Rows))
	for i, row := range r.Rows {
		if i < inspector.MaxResultRows {
			row.Labels, row.Values, row.Stack = cleanLabels(row.Labels), numbers(row.Values), frames(row.Stack)
		}
		out.Rows[i] = row
	}
	out.Samples = make([]inspector.ResultSample, len(r.Samples))
	for i, s := range r.Samples {
		if i < inspector.MaxResultSamples {
			s.Labels, s.Values, s.Stack = cleanLabels(s.Labels), numbers(s.Values), frames(s.Stack)
		}
		out.Samples[i] = s
	}
	out.StoppedFor = cleanText(r.StoppedFor)
	out.Notes = nil
	for _, n := range r.Notes[:min(len(r.Notes), maxNotes)] {
		out.Notes = append(out.Notes, cleanText(n))
	}
	out.Next = nil
	for _, n := range r.Next[:min(len(r.Next), maxNext)] {
		out.Next = append(out.Next, inspector.NextStep{Tool: cleanText(n.Tool), Args: arguments(n.Args), Why: cleanText(n.Why)})
	}
	if r.Profile != nil {
		out.Profile = cleanProfile(*r.Profile)
	}
	return &out
}

func cleanProfile(p inspector.Profile) *inspector.Profile {
	p.Seconds = finite(p.Seconds)
	top, folded := p.Top[:min(len(p.Top), inspector.MaxResultRows)], p.Folded
	p.Top, p.Folded = make([]inspector.ProfileFrame, len(top)), make([]inspector.FoldedStack, len(folded))
	for i, f := range top {
		f.Function, f.Module, f.Share = cleanText(f.Function), cleanText(f.Module), finite(f.Share)
		p.Top[i] = f
	}
	for i, f := range folded {
		if i < inspector.MaxFoldedStacks {
			f.Stack = clip(inspector.CleanText(clip(f.Stack, inspector.MaxStackDepth*maxText)), inspector.MaxStackDepth*maxText)
		}
		p.Folded[i] = f
	}
	return &p
}

// cleanText bounds the work as well as the result.
func cleanText(s string) string { return clip(inspector.CleanText(clip(s, maxText)), maxText) }

func cleanLabels(in map[string]string) map[string]string {
	out := make(map[string]string, min(len(in), maxEntries))
	for i, k := range slices.Sorted(maps.Keys(in)) {
		if i < maxEntries {
			out[cleanText(k)] = cleanText(in[k])
		}
	}
	return out
}

// numbers leaves out what JSON has no word for: an unknown number is absent.
func numbers(in map[string]float64) map[string]float64 {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]float64, min(len(in), maxEntries))
	for i, k := range slices.Sorted(maps.Keys(in)) {
		if v := in[k]; i < maxEntries && !math.IsNaN(v) && !math.IsInf(v, 0) {
			out[cleanText(k)] = v
		}
	}
	return out
}

func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

func frames(in []string) []string {
	if len(in) == 0 {
		return nil
	}
	out := make([]string, min(len(in), inspector.MaxStackDepth))
	for i := range out {
		out[i] = cleanText(in[i])
	}
	return out
}

// arguments keeps scalar arguments of a suggested call.
func arguments(in map[string]any) map[string]any {
	out := make(map[string]any, min(len(in), maxEntries))
	for i, k := range slices.Sorted(maps.Keys(in)) {
		if i >= maxEntries {
			break
		}
		switch v := in[k].(type) {
		case string:
			out[cleanText(k)] = cleanText(v)
		case bool, int, int32, int64, uint32, uint64:
			out[cleanText(k)] = v
		case float64:
			if finite(v) == v {
				out[cleanText(k)] = v
			}
		case []string:
			list := make([]any, min(len(v), maxEntries))
			for i := range list {
				list[i] = cleanText(v[i])
			}
			out[cleanText(k)] = list
		}
	}
	return out
}
