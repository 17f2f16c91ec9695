package main

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants/events"
	causes "github.com/telltale-dev/telltale/tenants/explain"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tasks"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// evidence is what takes in and answers anomalies, and what asks nodes for
// more.
type evidence struct {
	bus     *tenantdb.Bus
	tasks   *tasks.Service
	events  *events.Service
	explain *causes.Service
}

// evidence wires the slices: each gets what it needs of the others through its
// own small interfaces.
func (a *app) evidenceSide(cfg *config, reg *inspector.Registry, nodes *fleet.Service, windows *metrics.Service, replica string, log *slog.Logger) evidence {
	bus := tenantdb.NewBus(cfg.db.config(), replica, log)
	e := evidence{
		bus:    bus,
		tasks:  tasks.New(a.db, reg, nodes, bus, tasks.Config{Replica: replica}, log),
		events: events.New(a.db, reg, a.directory, windows, bus, events.Config{}, log),
	}
	e.explain = newExplain(reg, e.events, nodes, e.tasks)
	return e
}

// parts in the order of their start.
func (e evidence) parts() []part {
	return []part{
		{"hints", 5 * time.Second, e.bus.Run},
		{"events", 5 * time.Second, e.events.Run},
		{"tasks", 5 * time.Second, e.tasks.Run},
	}
}

// register exposes the parts' own counts.
func (e evidence) register(own prometheus.Registerer) {
	total := func(name, help string, read func() uint64) {
		own.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(read()) }))
	}
	own.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "telltale_hints_listening", Help: "1 while hints of other servers are heard. Alarm at 0 with more than one server."}, func() float64 {
		if e.bus.Stats().Listening {
			return 1
		}
		return 0
	}))
	total("telltale_hints_sent_total", "Hints given to other servers.", func() uint64 { return e.bus.Stats().Sent })
	total("telltale_hints_received_total", "Hints of other servers.", func() uint64 { return e.bus.Stats().Received })
	total("telltale_hints_dropped_total", "Hints that found no room or no connection; the rows are looked at all the same.", func() uint64 { return e.bus.Stats().Dropped })
	total("telltale_hints_overflowed_total", "Hints that a part of this server was too slow for.", func() uint64 { return e.bus.Stats().Overflowed })

	gauge := func(name, help string, read func(tasks.Stats) int) {
		own.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(read(e.tasks.Stats())) }))
	}
	gauge("telltale_task_runs_active", "Tasks on nodes whose channels this server holds.", func(s tasks.Stats) int { return s.Held })
	gauge("telltale_task_watched", "Tasks that callers of this server wait for or follow.", func(s tasks.Stats) int { return s.Watched })
	total("telltale_tasks_started_total", "Tasks stored.", func() uint64 { return e.tasks.Stats().Started })
	total("telltale_tasks_refused_total", "Requests that became no task.", func() uint64 { return e.tasks.Stats().Refused })
	total("telltale_task_words_late_total", "Words of nodes on tasks that had ended.", func() uint64 { return e.tasks.Stats().Late })
	own.MustRegister(countsBy[tasks.State]{prometheus.NewDesc("telltale_task_runs_ended_total", "Tasks on nodes that this server ended, by state.", []string{"state"}, nil),
		func() map[tasks.State]uint64 { return e.tasks.Stats().Ended }})
	own.MustRegister(countsBy[string]{prometheus.NewDesc("telltale_events_total", "What was done about events, by act.", []string{"act"}, nil), func() map[string]uint64 {
		s := e.events.Stats()
		return map[string]uint64{"begun": s.Begun, "moved": s.Moved, "repeated": s.Repeated, "kept_out": s.KeptOut,
			"snapshot": s.Snapshots, "snapshot_failed": s.SnapshotsFailed, "news_lost": s.NewsLost}
	}})
}
