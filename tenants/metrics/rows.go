package metrics

import "time"

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
