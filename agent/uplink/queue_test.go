package uplink

import (
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

var layout = inspector.NewLayout("network", []inspector.Series{{Metric: "network.opened", Kind: inspector.Delta, Unit: inspector.Count}})

func win(i int) *report {
	end := time.Unix(1_800_000_000+int64(10*i), 0)
	return windowReport(&inspector.Window{Layout: layout, Start: end.Add(-10 * time.Second), End: end, Values: []inspector.Value{{OK: true, Delta: uint64(i)}}})
}

func counter() func() uint64 {
	n := uint64(0)
	return func() uint64 { n++; return n }
}

// drain takes everything that may be sent and returns the numbers.
func drain(q *queue, limit int, seq func() uint64) (out []uint64) {
	for r := q.next(limit, time.Now(), seq); r != nil; r = q.next(limit, time.Now(), seq) {
		out = append(out, r.pb.Seq)
	}
	return out
}

func same(t *testing.T, what string, got []uint64, want ...uint64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
}

func TestQueueSendsInOrderAndForgetsOnAck(t *testing.T) {
	q, seq := newQueue(100, 1<<20), counter()
	for i := range 5 {
		q.push(win(i))
	}
	same(t, "first send", drain(q, 3, seq), 1, 2, 3)
	if n, _ := q.ack(2); n != 2 {
		t.Errorf("ack forgot %d", n)
	}
	same(t, "room for two", drain(q, 3, seq), 4, 5)
	q.rewind(4)
	same(t, "after a rewind", drain(q, 3, seq), 4, 5)
	q.rewind(0) // a new stream
	same(t, "on a new stream", drain(q, 3, seq), 3, 4, 5)
	q.ack(99)
	if !q.empty() {
		t.Error("something is left")
	}
	if items, bytes := q.depth(); items != 0 || bytes != 0 {
		t.Errorf("%d items, %d bytes are left", items, bytes)
	}
}

func TestQueueRenumbersForANewEpoch(t *testing.T) {
	q, seq := newQueue(100, 1<<20), counter()
	for i := range 4 {
		q.push(win(i))
	}
	drain(q, 4, seq)
	q.ack(2)
	if next := q.renumber(); next != 3 {
		t.Errorf("next number %d", next)
	}
	same(t, "renumbered", drain(q, 4, seq), 1, 2)
}

func TestQueueDropsOldestAndSaysSo(t *testing.T) {
	q, seq := newQueue(4, 1<<20), counter()
	for i := range 2 {
		q.push(win(i))
	}
	same(t, "sent", drain(q, 2, seq), 1, 2)
	for i := 2; i < 10; i++ {
		if kept := q.push(win(i)); kept != (i < 4) {
			t.Errorf("push %d = %v", i, kept)
		}
	}
	if got := q.drops()["network"]; got != 6 {
		t.Errorf("dropped %d, want 6", got)
	}
	q.ack(2) // what was sent is never dropped
	r := q.next(9, time.Now(), seq)
	l := r.pb.GetLoss()
	if r.pb.Seq != 3 || l == nil || len(l.Items) != 1 || l.Items[0].Windows != 6 || string(l.Items[0].Reason) != "queue_full" {
		t.Fatalf("the first after it is %v", r.pb)
	}
	if from, to := win(2).pb.GetWindow().StartNs, win(7).pb.GetWindow().EndNs; l.Items[0].FromNs != from || l.Items[0].ToNs != to {
		t.Errorf("loss from %d to %d, want %d to %d", l.Items[0].FromNs, l.Items[0].ToNs, from, to)
	}
	same(t, "the youngest", drain(q, 9, seq), 4, 5)
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	q := newQueue(1_000_000, 100_000)
	for i := range 10_000 {
		q.push(win(i))
		if _, bytes := q.depth(); bytes > 100_000 {
			t.Fatalf("%d bytes held", bytes)
		}
	}
	big := win(0)
	big.size = 60_000
	if q.push(big) || q.drops()["network"] == 0 {
		t.Error("a report of more than half the bound is taken")
	}
}

func TestQueueKeepsTheLatestCapabilities(t *testing.T) {
	q, seq := newQueue(10, 1<<20), counter()
	q.push(win(0))
	q.setCaps(capsReport([]inspector.Capability{{Component: "old"}}, time.Now()))
	q.setCaps(capsReport([]inspector.Capability{{Component: "new"}}, time.Now()))
	r := q.next(9, time.Now(), seq)
	if got := string(r.pb.GetCapabilities().GetItems()[0].Component); got != "new" {
		t.Errorf("sent %q", got)
	}
	same(t, "then the window", drain(q, 9, seq), 2)
}

func TestQueueFindsLayouts(t *testing.T) {
	q := newQueue(10, 1<<20)
	q.push(win(0))
	if q.layout(layout.Hash) != layout || q.layout(inspector.LayoutHash{}) != nil {
		t.Error("layout look-up is wrong")
	}
	var l layouts
	for i := range maxLayouts + 10 {
		l.use(inspector.NewLayout("network", []inspector.Series{{Metric: "network.opened", Kind: inspector.Delta, Unit: inspector.Count,
			Labels: []inspector.Label{{Key: "i", Value: string(rune('a' + i))}}}}))
	}
	if len(l.byHash) != maxLayouts || len(l.order) != maxLayouts {
		t.Errorf("%d layouts remembered", len(l.byHash))
	}
}
