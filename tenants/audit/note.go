package audit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

const (
	maxBatch  = 500
	maxFolds  = 10_000
	foldFor   = time.Minute
	writeTime = 3 * time.Second

	lostAction = "audit_lost" // of the row that says how many others were lost
)

// Note records an entry within a second, and never blocks: when too many wait
// it is dropped, which is counted and recorded itself. Refusals of one
// principal that are alike become one row: those of the first half second at
// once, and those of the minute after it together at its end. A refusal of
// nobody known goes to the table of refusals. What was refused to a verified
// caller, or failed, is an attempt too: its reference id leads there.
func (s *Service) Note(e Entry) {
	s.note(e)
	if a, ok := e.told(s.now().UTC().Truncate(time.Microsecond)); ok && !e.Tenant.IsZero() && e.Principal.Kind != "" {
		s.knock(a)
	}
}

func (s *Service) note(e Entry) {
	switch {
	case e.Tenant.IsZero():
		s.counts.homeless.Add(1)
	case e.Principal.Kind == "":
		if e.At.IsZero() {
			e.At = s.now()
		}
		s.refusals.add(e.Tenant, e.At, e.Surface, e.Reason, e.From, e.Reference, max(1, e.Count))
	default:
		r := s.rowOf(e)
		if e.Outcome != Refused || !s.queue.fold(r) {
			s.queue.push(r)
		}
	}
}

// Write records an entry and returns when its row is committed. Whoever acts
// waits for it and does not act when it fails: the fault is Unavailable.
func (s *Service) Write(ctx context.Context, e Entry) error {
	if e.Tenant.IsZero() || e.Principal.Kind == "" {
		return fault.New(fault.Internal, "no_principal", "an act of nobody cannot be recorded")
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	r := s.rowOf(e)
	r.seq = s.queue.number(r.tenant)
	err := s.parts.Write(ctx, r.tenant, []time.Time{r.at}, func() error {
		b := &pgx.Batch{}
		b.Queue(sqlInsert, columnsOf([]row{r})...)
		return s.db.Write(ctx, r.tenant, b)
	})
	if err != nil {
		s.queue.lose(r.tenant, 1)
		s.counts.failed.Add(1)
		return fault.New(fault.Unavailable, "audit_unavailable", "nothing was done, because it could not be recorded in the audit").Do("try again in a moment").Because(err)
	}
	s.counts.written.Add(1)
	return nil
}

// flush writes what waits. What cannot be written now stays.
func (s *Service) flush(ctx context.Context) error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	s.queue.unfold(false, s)
	s.queue.confess(s)
	var err error
	for {
		batch := s.queue.head()
		if len(batch) == 0 {
			break
		}
		if err = s.writeRows(ctx, batch); err != nil {
			break
		}
		s.queue.done(len(batch))
		s.queue.confess(s) // there is room now
	}
	return errors.Join(err, s.flushRefusals(ctx), s.flushDoor(ctx))
}

// writeRows writes rows of many tenants. One that the database can never hold
// would keep the others for ever: it is looked for, and lost.
func (s *Service) writeRows(ctx context.Context, rows []row) error {
	err := s.tryRows(ctx, rows)
	switch {
	case err == nil:
		s.counts.written.Add(uint64(len(rows)))
		return nil
	case ctx.Err() != nil, fault.Is(err, fault.Unavailable), fault.Is(err, fault.Deadline):
		return err
	case len(rows) == 1:
		s.log.Error("an audit entry cannot be stored", "tenant", rows[0].tenant, "action", rows[0].action, "error", err)
		s.queue.lose(rows[0].tenant, 1)
		return nil
	}
	half := len(rows) / 2
	if err := s.writeRows(ctx, rows[:half]); err != nil {
		return err
	}
	return s.writeRows(ctx, rows[half:])
}

