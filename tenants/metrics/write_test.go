package metrics

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func TestOpenStream(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.a, "n1")
	ctx := context.Background()
	if p := w.open(n); p != (Position{1, 0}) {
		t.Fatalf("first stream: %+v", p)
	}
	l := netLayout()
	w.layout(n, l)
	w.write(w.check(n, report(1, 7, l, w.now(), netValues(1))))
	for _, tt := range []struct {
		name  string
		epoch uint64
		want  Position
	}{
		{"a saved position goes on", 1, Position{1, 7}},
		{"and again", 1, Position{1, 7}},
		{"no saved position gets a new epoch", 0, Position{2, 0}},
		{"an old epoch gets a new one", 1, Position{3, 0}},
		{"an epoch from a lost database is passed", 9, Position{10, 0}},
	} {
		p, err := w.s.OpenStream(ctx, n, tt.epoch, 8)
		if err != nil || p != tt.want {
			t.Errorf("%s: %+v %v, want %+v", tt.name, p, err, tt.want)
		}
	}
	if _, err := w.s.OpenStream(ctx, n, 1<<63, 1); !fault.Is(err, fault.Invalid) {
		t.Errorf("huge epoch: %v", err)
	}
	if _, err := w.s.OpenStream(ctx, reader(w.a, tenants.Selector{}), 0, 0); !fault.Is(err, fault.Denied) {
		t.Errorf("a reader opened a stream: %v", err)
	}
	if got := w.count(`select missing from node_head where node_id = $1`, uid(idOf(n))); got != 6 {
		t.Errorf("missing %d, want the 6 numbers below 7", got)
	}
}

func TestReplayIsRefusedAfterTheWindowIsGone(t *testing.T) {
	w := newWorld(t)
	n, other := w.node(w.a, "n1"), w.node(w.b, "n1")
	w.fill(other, 3, 5)
	l := netLayout()
	w.layout(n, l)
	w.open(n)
	c := w.check(n, report(1, 1, l, w.now(), netValues(1)))
	if o := w.write(c)[0]; o.Status != Stored || !o.Final() {
		t.Fatalf("first: %+v", o)
	}
	w.exec(`delete from win where node_id = $1`, uid(idOf(n)))
	if o := w.write(c, c)[1]; o.Status != Replayed || !o.Final() {
		t.Fatalf("replay: %+v", o)
	}
	if got := w.count(`select count(*) from win where node_id = $1`, uid(idOf(n))); got != 0 {
		t.Errorf("the replay was stored: %d rows", got)
	}
	c.epoch = 2
	if o := w.write(c)[0]; o.Status != StaleEpoch || o.Final() {
		t.Errorf("an epoch that was never issued: %+v", o)
	}
	if got := w.count(`select count(*) from win where node_id = $1`, uid(idOf(other))); got != 3 {
		t.Errorf("the other tenant has %d rows", got)
	}
}

