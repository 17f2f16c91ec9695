package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Verdict is what a walk of a tenant's chain found.
type Verdict struct {
	Seals       int64 // walked, of which Expired have no rows any more
	Expired     int64
	FirstSeal   int64 // the chain begins with it; 0: there is none
	LastSeal    int64
	Head        string    // the last seal's hash in hexadecimal: noted elsewhere, it proves that no end was cut off
	Rows        int64     // sealed and there
	First, Last time.Time // of those rows
	Unsealed    int64
	Oldest      time.Time // of the unsealed rows; zero: none
	KeptFrom    time.Time // rows before were dropped by retention, if there were any; zero: nothing is kept
	Gaps        int64     // numbers that no row has: lost, or not written yet
	Lost        int64     // rows that say themselves to be lost, as recorded
	Broken      *Break    // the first thing that is not as it was sealed; nil: all is well
}

// Break is where a chain does not hold.
type Break struct {
	Seal int64  // 0: none in particular
	Row  int    // place of the row within its seal, from 1; 0: none in particular
	ID   string // of the row that is there, if one is
	What string // "changed row", "missing row", "added row", "changed seal", "missing seal"
	Note string
}

func (b *Break) Error() string {
	s := b.What
	if b.Seal > 0 {
		s += fmt.Sprintf(" in seal %d", b.Seal)
	}
	if b.Row > 0 {
		s += fmt.Sprintf(" at place %d", b.Row)
	}
	if b.ID != "" {
		s += " (row " + b.ID + ")"
	}
	if b.Note != "" {
		s += ": " + b.Note
	}
	return s
}

const walkSeals = 50 // whose rows one transaction reads

// Verify walks a tenant's chain from its first kept seal to its last and holds
// every row against it. A broken chain is in the verdict, an error means that
// it could not be walked. Rows that come meanwhile are left alone. It is for
// the operator of the server, who answers for all tenants.
func (s *Service) Verify(ctx context.Context, t tenants.TenantID) (Verdict, error) {
	w := walk{tenant: t, numbers: map[string]*numbers{}}
	for _, step := range []func(context.Context, pgx.Tx) error{w.begin, w.seals, w.end} {
		err := s.db.Jobs(ctx, step)
		for err == nil && w.more {
			err = s.db.Jobs(ctx, step)
		}
		if b, ok := errors.AsType[*Break](err); ok {
			w.v.Broken = b
			break
		}
		if err != nil {
			return w.v, tenantdb.Fault(err)
		}
	}
	for _, n := range w.numbers {
		w.v.Gaps += n.gaps(w.v.Expired == 0 && w.v.FirstSeal <= 1)
	}
	return w.v, nil
}

// walk is one walk of a chain, page by page.
type walk struct {
	tenant  tenants.TenantID
	v       Verdict
	born    time.Time
	last    seal
	more    bool
	numbers map[string]*numbers
}

// numbers are those of the rows of one life of a replica.
type numbers struct{ least, most, count int64 }

// gaps counts those that no row has. A life whose first rows may have been
// dropped begins where it is first seen.
func (n *numbers) gaps(whole bool) int64 {
	from := n.least
	if whole {
		from = 1
	}
	return max(0, n.most-from+1-n.count)
}

func (w *walk) number(replica string, seq int64) {
	n := w.numbers[replica]
	if n == nil {
		n = &numbers{least: seq, most: seq}
		w.numbers[replica] = n
	}
	n.least, n.most, n.count = min(n.least, seq), max(n.most, seq), n.count+1
}

func (w *walk) begin(ctx context.Context, tx pgx.Tx) error {
	if err := tx.QueryRow(ctx, sqlBorn, w.tenant).Scan(&w.born); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return w.floor(ctx, tx)
}

func (w *walk) floor(ctx context.Context, tx pgx.Tx) error {
	var floor *time.Time
	err := tx.QueryRow(ctx, sqlFloor).Scan(&floor)
	if floor != nil {
		w.v.KeptFrom = floor.UTC()
	}
	return err
}

// seals walks one page of seals and their rows.
func (w *walk) seals(ctx context.Context, tx pgx.Tx) error {
	w.more = false
	found, err := tx.Query(ctx, sqlSeals, w.tenant, w.last.no, walkSeals)
	if err != nil {
		return err
	}
	page, err := pgx.CollectRows(found, scanSeal)
	if err != nil || len(page) == 0 {
		return err
	}
	rows, err := tx.Query(ctx, sqlSealed, w.tenant, w.last.no, page[len(page)-1].no)
	if err != nil {
		return err
	}
	defer rows.Close()
	in := &reader{rows: rows}
	if err := in.next(); err != nil {
		return err
	}
	for _, l := range page {
		if err := w.link(l); err != nil {
			return err
		}
		if err := w.hold(l, in); err != nil {
			return w.expired(ctx, tx, rows, l, err)
		}
	}
	if in.ok {
		return &Break{Seal: in.no, ID: in.row.id.String(), What: "added row", Note: "the chain has no such seal"}
	}
	w.more = len(page) == walkSeals
	return nil
}

