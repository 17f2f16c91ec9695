package tasks

import (
	"testing"
	"time"
)

// BenchmarkStart stores and ends tasks on the replica that holds the node, one
// after the other: what the database costs of a task.
func BenchmarkStart(b *testing.B) {
	w := newWorld(b)
	ch, _ := w.n1.open(w.s, 1)
	var storing, ending time.Duration
	for b.Loop() {
		began := time.Now()
		id := w.began(w.s, w.me(), drops("n1", 2))
		stored := time.Now()
		w.must(ch.Finished(b.Context(), id, done(1)))
		<-w.n1.orders
		storing += stored.Sub(began)
		ending += time.Since(stored)
	}
	b.ReportMetric(float64(storing.Microseconds())/float64(b.N), "µs/start")
	b.ReportMetric(float64(ending.Microseconds())/float64(b.N), "µs/end")
}
