package uplink

import (
	"strings"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

func sighting(i int) inspector.EventReport {
	at := time.Unix(1_800_000_000+int64(i), 0)
	return inspector.EventReport{Kind: "slow_io", Begun: at, Last: at, Severity: inspector.Warning, State: inspector.EventOpen, Labels: map[string]string{"device": "vda"}, SampleCount: 1}
}

func TestEventsGoFirstAndAreDroppedLast(t *testing.T) {
	q, seq := newQueue(4, 1<<20), counter()
	for i := range 4 {
		q.push(win(i))
	}
	told := map[int]int{}
	for i := range 3 {
		r := eventReport(sighting(i))
		r.done = func() { told[i]++ }
		if !q.pushEvent(r) {
			t.Fatal("no room for an event")
		}
	}
	for i := 4; i < 10; i++ { // windows push out windows
		q.push(win(i))
	}
	if q.empty() || q.drops()["network"] != 6 {
		t.Errorf("dropped %v", q.drops())
	}
	sent := 0
	for r := q.next(99, time.Now(), seq); r != nil; r = q.next(99, time.Now(), seq) {
		sent++
		if want := sent <= 3; (r.pb.GetEvent() != nil) != want {
			t.Errorf("report %d is %v", sent, r.pb)
		}
	}
	if n, events := q.ack(2); n != 2 || events != 2 || told[0] != 1 || told[1] != 1 || told[2] != 0 {
		t.Errorf("acknowledged %d, events %d, told %v", n, events, told)
	}
	q.renumber() // for a new epoch
	q.rewind(0)
	if n, events := q.ack(99); events != 1 || n < 5 || told[2] != 1 {
		t.Errorf("acknowledged %d, events %d, told %v", n, events, told)
	}
	q.ack(99)
	if items, bytes := q.depth(); items != 0 || bytes != 0 || told[0] != 1 {
		t.Errorf("%d items, %d bytes, told %v", items, bytes, told)
	}
}

func TestEventQueueIsBounded(t *testing.T) {
	q := newQueue(10, 1<<30)
	taken := 0
	for i := range 2 * maxEvents {
		if q.pushEvent(eventReport(sighting(i))) {
			taken++
		}
	}
	if taken != maxEvents {
		t.Errorf("%d events are held", taken)
	}
	q = newQueue(1000, 100_000)
	for i := range 1000 {
		q.push(win(i))
		q.pushEvent(eventReport(sighting(i)))
		if _, bytes := q.depth(); bytes > 100_000 || q.eventB > 25_000 {
			t.Fatalf("%d bytes held, %d of events", bytes, q.eventB)
		}
	}
}

func TestEventReportKeepsItsBounds(t *testing.T) {
	e := sighting(0)
	e.Labels, e.SampleCount = map[string]string{}, 1000
	for i := range 20 {
		e.Labels[strings.Repeat("k", 200)+string(rune('a'+i))] = strings.Repeat("v", 1000)
		s := inspector.EventSample{Labels: map[string]string{}, Values: map[string]float64{}}
		for j := range 40 {
			s.Labels[string(rune('A'+j))] = strings.Repeat("x", 1000)
			s.Values[string(rune('A'+j))] = 1
		}
		e.Samples = append(e.Samples, s)
	}
	m := eventReport(e).pb.GetEvent()
	size := 0
	for _, s := range m.Samples {
		for _, p := range s.Labels {
			size += len(p.Key) + len(p.Value)
		}
		if len(s.Labels) > maxSampleFields || len(s.Values) > maxSampleFields {
			t.Errorf("a sample of %d labels and %d values", len(s.Labels), len(s.Values))
		}
	}
	if len(m.Labels) != inspector.MaxEventLabels || len(m.Samples) == 0 || size > inspector.MaxEventBytes || m.SampleCount != 1000 {
		t.Errorf("%d labels, %d samples of %d bytes, %d counted", len(m.Labels), len(m.Samples), size, m.SampleCount)
	}
}
