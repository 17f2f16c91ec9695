package metrics

import (
	"context"
	"encoding/binary"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// shape is what the way in needs of a layout; labels are not part of it, so
// that the shapes of many thousand nodes fit in memory.
type shape struct {
	id        int64
	component string
	kinds     []inspector.Kind
	barred    []bool    // series that contradict the registry; nil: none
	heads     []headRef // headline series
	used      time.Time // when a use was last written down; layouts' own
}

func (sh *shape) bytes() int { return 256 + len(sh.kinds) + len(sh.barred) + 16*len(sh.heads) }

type headRef struct{ series, pos int }

// table is a layout with its labels, as the way out needs it.
type table struct {
	component string
	kinds     []inspector.Kind
	series    []inspector.Series
	barred    []bool
	unknown   []bool // series whose metric this server does not know; nil: none
	bytes     int    // in memory, roughly
}

type shapeKey struct {
	tenant tenants.TenantID
	hash   inspector.LayoutHash
}

type tableKey struct {
	tenant tenants.TenantID
	id     int64
}

// Both caches are bounded by what they hold in memory, roughly; what is evicted
// is read again from the database.
const (
	maxShapeBytes = 64 << 20
	maxTableBytes = 128 << 20
)

// A layout that nobody uses is removed from the database after layoutLife,
// which is longer than its last window lives. This process writes down a use at
// most every useEvery. A shape whose use it has not written down for shapeLife
// may be gone from the database and is read again.
const (
	layoutLife = 24 * time.Hour
	useEvery   = 3 * time.Hour
	shapeLife  = 12 * time.Hour
)

type layouts struct {
	mu         sync.Mutex
	shapes     map[shapeKey]*shape
	tables     map[tableKey]*table
	shapeBytes int
	tableBytes int
	due        map[shapeKey]*shape // used, and not written down for useEvery
}

func newLayouts() *layouts {
	return &layouts{shapes: map[shapeKey]*shape{}, tables: map[tableKey]*table{}, due: map[shapeKey]*shape{}}
}

// shape finds what is known of a layout in use now.
func (l *layouts) shape(k shapeKey, now time.Time) (*shape, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sh, ok := l.shapes[k]
	if !ok || now.Sub(sh.used) > shapeLife {
		return nil, false
	}
	if now.Sub(sh.used) > useEvery {
		l.due[k] = sh
	}
	return sh, true
}

func (l *layouts) putShape(k shapeKey, sh *shape, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.shapes[k]; ok {
		l.drop(k, old)
	}
	for old, o := range l.shapes {
		if l.shapeBytes+sh.bytes() <= maxShapeBytes {
			break
		}
		l.drop(old, o)
	}
	sh.used = now
	l.shapes[k] = sh
	l.shapeBytes += sh.bytes()
}

func (l *layouts) drop(k shapeKey, sh *shape) {
	l.shapeBytes -= sh.bytes()
	delete(l.shapes, k)
	delete(l.due, k)
}

func (l *layouts) table(k tableKey) (*table, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.tables[k]
	return t, ok
}

func (l *layouts) putTable(k tableKey, t *table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.tables[k]; ok {
		return
	}
	for old, o := range l.tables {
		if l.tableBytes+t.bytes <= maxTableBytes {
			break
		}
		l.tableBytes -= o.bytes
		delete(l.tables, old)
	}
	l.tables[k] = t
	l.tableBytes += t.bytes
}

var componentName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)

func layoutID(h inspector.LayoutHash) int64 {
	return int64(binary.BigEndian.Uint64(h[:8]) >> 1)
}

// judge holds one series against the registry. A metric that this server does
// not know comes from a newer agent: it is kept and marked. One that it knows
// otherwise (another component, kind or unit) is barred: each of its values is
// refused and counted, the rest of the window stands.
func (s *Service) judge(component string, se inspector.Series) (barred, unknown bool) {
	m, ok := s.reg.Metric(se.Metric)
	if !ok {
		return false, true
	}
	return s.owner[se.Metric] != component || m.Kind != se.Kind || m.Unit != se.Unit, false
}

func (s *Service) shapeOf(l *inspector.Layout) *shape {
	sh := &shape{id: layoutID(l.Hash), component: l.Component, kinds: make([]inspector.Kind, len(l.Series))}
	for i, se := range l.Series {
		sh.kinds[i] = se.Kind
		barred, _ := s.judge(l.Component, se)
		if barred {
			if sh.barred == nil {
				sh.barred = make([]bool, len(l.Series))
			}
			sh.barred[i] = true
		} else if pos, ok := s.heads.pos[se.Metric]; ok && len(se.Labels) == 0 {
			sh.heads = append(sh.heads, headRef{i, pos})
		}
	}
	return sh
}

