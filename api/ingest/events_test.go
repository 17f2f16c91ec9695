package ingest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// ledger is an events service in memory: one record a (node, fingerprint,
// begun), as the contract says.
type ledger struct {
	mu      sync.Mutex
	records map[ledgerKey]inspector.EventReport
	calls   int
	away    int           // calls that fail from now on
	stored  chan struct{} // when set: told after each record, which then hangs
	hang    chan struct{}
}

type ledgerKey struct {
	node, fingerprint string
	begun             int64
}

func newLedger() *ledger { return &ledger{records: map[ledgerKey]inspector.EventReport{}} }

func (l *ledger) use(d *Deps) { d.Events = l }

func (l *ledger) Record(_ context.Context, scope tenants.Scope, r inspector.EventReport, _ time.Duration) error {
	l.mu.Lock()
	l.calls++
	if l.away > 0 {
		l.away--
		l.mu.Unlock()
		return fault.New(fault.Unavailable, "database_unavailable", "the database is away")
	}
	if r.Kind == "of_the_future" {
		l.mu.Unlock()
		return fault.New(fault.Invalid, "unknown_event", "this server does not know the kind")
	}
	if r.Kind == "poison" {
		l.mu.Unlock()
		return errors.New("a defect")
	}
	l.records[ledgerKey{scope.Principal.ID, r.Fingerprint.String(), r.Begun.UnixNano()}] = r
	stored, hang := l.stored, l.hang
	l.mu.Unlock()
	if stored != nil {
		stored <- struct{}{}
		<-hang
	}
	return nil
}

// of returns the records of a node.
func (l *ledger) of(node tenants.NodeID) (out []inspector.EventReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k, r := range l.records {
		if k.node == node.String() {
			out = append(out, r)
		}
	}
	return out
}

func sighting(kind string, i int) inspector.EventReport {
	labels := map[string]string{"device": "vda"}
	at := time.Now().Add(-time.Minute).Add(time.Duration(i) * time.Second)
	return inspector.EventReport{
		Kind: kind, Fingerprint: inspector.FingerprintOf(kind, labels), Begun: at, Last: at.Add(time.Second),
		Severity: inspector.Warning, State: inspector.EventOpen, Labels: labels, SampleCount: 1,
		Samples: []inspector.EventSample{{At: at, Labels: map[string]string{"comm": "dd"}, Values: map[string]float64{"latency_us": 9}}},
	}
}

func TestEventsGoBeforeWindowsAndAreSettled(t *testing.T) {
	t.Parallel()
	l := newLedger()
	l.away = 2
	r := newRigWith(t, Config{}, l.use)
	a, node := r.agent(r.acme, "web-1")
	b, other := r.agent(r.globex, "web-1")
	r.eventually("connected", func() bool { return a.Stats().Connected && b.Stats().Connected })
	settled := make(chan struct{}, 3)
	for i := range 3 {
		if !a.PushEvent(sighting("slow_io", i), func() { settled <- struct{}{} }) {
			t.Fatal("no room")
		}
	}
	b.PushEvent(sighting("slow_io", 0), nil)
	a.Push(window(0))
	for range 3 {
		select {
		case <-settled:
		case <-time.After(10 * time.Second):
			t.Fatal("an event is not settled")
		}
	}
	r.wantRows(node, 1)
	r.eventually("the other tenant's too", func() bool { return b.Stats().EventsAcked == 1 })
	if got := l.of(node); len(got) != 3 || got[0].Labels["device"] != "vda" || got[0].Samples[0].Values["latency_us"] != 9 || len(l.of(other)) != 1 {
		t.Errorf("records %+v", got)
	}
	if st := a.Stats(); st.EventsPushed != 3 || st.EventsAcked != 3 || st.EventsDropped != 0 || st.Connects != 1 || st.Quarantined != 0 {
		t.Errorf("agent %+v", st)
	}
	if st := r.srv.Stats(); st.Events != 4 {
		t.Errorf("server %+v", st)
	}
}

