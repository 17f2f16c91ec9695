package inspector

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"time"
)

// Severity ranks events. The words sort by rank, not by alphabet.
type Severity string

// The severities.
const (
	Info     Severity = "info"
	Warning  Severity = "warning"
	Critical Severity = "critical"
)

// Rank orders severities: 0 for Info up to 2; -1 for anything else.
func (s Severity) Rank() int { return slices.Index([]Severity{Info, Warning, Critical}, s) }

// Bounds of one event record.
const (
	OverAfter         = 5 * time.Minute  // an immediate kind not seen for this long is over, whatever its node said last
	DedupFor          = 60 * time.Second // occurrences of one fingerprint within this belong to one record
	MaxEventLabels    = 8                // labels that tell the scope of an event
	MaxEventSamples   = 10               // representative samples of one record
	MaxEventBytes     = 32 << 10         // one record on the wire
	MaxRelatedMetrics = 8                // metrics of a context snapshot
)

// EventKind is one kind of anomaly that a node reports.
type EventKind struct {
	Name      string // "retransmit_burst"
	Component string // set by Registry.Add
	Title     string
	Help      string // what it means and what to look at first
	Severity  Severity
	// Immediate kinds are reported as they happen; all others when their Rule
	// holds in K of the last N windows.
	Immediate bool
	// Lasting immediate kinds are conditions of the agent itself, which it ends
	// when they do; all others are over when they were not seen for a while.
	Lasting  bool
	Rule     *Rule    // nil for immediate kinds
	Labels   []string // label keys that tell its scope and make its fingerprint; never a pid
	Related  []string // hot metrics of the context snapshot, at most MaxRelatedMetrics
	CausedBy []string // kinds that can bring this one about on the same node
	Signals  []string // capability signals of the component that it stands on
	Tool     string   // the task kind or tool that goes deeper; may be empty
}

// Stat says which number of a metric a rule looks at.
type Stat string

// The stats.
const (
	StatRate  Stat = "rate"  // a delta's increase per second
	StatValue Stat = "value" // a gauge
	StatP99   Stat = "p99"   // a histogram's 99th percentile, upper bound of its bucket
)

// Rule is a threshold on one metric of one window, with k-of-n debounce: the
// condition begins when it held in K of the last N windows, ends when it held
// in none of the last N, and flaps when it began more than three times in ten
// minutes. Series of the metric are judged one by one; Labels of the kind name
// the label keys that tell them apart.
type Rule struct {
	Metric string
	Stat   Stat
	Above  float64
	K, N   int
	// Floor is the least Count a histogram must hold in the window before its
	// percentile is judged; 0 for the other stats.
	Floor uint64
	// Skip drops series that carry one of these label values, for example
	// benign=true.
	Skip map[string]string
}

// Occurrence is one sighting of an anomaly, as a probe or a rule makes it.
type Occurrence struct {
	Kind     string
	Severity Severity          // empty: the kind's own
	At       time.Time         // by the node's clock
	Labels   map[string]string // the scope: keys of EventKind.Labels
	Sample   *EventSample      // nil: nothing beyond the labels
	Count    uint64            // sightings that this one stands for; 0 means 1
}

// EventSample is one representative sighting.
type EventSample struct {
	At     time.Time          `json:"at"`
	Labels map[string]string  `json:"labels"` // who and what: pid, comm, exe, device, …
	Values map[string]float64 `json:"values,omitempty"`
}

// EventState says where a condition stands.
type EventState string

// The states. An immediate kind's record is Open for DedupFor and then Ended.
const (
	EventOpen     EventState = "open"
	EventFlapping EventState = "flapping"
	EventEnded    EventState = "ended"
)

// EventReport is the whole of one record as the node knows it: counts are
// absolute, so that a report sent twice changes nothing. (Fingerprint, Begun)
// names the record on its node.
type EventReport struct {
	Kind        string
	Fingerprint Fingerprint
	Begun       time.Time // first sighting, by the node's clock
	Last        time.Time // latest sighting
	Severity    Severity
	State       EventState
	Labels      map[string]string
	Samples     []EventSample
	SampleCount uint64 // sightings looked at one by one
	Truncated   uint64 // further ones, counted only
	Lost        uint64 // sightings known to be lost on the way: counts are lower bounds
}

// Fingerprint tells records of the same trouble from others: 16 bytes.
type Fingerprint [16]byte

// FingerprintOf hashes a kind and its scope labels.
func FingerprintOf(kind string, labels map[string]string) Fingerprint {
	h := sha256.New()
	put := func(s string) {
		h.Write([]byte{byte(len(s) >> 8), byte(len(s))})
		h.Write([]byte(s))
	}
	put(kind)
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		put(k)
		put(labels[k])
	}
	return Fingerprint(h.Sum(nil)[:16])
}

func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }
