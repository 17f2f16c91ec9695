package runner

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// Bounds and times of events.
const (
	eventQueue  = 4096 // occurrences that wait; what finds no room is counted as lost
	eventBatch  = 256  // occurrences taken in before the records are looked at again
	maxRecords  = 256  // records in memory, open ones and those not yet acknowledged
	maxOfKind   = 64   // of them of one kind while others want room
	maxRings    = 1024 // series whose condition held lately
	firstKept   = inspector.MaxEventSamples / 2
	sampleKeys  = 24              // labels or values of one sample
	pushPause   = 5 * time.Second // between reports of one record
	holdPause   = time.Minute     // the same while a condition just goes on
	pushBurst   = 100             // reports that leave at once
	pushRate    = 20              // reports a second after that
	retryFirst  = 250 * time.Millisecond
	retryMax    = 30 * time.Second
	resendFirst = 5 * time.Minute // a report that is not acknowledged is sent again
	resendMax   = time.Hour
	flapWithin  = 10 * time.Minute
	flapBegins  = 3 // begins within flapWithin that are not yet flapping
	staleAfter  = 5 * time.Minute
	maxPast     = 10 * time.Minute // between an occurrence's own time and now
	maxFuture   = time.Minute
)

// kindLoss is the event that says that events were lost; its one label is the
// component that lost them.
const (
	kindLoss  = "event_loss"
	lossLabel = "component"
)

// EventConfig tunes Events.
type EventConfig struct {
	Dir string // where records outlive a restart; empty: they do not
}

// EventStats are the counters of an Events since it was made.
type EventStats struct {
	Seen    uint64 // sightings taken in
	Lost    uint64 // sightings lost: the queue was full, or their record was evicted
	Refused uint64 // occurrences of a kind that nobody named
	Evicted uint64 // records given up for want of room
	Pushed  uint64 // reports handed to the uplink
	Records int    // held now
}

// Events makes records of what probes and rules see: one per kind and scope,
// with absolute counts, pushed when it begins, when it gets worse, now and
// then while it goes on, and when it ends. Make it with NewEvents; its methods
// are safe for concurrent use.
type Events struct {
	cfg    EventConfig
	log    *slog.Logger
	push   func(inspector.EventReport, func()) bool
	kinds  map[string]*inspector.EventKind
	rules  map[string][]*inspector.EventKind // by the metric they look at
	ruled  map[string]bool                   // components of these metrics
	queue  chan inspector.Occurrence
	kick   chan struct{}
	saving chan struct{}

	outside sync.Mutex // guards what comes in without waiting for mu
	dropped map[string]uint64
	acks    []ack

	mu      sync.Mutex
	records []*record
	current map[inspector.Fingerprint]*record // the latest of each
	rings   map[inspector.Fingerprint]*ring
	lost    map[string]uint64 // by component, not yet said
	stats   EventStats
	unsaved bool
	served  map[string]time.Time // when a report of each kind was pushed last
	tokens  float64
	filled  time.Time // when tokens was right
	swept   time.Time
	retry   time.Duration
	retryAt time.Time
}

// ack says that the server holds a version of a record.
type ack struct {
	r       *record
	version uint64
}

// NewEvents makes the keeper and takes up what its directory remembers; it
// starts nothing. push hands a report to the uplink, whose done is called once
// after the server holds it; false means that there is no room now.
func NewEvents(cfg EventConfig, reg *inspector.Registry, push func(inspector.EventReport, func()) bool, log *slog.Logger) *Events {
	now := time.Now()
	e := &Events{
		cfg: cfg, log: log, push: push,
		kinds: map[string]*inspector.EventKind{}, rules: map[string][]*inspector.EventKind{}, ruled: map[string]bool{},
		queue: make(chan inspector.Occurrence, eventQueue), kick: make(chan struct{}, 1), saving: make(chan struct{}, 1),
		dropped: map[string]uint64{}, current: map[inspector.Fingerprint]*record{}, rings: map[inspector.Fingerprint]*ring{},
		lost: map[string]uint64{}, served: map[string]time.Time{}, tokens: pushBurst, filled: now, swept: now, retry: retryFirst,
	}
	for _, c := range reg.Components() {
		for _, k := range c.Events {
			e.kinds[k.Name] = &k
			if k.Rule != nil {
				e.rules[k.Rule.Metric] = append(e.rules[k.Rule.Metric], &k)
			}
		}
	}
	for _, c := range reg.Components() {
		for _, m := range c.Metrics {
			e.ruled[c.Name] = e.ruled[c.Name] || len(e.rules[m.Name]) > 0
		}
	}
	e.load(now)
	return e
}

