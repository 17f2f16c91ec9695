package metrics

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Bounds of one question.
const (
	defaultSpan = 5 * time.Minute
	minSpan     = 10 * time.Second
	edge        = time.Minute // how far a caller's clock may be off at the ends of retention
	maxWindows  = 400_000     // windows one question may read
	chunkRows   = 10_000      // windows held in memory at once

	layoutsAtOnce = 64        // layouts of one statement
	maxLayoutRead = 256 << 20 // bytes of layouts one question may read
)

// bounds fills in and checks the span of a question.
func bounds(from, to, now time.Time) (time.Time, time.Time, error) {
	if to.IsZero() {
		to = now
	}
	if from.IsZero() {
		from = to.Add(-defaultSpan)
	}
	if to.After(now.Add(edge)) {
		return from, to, fault.Bad("to", "to lies in the future: the server's time is %s", now.UTC().Format(time.RFC3339))
	}
	if to.After(now) {
		to = now
	}
	if to.Sub(from) < minSpan {
		return from, to, fault.Bad("from", "from lies at least %v before to", minSpan)
	}
	oldest := now.Add(-tenants.WindowRetention)
	if from.Before(oldest.Add(-edge)) {
		return from, to, fault.Bad("from", "windows are kept for %v: the oldest start now is %s", tenants.WindowRetention, oldest.UTC().Format(time.RFC3339))
	}
	return from.UTC(), to.UTC(), nil
}

// window is one stored window as it is read.
type window struct {
	node                  tenants.NodeID
	ts                    time.Time
	layout                int64
	samples, lost, folded int64
	refused, durMS        int32
	skewed                bool
	vals                  []byte
}

const (
	sqlWindows = `
select node_id, ts, layout_id, coalesce(samples, 0), coalesce(lost, 0), coalesce(folded, 0), coalesce(refused, 0), skew_ms is not null, dur_ms, vals
  from win
 where tenant_id = $1 and node_id = any($2::uuid[]) and ts > $3 and ts <= $4 and component = any($5::text[])
 order by node_id, ts, seq`

	sqlLayouts = `select layout_id, encoded from layout where tenant_id = $1 and layout_id = any($2::bigint[])`
)

// reading is one question's way through the windows of its nodes.
type reading struct {
	s          *Service
	scope      tenants.Scope
	targets    []target // by id
	from, to   time.Time
	components []string

	layoutBytes int // of layouts read so far

	ahead    []window // of all targets, when they were read along with these
	hasAhead bool
}

// admit refuses a question that would read too much.
func (r *reading) admit() error {
	if n := len(r.targets) * r.perNode(); n > maxWindows {
		return fault.Newf(fault.Exhausted, "too_much_data", "about %d windows of %d nodes lie in this span, at most %d are read at once", n, len(r.targets), maxWindows).
			Do("narrow from and to, name one node, or filter by node labels")
	}
	return nil
}

func (r *reading) perNode() int {
	return (int(r.to.Sub(r.from)/tenants.WindowLength) + 1) * max(1, len(r.components))
}

// each visits the windows of the targets from index first on, node by node in
// order of time. done is called after each node, also one without windows, and
// ends the reading by returning false. Memory is bounded by chunkRows windows
// or one node's. A visited window and its values are gone after the call.
func (r *reading) each(ctx context.Context, first int, visit func(*target, *window, *table), done func(*target) bool) error {
	step := min(max(1, chunkRows/r.perNode()), 1000)
	for lo := first; lo < len(r.targets); lo += step {
		chunk := r.targets[lo:min(lo+step, len(r.targets))]
		rows, err := r.load(ctx, chunk)
		if err != nil {
			return err
		}
		tables, err := r.tables(ctx, rows)
		if err != nil {
			return err
		}
		for i := range chunk {
			t := &chunk[i]
			for len(rows) > 0 && rows[0].node == t.id {
				if tb := tables[rows[0].layout]; tb != nil {
					visit(t, &rows[0], tb)
				}
				rows = rows[1:]
			}
			if !done(t) {
				return nil
			}
		}
	}
	return nil
}

func (r *reading) load(ctx context.Context, chunk []target) ([]window, error) {
	if r.hasAhead && len(chunk) == len(r.targets) {
		rows := r.ahead
		r.ahead, r.hasAhead = nil, false
		return rows, nil
	}
	return tenantdb.Query(ctx, r.s.db, r.scope.Tenant, sqlWindows, r.args(idsOf(chunk)), scanWindow)
}

func (r *reading) args(ids [][16]byte) []any {
	return []any{uid(r.scope.Tenant), ids, r.from, r.to, r.components}
}

func scanWindow(row pgx.CollectableRow) (w window, err error) {
	err = row.Scan((*[16]byte)(&w.node), &w.ts, &w.layout, &w.samples, &w.lost, &w.folded, &w.refused, &w.skewed, &w.durMS, &w.vals)
	return w, err
}

// find lists the targets and reads their windows along with them when it knows
// from the last time which they will be, in one round trip; further queues what
// else is then to be read of them. along is true when it was: rows of other
// nodes are never kept.
func (r *reading) find(ctx context.Context, ref string, labels map[string]string, group string, further func(b *pgx.Batch, ids [][16]byte)) (along bool, err error) {
	most := min(maxCompany, chunkRows/r.perNode())
	var rows []window
	r.targets, along, err = r.s.targets(ctx, r.scope, ref, labels, group, most, func(b *pgx.Batch, ids [][16]byte) {
		b.Queue(sqlWindows, r.args(ids)...).Query(func(got pgx.Rows) (err error) {
			rows, err = pgx.AppendRows(rows, got, scanWindow)
			return err
		})
		if further != nil {
			further(b, ids)
		}
	})
	if along {
		r.ahead, r.hasAhead = rows, true
	}
	return along, err
}

// tables finds the layouts of windows, those unknown here by one query.
func (r *reading) tables(ctx context.Context, rows []window) (map[int64]*table, error) {
	out := map[int64]*table{}
	var ask []int64
	for i := range rows {
		id := rows[i].layout
		if _, ok := out[id]; ok {
			continue
		}
		t, ok := r.s.layouts.table(tableKey{r.scope.Tenant, id})
		if out[id] = t; !ok {
			ask = append(ask, id)
		}
	}
	if len(ask) == 0 {
		return out, nil
	}
	type stored struct {
		ID      int64
		Encoded []byte
	}
	for chunk := range slices.Chunk(ask, layoutsAtOnce) {
		list, err := tenantdb.Query(ctx, r.s.db, r.scope.Tenant, sqlLayouts, []any{uid(r.scope.Tenant), chunk}, pgx.RowToStructByPos[stored])
		if err != nil {
			return nil, err
		}
		for _, st := range list {
			l, err := inspector.DecodeLayout(st.Encoded)
			if err != nil {
				return nil, fault.New(fault.Internal, "internal", "a stored layout cannot be read").Because(err)
			}
			t := r.s.tableOf(l)
			out[st.ID] = t
			r.s.layouts.putTable(tableKey{r.scope.Tenant, st.ID}, t)
			if r.layoutBytes += len(st.Encoded); r.layoutBytes > maxLayoutRead {
				return nil, fault.New(fault.Exhausted, "too_much_data", "the windows of this span have too many different sets of series to be read at once").
					Do("narrow from and to, name one node, or filter by node labels")
			}
		}
	}
	return out, nil
}

// age is the time from t to now in seconds, to the millisecond, never negative.
func age(now, t time.Time) *float64 {
	a := float64(max(0, now.Sub(t).Milliseconds())) / 1000
	return &a
}