func (s *Service) tryRows(ctx context.Context, rows []row) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	list := make([]tenants.TenantID, len(rows))
	times := make([]time.Time, len(rows))
	for i, r := range rows {
		list[i], times[i] = r.tenant, r.at
	}
	return tenantdb.Fault(s.parts.Write(ctx, list[0], times, func() error {
		b := &pgx.Batch{}
		b.Queue(sqlInsert, columnsOf(rows)...)
		return s.db.WriteAll(ctx, list, b)
	}))
}

// queue is what waits to be written. The rows at its head stay until they are
// stored, so that its bound holds them too.
type queue struct {
	mu      sync.Mutex
	most    int
	rows    []row
	seq     map[tenants.TenantID]int64
	lost    map[tenants.TenantID]int
	folds   map[foldKey]*fold
	dropped uint64
	soon    chan struct{} // told when flushSoon rows wait; holds one word
}

type foldKey struct {
	tenant                                   tenants.TenantID
	kind, principal, surface, action, reason string
}

// fold gathers refusals that are alike. row is the first of those that wait.
type fold struct {
	row   row
	count int32
	until time.Time
	shown bool // the first row is written, the others wait for until
}

func (q *queue) init(most int) {
	q.most, q.seq, q.lost, q.folds = most, map[tenants.TenantID]int64{}, map[tenants.TenantID]int{}, map[foldKey]*fold{}
	q.soon = make(chan struct{}, 1)
}

func (q *queue) number(t tenants.TenantID) int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seq[t]++
	return q.seq[t]
}

func (q *queue) push(r row) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(r)
}

// add numbers the row even when it finds no room: the gap shows.
func (q *queue) add(r row) {
	q.seq[r.tenant]++
	r.seq = q.seq[r.tenant]
	if len(q.rows) >= q.most {
		q.dropped++
		q.lost[r.tenant]++
		return
	}
	q.rows = append(q.rows, r)
	if len(q.rows) == flushSoon { // it grows past this once between two flushes
		select {
		case q.soon <- struct{}{}:
		default: // the last word was not yet heard
		}
	}
}

func (q *queue) lose(t tenants.TenantID, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost[t] += n
	q.dropped += uint64(n)
}

// fold takes a refusal in; false when there is no room.
func (q *queue) fold(r row) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := foldKey{r.tenant, r.kind, r.principal, r.surface, r.action, r.reason}
	f := q.folds[k]
	switch {
	case f == nil && len(q.folds) >= maxFolds:
		return false
	case f == nil:
		f = &fold{until: r.at.Add(foldFor)}
		q.folds[k] = f
	}
	if f.count == 0 {
		f.row = r
	}
	f.count += r.count
	return true
}

// unfold hands on the refusals whose time has come, or all.
func (q *queue) unfold(all bool, s *Service) {
	now := s.now()
	q.mu.Lock()
	defer q.mu.Unlock()
	for k, f := range q.folds {
		over := all || !now.Before(f.until)
		if f.count > 0 && (over || !f.shown) {
			f.row.count = f.count
			q.add(f.row)
			f.count, f.shown = 0, true
		}
		if over {
			delete(q.folds, k)
		}
	}
}

// confess queues a row for each tenant that lost some, where there is room.
func (q *queue) confess(s *Service) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for t, n := range q.lost {
		if len(q.rows) >= q.most {
			return
		}
		delete(q.lost, t)
		q.add(s.rowOf(Entry{Tenant: t, Principal: tenants.Principal{Kind: tenants.LocalPrincipal, ID: "telltaled", Name: "telltaled"},
			Surface: "server", Action: lostAction, Outcome: Failed, Reason: "entries_lost", Count: n}))
	}
}

// head answers the rows to write next; they stay in the queue.
func (q *queue) head() []row {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.rows[:min(len(q.rows), maxBatch):min(len(q.rows), maxBatch)]
}

func (q *queue) done(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.rows = q.rows[n:]; len(q.rows) == 0 {
		q.rows = nil
	}
}
