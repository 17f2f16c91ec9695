package metrics

import (
	"context"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// Values answers one value for each named metric over the windows of one node
// that ended in from < t <= to, in the order of the names; label sets are put
// together as Summary does. Numbers without data are nil, and so is everything
// of a span past retention, of a metric that this server does not know, and of
// a node that is no such tenant's. It is for the server's own snapshots and
// checks no scope; at most MaxMetrics names and six hours are read.
func (s *Service) Values(ctx context.Context, tenant tenants.TenantID, node tenants.NodeID, names []string, from, to time.Time) ([]tenants.MetricValue, error) {
	names = names[:min(len(names), MaxMetrics)]
	out := make([]tenants.MetricValue, len(names))
	asked := inspector.Component{}
	var owners []string
	for i, name := range names {
		out[i].Metric = name
		if m, ok := s.reg.Metric(name); ok {
			out[i].Unit = string(m.Unit)
			asked.Metrics = append(asked.Metrics, m)
			owners = append(owners, s.owner[name])
		}
	}
	now := s.now()
	if oldest := now.Add(-tenants.WindowRetention); from.Before(oldest) {
		from = oldest
	}
	if len(asked.Metrics) == 0 || !to.After(from) {
		return out, nil
	}
	slices.Sort(owners)
	r := &reading{s: s, scope: tenants.Scope{Tenant: tenant}, targets: []target{{id: node}}, from: from, to: to, components: slices.Compact(owners)}
	sum := newSumming(asked, now, from, to)
	if err := r.each(ctx, 0, sum.visit, sum.done); err != nil {
		return nil, err
	}
	for i := range out {
		m := sum.metrics[out[i].Metric]
		if m == nil {
			continue
		}
		m.all.fold()
		st := m.all.stats(false)
		switch m.m.Kind {
		case inspector.Gauge:
			out[i].Avg, out[i].Max = st.Avg, st.Max
		case inspector.Delta:
			out[i].Rate = st.RatePerS
		case inspector.Histogram:
			if st.P99 != nil {
				out[i].P99 = ptr(float64(*st.P99))
			}
		}
	}
	return out, nil
}
