package metrics

import (
	"context"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/telltale-dev/telltale/tenants"
)

// head is one locked row of node_head and what a batch makes of it.
type head struct {
	epoch, seq int64
	last       *time.Time
	set        int32
	vals       []*float64

	moved                     bool
	missing, expired, refused int64
	newVals                   bool
}

// commit writes the reports of list, sorted by node and seq, in one
// transaction and then sets their outcomes. On an error nothing was written
// and the outcomes are untouched.
func (w *writing) commit(ctx context.Context, list []int) error {
	w.attempts++
	return w.s.parts.Write(ctx, w.tenantsOf(list)[0], w.timesOf(list), func() error { return w.transact(ctx, list) })
}

func (w *writing) expired(c *Checked) bool {
	return c.ts.Before(w.now.Add(-tenants.WindowRetention))
}

// timesOf lists the times of the windows that go into the table, one an hour.
func (w *writing) timesOf(list []int) []time.Time {
	var ts []time.Time
	for _, i := range list {
		c := &w.batch[i]
		if c.plain || c.reason != "" || w.expired(c) {
			continue
		}
		if h := c.ts.Truncate(time.Hour); len(ts) == 0 || !ts[len(ts)-1].Equal(h) {
			ts = append(ts, h)
		}
	}
	return ts
}

