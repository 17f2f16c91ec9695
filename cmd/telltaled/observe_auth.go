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

// refusals counts what was turned away at the door, by the check that failed.
func refusals(v *auth.Verifier, f *auth.Fence) prometheus.Collector {
	desc := prometheus.NewDesc("telltale_auth_refused_total", "Requests turned away for their credential, host or origin, by failed check.", []string{"check"}, nil)
	return countsBy[auth.Class]{desc, func() map[auth.Class]uint64 {
		out := v.Refusals()
		out["host"], out["origin"] = f.Refused()
		return out
	}}
}

// countsBy exposes counts that a part keeps by one label.
type countsBy[L ~string] struct {
	desc *prometheus.Desc
	read func() map[L]uint64
}

// Describe implements prometheus.Collector.
func (c countsBy[L]) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector.
func (c countsBy[L]) Collect(ch chan<- prometheus.Metric) {
	for label, n := range c.read() {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(n), string(label))
	}
}

// providerCounts exposes what the verification of access tokens asks of the
// tenants' identity providers.
func providerCounts(o *auth.OAuth, f *auth.Fetcher) prometheus.Collector {
	desc := prometheus.NewDesc("telltale_auth_issuer_requests_total", "Requests to identity providers, by what was asked and how it ended; refused ones broke a rule of where this server may look.", []string{"what", "result"}, nil)
	return collectorFunc(func(ch chan<- prometheus.Metric) {
		s := o.Stats()
		_, refused := f.Stats()
		for _, c := range []struct {
			what      string
			all, fail uint64
		}{{"keys", s.KeyFetches, s.KeyFailures}, {"metadata", s.MetadataFetches, s.MetadataFailures}, {"introspection", s.Introspections, s.IntrospectFailures}} {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(c.all-min(c.fail, c.all)), c.what, "ok")
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(c.fail), c.what, "failed")
		}
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(refused), "any", "refused")
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(s.UnknownKids), "unknown_key_id", "not_asked")
	})
}

// collectorFunc is a collector that describes nothing beforehand.
type collectorFunc func(chan<- prometheus.Metric)

// Describe implements prometheus.Collector.
func (collectorFunc) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (f collectorFunc) Collect(ch chan<- prometheus.Metric) { f(ch) }
