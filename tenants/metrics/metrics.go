// Package metrics takes in and answers hot metrics: packed windows of ten
// seconds, once each per (node, epoch, seq).
//
// It alone writes the tables layout, node_head, win (with its partitions) and
// win_quarantine. It reads the directory's node and node_label and the fleet's
// node_session, capability and module_switch by SQL, and knows no transport.
// The way in is OpenStream, PutLayout, Check, Write; the way out is Summary
// and Query. Start reading at Check, then Write.
package metrics

import (
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// MaxBatch is the most reports of one Write.
const MaxBatch = 500

// Position is where a node's report sequence stands. An agent whose queue
// holds reports up to HighSeq of this Epoch forgets them: they are committed.
// New reports continue at HighSeq+1. When Epoch differs from what the agent
// asked for, its waiting reports are renumbered from 1.
type Position struct {
	Epoch   uint64
	HighSeq uint64
}

// Report is one window as it came from an agent, undecoded.
type Report struct {
	Epoch, Seq uint64 // both from 1 to MaxSeq
	Layout     inspector.LayoutHash
	Start, End time.Time // by the agent's clock
	Packed     []byte    // inspector.AppendValues
	Samples    uint64
	Lost       uint64
	Truncated  uint64
}

// Status says what became of a report.
type Status string

// The statuses. All but Retry and StaleEpoch are final: the report's sequence
// number is consumed and the agent may forget it once the batch committed.
const (
	Stored      Status = "stored"
	Advanced    Status = "advanced"    // a report without a window: only its sequence number counted
	Replayed    Status = "replayed"    // committed before; nothing was written
	Quarantined Status = "quarantined" // kept out and counted, see Reason
	Expired     Status = "expired"     // accepted late, but older than raw windows are kept
	StaleEpoch  Status = "stale_epoch" // not of the current epoch: the stream must be opened again
	Retry       Status = "retry"       // not committed, see Err: send it again, in order
)

// Reasons of quarantine.
const (
	ReasonSkew      = "clock_skew"      // the agent's clock is more than an hour off
	ReasonTooOld    = "too_old"         // older than tenants.MaxReplayAge
	ReasonFuture    = "future"          // ends after the server's now
	ReasonMalformed = "malformed"       // the packed values are not of the layout
	ReasonSpan      = "bad_span"        // ends before it starts, or is longer than MaxSpan
	ReasonSeries    = "too_many_series" // more than tenants.MaxSeriesPerNode over the layouts in use
	ReasonRefused   = "refused_by_database"
)

// Outcome is what became of one report, parallel to the argument of Write.
type Outcome struct {
	Tenant     tenants.TenantID
	Node       tenants.NodeID
	Epoch, Seq uint64
	Status     Status
	Reason     string // of Quarantined
	Err        error  // of Retry
}

// Final reports whether the agent may forget the report.
func (o Outcome) Final() bool { return o.Status != Retry && o.Status != StaleEpoch }

// SummaryQuery asks for the state of one module.
type SummaryQuery struct {
	Module   string            // component name, for example "network"
	Node     string            // id or unique name; empty: all nodes in scope
	Labels   map[string]string // only nodes with all these labels; with Node empty only
	From, To time.Time         // zero: the last five minutes; kept six hours; at least ten seconds apart
}

// Summary is the state of one module over a span of time. A number that is not
// known is null or left out, with the reason; it is never 0. Numbers are of the
// span, not of now: where a node's end before the span does, Notes says so and
// why, and one whose module is off then is not covered.
type Summary struct {
	Module        string           `json:"module"`
	Title         string           `json:"title,omitempty"`
	Node          *tenants.NodeRef `json:"node_ref,omitempty"` // when one node was asked
	Window        tenants.Window   `json:"window"`
	FreshnessS    *float64         `json:"freshness_s"` // age of the newest window of the answering node that is furthest behind
	Coverage      tenants.Coverage `json:"coverage"`
	Received      int              `json:"windows_received"`
	Expected      int              `json:"windows_expected"`
	Samples       uint64           `json:"samples"`
	Lost          uint64           `json:"lost"`                     // observations known to be lost
	LowerBound    bool             `json:"lower_bound,omitempty"`    // counts are "at least": something was lost
	Folded        uint64           `json:"folded,omitempty"`         // rows that nodes folded into "other"
	Refused       uint64           `json:"refused,omitempty"`        // values out of range, left out
	SkewCorrected bool             `json:"skew_corrected,omitempty"` // some windows were rebased to the server's time
	Metrics       []MetricSummary  `json:"metrics"`                  // in registry order, never null
	Unregistered  []string         `json:"unregistered,omitempty"`   // metrics this server does not know; query_metrics can read them
	Notes         []string         `json:"notes,omitempty"`
}

// MetricSummary is one metric of a Summary. The inlined Stats are over all of
// its series together.
type MetricSummary struct {
	Metric string `json:"metric"`
	Kind   string `json:"kind"` // gauge, delta, histogram
	Unit   string `json:"unit"`
	Help   string `json:"help,omitempty"`
	Reason string `json:"reason,omitempty"` // why there is no value: offline, stale, never, off, no_data, no_nodes
	Why    string `json:"why,omitempty"`    // of "off": what a node's capability report says, untrusted
	Stats
	Rows  []LabelRow `json:"rows,omitempty"`  // per label set, greatest first, at most 10
	Other *Stats     `json:"other,omitempty"` // all label sets beyond Rows
}

// LabelRow is the share of one label set. Sum, Count and RatePerS are shares of
// the metric's own and add up to them over Rows and Other: a label set that
// first appears within the span, such as a drop reason, had no part in the
// windows before. So RatePerS is over the time for which the metric is known,
// and CoveredS, which is less then, says for how long the label set was
// reported. Avg, Last and Max are over that time alone.
type LabelRow struct {
	Labels map[string]string `json:"labels"` // untrusted, escaped
	Stats
}

// Stats are the numbers of one series or of several together. Which are set
// depends on the kind; all others are left out. A whole number of 2^53 or more
// is left out and given as text in the field ending in _str.
type Stats struct {
	Last *float64 `json:"last,omitempty"` // gauge; over several series: mean of the last values
	Avg  *float64 `json:"avg,omitempty"`  // gauge: weighted by time
	Max  *float64 `json:"max,omitempty"`  // gauge; delta: highest rate per second of one window

	Sum      *uint64  `json:"sum,omitempty"` // delta: total; histogram: total of the values
	SumStr   string   `json:"sum_str,omitempty"`
	RatePerS *float64 `json:"rate_per_s,omitempty"` // delta and histogram count, over covered time only; of a LabelRow over that of its metric

	Count    *uint64  `json:"count,omitempty"` // histogram
	CountStr string   `json:"count_str,omitempty"`
	Mean     *float64 `json:"mean,omitempty"`
	P50      *uint64  `json:"p50,omitempty"` // upper bounds of the buckets
	P50Str   string   `json:"p50_str,omitempty"`
	P95      *uint64  `json:"p95,omitempty"`
	P95Str   string   `json:"p95_str,omitempty"`
	P99      *uint64  `json:"p99,omitempty"`
	P99Str   string   `json:"p99_str,omitempty"`

	CoveredS float64 `json:"covered_s"` // seconds for which a value is known, summed over nodes
}

// By orders the series of a top-N question.
type By string

// The orders. Deltas and histograms are compared by rate (avg, max, last) or
// total (sum); gauges have no sum.
const (
	ByMax  By = "max"
	ByAvg  By = "avg"
	ByLast By = "last"
	BySum  By = "sum"
)

// Query asks for series. A fault names its fields metrics, node, node_labels,
// labels, from, to, step, top, by, group and cursor; an adapter that spells one
// differently respells it.
type Query struct {
	Metrics    []string          // 1 to 20 full names
	Node       string            // id or unique name; empty: all nodes in scope
	NodeLabels map[string]string // only nodes with all these labels; with Node empty only
	Labels     map[string]string // only series with all these labels
	From, To   time.Time         // zero: the last five minutes
	Step       time.Duration     // multiple of 10 s; zero: the smallest that gives at most 120 points
	Top        int               // 1 to 100: only the N greatest series over all nodes; 0: all, paged
	By         By                // of Top; zero: avg
	Group      string            // node label key: one series per metric and label value over the nodes that bear it
	Limit      int               // series a page, tenants.ClampRows
	Cursor     string
}

// Result answers a Query.
type Result struct {
	Window        tenants.Window     `json:"window"`
	StepS         int                `json:"step_s"`
	FreshnessS    *float64           `json:"freshness_s"`
	Coverage      tenants.Coverage   `json:"coverage"`
	Lost          uint64             `json:"lost"`
	LowerBound    bool               `json:"lower_bound,omitempty"`
	SkewCorrected bool               `json:"skew_corrected,omitempty"`
	Series        []Series           `json:"series"` // never null
	NextCursor    string             `json:"next_cursor,omitempty"`
	Truncated     *tenants.Truncated `json:"truncated,omitempty"`
	Notes         []string           `json:"notes,omitempty"`
}

// Series is one series of a Result. Point i covers
// (Start + i·step, Start + (i+1)·step]; null means not known, never zero.
type Series struct {
	Metric       string            `json:"metric"`
	Kind         string            `json:"kind"`
	Unit         string            `json:"unit"`
	Unregistered bool              `json:"unregistered,omitempty"` // this server does not know the metric
	Node         string            `json:"node,omitempty"`         // empty for a group
	Name         string            `json:"name,omitempty"`
	Group        *Group            `json:"group,omitempty"`
	Labels       map[string]string `json:"labels"` // untrusted, escaped; never null
	Stat         string            `json:"stat"`   // what Points hold: avg (gauge), rate_per_s (delta), p95 (histogram, upper bound)
	Start        time.Time         `json:"start"`
	Points       []*float64        `json:"points"`
	PointsMax    []*float64        `json:"points_max,omitempty"`   // gauge: maximum in the step
	PointsCount  []*float64        `json:"points_count,omitempty"` // histogram: values per second
	Stats        Stats             `json:"stats"`
}

// Group is one cohort of a comparison. Value "" holds the nodes without the label.
type Group struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	Nodes int    `json:"nodes"`
}

// Gauges are the service's own health, for the server's metrics page.
type Gauges struct {
	PartitionsAhead int           // whole hours ahead of now that have a partition; alarm below 1
	OldestKept      time.Duration // age of the oldest partition's start; alarm above retention + 2 h
	Maintained      time.Time     // last successful maintenance by this process; zero: none
	Written         uint64        // windows stored
	Replayed        uint64
	Quarantined     uint64
	Expired         uint64
	RefusedPoints   uint64
	Conflicts       uint64 // rows the primary key refused although the head accepted them
	Splits          uint64 // failed batches that were split
}

// Config tunes a Service. The zero value is the product's default.
type Config struct {
	Now func() time.Time // nil: time.Now
}
