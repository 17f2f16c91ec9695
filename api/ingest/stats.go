package ingest

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are the server's own, since its start.
type counters struct {
	streams, replaced, parked, cut, drained, admitDenied atomic.Uint64
	reports, replays, settled, gaps, rewinds, layoutAsks atomic.Uint64
	stored, quarantined, refused, tallyDrops, oversized  atomic.Uint64
	batches, batched, writeErrors                        atomic.Uint64
	enrolled, enrolFailed, renewed, authFailed, panics   atomic.Uint64
	events, channels, channelsReplaced                   atomic.Uint64
	orders, ordersFull, answers, results, taskBytes      atomic.Uint64
	taskRefused                                          atomic.Uint64
}

// Stats is a snapshot of a Server's counters since its start.
type Stats struct {
	Live                 int    // open streams
	Streams              uint64 // streams opened
	Replaced             uint64 // closed for a younger stream of the same node
	Parked               uint64 // held back: another life of the identity was live
	Cut                  uint64 // closed for a certificate that is no longer good
	Drained              uint64 // asked to reconnect
	AdmitDenied          uint64 // streams and enrolments turned away by rate
	Reports              uint64 // envelopes that arrived, replays and gaps included
	Replays              uint64 // already stored; acknowledged again
	Settled              uint64 // committed before a stream broke, and told to the agent only when it came back
	Gaps                 uint64 // out of order; asked for again
	Rewinds              uint64 // rewinds sent
	LayoutAsks           uint64 // unknown layouts asked for
	Stored               uint64 // windows committed
	Quarantined          uint64 // reports kept out by the metrics service
	Refused              uint64 // frames and reports refused here
	TallyDrops           uint64 // refusals that could not be recorded per node
	Oversized            uint64 // messages above the size limit
	Batches, Batched     uint64 // transactions, and reports in them
	WriteErrors          uint64 // transactions that failed
	Enrolled             uint64
	EnrolFailed          uint64
	Renewed              uint64
	AuthFailed           uint64 // calls without a good certificate
	Panics               uint64 // recovered; each is a defect
	QueueItems, QueueCap int
	Events               uint64 // event reports recorded
	TaskChannels         int    // open task channels
	TaskOpened           uint64 // task channels opened
	TaskReplaced         uint64 // ended for a younger one of the same node
	TaskOrders           uint64 // requests and cancels given to a channel
	TaskOrdersFull       uint64 // such as had no room
	TaskAnswers          uint64 // requests accepted or refused by nodes
	TaskResults          uint64 // ends of tasks stored
	TaskBytes            uint64 // of results and partial results
	TaskRefused          uint64 // words on tasks that were not taken in
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	c := &s.count
	st := Stats{
		Live: s.hub.size(), Streams: c.streams.Load(), Replaced: c.replaced.Load(), Parked: c.parked.Load(), Cut: c.cut.Load(),
		Drained: c.drained.Load(), AdmitDenied: c.admitDenied.Load(), Reports: c.reports.Load(),
		Replays: c.replays.Load(), Settled: c.settled.Load(), Gaps: c.gaps.Load(), Rewinds: c.rewinds.Load(), LayoutAsks: c.layoutAsks.Load(),
		Stored: c.stored.Load(), Quarantined: c.quarantined.Load(), Refused: c.refused.Load(),
		TallyDrops: c.tallyDrops.Load(), Oversized: c.oversized.Load(), Batches: c.batches.Load(),
		Batched: c.batched.Load(), WriteErrors: c.writeErrors.Load(), Enrolled: c.enrolled.Load(),
		EnrolFailed: c.enrolFailed.Load(), Renewed: c.renewed.Load(), AuthFailed: c.authFailed.Load(), Panics: c.panics.Load(),
		Events: c.events.Load(), TaskChannels: s.hub.taskChannels(), TaskOpened: c.channels.Load(), TaskReplaced: c.channelsReplaced.Load(),
		TaskOrders: c.orders.Load(), TaskOrdersFull: c.ordersFull.Load(), TaskAnswers: c.answers.Load(),
		TaskResults: c.results.Load(), TaskBytes: c.taskBytes.Load(), TaskRefused: c.taskRefused.Load(),
	}
	for _, lane := range s.batch.lanes {
		st.QueueItems += len(lane)
		st.QueueCap += cap(lane)
	}
	return st
}

var (
	liveDesc     = prometheus.NewDesc("telltale_ingest_streams", "Open agent streams.", nil, nil)
	channelsDesc = prometheus.NewDesc("telltale_ingest_task_channels", "Open task channels.", nil, nil)
	queueDesc    = prometheus.NewDesc("telltale_ingest_queue_reports", "Reports waiting for a batch.", nil, nil)
	totalDesc    = prometheus.NewDesc("telltale_ingest_total", "Ingest events since start, by kind.", []string{"kind"}, nil)
)

// Describe is prometheus.Collector's.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	ch <- liveDesc
	ch <- channelsDesc
	ch <- queueDesc
	ch <- totalDesc
}

// Collect is prometheus.Collector's.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	st := s.Stats()
	ch <- prometheus.MustNewConstMetric(liveDesc, prometheus.GaugeValue, float64(st.Live))
	ch <- prometheus.MustNewConstMetric(channelsDesc, prometheus.GaugeValue, float64(st.TaskChannels))
	ch <- prometheus.MustNewConstMetric(queueDesc, prometheus.GaugeValue, float64(st.QueueItems))
	for kind, n := range map[string]uint64{
		"stream_opened": st.Streams, "stream_replaced": st.Replaced, "stream_parked": st.Parked, "stream_cut": st.Cut, "stream_drained": st.Drained,
		"admission_denied": st.AdmitDenied, "report": st.Reports, "report_replayed": st.Replays, "report_settled_late": st.Settled, "report_gap": st.Gaps,
		"rewind": st.Rewinds, "layout_asked": st.LayoutAsks, "window_stored": st.Stored, "report_quarantined": st.Quarantined,
		"refused": st.Refused, "refusal_unrecorded": st.TallyDrops, "message_oversized": st.Oversized,
		"batch": st.Batches, "batch_report": st.Batched, "batch_failed": st.WriteErrors,
		"enrolled": st.Enrolled, "enrol_failed": st.EnrolFailed, "renewed": st.Renewed, "auth_failed": st.AuthFailed, "panic": st.Panics,
		"event_recorded": st.Events, "task_channel_opened": st.TaskOpened, "task_channel_replaced": st.TaskReplaced,
		"task_order": st.TaskOrders, "task_order_full": st.TaskOrdersFull, "task_answer": st.TaskAnswers,
		"task_result": st.TaskResults, "task_byte": st.TaskBytes, "task_refused": st.TaskRefused,
	} {
		ch <- prometheus.MustNewConstMetric(totalDesc, prometheus.CounterValue, float64(n), kind)
	}
}
