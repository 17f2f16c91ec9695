package tenants

// MetricValue is one metric of one node over one span, for snapshots that
// slices other than metrics keep. Nil numbers are unknown, never zero.
type MetricValue struct {
	Metric string
	Unit   string   // empty: unknown to this server
	Avg    *float64 // gauges
	Max    *float64 // gauges
	Rate   *float64 // deltas, per second
	P99    *float64 // histograms, upper bound of the bucket
}
