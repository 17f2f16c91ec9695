package metrics

import (
	"strconv"
	"strings"

	"github.com/telltale-dev/telltale/agent/inspector"
)

func formatUint(n uint64) string { return strconv.FormatUint(n, 10) }

// labelKey makes one comparable string of a label set. Keys and values hold no
// zero byte that matters: two sets with equal keys differ nowhere a reader sees.
func labelKey(labels []inspector.Label) string {
	if len(labels) == 0 {
		return ""
	}
	var b strings.Builder
	for _, l := range labels {
		b.WriteString(strconv.Quote(l.Key))
		b.WriteByte('=')
		b.WriteString(strconv.Quote(l.Value))
		b.WriteByte(',')
	}
	return b.String()
}

// labelMap renders labels of untrusted origin.
func labelMap(labels []inspector.Label) map[string]string {
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[inspector.CleanText(l.Key)] = inspector.CleanText(l.Value)
	}
	return m
}

// bears reports whether a series has all these labels, as stored or as shown.
func bears(labels []inspector.Label, want map[string]string) bool {
	have := 0
	for _, l := range labels {
		v, ok := want[l.Key]
		if !ok {
			v, ok = want[inspector.CleanText(l.Key)]
		}
		if ok && (v == l.Value || v == inspector.CleanText(l.Value)) {
			have++
		}
	}
	return have == len(want)
}
