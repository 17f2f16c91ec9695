package runner

import (
	"math/bits"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// ring remembers in which of the last windows a rule's condition held for one
// scope. All of it changes under Events.mu.
type ring struct {
	kind      *inspector.EventKind
	component string // whose windows carry the metric
	labels    map[string]string
	held      uint64 // bit i: i windows ago
	unknown   int    // windows in a row that did not know
	holding   bool
	first     time.Time   // end of the first window of those that held
	begins    []time.Time // of late, the oldest first
	touched   time.Time   // when its last window came
	window    *inspector.Window
}

// view is what one window says about one scope of one rule.
type view struct {
	kind   *inspector.EventKind
	labels map[string]string
	known  bool
	held   bool
	value  float64
	series inspector.Series // the one with the greatest value
}

// Observe holds a closed window against the rules. It keeps nothing of w.
func (e *Events) Observe(w *inspector.Window) {
	if !e.ruled[w.Layout.Component] {
		return
	}
	views := e.judge(w)
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for fp, v := range views {
		r := e.rings[fp]
		if r == nil {
			if !v.held {
				continue
			}
			if r = e.newRing(v, w.Layout.Component); r == nil {
				e.lose(v.kind.Component, 1)
				continue
			}
			e.rings[fp] = r
		}
		r.window, r.touched = w, now
		e.step(fp, r, v, w.End, now)
	}
	for fp, r := range e.rings {
		if r.component == w.Layout.Component && r.window != w { // its series is no longer there
			r.touched = now
			e.step(fp, r, &view{kind: r.kind, labels: r.labels, known: true}, w.End, now)
		}
		r.window = nil
	}
	token(e.kick)
}

// judge looks at every series that a rule names.
func (e *Events) judge(w *inspector.Window) map[inspector.Fingerprint]*view {
	views := map[inspector.Fingerprint]*view{}
	for i, s := range w.Layout.Series {
		for _, k := range e.rules[s.Metric] {
			labels := map[string]string{}
			skip := false
			for _, l := range s.Labels {
				labels[l.Key] = l.Value
				if v, ok := k.Rule.Skip[l.Key]; ok && v == l.Value {
					skip = true
				}
			}
			if skip {
				continue
			}
			value, known := read(k.Rule, s, w.Values[i], w.End.Sub(w.Start).Seconds())
			labels = scope(k, labels)
			fp := inspector.FingerprintOf(k.Name, labels)
			v := views[fp]
			if v == nil {
				v = &view{kind: k, labels: labels}
				views[fp] = v
			}
			if known && (!v.known || value > v.value) {
				v.value, v.series = value, s
			}
			v.known = v.known || known
			v.held = v.held || known && value > k.Rule.Above
		}
	}
	return views
}

// step moves a ring on by one window.
func (e *Events) step(fp inspector.Fingerprint, r *ring, v *view, at, now time.Time) {
	rule := r.kind.Rule
	if !v.known {
		if r.unknown++; r.unknown < rule.N {
			return // neither held nor not
		}
		r.held = 0
	} else {
		r.unknown = 0
	}
	if v.held && r.held == 0 {
		r.first = plausible(at, now)
	}
	r.held = r.held << 1 & (1<<rule.N - 1)
	if v.held {
		r.held |= 1
	}
	e.unsaved = true
	held := bits.OnesCount64(r.held)
	switch {
	case !r.holding && v.held && held >= rule.K:
		e.begin(fp, r, v, uint64(held), at, now)
	case r.holding && v.held:
		e.sightRule(r, v, 1, at, now)
	case r.holding && held == 0:
		r.holding = false
		if rec := e.current[fp]; rec != nil && rec.rep.State == inspector.EventOpen {
			rec.end(plausible(at, now))
		}
	}
	e.calm(fp, r, now)
}

// begin starts a condition. One that began too often of late is flapping: one
// record for all of it.
func (e *Events) begin(fp inspector.Fingerprint, r *ring, v *view, held uint64, at, now time.Time) {
	r.holding = true
	r.begins = append(lately(r.begins, now), now)
	if len(r.begins) > flapBegins+1 {
		r.begins = r.begins[1:]
	}
	rec := e.sightRule(r, v, held, r.first, now)
	if at = plausible(at, now); at.After(rec.rep.Last) {
		rec.rep.Last = at
	}
	if len(r.begins) > flapBegins && rec.rep.State != inspector.EventFlapping {
		rec.rep.State = inspector.EventFlapping
		rec.touch(true)
	}
}

func (e *Events) sightRule(r *ring, v *view, n uint64, at, now time.Time) *record {
	e.stats.Seen = inspector.Plus(e.stats.Seen, n)
	s := &inspector.EventSample{At: at, Labels: map[string]string{}, Values: map[string]float64{string(r.kind.Rule.Stat): v.value, "above": r.kind.Rule.Above}}
	for _, l := range v.series.Labels {
		s.Labels[l.Key] = l.Value
	}
	return e.see(r.kind, r.labels, inspector.Occurrence{At: at, Sample: s, Count: n}, now)
}

// calm ends flapping once nothing began for a while, and forgets a ring that
// has nothing to remember.
func (e *Events) calm(fp inspector.Fingerprint, r *ring, now time.Time) {
	r.begins = lately(r.begins, now)
	if rec := e.current[fp]; len(r.begins) == 0 && rec != nil && rec.rep.State == inspector.EventFlapping {
		if r.holding {
			rec.rep.State = inspector.EventOpen
			rec.touch(true)
		} else {
			rec.end(rec.rep.Last)
		}
	}
	if r.held == 0 && !r.holding && len(r.begins) == 0 {
		delete(e.rings, fp)
	}
}

// lately keeps the begins that count for flapping.
func lately(begins []time.Time, now time.Time) []time.Time {
	for len(begins) > 0 && now.Sub(begins[0]) > flapWithin {
		begins = begins[1:]
	}
	return begins
}

// newRing makes room for a ring: one whose condition does not hold and did not
// begin of late is forgotten, else one that does not hold.
func (e *Events) newRing(v *view, component string) *ring {
	if len(e.rings) >= maxRings {
		var victim inspector.Fingerprint
		found := false
		for fp, r := range e.rings {
			if !r.holding && (!found || len(r.begins) < len(e.rings[victim].begins)) {
				victim, found = fp, true
				if len(r.begins) == 0 {
					break
				}
			}
		}
		if !found {
			return nil
		}
		delete(e.rings, victim)
	}
	return &ring{kind: v.kind, component: component, labels: v.labels}
}

// sweepRings ends conditions of which no window has come for long: the module
// is off, or gone.
func (e *Events) sweepRings(now time.Time) {
	for fp, r := range e.rings {
		if now.Sub(r.touched) < staleAfter {
			continue
		}
		r.held, r.holding, r.begins = 0, false, nil
		if rec := e.current[fp]; rec != nil {
			rec.end(rec.rep.Last)
		}
		delete(e.rings, fp)
		e.unsaved = true
	}
}

// read takes the number that a rule looks at; false: it is not known.
func read(rule *inspector.Rule, s inspector.Series, v inspector.Value, seconds float64) (float64, bool) {
	switch {
	case !v.OK:
	case rule.Stat == inspector.StatRate && s.Kind == inspector.Delta && seconds > 0:
		return float64(v.Delta) / seconds, true
	case rule.Stat == inspector.StatValue && s.Kind == inspector.Gauge:
		return v.Gauge, true
	case rule.Stat == inspector.StatP99 && s.Kind == inspector.Histogram:
		if inspector.HistCount(v.Hist) < rule.Floor {
			return 0, true // too few to judge is not bad
		}
		upper, ok := inspector.Quantile(v.Hist, 0.99)
		return float64(upper), ok
	}
	return 0, false
}