// link holds a seal against the one before it.
func (w *walk) link(l seal) error {
	switch {
	case w.v.FirstSeal == 0:
		w.v.FirstSeal = l.no
		if l.no > 1 && w.born.After(w.v.KeptFrom) {
			return &Break{Seal: 1, What: "missing seal", Note: fmt.Sprintf("the chain begins with seal %d, though the tenant is younger than what retention dropped", l.no)}
		}
		if l.no == 1 && l.prev != (digest{}) {
			return &Break{Seal: 1, What: "changed seal", Note: "the first seal names one before it"}
		}
	case l.no != w.last.no+1:
		return &Break{Seal: w.last.no + 1, What: "missing seal"}
	case l.prev != w.last.hash:
		return &Break{Seal: l.no, What: "changed seal", Note: "it does not follow the seal before it"}
	}
	w.last = l
	w.v.Seals++
	w.v.LastSeal, w.v.Head = l.no, fmt.Sprintf("%x", l.hash)
	return nil
}

// hold holds a seal against its rows, which come in their order.
func (w *walk) hold(l seal, in *reader) error {
	if l.rows <= 0 || len(l.digests) != l.rows*len(digest{}) {
		return &Break{Seal: l.no, What: "changed seal", Note: "it does not fit its own count of rows"}
	}
	whole := l.hash == l.sum(w.tenant)
	if in.ok && in.no < l.no {
		return &Break{Seal: in.no, ID: in.row.id.String(), What: "added row", Note: "the chain has no such seal"}
	}
	if !whole {
		return &Break{Seal: l.no, What: "changed seal", Note: "its hash is not that of what it says"}
	}
	for pos := 1; pos <= l.rows; pos++ {
		if !in.ok || in.no > l.no || in.pos > pos {
			if pos == 1 && (!in.ok || in.no > l.no) && l.last.Before(w.v.KeptFrom) {
				w.v.Expired++ // its rows went with their partition
				return nil
			}
			return &Break{Seal: l.no, Row: pos, What: "missing row"}
		}
		if in.pos < pos {
			return &Break{Seal: l.no, Row: in.pos, ID: in.row.id.String(), What: "added row"}
		}
		r := in.row
		if r.digest() != l.digestAt(pos) {
			return &Break{Seal: l.no, Row: pos, ID: r.id.String(), What: "changed row"}
		}
		w.row(r)
		if err := in.next(); err != nil {
			return err
		}
	}
	if in.ok && in.no == l.no {
		return &Break{Seal: l.no, Row: in.pos, ID: in.row.id.String(), What: "added row"}
	}
	return nil
}

func (w *walk) row(r row) {
	w.v.Rows++
	if w.v.First.IsZero() || r.at.Before(w.v.First) {
		w.v.First = r.at
	}
	if r.at.After(w.v.Last) {
		w.v.Last = r.at
	}
	if r.action == lostAction {
		w.v.Lost += int64(r.count)
	}
	w.number(r.replica, r.seq)
}

// expired looks whether a partition was dropped under the walk.
func (w *walk) expired(ctx context.Context, tx pgx.Tx, rows pgx.Rows, l seal, broken error) error {
	b, ok := errors.AsType[*Break](broken)
	if !ok || b.What != "missing row" {
		return broken
	}
	rows.Close()
	was := w.v.KeptFrom
	if err := w.floor(ctx, tx); err != nil {
		return err
	}
	if w.v.KeptFrom.After(was) && l.last.Before(w.v.KeptFrom) {
		w.v.Expired++
		w.more = true // the next page begins after it
		return nil
	}
	return broken
}

// end looks at what no seal covers.
func (w *walk) end(ctx context.Context, tx pgx.Tx) error {
	var beside int64
	if err := tx.QueryRow(ctx, sqlBeside, w.tenant).Scan(&beside); err != nil {
		return err
	}
	if beside > 0 {
		return &Break{What: "added row", Note: fmt.Sprintf("%d rows name a seal that the chain does not have", beside)}
	}
	rows, err := tx.Query(ctx, sqlWaiting, w.tenant)
	if err != nil {
		return err
	}
	var replica string
	var seq int64
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&replica, &seq, &at}, func() error {
		w.v.Unsealed++
		if at = at.UTC(); w.v.Oldest.IsZero() || at.Before(w.v.Oldest) {
			w.v.Oldest = at
		}
		w.number(replica, seq)
		return nil
	})
	return err
}

// reader reads sealed rows one ahead.
type reader struct {
	rows pgx.Rows
	ok   bool // there is one
	row  row
	no   int64
	pos  int
}

func (r *reader) next() error {
	if r.ok = r.rows.Next(); !r.ok {
		return r.rows.Err()
	}
	var pos int32
	row, err := scanRow(r.rows, &r.no, &pos)
	r.row, r.pos = row, int(pos)
	return err
}
