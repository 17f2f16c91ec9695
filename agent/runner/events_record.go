package runner

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// record is one event as it is kept. All of it changes under Events.mu.
type record struct {
	kind    *inspector.EventKind
	rep     inspector.EventReport
	opened  time.Time // when it began here, by the clock that dedup goes by
	lasting bool      // ends when it is told to, not after DedupFor
	offered uint64    // samples offered so far

	version  uint64 // grows with every change
	urgent   bool   // the change does not wait for the pause
	sent     uint64 // version pushed last
	acked    bool   // the server holds sent
	told     uint64 // sightings in the report pushed last
	pushedAt time.Time
	resend   time.Duration
}

// total is how many sightings a record stands for.
func (r *record) total() uint64 { return inspector.Plus(r.rep.SampleCount, r.rep.Truncated) }

func (r *record) rank() int {
	if r.kind.Name == kindLoss {
		return math.MaxInt // without it, nobody knows that others are missing
	}
	return r.rep.Severity.Rank()
}

// touch notes a change; urgent ones are pushed without a pause.
func (r *record) touch(urgent bool) {
	r.version++
	r.urgent = r.urgent || urgent
}

// ends reports whether a record ends by itself.
func (r *record) ends() bool {
	return !r.lasting && r.kind.Rule == nil && r.rep.State == inspector.EventOpen
}

func (r *record) end(at time.Time) {
	if r.rep.State != inspector.EventEnded {
		r.rep.State = inspector.EventEnded
		r.touch(true)
	}
}

func (r *record) pause() time.Duration {
	if r.lasting || r.kind.Rule != nil {
		return holdPause
	}
	return pushPause
}

// dueAt says when a record's report is to be pushed; false: there is nothing
// to say.
func (r *record) dueAt(now time.Time) (time.Time, bool) {
	switch {
	case r.sent == 0:
		return now, true
	case !r.acked: // one report of a record is under way at a time
		return r.pushedAt.Add(r.resend), true
	case r.sent == r.version:
		return time.Time{}, false
	case r.urgent:
		return now, true
	}
	return r.pushedAt.Add(r.pause()), true
}

// report copies the record as it travels, samples in the order of their time.
func (r *record) report() inspector.EventReport {
	out := r.rep
	out.Samples = slices.Clone(r.rep.Samples)
	slices.SortStableFunc(out.Samples, func(a, b inspector.EventSample) int { return a.At.Compare(b.At) })
	size := 512 + sizeOf(out.Labels)
	for i, s := range out.Samples {
		if size += 64 + sizeOf(s.Labels) + 48*len(s.Values); size > inspector.MaxEventBytes {
			out.Samples = out.Samples[:i]
			break
		}
	}
	return out
}

func sizeOf(labels map[string]string) (n int) {
	for k, v := range labels {
		n += len(k) + len(v) + 8
	}
	return n
}

// pushed notes that a report is under way.
func (r *record) pushed(d delivery, now time.Time) {
	if r.sent == d.version && !r.acked && r.resend > 0 {
		r.resend = min(2*r.resend, resendMax)
	} else {
		r.resend = resendFirst
	}
	r.sent, r.acked, r.pushedAt = d.version, false, now
	r.told = inspector.Plus(d.report.SampleCount, d.report.Truncated)
	if r.version == d.version {
		r.urgent = false
	}
}

func (r *record) acknowledged(version uint64) {
	if version == r.sent {
		r.acked = true
	}
}

// sight takes one occurrence in.
func (e *Events) sight(o inspector.Occurrence, now time.Time) {
	k := e.kinds[o.Kind]
	if k == nil {
		if e.stats.Refused++; e.stats.Refused == 1 {
			e.log.Error("occurrence of an event that nobody named", "kind", clip(inspector.CleanText(o.Kind), 64))
		}
		return
	}
	labels := scope(k, o.Labels)
	if k.Rule != nil { // its rule says when it begins; this is only a sample of it
		if r := e.current[inspector.FingerprintOf(k.Name, labels)]; r != nil && r.rep.State != inspector.EventEnded {
			r.sample(o.Sample)
		}
		return
	}
	n := max(1, o.Count)
	e.stats.Seen = inspector.Plus(e.stats.Seen, n)
	if o.Kind == kindLoss {
		e.stats.Lost = inspector.Plus(e.stats.Lost, n)
		e.spread(labels[lossLabel], n)
	}
	e.see(k, labels, o, now)
}

// spread notes on open records that sightings of their component were lost:
// on those of the immediate kind that was seen most and so filled the ring. A
// single event of another kind is not made "at least one" by it; event_loss
// tells the rest.
func (e *Events) spread(component string, n uint64) {
	seen, most := map[string]uint64{}, ""
	for _, r := range e.records {
		if k := r.kind; k.Component == component && k.Immediate && !k.Lasting && r.rep.State != inspector.EventEnded && k.Name != kindLoss {
			seen[k.Name] = inspector.Plus(seen[k.Name], r.total())
			if most == "" || seen[k.Name] > seen[most] {
				most = k.Name
			}
		}
	}
	for _, r := range e.records {
		if r.kind.Name == most && r.rep.State != inspector.EventEnded {
			r.rep.Lost = inspector.Plus(r.rep.Lost, n)
			r.touch(false)
		}
	}
}