// The server dies between the record and its acknowledgement: the event comes
// again and is one record.
func TestEventIsOneRecordOverACrash(t *testing.T) {
	t.Parallel()
	l := newLedger()
	l.stored, l.hang = make(chan struct{}, 8), make(chan struct{})
	r := newRigWith(t, Config{DrainTimeout: 50 * time.Millisecond}, l.use)
	a, node := r.agent(r.acme, "web-1")
	var once sync.Once
	settled := make(chan struct{})
	a.PushEvent(sighting("slow_io", 0), func() { once.Do(func() { close(settled) }) })
	<-l.stored
	for _, st := range r.srv.hub.all() {
		st.cut("crash", errStopping)
	}
	r.eventually("the stream is gone", func() bool { return r.srv.hub.size() == 0 })
	l.mu.Lock()
	l.stored = nil
	l.mu.Unlock()
	close(l.hang)
	addr := r.addr
	r.stop()
	r.start(Config{}, l.use, addr)
	select {
	case <-settled:
	case <-time.After(30 * time.Second):
		t.Fatal("not settled after the crash")
	}
	if got := l.of(node); len(got) != 1 {
		t.Errorf("%d records", len(got))
	}
	if l.mu.Lock(); l.calls != 2 {
		t.Errorf("recorded in %d calls", l.calls)
	}
	l.mu.Unlock()
}

// Text that is no UTF-8 arrives repaired; the message lives.
func TestEventTextIsRepaired(t *testing.T) {
	t.Parallel()
	l := newLedger()
	r := newRigWith(t, Config{}, l.use)
	a, node := r.agent(r.acme, "web-1")
	e := sighting("slow_io", 0)
	e.Labels = map[string]string{"device": "\xffvd\u202ea", "\xc3": "x"}
	e.Samples[0].Labels = map[string]string{"comm": "inner-job-同\xe6\xad", "cmdline": strings.Repeat("同", 400)}
	a.PushEvent(e, nil)
	a.Push(window(0))
	r.eventually("both are settled", func() bool { return a.Stats().Acked == 2 })
	r.wantRows(node, 1)
	got := l.of(node)
	if len(got) != 1 {
		t.Fatalf("%d records, %+v", len(got), a.Stats())
	}
	if d := got[0].Labels["device"]; d != "\uFFFD\\xffvd\\u202ea" {
		t.Errorf("device %q", d)
	}
	for _, m := range []map[string]string{got[0].Labels, got[0].Samples[0].Labels} {
		for k, v := range m {
			if !utf8.ValidString(k + v) {
				t.Errorf("%q: %q", k, v)
			}
		}
	}
	if c := got[0].Samples[0].Labels["comm"]; !strings.HasPrefix(c, "inner-job-同\uFFFD") {
		t.Errorf("comm %q", c)
	}
}

