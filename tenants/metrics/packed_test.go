package metrics

import (
	"testing"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// BenchmarkWalk is the cost of looking at one window of 200 series, which
// every window pays on its way in and again when it is read.
func BenchmarkWalk(b *testing.B) {
	l, vals := wide("network", 200)
	packed := inspector.AppendValues(nil, l.Series, vals)
	kinds := make([]inspector.Kind, len(l.Series))
	for i, s := range l.Series {
		kinds[i] = s.Kind
	}
	seen := 0
	for b.Loop() {
		if refused, err := walk(packed, kinds, func(int, *inspector.Value) { seen++ }); refused != 0 || err != nil {
			b.Fatal(refused, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(kinds)), "ns/sample")
}
