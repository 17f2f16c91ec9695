package metrics

import (
	"context"
	"encoding/binary"
	"regexp"
	"sync"

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
}

type headRef struct{ series, pos int }

// table is a layout with its labels, as the way out needs it.
type table struct {
	component string
	kinds     []inspector.Kind
	series    []inspector.Series
	barred    []bool
	unknown   []bool // series whose metric this server does not know; nil: none
}

type shapeKey struct {
	tenant tenants.TenantID
	hash   inspector.LayoutHash
}

type tableKey struct {
	tenant tenants.TenantID
	id     int64
}

// Both caches are bounded; what is evicted is read again from the database.
const (
	maxShapes      = 50_000
	maxTableSeries = 200_000
)

type layouts struct {
	mu     sync.Mutex
	shapes map[shapeKey]*shape
	tables map[tableKey]*table
	series int // of all tables
}

func newLayouts() *layouts {
	return &layouts{shapes: map[shapeKey]*shape{}, tables: map[tableKey]*table{}}
}

func (l *layouts) shape(k shapeKey) (*shape, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sh, ok := l.shapes[k]
	return sh, ok
}

func (l *layouts) putShape(k shapeKey, sh *shape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for old := range l.shapes {
		if len(l.shapes) < maxShapes {
			break
		}
		delete(l.shapes, old)
	}
	l.shapes[k] = sh
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
		if l.series+len(t.series) <= maxTableSeries {
			break
		}
		l.series -= len(o.series)
		delete(l.tables, old)
	}
	l.tables[k] = t
	l.series += len(t.series)
}

var componentName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

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
		barred: make([]bool, len(l.Series)), unknown: make([]bool, len(l.Series))}
	for i, se := range l.Series {
		t.kinds[i] = se.Kind
		t.barred[i], t.unknown[i] = s.judge(l.Component, se)
	}
	return t
}

// PutLayout stores a layout in its canonical encoding for the tenant. A layout
// that does not pass inspector's Check is Invalid with reason "bad_layout".
// Storing it again changes nothing. A node that makes more than maxLayouts new
// ones in an hour is Exhausted with reason "too_many_layouts".
func (s *Service) PutLayout(ctx context.Context, scope tenants.Scope, encoded []byte) (inspector.LayoutHash, error) {
	node, err := nodeOf(scope)
	if err != nil {
		return inspector.LayoutHash{}, err
	}
	l, err := inspector.DecodeLayout(encoded)
	if err == nil {
		err = l.Check()
	}
	if err == nil && !componentName.MatchString(l.Component) {
		return inspector.LayoutHash{}, badLayout("the component's name is not 1 to 64 of a-z, 0-9 and _")
	}
	if err != nil {
		return inspector.LayoutHash{}, badLayout(inspector.CleanText(err.Error()))
	}
	key := shapeKey{scope.Tenant, l.Hash}
	if _, ok := s.layouts.shape(key); ok {
		return l.Hash, nil
	}
	if !s.nodes.mayAdd(node, s.now()) {
		return inspector.LayoutHash{}, fault.Newf(fault.Exhausted, "too_many_layouts", "a node may add %d layouts in an hour", maxLayouts).
			Do("keep the set of series stable; fold what changes into an \"other\" series")
	}
	var stored []byte
	err = s.db.InTenants(ctx, []tenants.TenantID{scope.Tenant}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sqlPutLayout, uid(scope.Tenant), layoutID(l.Hash), l.Hash[:], l.Component, len(l.Series), encoded, s.now())
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
	s.layouts.putShape(key, s.shapeOf(l))
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
	if sh, ok := s.layouts.shape(k); ok {
		return sh, true, nil
	}
	var encoded []byte
	err := s.db.InTenants(ctx, []tenants.TenantID{k.tenant}, func(ctx context.Context, tx pgx.Tx) error {
		err := tx.QueryRow(ctx, sqlLayoutByHash, uid(k.tenant), k.hash[:]).Scan(&encoded)
		if err == pgx.ErrNoRows {
			return nil
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
	s.layouts.putShape(k, sh)
	return sh, true, nil
}
