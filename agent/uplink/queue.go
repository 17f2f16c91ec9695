package uplink

import (
	"sync"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// report is one envelope on its way to the server. Its sequence number is
// given when it is first sent, so that what a full queue drops leaves no gap.
type report struct {
	pb        *pb.Report
	component string            // windows only
	layout    *inspector.Layout // windows only
	size      int               // bytes it holds in memory, about
	sent      time.Time         // first or latest time on the wire
	event     bool
	done      func() // called once when the server settled it; may be nil
}

// maxReport is the most bytes of one report; the server takes 4 MiB a message.
const maxReport = 3 << 20

// maxEvents bounds the events that wait; a quarter of the queue's bytes bounds
// them too. One beyond is not taken: who pushes keeps it.
const maxEvents = 512

// loss is what was dropped of one component: how many since the start, and
// when, since the last Loss report that saw any.
type loss struct {
	windows  uint64
	fresh    bool // dropped since the last Loss report
	from, to time.Time
	reason   string
}

// queue holds reports until the server has committed them: first those sent
// and not acknowledged, in sequence, then those waiting, events before
// windows. It is bounded in count and bytes; over a bound the oldest waiting
// window is dropped, counted per component and later reported. What was sent
// is never dropped, because the server may already hold it, and neither is an
// event that was taken in. Safe for concurrent use.
type queue struct {
	maxItems, maxBytes int
	ready              chan struct{} // one token: there may be something to send

	mu       sync.Mutex
	inflight []*report
	cursor   int       // inflight[:cursor] went out on the present stream
	waiting  []*report // windows
	events   []*report // that wait
	eventB   int       // bytes of events
	caps     *report   // latest capability report not yet sent
	bytes    int
	sentB    int              // bytes of inflight
	lost     map[string]*loss // per component
	unsaid   bool             // lost holds what no report has told yet
}

func newQueue(maxItems, maxBytes int) *queue {
	return &queue{
		maxItems: maxItems, maxBytes: maxBytes, ready: make(chan struct{}, 1),
		lost: map[string]*loss{},
	}
}

func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// push takes one window in; false means that a bound made it drop a window
// (this one or an older one).
func (q *queue) push(r *report) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.size > min(q.maxBytes/2, maxReport) {
		q.drop(r, "oversized")
		return false
	}
	q.waiting = append(q.waiting, r)
	q.bytes += r.size
	kept := q.shed()
	q.wake()
	return kept
}

// pushEvent takes one event in, if need be in the place of windows; false
// means that too many wait.
func (q *queue) pushEvent(r *report) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) >= maxEvents || q.eventB+r.size > q.maxBytes/4 {
		return false
	}
	q.events = append(q.events, r)
	q.eventB += r.size
	q.bytes += r.size
	q.shed()
	q.wake()
	return true
}

// shed drops waiting windows until the bounds hold; false means that it
// dropped any. The caller holds mu.
func (q *queue) shed() (kept bool) {
	kept = true
	for len(q.waiting) > 0 && (len(q.waiting)+len(q.inflight) > q.maxItems || q.bytes > q.maxBytes) {
		old := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		q.bytes -= old.size
		q.drop(old, "queue_full")
		kept = false
	}
	return kept
}

// drop counts a window that will not be sent. The caller holds mu.
func (q *queue) drop(r *report, reason string) {
	w := r.pb.GetWindow()
	from, to := time.Unix(0, w.StartNs), time.Unix(0, w.EndNs)
	l := q.lost[r.component]
	if l == nil {
		l = &loss{}
		q.lost[r.component] = l
	}
	l.windows++
	l.reason = reason
	if !l.fresh || from.Before(l.from) {
		l.from = from
	}
	if !l.fresh || to.After(l.to) {
		l.to = to
	}
	l.fresh, q.unsaid = true, true
}

// setCaps replaces the capability report that waits.
func (q *queue) setCaps(r *report) {
	q.mu.Lock()
	q.caps = r
	q.mu.Unlock()
	q.wake()
}