func (s *Service) tableOf(l *inspector.Layout) *table {
	t := &table{component: l.Component, series: l.Series, kinds: make([]inspector.Kind, len(l.Series)),
		barred: make([]bool, len(l.Series)), unknown: make([]bool, len(l.Series)), bytes: 256}
	for i, se := range l.Series {
		t.kinds[i] = se.Kind
		t.bytes += 64 + 3 + len(se.Metric) + len(se.Unit)
		for _, lb := range se.Labels {
			t.bytes += 32 + len(lb.Key) + len(lb.Value)
		}
		t.barred[i], t.unknown[i] = s.judge(l.Component, se)
	}
	return t
}

// PutLayout stores a layout in its canonical encoding for the tenant. A layout
// that does not pass inspector's Check is Invalid with reason "bad_layout".
// Storing it again changes nothing. A node that makes more than maxLayouts new
// ones in an hour, or more than maxLayoutBytes of them, is Exhausted with reason
// "too_many_layouts".
func (s *Service) PutLayout(ctx context.Context, scope tenants.Scope, encoded []byte) (inspector.LayoutHash, error) {
	node, err := nodeOf(scope)
	if err != nil {
		return inspector.LayoutHash{}, err
	}
	if len(encoded) > maxLayout {
		return inspector.LayoutHash{}, badLayout(fmt.Sprintf("it has %d bytes, at most %d are taken", len(encoded), maxLayout))
	}
	l, err := inspector.DecodeLayout(encoded)
	if err == nil {
		err = l.Check()
	}
	if err == nil && !componentName.MatchString(l.Component) {
		return inspector.LayoutHash{}, badLayout("the component's name is not 1 to 32 of a-z, 0-9 and _")
	}
	if err != nil {
		return inspector.LayoutHash{}, badLayout(inspector.CleanText(err.Error()))
	}
	key := shapeKey{scope.Tenant, l.Hash}
	now := s.now()
	if _, ok := s.layouts.shape(key, now); ok {
		return l.Hash, nil
	}
	if !s.nodes.mayAdd(node, len(encoded), now) {
		return inspector.LayoutHash{}, fault.Newf(fault.Exhausted, "too_many_layouts", "a node may add %d layouts of %d MiB together in an hour", maxLayouts, maxLayoutBytes>>20).
			Do("keep the set of series stable; fold what changes into an \"other\" series")
	}
	var stored []byte
	err = s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sqlPutLayout, uid(scope.Tenant), layoutID(l.Hash), l.Hash[:], l.Component, len(l.Series), encoded, now)
		if err == nil && tag.RowsAffected() == 0 {
			_, err = tx.Exec(ctx, sqlUseLayout, uid(scope.Tenant), layoutID(l.Hash), now)
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, sqlLayoutHash, uid(scope.Tenant), layoutID(l.Hash)).Scan(&stored)
	})
	if err != nil {
		return inspector.LayoutHash{}, tenantdb.Fault(err)
	}
	if string(stored) != string(l.Hash[:]) {
		return inspector.LayoutHash{}, fault.New(fault.Conflict, "layout_collision", "another layout has the same id")
	}
	s.layouts.putShape(key, s.shapeOf(l), now)
	return l.Hash, nil
}

func badLayout(why string) *fault.Error {
	return fault.New(fault.Invalid, "bad_layout", "the layout is refused: "+why)
}

// UnknownLayouts returns those of hashes that the tenant has not stored.
func (s *Service) UnknownLayouts(ctx context.Context, scope tenants.Scope, hashes []inspector.LayoutHash) ([]inspector.LayoutHash, error) {
	if _, err := nodeOf(scope); err != nil {
		return nil, err
	}
	var unknown []inspector.LayoutHash
	for _, h := range hashes {
		_, ok, err := s.findShape(ctx, shapeKey{scope.Tenant, h})
		if err != nil {
			return nil, err
		}
		if !ok {
			unknown = append(unknown, h)
		}
	}
	return unknown, nil
}

// findShape answers from memory or, once for each layout, from the database.
func (s *Service) findShape(ctx context.Context, k shapeKey) (*shape, bool, error) {
	now := s.now()
	if sh, ok := s.layouts.shape(k, now); ok {
		return sh, true, nil
	}
	var encoded []byte
	err := s.db.InTenants(ctx, []tenants.TenantID{k.tenant}, func(ctx context.Context, tx pgx.Tx) error {
		var used time.Time
		err := tx.QueryRow(ctx, sqlLayoutByHash, uid(k.tenant), k.hash[:]).Scan(&encoded, &used)
		if err == pgx.ErrNoRows {
			return nil
		}
		if err != nil || now.Sub(used) < useEvery {
			return err
		}
		ct, err := tx.Exec(ctx, sqlUseLayout, uid(k.tenant), layoutID(k.hash), now)
		if ct.RowsAffected() == 0 { // removed at this moment
			encoded = nil
		}
		return err
	})
	if err != nil {
		return nil, false, tenantdb.Fault(err)
	}
	if encoded == nil {
		return nil, false, nil
	}
	l, err := inspector.DecodeLayout(encoded)
	if err != nil {
		return nil, false, fault.New(fault.Internal, "internal", "a stored layout cannot be read").Because(err)
	}
	sh := s.shapeOf(l)
	s.layouts.putShape(k, sh, now)
	return sh, true, nil
}
