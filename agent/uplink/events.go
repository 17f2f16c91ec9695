package uplink

import (
	"maps"
	"slices"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// PushEvent takes one event record; it goes out before windows that wait, in
// the same sequence. done is called once when the server has settled it:
// stored, or kept out for good. It is called from Run's goroutines, also
// before PushEvent returns, and must not block; nil is allowed. False means
// that too many events wait: nothing was taken, try later. Never blocks.
func (u *Uplink) PushEvent(e inspector.EventReport, done func()) bool {
	r := eventReport(e)
	r.done = done
	if !u.queue.pushEvent(r) {
		u.counts.eventsDropped.Add(1)
		return false
	}
	u.counts.eventsPushed.Add(1)
	return true
}

// maxEventText bounds one value of a sample, for example a command line.
const maxEventText = 512

// eventReport makes the wire form. Text travels as it is: the server repairs
// what is no UTF-8. What is over a bound is left out, samples first, so that
// the record itself arrives; its counts do not change.
func eventReport(e inspector.EventReport) *report {
	m := &pb.Event{
		Kind: []byte(e.Kind), Fingerprint: e.Fingerprint[:], BegunNs: e.Begun.UnixNano(), LastNs: e.Last.UnixNano(),
		Severity: []byte(e.Severity), State: []byte(e.State), SampleCount: e.SampleCount, TruncatedCount: e.Truncated, Lost: e.Lost,
	}
	labels, size := pairs(e.Labels, inspector.MaxEventLabels, inspector.MaxLabelBytes)
	m.Labels = labels
	size += len(e.Kind) + 64
	for _, s := range e.Samples[:min(len(e.Samples), inspector.MaxEventSamples)] {
		p := &pb.EventSample{AtNs: s.At.UnixNano()}
		n := 0
		p.Labels, n = pairs(s.Labels, maxSampleFields, maxEventText)
		for _, k := range slices.Sorted(maps.Keys(s.Values)) {
			if len(p.Values) < maxSampleFields {
				p.Values = append(p.Values, &pb.Number{Key: cut(k, inspector.MaxLabelBytes), Value: s.Values[k]})
				n += len(k) + 16
			}
		}
		if size+n > inspector.MaxEventBytes {
			break
		}
		size += n
		m.Samples = append(m.Samples, p)
	}
	return &report{event: true, size: reportOverhead + 2*size, pb: &pb.Report{Body: &pb.Report_Event{Event: m}}}
}

// maxSampleFields bounds the labels, and the values, of one sample.
const maxSampleFields = 24

// pairs returns labels in order of their keys, and about how many bytes they
// are on the wire.
func pairs(labels map[string]string, most, text int) (out []*pb.Pair, size int) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if len(out) == most {
			break
		}
		p := &pb.Pair{Key: cut(k, inspector.MaxLabelBytes), Value: cut(labels[k], text)}
		out = append(out, p)
		size += len(p.Key) + len(p.Value) + 8
	}
	return out, size
}

func cut(s string, most int) []byte { return []byte(s[:min(len(s), most)]) }
