package ingest

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Events takes in the anomalies that nodes report. An Invalid fault keeps a
// report out for good; a report that comes again changes nothing.
type Events interface {
	Record(ctx context.Context, scope tenants.Scope, r inspector.EventReport, skew time.Duration) error
}

// Bounds of one event frame.
const (
	maxKindBytes    = 40
	maxSampleFields = 24  // labels, and values, of one sample
	maxSampleText   = 512 // bytes of one value
	recordAttempts  = 3   // of an event that fails while the database answers
)

// event records one event before its number is passed on: the record is there
// when the number is acknowledged. What comes again after a break is told by
// the service.
func (st *stream) event(ctx context.Context, seq uint64, m *pb.Event) error {
	s := st.s
	if s.deps.Events == nil {
		return st.refuse(ctx, seq, "events_off", "")
	}
	r, err := eventOf(m)
	if err != nil {
		return st.refuse(ctx, seq, "malformed", err.Error())
	}
	record := func() error { return s.deps.Events.Record(ctx, st.scope, r, st.skew.value) }
	for attempt := 1; ; attempt++ {
		err = patiently(ctx, record)
		if err == nil || fault.Is(err, fault.Invalid) || away(err) || ctx.Err() != nil || attempt == recordAttempts {
			break
		}
	}
	switch f := fault.Of(err); {
	case err == nil:
	case f.Kind == fault.Invalid:
		return st.refuse(ctx, seq, f.Reason, f.Msg)
	case away(err) || ctx.Err() != nil:
		return err
	default: // a defect of ours; the node's windows must not wait for its end
		s.log.Error("an event could not be recorded and is kept out", "node", st.node, "kind", r.Kind, "error", err)
		return st.refuse(ctx, seq, "not_recorded", r.Kind)
	}
	s.count.events.Add(1)
	return st.advance(ctx, seq)
}

// eventOf checks an event's form and bounds before anything of it is copied.
// Text is cleaned and cut; what it means, the service knows. A node whose clock
// went back meanwhile has a last sighting before the first.
func eventOf(m *pb.Event) (r inspector.EventReport, err error) {
	switch {
	case m == nil:
		return r, fmt.Errorf("no event")
	case len(m.Fingerprint) != len(r.Fingerprint):
		return r, fmt.Errorf("a fingerprint of %d bytes", len(m.Fingerprint))
	case len(m.Kind) == 0 || len(m.Kind) > maxKindBytes:
		return r, fmt.Errorf("a kind of %d bytes", len(m.Kind))
	case len(m.Labels) > inspector.MaxEventLabels:
		return r, fmt.Errorf("%d labels", len(m.Labels))
	case len(m.Samples) > inspector.MaxEventSamples:
		return r, fmt.Errorf("%d samples", len(m.Samples))
	case inspector.Severity(m.Severity).Rank() < 0:
		return r, fmt.Errorf("severity %.20q", m.Severity)
	case m.BegunNs <= 0:
		return r, fmt.Errorf("begun at %d", m.BegunNs)
	}
	state := inspector.EventState(m.State)
	if state != inspector.EventOpen && state != inspector.EventFlapping && state != inspector.EventEnded {
		return r, fmt.Errorf("state %.20q", m.State)
	}
	size := 0
	for _, sm := range m.Samples {
		if len(sm.GetLabels()) > maxSampleFields || len(sm.GetValues()) > maxSampleFields {
			return r, fmt.Errorf("a sample of %d labels and %d values", len(sm.GetLabels()), len(sm.GetValues()))
		}
		for _, p := range sm.GetLabels() {
			size += len(p.GetKey()) + len(p.GetValue())
		}
		for _, v := range sm.GetValues() {
			size += len(v.GetKey()) + 8
		}
	}
	if size > inspector.MaxEventBytes {
		return r, fmt.Errorf("samples of %d bytes", size)
	}
	r = inspector.EventReport{
		Kind: inspector.CleanText(string(m.Kind)), Fingerprint: inspector.Fingerprint(m.Fingerprint),
		Begun: time.Unix(0, m.BegunNs), Last: time.Unix(0, max(m.LastNs, m.BegunNs)), Severity: inspector.Severity(m.Severity), State: state,
		Labels: labelsOf(m.Labels, inspector.MaxLabelBytes), SampleCount: m.SampleCount, Truncated: m.TruncatedCount, Lost: m.Lost,
	}
	for _, sm := range m.Samples {
		s := inspector.EventSample{At: time.Unix(0, sm.GetAtNs()), Labels: labelsOf(sm.GetLabels(), maxSampleText)}
		for _, v := range sm.GetValues() {
			key, _ := inspector.CleanLabel(string(v.GetKey()))
			if key == "" || math.IsNaN(v.GetValue()) || math.IsInf(v.GetValue(), 0) {
				continue // unknown is absent
			}
			if s.Values == nil {
				s.Values = make(map[string]float64, len(sm.GetValues()))
			}
			s.Values[key] = v.GetValue()
		}
		r.Samples = append(r.Samples, s)
	}
	return r, nil
}

func labelsOf(pairs []*pb.Pair, most int) map[string]string {
	out := make(map[string]string, len(pairs))
	for _, p := range pairs {
		if key, _ := inspector.CleanLabel(string(p.GetKey())); key != "" {
			out[key] = textOf(p.GetValue(), most)
		}
	}
	return out
}

// textOf cleans text of a node and keeps about its first most bytes.
func textOf(b []byte, most int) string {
	if len(b) <= most {
		return inspector.CleanText(string(b))
	}
	for most > 0 && b[most]&0xc0 == 0x80 { // not in the middle of a rune
		most--
	}
	return inspector.CleanText(string(b[:most]))
}

// patiently calls again while the database is away, until ctx ends.
func patiently(ctx context.Context, call func() error) error {
	wait := 50 * time.Millisecond
	for {
		err := call()
		if err == nil || !away(err) || ctx.Err() != nil {
			return err
		}
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return err
		}
		wait = min(2*wait, time.Second)
	}
}
