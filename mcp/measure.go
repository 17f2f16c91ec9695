package mcp

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Numbers of nodes carry their unit in the name. Here the unit goes with the
// number and leaves the name, so that no line says "ms" beside "µs".

// measure writes a number by the unit that its name ends in: the name without
// it, and the number.
func measure(name string, v float64) (label, text string) {
	label, perSecond := strings.CutSuffix(name, "_per_s")
	words := strings.Split(label, "_")
	for suffix, scale := range map[string]float64{"ns": 1, "us": 1e3, "ms": 1e6} {
		if short, ok := strings.CutSuffix(label, "_"+suffix); ok {
			return short, quantity(v*scale, string(inspector.Nanoseconds), perSecond)
		}
	}
	switch last := words[len(words)-1]; {
	case last == "ratio" && len(words) > 1:
		return strings.TrimSuffix(label, "_ratio"), quantity(v, string(inspector.Ratio), false)
	case last == "share" || last == "ratio":
		return label, quantity(v, string(inspector.Ratio), false)
	case slices.Contains(words, "bytes"):
		return label, quantity(v, string(inspector.Bytes), perSecond)
	}
	return label, quantity(v, string(inspector.Count), perSecond)
}

var bucketName = regexp.MustCompile(`^(.+)_(\d+)us_to_(\d+)us$`)

// bucket reads the name of one bucket of a histogram: what is counted, and the
// bounds in microseconds.
func bucket(name string) (of string, from, to float64, ok bool) {
	m := bucketName.FindStringSubmatch(name)
	if m == nil {
		return "", 0, 0, false
	}
	low, errLow := strconv.ParseFloat(m[2], 64)
	high, errHigh := strconv.ParseFloat(m[3], 64)
	return m[1], low, high, errLow == nil && errHigh == nil
}

// buckets are the numbers that belong to a histogram.
func buckets(values map[string]float64) map[string]float64 {
	out := map[string]float64{}
	for k, v := range values {
		if _, _, _, ok := bucket(k); ok {
			out[k] = v
		}
	}
	return out
}

// valueText writes the numbers that belong to no histogram.
func valueText(values map[string]float64) string {
	parts := []string{}
	for _, k := range sortedKeys(values) {
		if _, _, _, ok := bucket(k); !ok {
			label, text := measure(k, values[k])
			parts = append(parts, inspector.CleanText(label)+" "+text)
		}
	}
	return strings.Join(parts, ", ")
}

// measures writes numbers as one line, the zeros last, and each histogram among them as
// another, its buckets in their order.
func measures[N uint64 | float64](p *page, lead string, values map[string]N) {
	plain, hist, none := map[string]float64{}, map[string][]string{}, []string{}
	for k, v := range values {
		if of, _, _, ok := bucket(k); ok {
			hist[of] = append(hist[of], k)
		} else if plain[k] = float64(v); v == 0 {
			delete(plain, k)
			none = append(none, inspector.CleanText(k))
		}
	}
	parts := []string{}
	if len(plain) > 0 {
		parts = append(parts, valueText(plain))
	}
	if len(none) > 0 {
		slices.Sort(none)
		parts = append(parts, "0 of "+strings.Join(none, ", "))
	}
	if len(parts) > 0 {
		p.line("%s%s", lead, strings.Join(parts, "; "))
	}
	for _, of := range sortedKeys(hist) {
		slices.SortFunc(hist[of], func(a, b string) int {
			_, x, _, _ := bucket(a)
			_, y, _, _ := bucket(b)
			return int(min(max(x-y, -1), 1))
		})
		parts := []string{}
		for _, k := range hist[of] {
			_, from, to, _ := bucket(k)
			parts = append(parts, fmt.Sprintf("%s to %s: %s", quantity(from*1e3, string(inspector.Nanoseconds), false), quantity(to*1e3, string(inspector.Nanoseconds), false), number(float64(values[k]))))
		}
		p.line("%s%s by time taken: %s", lead, inspector.CleanText(of), strings.Join(parts, ", "))
	}
}
