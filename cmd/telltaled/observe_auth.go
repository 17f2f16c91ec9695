package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/telltale-dev/telltale/auth"
)

// doorCaches exposes the caches of verified credentials, by name.
type doorCaches map[string]func() auth.CacheStats

var (
	cacheLookups = prometheus.NewDesc("telltale_auth_cache_lookups_total", "Look-ups in a cache of credentials, by cache and result.", []string{"cache", "result"}, nil)
	cacheEvicted = prometheus.NewDesc("telltale_auth_cache_evicted_total", "Entries that newer ones pushed out of a cache of credentials.", []string{"cache"}, nil)
	cacheEntries = prometheus.NewDesc("telltale_auth_cache_entries", "Entries of a cache of credentials: answers, and answers that there is nothing.", []string{"cache"}, nil)
)

// Describe names nothing, so that several groups of caches can be registered;
// their names differ.
func (doorCaches) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c doorCaches) Collect(ch chan<- prometheus.Metric) {
	for name, read := range c {
		s := read()
		ch <- prometheus.MustNewConstMetric(cacheLookups, prometheus.CounterValue, float64(s.Hits), name, "hit")
		ch <- prometheus.MustNewConstMetric(cacheLookups, prometheus.CounterValue, float64(s.Misses), name, "miss")
		ch <- prometheus.MustNewConstMetric(cacheEvicted, prometheus.CounterValue, float64(s.KnownEvicted+s.NoneEvicted), name)
		ch <- prometheus.MustNewConstMetric(cacheEntries, prometheus.GaugeValue, float64(s.Known+s.None), name)
	}
}

// doorRefusals exposes what was turned away, by the check that failed.
type doorRefusals struct {
	verifier *auth.Verifier
	fence    *auth.Fence
}

var refused = prometheus.NewDesc("telltale_auth_refused_total", "Requests turned away for their credential, host or origin, by failed check.", []string{"check"}, nil)

// Describe implements prometheus.Collector.
func (doorRefusals) Describe(ch chan<- *prometheus.Desc) { ch <- refused }

// Collect implements prometheus.Collector.
func (d doorRefusals) Collect(ch chan<- prometheus.Metric) {
	for class, n := range d.verifier.Refusals() {
		ch <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(n), string(class))
	}
	hosts, origins := d.fence.Refused()
	ch <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(hosts), "host")
	ch <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(origins), "origin")
}
