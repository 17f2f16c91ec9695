package ingest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Bounds of a result beside those of agent/inspector.
const (
	maxNotes     = 10
	maxNextSteps = 3
	maxFields    = 64 // labels, values or totals of one row
)

// resultOf decodes a node's result: unknown fields are an error, text is
// cleaned, and what is over a bound is left out and counted as left out.
func resultOf(raw []byte) (*inspector.TaskResult, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var r *inspector.TaskResult
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the result")
	}
	if r == nil {
		return nil, errors.New("the result is null")
	}
	if err := dates(&r.From, &r.To); err != nil {
		return nil, err
	}
	r.Totals = cleanKeys(r.Totals)
	if r.Totals == nil {
		r.Totals = map[string]uint64{}
	}
	if r.Rows == nil {
		r.Rows = []inspector.ResultRow{}
	}
	for _, row := range r.Rows[min(len(r.Rows), inspector.MaxResultRows):] {
		r.OtherRows++
		r.OtherCount += row.Count
	}
	r.Rows = r.Rows[:min(len(r.Rows), inspector.MaxResultRows)]
	for i := range r.Rows {
		row := &r.Rows[i]
		row.Labels, row.Values, row.Stack = cleanText(row.Labels), cleanKeys(row.Values), cleanList(row.Stack, inspector.MaxStackDepth)
	}
	if n := len(r.Samples) - inspector.MaxResultSamples; n > 0 {
		r.Samples = r.Samples[:inspector.MaxResultSamples]
		r.Truncated += uint64(n)
	}
	for i := range r.Samples {
		s := &r.Samples[i]
		if err := dates(&s.At); err != nil {
			return nil, err
		}
		s.Labels, s.Values, s.Stack = cleanText(s.Labels), cleanKeys(s.Values), cleanList(s.Stack, inspector.MaxStackDepth)
	}
	cleanProfile(r.Profile)
	r.StoppedFor = inspector.CleanText(r.StoppedFor)
	r.Notes = cleanList(r.Notes, maxNotes)
	r.Next = cleanSteps(r.Next)
	return r, nil
}

// dates refuses years that no clock shows: they cannot be written as JSON
// again in every zone.
func dates(times ...*time.Time) error {
	for _, t := range times {
		*t = t.UTC()
		if y := t.Year(); y < 1 || y > 9000 {
			return errors.New("a time that no clock shows")
		}
	}
	return nil
}

func cleanProfile(p *inspector.Profile) {
	if p == nil {
		return
	}
	p.Top = p.Top[:min(len(p.Top), inspector.MaxResultRows)]
	if p.Top == nil {
		p.Top = []inspector.ProfileFrame{}
	}
	for i := range p.Top {
		p.Top[i].Function, p.Top[i].Module = inspector.CleanText(p.Top[i].Function), inspector.CleanText(p.Top[i].Module)
	}
	for _, f := range p.Folded[min(len(p.Folded), inspector.MaxFoldedStacks):] {
		p.LeftOut += f.Count
	}
	p.Folded = p.Folded[:min(len(p.Folded), inspector.MaxFoldedStacks)]
	if p.Folded == nil {
		p.Folded = []inspector.FoldedStack{}
	}
	for i := range p.Folded {
		p.Folded[i].Stack = inspector.CleanText(p.Folded[i].Stack)
	}
}

// cleanSteps keeps arguments that are plain values or lists of text: no step
// needs more.
func cleanSteps(steps []inspector.NextStep) []inspector.NextStep {
	steps = steps[:min(len(steps), maxNextSteps)]
	for i := range steps {
		s := &steps[i]
		s.Tool, s.Why = inspector.CleanText(s.Tool), inspector.CleanText(s.Why)
		args := map[string]any{}
		for k, v := range s.Args {
			if len(args) == maxFields {
				break
			}
			switch v := v.(type) {
			case string:
				args[inspector.CleanText(k)] = inspector.CleanText(v)
			case float64, bool:
				args[inspector.CleanText(k)] = v
			case []any:
				if list, ok := cleanWords(v); ok {
					args[inspector.CleanText(k)] = list
				}
			}
		}
		s.Args = args
	}
	return steps
}

// cleanWords is a list of text; ok is false for any other.
func cleanWords(list []any) (words []any, ok bool) {
	for _, v := range list[:min(len(list), maxFields)] {
		s, ok := v.(string)
		if !ok {
			return nil, false
		}
		words = append(words, inspector.CleanText(s))
	}
	return words, len(words) > 0
}

func cleanText(m map[string]string) map[string]string {
	out := cleanKeys(m)
	if out == nil {
		return map[string]string{} // labels are never null
	}
	for k, v := range out {
		if clean := inspector.CleanText(v); clean != v {
			out[k] = clean
		}
	}
	return out
}

// cleanKeys returns m itself when its keys are clean and few enough.
func cleanKeys[V any](m map[string]V) map[string]V {
	dirty := len(m) > maxFields
	for k := range m {
		dirty = dirty || inspector.CleanText(k) != k
	}
	if !dirty {
		return m
	}
	out := make(map[string]V, min(len(m), maxFields))
	for k, v := range m {
		if len(out) < maxFields {
			out[inspector.CleanText(k)] = v
		}
	}
	return out
}

func cleanList(list []string, most int) []string {
	list = list[:min(len(list), most)]
	for i, s := range list {
		list[i] = inspector.CleanText(s)
	}
	return list
}
