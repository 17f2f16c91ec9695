package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// registerOwn exposes the health of the parts that keep their own counts.
func registerOwn(own prometheus.Registerer, a *app, windows *metrics.Service, uses *auth.Uses, grpcCert *auth.ServerCert) {
	gauge := func(name, help string, read func() float64) {
		own.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read))
	}
	total := func(name, help string, read func() uint64) {
		own.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(read()) }))
	}
	gauge("telltale_window_partitions_ahead", "Whole hours ahead of now that have a partition for windows. Alarm below 1.", func() float64 { return float64(windows.Gauges().PartitionsAhead) })
	gauge("telltale_window_oldest_seconds", "Age of the oldest partition of windows. Alarm above 8 hours.", func() float64 { return windows.Gauges().OldestKept.Seconds() })
	gauge("telltale_grpc_cert_days", "Days until the certificate of the agents' listener ends.", func() float64 { return time.Until(grpcCert.Leaf().NotAfter).Hours() / 24 })
	total("telltale_windows_written_total", "Windows stored.", func() uint64 { return windows.Gauges().Written })
	total("telltale_windows_replayed_total", "Windows refused because they were stored before.", func() uint64 { return windows.Gauges().Replayed })
	total("telltale_windows_quarantined_total", "Windows kept out for their time or form.", func() uint64 { return windows.Gauges().Quarantined })
	total("telltale_windows_expired_total", "Windows accepted and older than raw windows are kept.", func() uint64 { return windows.Gauges().Expired })
	total("telltale_points_refused_total", "Single values refused as out of range.", func() uint64 { return windows.Gauges().RefusedPoints })
	total("telltale_window_batches_split_total", "Batches split because one report spoiled them.", func() uint64 { return windows.Gauges().Splits })
	total("telltale_sightings_dropped_total", "Signs of life of nodes that found no room to wait for their write.", a.fleet.Dropped)
	total("telltale_auth_uses_dropped_total", "Last uses of tokens and sessions that found no room to wait for their write.", uses.Dropped)
	total("telltale_tenant_cache_evicted_total", "Tenants that newer ones pushed out of the cache of slugs.", a.directory.SlugsEvicted)
	total("telltale_mcp_servers_evicted_total", "Cached MCP servers that newer ones pushed out.", a.tools.Evicted)
	total("telltale_mcp_mixed_era_total", "Requests of clients that mix the MCP revisions.", a.tools.MixedEra)
	byLabel := func(name, help, label string, read func() map[string]uint64) {
		own.MustRegister(countsBy[string]{prometheus.NewDesc(name, help, []string{label}, nil), read})
	}
	byLabel("telltale_mcp_calls_total", "Tool calls and resource reads, by outcome.", "outcome", func() map[string]uint64 { return a.tools.Counts().Calls })
	byLabel("telltale_mcp_refused_total", "MCP requests refused with a JSON-RPC error or for a missing scope, by its name.", "error", func() map[string]uint64 { return a.tools.Counts().Refused })
	own.MustRegister(poolStats{a.db})
}

// poolStats exposes the connection pools.
type poolStats struct{ db *tenantdb.DB }

var (
	poolConns = prometheus.NewDesc("telltale_db_connections", "Connections to the database, by role and state.", []string{"role", "state"}, nil)
	poolMax   = prometheus.NewDesc("telltale_db_connections_max", "Most connections to the database, by role.", []string{"role"}, nil)
	poolWaits = prometheus.NewDesc("telltale_db_waits_total", "Times that no idle connection was there.", []string{"role"}, nil)
)

// Describe implements prometheus.Collector.
func (p poolStats) Describe(ch chan<- *prometheus.Desc) {
	ch <- poolConns
	ch <- poolMax
	ch <- poolWaits
}

// Collect implements prometheus.Collector.
func (p poolStats) Collect(ch chan<- prometheus.Metric) {
	for _, s := range p.db.Stats() {
		ch <- prometheus.MustNewConstMetric(poolConns, prometheus.GaugeValue, float64(s.Idle), s.Role, "idle")
		ch <- prometheus.MustNewConstMetric(poolConns, prometheus.GaugeValue, float64(s.InUse), s.Role, "in_use")
		ch <- prometheus.MustNewConstMetric(poolMax, prometheus.GaugeValue, float64(s.Max), s.Role)
		ch <- prometheus.MustNewConstMetric(poolWaits, prometheus.CounterValue, float64(s.Waits), s.Role)
	}
}
