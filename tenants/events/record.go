package events

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	recurrenceSpan = 24 * time.Hour
	maxContexts    = 8 // snapshots of one event
)

// Record takes one report of the node that scope is. skew is the node's clock
// minus the server's at this exchange. Reports of one record may come in any
// order and any number of times: counts only grow, and the report with the
// latest sighting says how things stand. An Invalid fault means: keep the
// report out, count it by the fault's reason, consume its number. Anything
// else is worth another try.
func (s *Service) Record(ctx context.Context, scope tenants.Scope, r inspector.EventReport, skew time.Duration) error {
	node, err := tenants.ParseNodeID(scope.Principal.ID)
	if err != nil || scope.Tenant.IsZero() || scope.Principal.Kind != tenants.NodePrincipal {
		return fault.New(fault.Denied, "not_a_node", "only an enrolled node reports").Do("use the node's client certificate")
	}
	c, err := s.check(r, skew)
	if err != nil {
		s.counts.keptOut.Add(1)
		return err
	}
	w := recording{s: s, c: &c, tenant: scope.Tenant, node: node}
	err = s.parts.Write(ctx, scope.Tenant, []time.Time{c.ts}, func() error {
		return s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, w.transact)
	})
	if err != nil {
		if fault.Is(err, fault.Invalid) {
			s.counts.keptOut.Add(1)
		}
		return tenantdb.Fault(err)
	}
	switch {
	case w.isNew:
		s.counts.begun.Add(1)
	case w.changed:
		s.counts.moved.Add(1)
	default:
		s.counts.repeated.Add(1)
	}
	if w.changed {
		s.announce(Change{Tenant: scope.Tenant, Event: w.id, Node: node, New: w.isNew})
	}
	if w.snapshot {
		s.wake()
	}
	return nil
}

// recording is one report on its way into the tables.
type recording struct {
	s      *Service
	c      *checked
	tenant tenants.TenantID
	node   tenants.NodeID

	id                       ID
	changed, isNew, snapshot bool
}

// stored is what the tables hold of a record.
type stored struct {
	id                    ID
	ts                    time.Time
	severity              int
	state                 inspector.EventState
	said                  time.Time
	seen, truncated, lost int64
	contexts              int
}

