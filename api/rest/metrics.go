package rest

import (
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// Bounds of a metrics question; the service has its own and closer ones.
const (
	maxStep = 6 * 60 * 60 // seconds
	maxTop  = 100

	metricStep = tenants.WindowLength // a step is a multiple of it
)

func (s *Server) summary(c *call) (any, error) {
	now := s.cfg.Now()
	q := metrics.SummaryQuery{
		Module: c.query.need("module"),
		Node:   c.query.text("node"),
		Labels: c.query.labels("labels"),
		From:   c.query.moment("from", now),
		To:     c.query.moment("to", now),
	}
	if err := c.query.done(); err != nil {
		return nil, err
	}
	return s.cfg.Metrics.Summary(c.r.Context(), c.scope, q)
}

func (s *Server) query(c *call) (any, error) {
	now := s.cfg.Now()
	q := metrics.Query{
		Metrics:    c.query.needWords("metrics"),
		Node:       c.query.text("node"),
		NodeLabels: c.query.labels("labels"),
		Labels:     c.query.labels("match"),
		From:       c.query.moment("from", now),
		To:         c.query.moment("to", now),
		Step:       time.Duration(c.query.whole("step_s", 10, maxStep)) * time.Second,
		Top:        c.query.whole("top", 1, maxTop),
		By:         metrics.By(c.query.oneOf("by", string(metrics.ByMax), string(metrics.ByAvg), string(metrics.ByLast), string(metrics.BySum))),
		Group:      c.query.text("group"),
		Limit:      c.query.limit(),
		Cursor:     c.query.cursor(),
	}
	if q.Step%metricStep != 0 {
		c.query.fail("step_s", "want a multiple of %d", int(metricStep.Seconds()))
	}
	if err := c.query.done(); err != nil {
		return nil, err
	}
	res, err := s.cfg.Metrics.Query(c.r.Context(), c.scope, q)
	err = fault.Respell(err, map[string]string{"step": "step_s", "node_labels": "labels", "labels": "match"})
	res.Notes = append(c.query.notes, res.Notes...)
	return res, err
}