func (w *writing) transact(ctx context.Context, list []int) error {
	status := make([]Status, len(list))
	var conflict int
	err := w.s.db.InTenants(ctx, w.tenantsOf(list), func(ctx context.Context, tx pgx.Tx) error {
		heads, order, err := w.lock(ctx, tx, list)
		if err != nil {
			return err
		}
		rows, out := w.decide(list, heads, status)
		b := &pgx.Batch{}
		if rows.len() > 0 {
			b.Queue(sqlInsertWin, rows.args()...).Exec(func(ct pgconn.CommandTag) error {
				conflict = rows.len() - int(ct.RowsAffected())
				return nil
			})
		}
		if a := moves(order, heads); len(a[0].([][16]byte)) > 0 {
			b.Queue(sqlMoveHeads, append(a, w.s.heads.set)...)
		}
		if out.len() > 0 {
			b.Queue(sqlKeepOut, append(out.args(), w.now)...)
		}
		if b.Len() == 0 {
			return nil
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return err
	}
	w.conflict += conflict
	for k, i := range list {
		w.out[i].Status, w.out[i].Reason, w.out[i].Err = status[k], "", nil
		if status[k] == Quarantined {
			w.out[i].Reason = w.batch[i].reason
		}
	}
	return nil
}

// lock reads the head rows of all nodes of list and keeps them locked.
func (w *writing) lock(ctx context.Context, tx pgx.Tx, list []int) (map[nodeKey]*head, []nodeKey, error) {
	var ts, ns [][16]byte
	var last nodeKey
	for _, i := range list {
		if k := w.batch[i].nodeKey; k != last {
			ts, ns, last = append(ts, uid(k.tenant)), append(ns, uid(k.node)), k
		}
	}
	rows, err := tx.Query(ctx, sqlLockHeads, ts, ns)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	heads, order := make(map[nodeKey]*head, len(ns)), make([]nodeKey, 0, len(ns))
	for rows.Next() {
		var t, n [16]byte
		h := &head{}
		if err := rows.Scan(&t, &n, &h.epoch, &h.seq, &h.last, &h.set, &h.vals); err != nil {
			return nil, nil, err
		}
		k := nodeKey{t, n}
		heads[k] = h
		order = append(order, k)
	}
	return heads, order, rows.Err()
}

// decide takes the reports in order and moves the heads. It is pure: running
// it again on the same rows gives the same.
func (w *writing) decide(list []int, heads map[nodeKey]*head, status []Status) (*winRows, *outRows) {
	rows, out := newWinRows(len(list)), &outRows{}
	for k, i := range list {
		c := &w.batch[i]
		h := heads[c.nodeKey]
		switch {
		case h == nil || c.epoch > h.epoch:
			status[k] = StaleEpoch // this server never issued it
			continue
		case c.epoch < h.epoch, c.epoch == h.epoch && c.seq <= h.seq:
			status[k] = Replayed
			if c.epoch < h.epoch {
				status[k] = StaleEpoch
			}
			continue
		}
		h.missing = addClamped(h.missing, c.seq-h.seq-1)
		h.seq, h.moved = c.seq, true
		switch {
		case c.plain:
			status[k] = Advanced
		case c.reason != "":
			status[k] = Quarantined
			out.add(c)
		default:
			status[k] = Stored
			h.refused += int64(c.refused)
			h.see(c, w.s.heads)
			if w.expired(c) {
				status[k] = Expired
				h.expired++
				continue
			}
			rows.add(c)
		}
	}
	return rows, out
}

// see takes the headline values of a window that is not older than what the
// head shows.
func (h *head) see(c *Checked, hl headlines) {
	if h.last != nil && c.ts.Before(h.last.Add(-tenants.WindowLength)) {
		return
	}
	if h.last == nil || c.ts.After(*h.last) {
		ts := c.ts
		h.last = &ts
	}
	vals := make([]*float64, len(hl.metrics))
	if h.set == hl.set {
		for i := range min(len(vals), len(h.vals)) {
			if c.alive&(1<<i) != 0 {
				vals[i] = h.vals[i]
			}
		}
	}
	for i, owner := range hl.owners {
		if owner == c.component {
			vals[i] = nil // what this window leaves out is unknown now
		}
	}
	for _, v := range c.heads {
		vals[v.pos] = &v.value
	}
	h.vals, h.set, h.newVals = vals, hl.set, true
}

func moves(order []nodeKey, heads map[nodeKey]*head) []any {
	var (
		ts, ns                    = [][16]byte{}, [][16]byte{}
		seq                       []int64
		last                      []*time.Time
		vals                      []*string
		missing, expired, refused []int64
	)
	for _, k := range order {
		h := heads[k]
		if !h.moved {
			continue
		}
		ts, ns, seq, last = append(ts, uid(k.tenant)), append(ns, uid(k.node)), append(seq, h.seq), append(last, h.last)
		var v *string
		if h.newVals {
			v = arrayText(h.vals)
		}
		vals = append(vals, v)
		missing, expired, refused = append(missing, h.missing), append(expired, h.expired), append(refused, h.refused)
	}
	return []any{ts, ns, seq, last, vals, missing, expired, refused}
}

// arrayText renders float8[]; an array of arrays would lose its rows in unnest.
func arrayText(vals []*float64) *string {
	b := make([]byte, 0, 12*len(vals)+2)
	b = append(b, '{')
	for i, v := range vals {
		if i > 0 {
			b = append(b, ',')
		}
		if v == nil {
			b = append(b, "NULL"...)
			continue
		}
		b = strconv.AppendFloat(b, *v, 'g', -1, 64)
	}
	s := string(append(b, '}'))
	return &s
}

func addClamped(a, b int64) int64 {
	if a > math.MaxInt64/2-b/2 {
		return math.MaxInt64 / 2
	}
	return a + b
}

// winRows are the columns of sqlInsertWin.
type winRows struct {
	tenant, node          [][16]byte
	ts                    []time.Time
	seq, layout           []int64
	samples, lost, folded []int64
	refused, durMS        []int32
	skewMS                []*int32
	component             []string
	vals                  [][]byte
}

func newWinRows(n int) *winRows {
	return &winRows{tenant: make([][16]byte, 0, n), node: make([][16]byte, 0, n), ts: make([]time.Time, 0, n),
		seq: make([]int64, 0, n), layout: make([]int64, 0, n), vals: make([][]byte, 0, n)}
}

func (r *winRows) len() int { return len(r.seq) }

func (r *winRows) add(c *Checked) {
	r.tenant, r.node = append(r.tenant, uid(c.tenant)), append(r.node, uid(c.node))
	r.ts, r.seq, r.layout = append(r.ts, c.ts), append(r.seq, c.seq), append(r.layout, c.layout)
	r.samples, r.lost, r.folded = append(r.samples, c.samples), append(r.lost, c.lost), append(r.folded, c.folded)
	r.refused, r.durMS, r.skewMS = append(r.refused, c.refused), append(r.durMS, c.durMS), append(r.skewMS, c.skewMS)
	r.component, r.vals = append(r.component, c.component), append(r.vals, c.vals)
}

func (r *winRows) args() []any {
	return []any{r.tenant, r.node, r.ts, r.seq, r.layout, r.samples, r.lost, r.folded, r.refused, r.skewMS, r.durMS, r.component, r.vals}
}

// outRows are the columns of sqlKeepOut, one row for each node and reason:
// one statement may touch a row only once.
type outRows struct {
	tenant, node    [][16]byte
	reason, example []string
	n               []int64
	index           map[outKey]int
}

type outKey struct {
	nodeKey
	reason string
}

func (r *outRows) len() int { return len(r.n) }

func (r *outRows) add(c *Checked) {
	k := outKey{c.nodeKey, c.reason}
	if r.index == nil {
		r.index = map[outKey]int{}
	}
	i, ok := r.index[k]
	if !ok {
		i = len(r.n)
		r.index[k] = i
		r.tenant, r.node = append(r.tenant, uid(c.tenant)), append(r.node, uid(c.node))
		r.reason, r.example, r.n = append(r.reason, c.reason), append(r.example, ""), append(r.n, 0)
	}
	r.n[i]++
	r.example[i] = c.example
}

func (r *outRows) args() []any { return []any{r.tenant, r.node, r.reason, r.n, r.example} }
