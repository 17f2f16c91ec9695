package fleet

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
)

// meant is a node that a caller's word may mean, with where its reports stand.
type meant struct {
	row
	others                                []string // ids and names, in turn, of other identities on its machine
	epoch, seq, missing, expired, refused *int64   // null: it has no head row
	set                                   *int32
	last                                  *time.Time
	vals                                  []*float64
}

// about finds the node that ref means, as directory.ResolveNode does: its id,
// or its name when exactly one node in scope bears it; a revoked node yields
// its name to one that is not. queue adds what else is to be read of it.
//
// All of it takes one round trip when ref meant the same node the last time, or
// is an id: that node's rows are read along. When the scope and the names then
// give another node, they are dropped and queue is called again for that one.
// brief leaves out all of meant but the row. It needs telltale:read.
func (s *Service) about(ctx context.Context, scope tenants.Scope, ref string, brief bool, queue func(b *pgx.Batch, node [16]byte)) (meant, error) {
	if err := scope.Require(tenants.Read); err != nil {
		return meant{}, err
	}
	if err := checkRef(ref); err != nil {
		return meant{}, err
	}
	whole := "" // ref as an id is written here, when it is one
	key := wordKey{scope.Tenant, ref}
	guess, guessed := s.words.get(key)
	if id, err := tenants.ParseNodeID(ref); err == nil {
		whole = id.String()
		if !guessed {
			guess, guessed = id, true
		}
	}
	q, scan := s.meaning(scope, ref, whole, brief)
	b := &pgx.Batch{}
	var found []meant
	b.Queue(q.sql.String(), q.args...).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.AppendRows(found, rows, scan)
		return err
	})
	if guessed {
		queue(b, guess)
	}
	if err := s.db.ReadKept(ctx, scope.Tenant, b); err != nil {
		return meant{}, err
	}
	m, err := choose(ref, whole, found)
	if err != nil || guessed && m.id == guess {
		return m, err
	}
	s.words.put(key, m.id)
	b = &pgx.Batch{}
	if queue(b, m.id); b.Len() == 0 {
		return m, nil
	}
	return m, s.db.ReadKept(ctx, scope.Tenant, b)
}

// meaning is the statement on the nodes that ref may mean, and its scan.
func (s *Service) meaning(scope tenants.Scope, ref, whole string, brief bool) (*query, pgx.RowToFunc[meant]) {
	now, args := s.times(scope)
	if brief {
		return newQuery(sqlRow, args...).add(sqlNodes).in(scope.Nodes).meaning(ref, whole), func(r pgx.CollectableRow) (m meant, err error) {
			err = m.scan(r, now)
			return m, err
		}
	}
	q := newQuery(sqlMeant, args...).add(sqlMeantOthers).in(scope.Nodes).add(sqlMeantFrom, sqlRow, sqlNodes).in(scope.Nodes).meaning(ref, whole).add(sqlMeantHead)
	return q, func(r pgx.CollectableRow) (m meant, err error) {
		var labels []string
		err = m.scan(r, now, &labels, &m.epoch, &m.seq, &m.last, &m.set, &m.vals, &m.missing, &m.expired, &m.refused, &m.others)
		m.label(labels)
		return m, err
	}
}

// resolve finds the node alone, as about does.
func (s *Service) resolve(ctx context.Context, scope tenants.Scope, ref string) (row, error) {
	m, err := s.about(ctx, scope, ref, true, func(*pgx.Batch, [16]byte) {})
	return m.row, err
}

// choose applies pick; the order of the rows is its own.
func choose(ref, whole string, found []meant) (meant, error) {
	slices.SortStableFunc(found, func(a, b meant) int {
		return cmp.Or(compareBool(a.Node.Node != whole, b.Node.Node != whole), compareBool(a.Status == Revoked, b.Status == Revoked), cmp.Compare(a.Node.Node, b.Node.Node))
	})
	rows := make([]row, len(found))
	for i := range found {
		rows[i] = found[i].row
	}
	i, err := pick(ref, whole, rows)
	if err != nil {
		return meant{}, err
	}
	return found[i], nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// maxWords bounds the memory of words.
const maxWords = 4096

// words remembers which node a word meant the last time. It decides nothing:
// each reading finds out anew, and only saves itself a second round trip when
// the memory was right.
type words struct {
	mu sync.Mutex
	m  map[wordKey]tenants.NodeID
}

type wordKey struct {
	tenant tenants.TenantID
	ref    string
}

func (w *words) get(k wordKey) (id tenants.NodeID, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, ok = w.m[k]
	return id, ok
}

func (w *words) put(k wordKey, id tenants.NodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m == nil {
		w.m = map[wordKey]tenants.NodeID{}
	}
	for old := range w.m {
		if len(w.m) < maxWords {
			break
		}
		delete(w.m, old)
	}
	w.m[k] = id
}