// Emit takes an occurrence. It never blocks: one that finds no room is counted
// and said in an event_loss. The maps of o are taken over.
func (e *Events) Emit(o inspector.Occurrence) {
	select {
	case e.queue <- o:
		return
	default:
	}
	component := ""
	if k := e.kinds[o.Kind]; k != nil {
		component = k.Component
	}
	if o.Kind == kindLoss {
		component = o.Labels[lossLabel]
	}
	e.outside.Lock()
	defer e.outside.Unlock()
	if len(e.dropped) < maxRecords || e.dropped[component] > 0 {
		e.dropped[component] = inspector.Plus(e.dropped[component], max(1, o.Count))
	}
}

// Set says that a lasting condition of the agent itself holds, or no longer
// does. Its record stays open until then, and does not outlive the process.
func (e *Events) Set(o inspector.Occurrence, on bool) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	k := e.kinds[o.Kind]
	if k == nil || k.Rule != nil {
		e.stats.Refused++
		return
	}
	labels := scope(k, o.Labels)
	if on {
		e.stats.Seen = inspector.Plus(e.stats.Seen, max(1, o.Count))
		e.see(k, labels, o, now).lasting = true
	} else if r := e.current[inspector.FingerprintOf(k.Name, labels)]; r != nil && r.lasting {
		r.lasting = false
		r.end(plausible(o.At, now))
	}
	e.unsaved = true
	token(e.kick)
}

// Stats returns the counters.
func (e *Events) Stats() EventStats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Records = len(e.records)
	return s
}

// Run works until ctx ends. Let it outlive what pushes and the uplink, so that
// it hears what the server has taken; then it writes everything down.
func (e *Events) Run(ctx context.Context) error {
	saved := make(chan struct{})
	go func() { defer close(saved); e.keepSaved(ctx) }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case o := <-e.queue:
			e.take(o)
		case <-e.kick:
		case <-timer.C:
		}
		timer.Reset(e.flush())
	}
	<-saved
	e.takeAll(eventQueue)
	e.flush()
	e.save()
	return nil
}

// take takes an occurrence in, and those that wait behind it.
func (e *Events) take(o inspector.Occurrence) {
	e.mu.Lock()
	e.sight(o, time.Now())
	e.mu.Unlock()
	e.takeAll(eventBatch)
}

func (e *Events) takeAll(most int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for range most {
		select {
		case o := <-e.queue:
			e.sight(o, now)
		default:
			return
		}
	}
}

// flush says what was lost, closes what is over, pushes what is due, and
// returns how long nothing more is.
func (e *Events) flush() time.Duration {
	now := time.Now()
	e.outside.Lock()
	acks := e.acks
	e.acks = nil
	var dropped map[string]uint64
	if len(e.dropped) > 0 { // handed over, not shared
		dropped, e.dropped = e.dropped, map[string]uint64{}
	}
	e.outside.Unlock()

	e.mu.Lock()
	for component, n := range dropped {
		e.lose(component, n)
	}
	for _, a := range acks {
		a.r.acknowledged(a.version)
		e.unsaved = true
	}
	e.sayLosses(now)
	e.sweep(now)
	due, wait := e.due(now)
	e.mu.Unlock()

	for _, d := range due {
		r, version := d.r, d.version
		ok := e.push(d.report, sync.OnceFunc(func() {
			e.outside.Lock()
			e.acks = append(e.acks, ack{r, version})
			e.outside.Unlock()
			token(e.kick)
		}))
		e.mu.Lock()
		if !ok {
			e.retryAt = now.Add(e.retry)
			wait, e.retry = min(wait, e.retry), min(2*e.retry, retryMax)
			e.mu.Unlock()
			break
		}
		e.retry = retryFirst
		e.stats.Pushed++
		e.tokens--
		r.pushed(d, now)
		e.served[r.kind.Name] = now
		e.unsaved = true
		wait = min(wait, r.pause()) // what changes meanwhile
		e.mu.Unlock()
	}
	e.mu.Lock()
	if e.unsaved {
		token(e.saving)
	}
	e.mu.Unlock()
	return wait
}
