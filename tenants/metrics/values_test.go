package metrics

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
)

func TestValues(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	node, other := w.node(w.a, "n1"), w.node(w.b, "n1")
	w.fill(node, 6, 2)
	w.fill(other, 6, 1000)
	names := []string{"network.opens", "network.active", "network.drops", "network.rtt", "storage.reads", "x.unknown"}
	ask := func(tenant tenants.TenantID, from, to time.Time) []tenants.MetricValue {
		t.Helper()
		got, err := w.s.Values(ctx, tenant, idOf(node), names, from, to)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := []tenants.MetricValue{
		{Metric: "network.opens", Unit: "count", Rate: ptr(2)},
		{Metric: "network.active", Unit: "count", Avg: ptr(2), Max: ptr(2)},
		{Metric: "network.drops", Unit: "count", Rate: ptr(0.6)},
		{Metric: "network.rtt", Unit: "ns", P99: ptr(3)},
		{Metric: "storage.reads", Unit: "count"},
		{Metric: "x.unknown"},
	}
	if diff := cmp.Diff(want, ask(w.a, w.now().Add(-30*time.Second), w.now())); diff != "" {
		t.Error(diff)
	}
	unknown := []tenants.MetricValue{{Metric: "network.opens", Unit: "count"}, {Metric: "network.active", Unit: "count"}, {Metric: "network.drops", Unit: "count"},
		{Metric: "network.rtt", Unit: "ns"}, {Metric: "storage.reads", Unit: "count"}, {Metric: "x.unknown"}}
	for name, got := range map[string][]tenants.MetricValue{
		"of another tenant": ask(w.b, w.now().Add(-30*time.Second), w.now()),
		"before the data":   ask(w.a, w.now().Add(-time.Hour), w.now().Add(-30*time.Minute)),
		"past retention":    ask(w.a, w.now().Add(-100*time.Hour), w.now().Add(-99*time.Hour)),
		"upside down":       ask(w.a, w.now(), w.now().Add(-time.Hour)),
	} {
		if diff := cmp.Diff(unknown, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