// next returns what to send now, or nil: first what this stream has not
// carried yet of the sent ones, then events, a loss report, capabilities,
// windows. A report sent for the first time gets its number from seq.
func (q *queue) next(limit int, now time.Time, seq func() uint64) *report {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cursor < len(q.inflight) {
		r := q.inflight[q.cursor]
		q.cursor++
		r.sent = now
		return r
	}
	if len(q.inflight) >= limit || q.sentB > q.maxBytes/2 {
		return nil
	}
	r := q.take()
	if r == nil {
		return nil
	}
	r.pb.Seq = seq()
	r.sent = now
	q.inflight = append(q.inflight, r)
	q.sentB += r.size
	q.cursor++
	return r
}

func (q *queue) take() *report {
	switch {
	case len(q.events) > 0:
		r := q.events[0]
		q.events[0] = nil
		q.events = q.events[1:]
		q.eventB -= r.size
		return r
	case q.unsaid:
		r := lossReport(q.lost)
		for _, l := range q.lost {
			l.fresh = false
		}
		q.unsaid = false
		q.bytes += r.size
		return r
	case q.caps != nil:
		r := q.caps
		q.caps = nil
		q.bytes += r.size
		return r
	case len(q.waiting) > 0:
		r := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		return r
	}
	return nil
}

// ack forgets everything up to seq and returns how many reports that were,
// and how many of them events. It tells those who wait for them.
func (q *queue) ack(seq uint64) (reports, events int) {
	var told []func()
	reports, events, told = q.forget(seq)
	for _, done := range told {
		done()
	}
	return reports, events
}

func (q *queue) forget(seq uint64) (n, events int, told []func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n < len(q.inflight) && q.inflight[n].pb.Seq <= seq {
		if r := q.inflight[n]; r.event {
			events++
			if r.done != nil {
				told = append(told, r.done)
			}
		}
		q.bytes -= q.inflight[n].size
		q.sentB -= q.inflight[n].size
		q.inflight[n] = nil
		n++
	}
	q.inflight = q.inflight[n:]
	q.cursor = max(0, q.cursor-n)
	if n > 0 {
		q.wake()
	}
	return n, events, told
}

// rewind makes next begin again at seq; 0 begins at the oldest.
func (q *queue) rewind(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := 0
	for i < len(q.inflight) && q.inflight[i].pb.Seq < seq {
		i++
	}
	q.cursor = min(q.cursor, i)
	q.wake()
}

// renumber gives the sent reports new numbers from 1, for a new epoch, and
// returns the next free one.
func (q *queue) renumber() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, r := range q.inflight {
		r.pb.Seq = uint64(i) + 1
	}
	q.cursor = 0
	return uint64(len(q.inflight)) + 1
}

// oldest returns the number of the first unacknowledged report, and when it
// was last sent; ok is false when there is none.
func (q *queue) oldest() (seq uint64, sent time.Time, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.inflight) == 0 {
		return 0, time.Time{}, false
	}
	return q.inflight[0].pb.Seq, q.inflight[0].sent, true
}

// empty reports whether nothing waits and nothing is unacknowledged.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.inflight) == 0 && len(q.waiting) == 0 && len(q.events) == 0 && q.caps == nil && !q.unsaid
}

// depth returns how many reports and bytes are held.
func (q *queue) depth() (items, bytes int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.inflight) + len(q.waiting) + len(q.events), q.bytes
}

// drops returns the windows dropped since start per component.
func (q *queue) drops() map[string]uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make(map[string]uint64, len(q.lost))
	for c, l := range q.lost {
		out[c] = l.windows
	}
	return out
}

// layout finds the layout of a queued window.
func (q *queue) layout(h inspector.LayoutHash) *inspector.Layout {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, list := range [][]*report{q.inflight, q.waiting} {
		for _, r := range list {
			if r.layout != nil && r.layout.Hash == h {
				return r.layout
			}
		}
	}
	return nil
}
