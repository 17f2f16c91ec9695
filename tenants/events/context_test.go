package events

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

func (w *world) fillDue(s *Service) int {
	w.t.Helper()
	n, err := s.fillDue(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func TestSnapshot(t *testing.T) {
	w := newWorld(t)
	w.windows(w.n1, 40, 5)
	w.windows(w.other, 40, 1000)
	w.record(w.n1, w.report("eth0", 0))
	w.fillDue(w.s)
	p := w.list(reader(w.a), ListQuery{})
	d := w.get(reader(w.a), p.Events[0].ID)
	c := d.Contexts[0]
	if len(d.Contexts) != 1 || c.Why != whyFirst || c.Status != pending || d.Context != pending || len(c.After) != 0 || len(c.Before) != 2 || *c.Before[0].Rate != 0.5 || *c.During[1].Avg != 5 || c.Before[0].Unit != "count" {
		t.Fatalf("%+v", d.Contexts)
	}
	if n := w.fillDue(w.s); n != 0 {
		t.Errorf("%d due before anything more can be there", n)
	}
	w.advance(40 * time.Second)
	w.windows(w.n1, 4, 9)
	w.advance(2 * time.Second)
	w.fillDue(w.s)
	d = w.get(reader(w.a), p.Events[0].ID)
	c = d.Contexts[0]
	if c.Status != complete || d.Context != complete || *c.After[1].Max != 9 || *c.Before[1].Max != 5 || *c.During[1].Max != 9 {
		t.Errorf("%+v", c)
	}
	w.advance(time.Hour)
	if n := w.fillDue(w.s); n != 0 {
		t.Errorf("%d due after the end", n)
	}
	if len(w.list(reader(w.b), ListQuery{}).Events) != 0 {
		t.Error("the second tenant has events")
	}
}

// A node that falls silent leaves a partial snapshot, one without data an
// unavailable one, and neither loses the event.
func TestSnapshotWithoutData(t *testing.T) {
	w := newWorld(t)
	w.windows(w.n1, 40, 5)
	w.record(w.n1, w.report("eth0", 0))
	w.record(w.n2, w.report("eth0", 0))
	w.record(w.n2, w.reportOf("new_exec", map[string]string{"exe": "/x"}, 0))
	old := w.report("old", 23*time.Hour)
	w.record(w.n2, old)
	for range maxTries {
		w.fillDue(w.s)
		w.advance(10 * time.Minute)
	}
	want := map[string]string{"n1": "partial: no data after", "n2": "unavailable: no data before during after", "/x": "unavailable: no metric is related to this kind",
		"old": "unavailable: the windows of that time are no longer kept"}
	for _, e := range w.list(reader(w.a), ListQuery{}).Events {
		d := w.get(reader(w.a), e.ID)
		key := e.Name
		if _, ok := want[scopes([]Event{e})[0]]; ok {
			key = scopes([]Event{e})[0]
		}
		if got := d.Context + ": " + d.Contexts[0].Reason; got != want[key] {
			t.Errorf("%s: %q, want %q", key, got, want[key])
		}
	}
}

type broken struct{ Metrics }

func (broken) Values(context.Context, tenants.TenantID, tenants.NodeID, []string, time.Time, time.Time) ([]tenants.MetricValue, error) {
	return nil, errors.New("away")
}

func TestSnapshotWithoutMetrics(t *testing.T) {
	w := newWorld(t)
	w.record(w.n1, w.report("eth0", 0))
	s := w.service(nil, Config{})
	s.metrics = broken{}
	for range maxTries {
		if _, err := s.fillDue(context.Background()); err == nil {
			t.Error("the failure was not told")
		}
		w.advance(10 * time.Minute)
	}
	d := w.get(reader(w.a), w.list(reader(w.a), ListQuery{}).Events[0].ID)
	if d.Context != unavailable || d.Contexts[0].Reason != "the metrics could not be read" {
		t.Errorf("%+v", d.Contexts)
	}
}

// dying is a server process that ends in the middle of a snapshot.
type dying struct {
	Metrics
	end context.CancelFunc
}

func (d dying) Values(ctx context.Context, _ tenants.TenantID, _ tenants.NodeID, _ []string, _, _ time.Time) ([]tenants.MetricValue, error) {
	d.end()
	return nil, ctx.Err()
}

func TestRestartInTheMiddleOfASnapshot(t *testing.T) {
	w := newWorld(t)
	w.windows(w.n1, 40, 5)
	w.record(w.n1, w.report("eth0", 0))
	s := w.service(nil, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	s.metrics = dying{end: cancel}
	if _, err := s.fillDue(ctx); err == nil {
		t.Fatal("did not die")
	}
	next := w.service(nil, Config{})
	if n := w.fillDue(next); n != 0 {
		t.Errorf("%d taken from another that may be alive", n)
	}
	w.advance(lease + time.Second)
	if n := w.fillDue(next); n != 1 {
		t.Errorf("%d taken over after the lease", n)
	}
	d := w.get(reader(w.a), w.list(reader(w.a), ListQuery{}).Events[0].ID)
	if *d.Contexts[0].Before[1].Avg != 5 {
		t.Errorf("%+v", d.Contexts)
	}
}

// counting counts how often a moment is asked for.
type counting struct {
	Metrics
	mu sync.Mutex
	n  map[tenants.NodeID]int
}

func (c *counting) Values(ctx context.Context, t tenants.TenantID, n tenants.NodeID, names []string, from, to time.Time) ([]tenants.MetricValue, error) {
	c.mu.Lock()
	c.n[n]++
	c.mu.Unlock()
	return c.Metrics.Values(ctx, t, n, names, from, to)
}

func TestReplicasShareSnapshots(t *testing.T) {
	w := newWorld(t)
	c := &counting{Metrics: w.metrics, n: map[tenants.NodeID]int{}}
	var nodes []tenants.Scope
	for range 30 {
		nodes = append(nodes, w.node(w.a, "many", "prod"))
		w.record(nodes[len(nodes)-1], w.report("eth0", 0))
	}
	var wg sync.WaitGroup
	for range 4 {
		s := w.service(nil, Config{})
		s.metrics = c
		wg.Go(func() {
			if _, err := s.fillDue(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, n := range nodes {
		if c.n[idOf(n)] != 2 { // before and during
			t.Errorf("asked %d times for one snapshot", c.n[idOf(n)])
		}
	}
}

// A flood of one node delays the snapshots of no other tenant and no other
// node, and waits itself only up to a bound: beyond it events have none.
func TestSnapshotsTakeTurns(t *testing.T) {
	w := newWorld(t)
	for i := range maxPending + 5 {
		w.record(w.n1, w.report(fmt.Sprint("flood", i), 0))
		w.advance(time.Millisecond)
	}
	w.record(w.n2, w.report("beside", 0))
	w.record(w.other, w.report("other", 0))
	waiting := `select count(*) from event_context where node_id = $1 and status = 'pending'`
	if n := w.count(waiting, uid(idOf(w.n1))); n != maxPending {
		t.Errorf("%d of one node wait", n)
	}
	if n := w.count(`select count(*) from event`); n != maxPending+7 {
		t.Errorf("%d events kept", n)
	}
	if n := w.count(`select count(*) from event_context where status = 'unavailable' and reason = $1 and due_at is null`, tooMany); n != 5 {
		t.Errorf("%d have no snapshot", n)
	}
	if n := w.fillDue(w.s); n != claims {
		t.Errorf("%d taken", n)
	}
	for _, node := range []tenants.Scope{w.n2, w.other} {
		if n := w.count(`select count(*) from event_context where node_id = $1 and attempts = 1`, uid(idOf(node))); n != 1 {
			t.Error("a flood went before another node")
		}
	}
	for range 4 {
		w.fillDue(w.s)
	}
	if n := w.count(`select count(*) from event_context where status = 'pending' and attempts <> 1`); n != 0 {
		t.Errorf("%d left out, or taken twice", n)
	}
}

// Run fills in what another replica recorded, and what it recorded itself at
// once.
func TestRun(t *testing.T) {
	w := newWorld(t)
	w.windows(w.n1, 40, 5)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.s.Run(ctx) }()
	if err := w.service(nil, Config{}).Record(ctx, w.n1, w.report("there", 0), 0); err != nil {
		t.Fatal(err)
	}
	w.record(w.n1, w.report("here", 0))
	w.until("two snapshots", func() bool { return w.count(`select count(*) from event_context where during <> '[]'`) == 2 })
	w.until("partitions", func() bool { return w.count(`select count(*) from telltale_partitions('event')`) == daysAhead+1 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