// TestExactlyOnce sends random batches with replays, repeats and shuffles for
// nodes of two tenants and holds the result to a plain model.
func TestExactlyOnce(t *testing.T) {
	w := newWorld(t)
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	l := netLayout()
	nodes := []tenants.Scope{w.node(w.a, "x"), w.node(w.a, "y"), w.node(w.b, "x"), w.node(w.b, "z")}
	high, stored, sent := make([]uint64, 4), make([]int64, 4), make([]uint64, 4)
	for _, n := range nodes {
		w.layout(n, l)
		w.open(n)
	}
	for round := range 40 {
		var batch []Checked
		var who []int
		for range 1 + rng.IntN(30) {
			i := rng.IntN(4)
			seq := sent[i] + 1
			if sent[i] > 0 && rng.IntN(2) == 0 {
				seq = 1 + rng.Uint64N(sent[i])
			} else {
				sent[i] = seq
			}
			end := w.now().Add(-time.Duration(1000-seq) * tenants.WindowLength)
			batch, who = append(batch, w.check(nodes[i], report(1, seq, l, end, netValues(seq)))), append(who, i)
		}
		rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j], who[i], who[j] = batch[j], batch[i], who[j], who[i] })
		want := map[int]map[uint64]bool{}
		for k, c := range batch {
			i := who[k]
			if uint64(c.seq) > high[i] {
				if want[i] == nil {
					want[i] = map[uint64]bool{}
				}
				want[i][uint64(c.seq)] = true
			}
		}
		out := w.write(batch...)
		got := map[int]map[uint64]bool{}
		for k, o := range out {
			i := who[k]
			if o.Status == Stored {
				if got[i][o.Seq] {
					t.Fatalf("round %d: node %d seq %d stored twice", round, i, o.Seq)
				}
				if got[i] == nil {
					got[i] = map[uint64]bool{}
				}
				got[i][o.Seq] = true
				stored[i]++
			} else if o.Status != Replayed {
				t.Fatalf("round %d: %+v", round, o)
			}
		}
		for i := range nodes {
			if len(got[i]) != len(want[i]) {
				t.Fatalf("round %d node %d: stored %v, want %v", round, i, got[i], want[i])
			}
			high[i] = max(high[i], sent[i])
		}
	}
	for i, n := range nodes {
		if rows := w.count(`select count(*) from win where tenant_id = $1 and node_id = $2`, uid(n.Tenant), uid(idOf(n))); rows != stored[i] {
			t.Errorf("node %d: %d rows, %d outcomes Stored", i, rows, stored[i])
		}
		if seq := w.count(`select seq from node_head where node_id = $1`, uid(idOf(n))); uint64(seq) != high[i] {
			t.Errorf("node %d: head at %d, want %d", i, seq, high[i])
		}
	}
}

func TestTwoBatchesAtOnce(t *testing.T) {
	w := newWorld(t)
	l := netLayout()
	var fwd, back []Checked
	for _, n := range []tenants.Scope{w.node(w.a, "x"), w.node(w.b, "y"), w.node(w.a, "z")} {
		w.layout(n, l)
		w.open(n)
		for seq := range uint64(50) {
			fwd = append(fwd, w.check(n, report(1, seq+1, l, w.now().Add(-time.Duration(50-seq)*tenants.WindowLength), netValues(1))))
		}
	}
	for i := range fwd {
		back = append(back, fwd[len(fwd)-1-i])
	}
	outs := make([][]Outcome, 2)
	var wg sync.WaitGroup
	for i, b := range [][]Checked{fwd, back} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var err error
			if outs[i], err = w.s.Write(context.Background(), b); err != nil {
				t.Errorf("batch %d: %v", i, err)
			}
		}()
	}
	wg.Wait()
	n := map[Status]int{}
	for _, o := range append(outs[0], outs[1]...) {
		n[o.Status]++
	}
	if n[Stored] != 150 || n[Replayed] != 150 {
		t.Errorf("outcomes %v, want 150 stored and 150 replayed", n)
	}
	if rows := w.count(`select count(*) from win`); rows != 150 {
		t.Errorf("%d rows", rows)
	}
}

// TestOneBadWindow makes the database refuse single windows and checks that
// everything else is stored, in order, and the bad ones are counted.
func TestOneBadWindow(t *testing.T) {
	w := newWorld(t)
	w.exec(`alter table win add constraint unlucky check (samples is distinct from 13)`)
	l := netLayout()
	var batch []Checked
	bad := 0
	for i := range 5 {
		n := w.node([]tenants.TenantID{w.a, w.b}[i%2], "n")
		w.layout(n, l)
		w.open(n)
		for seq := range uint64(20) {
			r := report(1, seq+1, l, w.now().Add(-time.Duration(20-seq)*tenants.WindowLength), netValues(1))
			if (i == 1 && seq == 7) || (i == 4 && seq == 19) {
				r.Samples, bad = 13, bad+1
			}
			batch = append(batch, w.check(n, r))
		}
	}
	out := w.write(batch...)
	n := map[Status]int{}
	for i, o := range out {
		n[o.Status]++
		if (o.Status == Quarantined) != (batch[i].samples == 13) || (o.Status == Quarantined) != (o.Reason == ReasonRefused) {
			t.Errorf("%+v", o)
		}
	}
	if n[Stored] != 100-bad || n[Quarantined] != bad {
		t.Errorf("outcomes %v", n)
	}
	if got := w.count(`select sum(n) from win_quarantine where reason = $1`, ReasonRefused); got != int64(bad) {
		t.Errorf("%d counted, want %d", got, bad)
	}
	if w.s.Gauges().Splits == 0 {
		t.Error("the split was not counted")
	}
	if o := w.write(batch...); o[0].Status != Replayed || o[27].Status != Replayed {
		t.Errorf("sent again: %+v %+v", o[0], o[27])
	}
}

