package events

import (
	"encoding/json"
	"math"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Reasons why a report is kept out; those about time are the words that
// windows use too.
const (
	ReasonSkew      = "clock_skew"
	ReasonTooOld    = "too_old"
	ReasonFuture    = "future"
	ReasonMalformed = "malformed"
	ReasonUnknown   = "unknown_event"   // a kind that this server does not know
	ReasonTooMany   = "too_many_events" // the node made more records of a kind in an hour than are taken
)

const (
	aheadOK   = tenants.SkewIgnored + tenants.WindowLength // how far ahead of the server a sighting may lie
	maxNumber = 16                                         // labels or values of one sample
)

// checked is a report whose times are the server's and whose text is clean.
type checked struct {
	kind        inspector.EventKind
	fingerprint inspector.Fingerprint
	begun, said time.Time // first and latest sighting by the node's clock
	ts, last    time.Time // the same by the server's; ts to the millisecond
	skewMS      *int64    // nil: small enough to be ignored
	severity    int
	state       inspector.EventState
	labels      map[string]string
	samples     []inspector.EventSample

	seen, truncated, lost int64
}

func keepOut(reason, format string, args ...any) error {
	return fault.Newf(fault.Invalid, reason, format, args...)
}

// check places a report on the server's clock, or says why it is kept out.
func (s *Service) check(r inspector.EventReport, skew time.Duration) (c checked, err error) {
	var ok bool
	if c.kind, ok = s.reg.Event(r.Kind); !ok {
		name, _ := inspector.CleanLabel(r.Kind)
		return c, keepOut(ReasonUnknown, "no kind of event %q here: the agent is newer than the server", name)
	}
	c.severity, c.state, c.fingerprint = r.Severity.Rank(), r.State, r.Fingerprint
	if r.Severity == "" {
		c.severity = c.kind.Severity.Rank()
	}
	switch {
	case c.severity < 0 || stateRank(c.state) < 0:
		return c, keepOut(ReasonMalformed, "no such severity or state")
	case c.fingerprint == inspector.Fingerprint{}:
		return c, keepOut(ReasonMalformed, "an event without a fingerprint")
	case r.Begun.IsZero() || r.Last.Before(r.Begun):
		return c, keepOut(ReasonMalformed, "an event ends before it begins")
	case len(r.Labels) > inspector.MaxEventLabels || len(r.Samples) > inspector.MaxEventSamples:
		return c, keepOut(ReasonMalformed, "an event has at most %d labels and %d samples", inspector.MaxEventLabels, inspector.MaxEventSamples)
	}
	if err := c.time(r, skew, s.now(), s.cfg.Retention); err != nil {
		return c, err
	}
	c.seen, c.truncated, c.lost = clampCount(r.SampleCount), clampCount(r.Truncated), clampCount(r.Lost)
	c.labels = cleanLabels(r.Labels)
	c.samples = cleanSamples(r.Samples, c.shift())
	return c, nil
}

// time applies the skew rule: ignored up to 2 s, corrected and marked up to an
// hour, beyond that kept out. Age is judged by the latest sighting: trouble
// may have begun long before.
func (c *checked) time(r inspector.EventReport, skew time.Duration, now time.Time, retention time.Duration) error {
	if skew.Abs() > tenants.SkewCorrected {
		return keepOut(ReasonSkew, "the node's clock is %v off, at most %v is corrected", skew.Round(time.Second), tenants.SkewCorrected)
	}
	if skew.Abs() > tenants.SkewIgnored {
		ms := skew.Milliseconds()
		c.skewMS = &ms
	}
	c.begun, c.said = r.Begun.UTC().Truncate(time.Microsecond), r.Last.UTC().Truncate(time.Microsecond)
	c.ts, c.last = c.begun.Add(-c.shift()).Truncate(time.Millisecond), c.said.Add(-c.shift())
	switch {
	case c.last.Before(now.Add(-tenants.MaxReplayAge)):
		return keepOut(ReasonTooOld, "last seen %s, more than %v ago", c.last.Format(time.RFC3339), tenants.MaxReplayAge)
	case c.ts.Before(now.Add(-retention)):
		return keepOut(ReasonTooOld, "begun %s, before what is kept", c.ts.Format(time.RFC3339))
	case c.last.After(now.Add(aheadOK)):
		return keepOut(ReasonFuture, "last seen %s, the server's time is %s", c.last.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// shift is what the node's times are moved back by.
func (c *checked) shift() time.Duration {
	if c.skewMS == nil {
		return 0
	}
	return time.Duration(*c.skewMS) * time.Millisecond
}

// clampCount cuts a number so that the sum of two is read as it is by every
// reader of JSON numbers.
func clampCount(n uint64) int64 { return int64(min(n, inspector.MaxCount/2)) }

// stateRank orders states for reports of the same last sighting: the end comes
// last. -1 is no state.
func stateRank(s inspector.EventState) int {
	switch s {
	case inspector.EventOpen:
		return 0
	case inspector.EventFlapping:
		return 1
	case inspector.EventEnded:
		return 2
	}
	return -1
}

func cleanLabels(in map[string]string) map[string]string {
	out := make(map[string]string, len(in))
	for k, v := range in {
		k, _ = inspector.CleanLabel(k)
		out[k], _ = inspector.CleanLabel(v)
	}
	return out
}

// cleanSamples keeps samples within their bounds; what is over is left out.
func cleanSamples(in []inspector.EventSample, shift time.Duration) []inspector.EventSample {
	out := make([]inspector.EventSample, 0, len(in))
	bytes := 0
	for _, s := range in {
		c := inspector.EventSample{At: s.At.UTC().Add(-shift), Labels: cleanLabels(s.Labels), Values: map[string]float64{}}
		for k, v := range s.Values {
			if k, _ = inspector.CleanLabel(k); math.Abs(v) <= inspector.MaxCount { // false for NaN
				c.Values[k] = v
			}
		}
		b, err := json.Marshal(c)
		if bytes += len(b); err != nil || len(c.Labels) > maxNumber || len(c.Values) > maxNumber || bytes > inspector.MaxEventBytes {
			continue
		}
		out = append(out, c)
	}
	return out
}
