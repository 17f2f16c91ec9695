package rest

import (
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Management serves the process's own metrics and profiles. It asks for no
// credential and belongs on a listener that only the operator reaches:
//
//	/metrics         Prometheus text of what the gatherer holds
//	/debug/pprof/…   profiles of this process
func Management(own prometheus.Gatherer) http.Handler {
	m := http.NewServeMux()
	m.Handle("GET /metrics", promhttp.HandlerFor(own, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	m.HandleFunc("GET /debug/pprof/", pprof.Index)
	m.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	m.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	m.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	m.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return m
}

// ownMetrics counts the server's requests; routes and methods are bounded.
type ownMetrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newOwnMetrics(r prometheus.Registerer) *ownMetrics {
	m := &ownMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "telltale_http_requests_total", Help: "HTTP requests answered, by route, method and status.",
		}, []string{"route", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telltale_http_request_seconds", Help: "Time to answer an HTTP request, by route.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"route"}),
	}
	if r != nil {
		r.MustRegister(m.requests, m.seconds)
	}
	return m
}

func (m *ownMetrics) seen(route, method string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, methodOf(method), strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}