// transact finds the record or makes it. Reports of one node take turns: a
// record has no key that the database could hold unique over partitions.
func (w *recording) transact(ctx context.Context, tx pgx.Tx) error {
	c := w.c
	t, n := uid(w.tenant), uid(w.node)
	w.changed, w.isNew, w.snapshot = false, false, false
	var old *stored
	var earlier int
	b := &pgx.Batch{}
	b.Queue(sqlTurn, w.node.String())
	b.Queue(sqlFind, t, n, c.fingerprint[:], c.begun, c.begun.Add(-maxShift), c.begun.Add(maxShift)).Query(func(rows pgx.Rows) error {
		got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (o stored, err error) {
			return o, r.Scan((*[16]byte)(&o.id), &o.ts, &o.severity, &o.state, &o.said, &o.seen, &o.truncated, &o.lost, &o.contexts)
		})
		if len(got) > 0 {
			old = &got[0]
		}
		return err
	})
	b.Queue(sqlEarlier, t, n, c.fingerprint[:], c.ts.Add(-recurrenceSpan), c.ts).QueryRow(func(r pgx.Row) error { return r.Scan(&earlier) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	b = &pgx.Batch{}
	if old == nil {
		if err := w.admit(ctx, tx); err != nil {
			return err
		}
		w.insert(b, earlier)
	} else {
		w.id = old.id
		w.update(b, old)
	}
	if b.Len() == 0 {
		return nil
	}
	w.changed = true
	return tx.SendBatch(ctx, b).Close()
}

// maxShift is how far a record's server time may lie from its node time.
const maxShift = tenants.SkewCorrected + time.Second

// admit bounds what one node may make, whatever time it says: records that
// begin within an hour of this one count. Each kind has its own bound, so that
// a storm of one, which anything that runs on the node can make, leaves room
// for the others.
func (w *recording) admit(ctx context.Context, tx pgx.Tx) error {
	var n int
	ts := w.c.ts
	if err := tx.QueryRow(ctx, sqlLately, uid(w.tenant), uid(w.node), ts.Add(-time.Hour), ts.Add(time.Hour), w.s.cfg.PerHour, w.c.kind.Name).Scan(&n); err != nil {
		return err
	}
	if n >= w.s.cfg.PerHour {
		return keepOut(ReasonTooMany, "the node made %d records of %s within an hour", n, w.c.kind.Name)
	}
	return nil
}

func (w *recording) insert(b *pgx.Batch, earlier int) {
	c := w.c
	w.id, w.isNew = idFor(c.ts, w.node[:], c.fingerprint[:], []byte(c.begun.Format(time.RFC3339Nano))), true
	b.Queue(sqlInsert, uid(w.tenant), c.ts, uid(w.id), uid(w.node), c.kind.Name, c.severity, string(c.state), string(FromProbe), c.fingerprint[:],
		c.begun, c.said, c.last, c.skewMS, c.seen, c.truncated, c.lost, earlier, mustJSON(c.labels), mustJSON(c.samples), "", nil)
	// A record that comes late was a spell before those that are there.
	b.Queue(sqlLater, uid(w.tenant), uid(w.node), c.fingerprint[:], c.ts, c.ts.Add(recurrenceSpan))
	why := whyFirst
	if earlier > 0 {
		why = whyRecurrence
	}
	w.take(b, c.ts, 1, why, c.ts)
}

func (w *recording) update(b *pgx.Batch, old *stored) {
	c := w.c
	newer := w.newer(old)
	rose := c.severity > old.severity
	if !newer && !rose && c.seen <= old.seen && c.truncated <= old.truncated && c.lost <= old.lost {
		return // said before
	}
	var samples any
	state := old.state
	if newer {
		samples, state = mustJSON(c.samples), c.state
	}
	b.Queue(sqlUpdate, uid(w.tenant), old.ts, uid(old.id), c.severity, string(state), c.said, c.last, c.seen, c.truncated, c.lost, samples, c.skewMS)
	switch {
	case old.contexts >= maxContexts:
	case rose:
		w.take(b, old.ts, old.contexts+1, whySeverity, c.last)
	case newer && old.state == inspector.EventEnded && c.state != inspector.EventEnded:
		w.take(b, old.ts, old.contexts+1, whyRecurrence, c.last)
	}
}

// newer reports whether this report knows more than those before: whatever
// their order, the same one wins.
func (w *recording) newer(old *stored) bool {
	c := w.c
	if !c.said.Equal(old.said) {
		return c.said.After(old.said)
	}
	if a, b := c.seen+c.truncated, old.seen+old.truncated; a != b {
		return a > b
	}
	return stateRank(c.state) > stateRank(old.state)
}

// take asks for a snapshot, in the same transaction.
func (w *recording) take(b *pgx.Batch, ts time.Time, n int, why string, at time.Time) {
	w.snapshot = queueContext(b, contextKey{w.tenant, ts, w.id, n}, w.node, why, at, w.c.kind.Related, w.s.now())
}

// idFor makes the UUIDv7 of an event: its time, and a hash of what names it.
func idFor(ts time.Time, parts ...[]byte) ID {
	h := sha256.New()
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(len(p))))
		h.Write(p)
	}
	var id uuid.UUID
	copy(id[:], h.Sum(nil))
	ms := uint64(ts.UnixMilli())
	var head [8]byte
	binary.BigEndian.PutUint64(head[:], ms<<16)
	copy(id[:6], head[:6])
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return ID(id)
}

// timeOf is the time inside an id, which is its event's ts.
func timeOf(id ID) time.Time {
	var head [8]byte
	copy(head[2:], id[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(head[:]))).UTC()
}

// uid is the form in which ids travel to the database.
func uid[T ~[16]byte](id T) [16]byte { return id }

// mustJSON renders what always marshals: maps, text and finite numbers.
func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}