// TestTransientFailureKeepsTheOrder: a batch is split for one bad window, and
// then another window of the same node meets a passing failure. What follows
// it must wait, else it would overtake and the first would be lost.
func TestTransientFailureKeepsTheOrder(t *testing.T) {
	w := newWorld(t)
	w.exec(`create function unlucky() returns trigger language plpgsql as $$ begin
		if new.samples = 13 then raise exception 'bad' using errcode = '22003'; end if;
		if new.samples = 14 then raise exception 'busy' using errcode = '40001'; end if;
		return new; end $$`)
	w.exec(`create trigger unlucky before insert on win for each row execute function unlucky()`)
	l := netLayout()
	node := w.node(w.a, "n")
	w.layout(node, l)
	w.open(node)
	var batch []Checked
	for i, samples := range []uint64{13, 14, 1, 1} {
		r := report(1, uint64(i+1), l, w.now().Add(time.Duration(i-4)*tenants.WindowLength), netValues(1))
		r.Samples = samples
		batch = append(batch, w.check(node, r))
	}
	out := w.write(batch...)
	if out[0].Status != Quarantined || out[1].Status != Retry || out[2].Status != Retry || out[3].Status != Retry || !fault.Is(out[2].Err, fault.Unavailable) {
		t.Errorf("%+v", out)
	}
	w.exec(`drop trigger unlucky on win`)
	for i, o := range w.write(batch...) {
		if want := map[bool]Status{true: Replayed, false: Stored}[i == 0]; o.Status != want {
			t.Errorf("sent again: seq %d %s, want %s", o.Seq, o.Status, want)
		}
	}
}

func TestWriteFailsAsAWhole(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.a, "n")
	l := netLayout()
	w.layout(n, l)
	w.open(n)
	c := w.check(n, report(1, 1, l, w.now(), netValues(1)))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out, err := w.s.Write(ctx, []Checked{c})
	if err == nil || out[0].Status != Retry || out[0].Final() || out[0].Err == nil {
		t.Fatalf("%+v %v", out, err)
	}
	if o := w.write(c)[0]; o.Status != Stored {
		t.Errorf("sent again: %+v", o)
	}
	if _, err := w.s.Write(context.Background(), make([]Checked, MaxBatch+1)); !fault.Is(err, fault.Exhausted) {
		t.Errorf("too many: %v", err)
	}
	if _, err := w.s.Write(context.Background(), make([]Checked, 1)); !fault.Is(err, fault.Internal) {
		t.Errorf("a zero Checked: %v", err)
	}
}

func TestHeadlines(t *testing.T) {
	w := newWorld(t)
	n := w.node(w.a, "n")
	l := netLayout()
	w.layout(n, l)
	w.open(n)
	read := func() (vals []*float64) {
		if err := w.conn.QueryRow(context.Background(), `select vals from node_head where node_id = $1`, uid(idOf(n))).Scan(&vals); err != nil {
			t.Fatal(err)
		}
		return vals
	}
	w.write(w.check(n, report(1, 1, l, w.now(), netValues(3))))
	if v := read(); *v[0] != 3 || *v[1] != 3 { // active, opens per second
		t.Errorf("headlines %v %v", *v[0], *v[1])
	}
	w.write(w.check(n, report(1, 2, l, w.now().Add(-time.Hour), netValues(100))))
	if v := read(); *v[0] != 3 {
		t.Errorf("an old window moved a headline to %v", *v[0])
	}
	vals := netValues(4)
	vals[0] = inspector.Value{}
	w.write(w.check(n, report(1, 3, l, w.now(), vals)))
	if v := read(); v[0] != nil || *v[1] != 4 {
		t.Errorf("an unknown value is shown as %v", v[0])
	}
}
