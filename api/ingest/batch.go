package ingest

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/metrics"
)

// How long a batch waits for company: long when little comes, so that a
// transaction is worth its price, short under load, where it fills anyway.
const (
	lingerIdle = 75 * time.Millisecond
	lingerBusy = 5 * time.Millisecond
	rateIdle   = 200.0  // reports a second and writer up to which a writer is idle
	rateBusy   = 2000.0 // and from which it is busy
)

// source is where an item came from; the batcher tells it what became of it.
// Its methods do not block.
type source interface {
	settled(metrics.Outcome) // final; called in order of submission
	broke(err error)         // the item was not stored; nothing later of the source may be
	broken() bool            // broke was called
}

type item struct {
	checked metrics.Checked
	from    source
}

// batcher gathers the reports of all streams into batches. Reports of one
// node keep their order: a node always goes to the same writer. Its queues
// are bounded; submit waits for room, which stops the stream's reader and
// through flow control the agent.
type batcher struct {
	w       Writer
	lanes   []chan item
	timeout time.Duration
	count   *counters
	log     *slog.Logger
	// committed is called between commit and acknowledgement; tests kill
	// the server there. Nil otherwise.
	committed func()
}

func newBatcher(w Writer, cfg Config, count *counters, log *slog.Logger) *batcher {
	b := &batcher{w: w, timeout: cfg.WriteTimeout, count: count, log: log, lanes: make([]chan item, cfg.Writers)}
	for i := range b.lanes {
		b.lanes[i] = make(chan item, max(cfg.QueueItems/cfg.Writers, 1))
	}
	return b
}

// submit queues one item of a node.
func (b *batcher) submit(ctx context.Context, node tenants.NodeID, it item) error {
	lane := b.lanes[binary.BigEndian.Uint32(node[12:])%uint32(len(b.lanes))]
	select {
	case lane <- it:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run writes batches until ctx ends. What is queued then is dropped without
// an acknowledgement: the agents send it again.
func (b *batcher) run(ctx context.Context) error {
	var g errgroup.Group
	for _, lane := range b.lanes {
		g.Go(func() error { b.lane(ctx, lane); return nil })
	}
	return g.Wait()
}

func (b *batcher) lane(ctx context.Context, lane chan item) {
	items := make([]item, 0, metrics.MaxBatch)
	checked := make([]metrics.Checked, 0, metrics.MaxBatch)
	pace := pacer{last: time.Now()}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		items, checked = items[:0], checked[:0]
		select {
		case it := <-lane:
			items = append(items, it)
		case <-ctx.Done():
			return
		}
		timer.Reset(pace.linger())
	gather:
		for len(items) < metrics.MaxBatch {
			select {
			case it := <-lane:
				items = append(items, it)
			case <-timer.C:
				break gather
			case <-ctx.Done():
				return
			}
		}
		pace.saw(len(items), time.Now())
		for _, it := range items {
			checked = append(checked, it.checked)
		}
		b.write(ctx, items, checked, lane)
		clear(items[:cap(items)]) // what joined included
		clear(checked[:cap(checked)])
	}
}

// write commits a batch, again and again while the database is away, and
// tells the sources. What the database refuses, and what fails while other
// reports get through, breaks its source at once: one node must not hold up
// the others. What waits in the lane joins, so that there are others to tell
// by.
func (b *batcher) write(ctx context.Context, items []item, checked []metrics.Checked, lane <-chan item) {
	began := time.Now()
	wait := 50 * time.Millisecond
	for {
		if items, checked = unbroken(items, checked); len(items) == 0 {
			return
		}
		err := b.attempt(ctx, items, checked, attemptTimeout)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			var answered bool
			if items, checked, answered = b.apart(ctx, items, checked); answered {
				continue
			}
		}
		if !away(err) || ctx.Err() != nil || time.Since(began) > b.timeout {
			b.giveUp(items, err)
			return
		}
		b.log.Warn("reports could not be stored; trying again", "reports", len(items), "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, 2*time.Second)
	join:
		for len(items) < metrics.MaxBatch {
			select {
			case it := <-lane:
				items, checked = append(items, it), append(checked, it.checked)
			default:
				break join
			}
		}
	}
}

// away reports whether an error says that the database does not answer now,
// and not that it refuses a report.
func away(err error) bool {
	k := fault.Of(err).Kind
	return k == fault.Unavailable || k == fault.Deadline
}

// attempt writes once. Without an error all items are settled.
func (b *batcher) attempt(ctx context.Context, items []item, checked []metrics.Checked, limit time.Duration) error {
	wctx, cancel := context.WithTimeout(ctx, min(limit, b.timeout))
	out, err := b.w.Write(wctx, checked)
	cancel()
	if err == nil && len(out) != len(items) {
		err = fault.Newf(fault.Internal, "internal", "the store answered %d of %d reports", len(out), len(items))
	}
	if err != nil {
		b.count.writeErrors.Add(1)
		return err
	}
	b.count.batches.Add(1)
	b.count.batched.Add(uint64(len(items)))
	if b.committed != nil {
		b.committed()
	}
	for i, it := range items {
		b.settle(it, out[i])
	}
	return nil
}

func (b *batcher) giveUp(items []item, err error) {
	b.log.Error("reports could not be stored; closing their streams", "reports", len(items), "error", err)
	for _, it := range items {
		it.from.broke(err)
	}
}

// unbroken leaves out, in place, the items of broken sources: they must not
// overtake the one that failed, and need no place in a batch.
func unbroken(items []item, checked []metrics.Checked) ([]item, []metrics.Checked) {
	n := 0
	for i, it := range items {
		if !it.from.broken() {
			items[n], checked[n] = it, checked[i]
			n++
		}
	}
	clear(items[n:])
	clear(checked[n:])
	return items[:n], checked[:n]
}

func (b *batcher) settle(it item, o metrics.Outcome) {
	switch {
	case o.Status == metrics.Retry:
		if o.Err == nil {
			o.Err = fault.New(fault.Unavailable, "not_stored", "the report could not be stored").Do("send it again")
		}
		it.from.broke(o.Err)
	case o.Status == metrics.StaleEpoch:
		it.from.broke(fault.New(fault.Conflict, "stale_epoch", "the stream's epoch is no longer the current one").Do("open the stream again"))
	case it.from.broken():
		// Stored, but an earlier one of the stream was not: the agent
		// sends both again and the store tells them apart.
	default:
		it.from.settled(o)
	}
}

// pacer turns the rate of reports into a linger time. It looks at the rate
// and not at the size of batches, which itself follows from the linger.
type pacer struct {
	rate float64 // reports a second, smoothed
	last time.Time
}

func (p *pacer) saw(n int, now time.Time) {
	dt := max(now.Sub(p.last).Seconds(), 1e-4)
	p.last = now
	weight := 1 - math.Exp(-dt/0.5) // half a second of memory
	p.rate += weight * (float64(n)/dt - p.rate)
}

func (p *pacer) linger() time.Duration {
	switch {
	case p.rate <= rateIdle:
		return lingerIdle
	case p.rate >= rateBusy:
		return lingerBusy
	}
	part := math.Log(p.rate/rateIdle) / math.Log(rateBusy/rateIdle)
	return lingerIdle - time.Duration(part*float64(lingerIdle-lingerBusy))
}
