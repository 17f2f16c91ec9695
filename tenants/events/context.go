package events

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
)

// Why a snapshot was taken.
const (
	whyFirst      = "first"
	whySeverity   = "severity"
	whyRecurrence = "recurrence"
)

// The states of a snapshot. It is pending until the part after the moment can
// be there, whatever is filled in before.
const (
	pending     = "pending"
	partial     = "partial"     // done; a part has no data
	complete    = "complete"    // every part has data
	unavailable = "unavailable" // done; nothing has data
)

const (
	before   = 5 * time.Minute
	ripe     = 4*tenants.WindowLength + 2*time.Second // after the moment, the third window after it has come
	lease    = 30 * time.Second                       // a claimed snapshot is another's after this
	maxTries = 6                                      // claims of one snapshot
	claims   = 32                                     // snapshots of one look
	lookEach = time.Second

	maxPending = 100 // snapshots of one node that wait; an event beyond has none
	tooMany    = "too many snapshots of the node were waiting"
)

type contextKey struct {
	tenant tenants.TenantID
	ts     time.Time
	event  ID
	n      int
}

// queueContext adds a snapshot to a transaction, to be filled in by the
// worker; it answers whether there may be anything to fill in.
func queueContext(b *pgx.Batch, k contextKey, node tenants.NodeID, why string, at time.Time, metrics []string, now time.Time) bool {
	status, reason := pending, ""
	switch {
	case len(metrics) == 0:
		status, reason, metrics = unavailable, "no metric is related to this kind", []string{}
	case at.Add(ripe).Before(now.Add(-tenants.WindowRetention)):
		status, reason = unavailable, "the windows of that time are no longer kept"
	}
	var due *time.Time
	if status == pending {
		due = &now
	}
	b.Queue(sqlPutContext, uid(k.tenant), k.ts, uid(k.event), k.n, uid(node), why, at, status, reason, metrics, due, maxPending, tooMany)
	return due != nil
}

// wake makes the worker look at once.
func (s *Service) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// fillContexts fills snapshots in until ctx ends: when woken, and every second
// for those of other replicas and those that have ripened.
func (s *Service) fillContexts(ctx context.Context) {
	tick := time.NewTicker(lookEach)
	defer tick.Stop()
	for {
		for {
			n, err := s.fillDue(ctx)
			if err != nil && ctx.Err() == nil {
				s.log.Warn("snapshots of events wait", "error", err)
			}
			if n < claims || err != nil {
				break
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-s.woken:
		case <-tick.C:
		}
	}
}

// claimed is one snapshot that this replica fills in.
type claimed struct {
	contextKey
	node     tenants.NodeID
	at       time.Time
	metrics  []string
	attempts int
}

// fillDue claims what is due and fills it in; it answers how many it claimed.
// One that fails keeps its claim until the lease ends and is tried again then.
func (s *Service) fillDue(ctx context.Context) (int, error) {
	var list []claimed
	now := s.now()
	err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sqlClaim, now, now.Add(lease), claims)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (c claimed, err error) {
			return c, r.Scan((*[16]byte)(&c.tenant), &c.ts, (*[16]byte)(&c.event), &c.n, (*[16]byte)(&c.node), &c.at, &c.metrics, &c.attempts)
		})
		return err
	})
	for _, c := range list {
		if ctx.Err() != nil {
			break
		}
		if e := s.fill(ctx, c); e != nil {
			s.counts.snapshotsFailed.Add(1)
			err = e
		} else {
			s.counts.snapshots.Add(1)
		}
	}
	return len(list), err
}

// fill reads the metrics around one moment and stores them.
func (s *Service) fill(ctx context.Context, c claimed) error {
	now := s.now()
	parts, failed := s.read(ctx, c, now)
	status, reason, due := judge(c, parts, failed, now)
	err := s.db.InTenants(ctx, []tenants.TenantID{c.tenant}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlFill, uid(c.tenant), c.ts, uid(c.event), c.n, c.attempts, status, reason,
			mustJSON(parts[0]), mustJSON(parts[1]), mustJSON(parts[2]), due)
		return err
	})
	if err != nil {
		return err
	}
	s.announce(Change{Tenant: c.tenant, Event: c.event, Node: c.node})
	return failed
}

// read answers the values before, during and after a moment. A window ends up
// to its length after the moment that it holds.
func (s *Service) read(ctx context.Context, c claimed, now time.Time) (parts [3][]ContextValue, failed error) {
	const w = tenants.WindowLength
	for i, span := range [3][2]time.Duration{{-before - w, -w}, {-w, w}, {w, 4 * w}} {
		parts[i] = []ContextValue{}
		if i == 2 && now.Before(c.at.Add(ripe)) {
			continue
		}
		got, err := s.metrics.Values(ctx, c.tenant, c.node, c.metrics, c.at.Add(span[0]), c.at.Add(span[1]))
		if err != nil {
			failed = err
			continue
		}
		for _, v := range got {
			parts[i] = append(parts[i], ContextValue{Metric: v.Metric, Unit: inspector.Unit(v.Unit), Avg: v.Avg, Max: v.Max, Rate: v.Rate, P99: v.P99})
		}
	}
	return parts, failed
}

// judge says how a snapshot stands and when it is due again; nil is never.
func judge(c claimed, parts [3][]ContextValue, failed error, now time.Time) (status, reason string, due *time.Time) {
	have := 0
	for _, p := range parts {
		if hasData(p) {
			have++
		}
	}
	again := c.at.Add(ripe)
	if !now.Before(again) {
		if have == len(parts) {
			return complete, "", nil
		}
		switch {
		case c.attempts < maxTries:
		case have == 0:
			return unavailable, missing(parts, failed), nil
		default:
			return partial, missing(parts, failed), nil
		}
		again = now.Add(lookEach * 5 << c.attempts)
	}
	return pending, "", &again
}

func missing(parts [3][]ContextValue, failed error) string {
	if failed != nil {
		return "the metrics could not be read"
	}
	reason := "no data"
	for i, word := range [3]string{" before", " during", " after"} {
		if !hasData(parts[i]) {
			reason += word
		}
	}
	return reason
}

func hasData(p []ContextValue) bool {
	for _, v := range p {
		if v.Avg != nil || v.Rate != nil || v.P99 != nil {
			return true
		}
	}
	return false
}