// see adds a sighting to its record, or opens one.
func (e *Events) see(k *inspector.EventKind, labels map[string]string, o inspector.Occurrence, now time.Time) *record {
	at := plausible(o.At, now)
	fp := inspector.FingerprintOf(k.Name, labels)
	r := e.current[fp]
	if over := r != nil && now.Sub(r.opened) >= inspector.DedupFor; over && (r.ends() || r.rep.State == inspector.EventEnded) {
		r.end(r.rep.Last)
		if !at.After(r.rep.Begun) {
			at = r.rep.Begun.Add(time.Microsecond) // begun tells records apart
		}
		r = nil
	}
	if r == nil {
		r = e.open(k, fp, labels, at, now)
		if o.Severity.Rank() >= 0 {
			r.rep.Severity = o.Severity
		}
	} else if r.rep.State == inspector.EventEnded {
		r.rep.State = inspector.EventOpen
		r.touch(true)
	}
	if o.Severity.Rank() > r.rep.Severity.Rank() {
		r.rep.Severity = o.Severity
		r.touch(true)
	}
	r.rep.SampleCount = inspector.Plus(r.rep.SampleCount, 1)
	r.rep.Truncated = inspector.Plus(r.rep.Truncated, max(1, o.Count)-1)
	if at.After(r.rep.Last) {
		r.rep.Last = at
	}
	r.sample(o.Sample)
	r.touch(false)
	e.unsaved = true
	return r
}

// open makes a record, in the place of another one when there is no room.
func (e *Events) open(k *inspector.EventKind, fp inspector.Fingerprint, labels map[string]string, at, now time.Time) *record {
	if len(e.records) >= maxRecords {
		e.evict()
	}
	r := &record{kind: k, opened: now, rep: inspector.EventReport{
		Kind: k.Name, Fingerprint: fp, Begun: at, Last: at, Severity: k.Severity, State: inspector.EventOpen, Labels: labels,
	}}
	e.records = append(e.records, r)
	e.current[fp] = r
	return r
}

// evict gives up one record: of a kind that crowds the others out, if there is
// one; of those the least severe, of those an ended one, of those the oldest.
// What was not pushed of it is lost, and said so.
func (e *Events) evict() {
	of := map[string]int{}
	for _, r := range e.records {
		of[r.kind.Name]++
	}
	spared := func(yes bool) int {
		if yes {
			return 1
		}
		return 0
	}
	victim := slices.MinFunc(e.records, func(a, b *record) int {
		return cmp.Or(cmp.Compare(spared(of[a.kind.Name] <= maxOfKind), spared(of[b.kind.Name] <= maxOfKind)),
			cmp.Compare(a.rank(), b.rank()),
			cmp.Compare(spared(a.rep.State != inspector.EventEnded), spared(b.rep.State != inspector.EventEnded)),
			a.opened.Compare(b.opened))
	})
	e.stats.Evicted++
	e.lose(victim.kind.Component, victim.total()-victim.told)
	e.remove(victim)
}

func (e *Events) remove(r *record) {
	i := slices.Index(e.records, r)
	e.records = slices.Delete(e.records, i, i+1)
	if e.current[r.rep.Fingerprint] == r {
		delete(e.current, r.rep.Fingerprint)
	}
	e.unsaved = true
}

// sweep ends records whose time is over and forgets those that the server
// holds to the end.
func (e *Events) sweep(now time.Time) {
	for _, r := range slices.Clone(e.records) {
		old := now.Sub(r.opened) >= inspector.DedupFor
		if old && r.ends() {
			r.end(r.rep.Last)
			e.unsaved = true
		}
		if old && r.rep.State == inspector.EventEnded && r.acked && r.sent == r.version {
			e.remove(r)
		}
	}
	if now.Sub(e.swept) >= staleAfter/10 {
		e.swept = now
		e.sweepRings(now)
	}
}

// sample keeps the first samples and a fair choice of the later ones.
func (r *record) sample(s *inspector.EventSample) {
	if s == nil {
		return
	}
	r.offered++
	at := len(r.rep.Samples)
	if at >= inspector.MaxEventSamples {
		at = firstKept + int(min(rand.Uint64N(r.offered-firstKept), math.MaxInt32))
		if at >= inspector.MaxEventSamples {
			return
		}
	} else {
		r.rep.Samples = append(r.rep.Samples, inspector.EventSample{})
	}
	clean := inspector.EventSample{At: plausible(s.At, time.Now()), Labels: map[string]string{}}
	for i, k := range slices.Sorted(maps.Keys(s.Labels)) {
		if i < sampleKeys {
			key, _ := inspector.CleanLabel(k)
			clean.Labels[key] = cleanText(s.Labels[k])
		}
	}
	for i, k := range slices.Sorted(maps.Keys(s.Values)) {
		if v := s.Values[k]; i < sampleKeys && inspector.InRange(v) {
			if clean.Values == nil {
				clean.Values = map[string]float64{}
			}
			key, _ := inspector.CleanLabel(k)
			clean.Values[key] = v
		}
	}
	r.rep.Samples[at] = clean
}

// scope picks the labels that tell a kind's records apart, cleaned.
func scope(k *inspector.EventKind, labels map[string]string) map[string]string {
	out := make(map[string]string, len(k.Labels))
	for _, key := range k.Labels {
		if v, ok := labels[key]; ok {
			out[key], _ = inspector.CleanLabel(v)
		}
	}
	return out
}

// plausible is the time of a sighting: its own, unless that cannot be. The
// server's clock has microseconds, and begun names a record there.
func plausible(at, now time.Time) time.Time {
	if at.IsZero() || now.Sub(at) > maxPast || at.Sub(now) > maxFuture {
		at = now
	}
	return at.Round(0).Truncate(time.Microsecond)
}