// What is no event is kept out with its reason; windows go on, and so does the
// other tenant.
func TestMalformedEventsAreKeptOut(t *testing.T) {
	t.Parallel()
	l := newLedger()
	r := newRigWith(t, Config{}, l.use)
	other := r.witness()
	c, node := r.connect(r.acme, "web-1", 0)
	c.layout(testLayout)
	seq := uint64(0)
	push := func(e *pb.Event) []string {
		seq++
		c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Report{Report: &pb.Report{Seq: seq, Body: &pb.Report_Event{Event: e}}}})
		return c.acked(seq)
	}
	now := time.Now().UnixNano()
	good := func(edit func(*pb.Event)) *pb.Event {
		e := &pb.Event{Kind: []byte("slow_io"), Fingerprint: make([]byte, 16), BegunNs: now, LastNs: now, Severity: []byte("warning"), State: []byte("open")}
		edit(e)
		return e
	}
	bad := map[string]*pb.Event{
		"empty":             {},
		"short fingerprint": good(func(e *pb.Event) { e.Fingerprint = e.Fingerprint[:15] }),
		"no kind":           good(func(e *pb.Event) { e.Kind = nil }),
		"long kind":         good(func(e *pb.Event) { e.Kind = []byte(long(41)) }),
		"severity":          good(func(e *pb.Event) { e.Severity = []byte("terrible") }),
		"state":             good(func(e *pb.Event) { e.State = nil }),
		"begun":             good(func(e *pb.Event) { e.BegunNs = -1 }),
		"labels":            good(func(e *pb.Event) { e.Labels = slices.Repeat([]*pb.Pair{{}}, 9) }),
		"samples":           good(func(e *pb.Event) { e.Samples = slices.Repeat([]*pb.EventSample{{}}, 11) }),
		"sample labels":     good(func(e *pb.Event) { e.Samples = []*pb.EventSample{{Labels: slices.Repeat([]*pb.Pair{{}}, 25)}} }),
		"bytes": good(func(e *pb.Event) {
			e.Samples = []*pb.EventSample{{Labels: []*pb.Pair{{Key: []byte("k"), Value: make([]byte, 33<<10)}}}}
		}),
	}
	for name, e := range bad {
		if got := push(e); len(got) != 1 || got[0] != "malformed" {
			t.Errorf("%s: kept out for %v", name, got)
		}
	}
	if got := push(good(func(e *pb.Event) { e.Kind = []byte("of_the_future") })); len(got) != 1 || got[0] != "unknown_event" {
		t.Errorf("an unknown kind: kept out for %v", got)
	}
	if got := push(good(func(e *pb.Event) { e.Kind = []byte("poison") })); len(got) != 1 || got[0] != "not_recorded" {
		t.Errorf("a defect of the server: kept out for %v", got)
	}
	seq++
	c.window(seq, window(0))
	c.acked(seq)
	if got := push(good(func(*pb.Event) {})); len(got) != 0 || len(l.of(node)) != 1 {
		t.Errorf("a good one: kept out for %v", got)
	}
	r.wantRows(node, 1)
	r.eventually("they are counted for the node", func() bool {
		return r.quarantine(r.acme, node, "malformed") == int64(len(bad)) && r.quarantine(r.acme, node, "unknown_event") == 1
	})
	other.fine()
}

// A server without events keeps them out and takes windows.
func TestEventsOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	a, node := r.agent(r.acme, "web-1")
	settled := make(chan struct{})
	a.PushEvent(sighting("slow_io", 0), func() { close(settled) })
	a.Push(window(0))
	<-settled
	r.wantRows(node, 1)
	r.eventually("counted", func() bool { return r.quarantine(r.acme, node, "events_off") == 1 })
}

// FuzzEvent decodes arbitrary events: what passes is within bounds and clean.
func FuzzEvent(f *testing.F) {
	add := func(e *pb.Event) { raw, _ := proto.Marshal(e); f.Add(raw) }
	add(&pb.Event{})
	add(&pb.Event{Kind: []byte("slow_io"), Fingerprint: make([]byte, 16), BegunNs: 1, Severity: []byte("info"), State: []byte("ended"),
		Labels:  []*pb.Pair{{Key: []byte("a\xff"), Value: []byte("\u202e")}},
		Samples: []*pb.EventSample{{AtNs: -1 << 63, Labels: []*pb.Pair{{}}, Values: []*pb.Number{{Key: []byte("x"), Value: 1e308}}}}})
	l := newLedger()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m pb.Event
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		mem := &memory{}
		s := New(Config{QueueItems: 4, Writers: 1}, Deps{Sessions: mem, Windows: mem, Events: l}, log)
		st := &stream{s: s, grpc: noStream{ctx: t.Context()}, expected: 1, slots: make(chan struct{}, 4), notify: make(chan struct{}, 1), ended: make(chan struct{})}
		if err := st.event(t.Context(), 1, &m); err != nil || st.expected != 2 {
			t.Fatalf("%v, %d is expected", err, st.expected)
		}
		r, err := eventOf(&m)
		if err != nil {
			return
		}
		if len(r.Labels) > inspector.MaxEventLabels || len(r.Samples) > inspector.MaxEventSamples || r.Last.Before(r.Begun) {
			t.Fatalf("%+v", r)
		}
		for _, s := range r.Samples {
			for k, v := range s.Labels {
				if k == "" || inspector.CleanText(k) != k || inspector.CleanText(v) != v || len(k) > inspector.MaxLabelBytes {
					t.Fatalf("%q: %q", k, v)
				}
			}
		}
	})
}
