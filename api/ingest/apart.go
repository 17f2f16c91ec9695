package ingest

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/tenants/metrics"
)

// Bounds of attempts to write. A part is half of a batch that failed, or less:
// it has less to do and gets less time.
const (
	attemptTimeout = 3 * time.Second
	partTimeout    = 500 * time.Millisecond
	apartTimeout   = 5 * time.Second // for all parts of a batch
	maxParts       = 64
)

// parting takes a failed batch apart, to find the sources it failed for. Items
// of one source stay together and in order.
type parting struct {
	b        *batcher
	items    []item // by source
	checked  []metrics.Checked
	starts   []int // of each source's items, and the end
	left     int
	answered bool    // some part was stored: the database is not away
	errs     []error // of single sources that failed
	settled  []bool
}

// apart writes a failed batch part by part. When any of them is stored, the
// sources that fail alone are broken, and what is returned was not tried.
// Otherwise everything is returned.
func (b *batcher) apart(ctx context.Context, items []item, checked []metrics.Checked) ([]item, []metrics.Checked, bool) {
	p := &parting{b: b, left: maxParts}
	p.group(items, checked)
	n := len(p.starts) - 1
	if n == 1 {
		return items, checked, false
	}
	ctx, cancel := context.WithTimeout(ctx, apartTimeout)
	defer cancel()
	p.half(ctx, 0, n/2)
	p.half(ctx, n/2, n)
	if !p.answered {
		return p.items, p.checked, false
	}
	var rest []item
	var restChecked []metrics.Checked
	for g := range n {
		lo, hi := p.starts[g], p.starts[g+1]
		switch {
		case p.settled[g]:
		case p.errs[g] != nil:
			b.giveUp(p.items[lo:hi], p.errs[g])
		default:
			rest, restChecked = append(rest, p.items[lo:hi]...), append(restChecked, p.checked[lo:hi]...)
		}
	}
	return rest, restChecked, true
}

// group orders the items by source, in order of their first one.
func (p *parting) group(items []item, checked []metrics.Checked) {
	of := map[source][]int{}
	var order []source
	for i, it := range items {
		if of[it.from] == nil {
			order = append(order, it.from)
		}
		of[it.from] = append(of[it.from], i)
	}
	p.starts = []int{0}
	for _, from := range order {
		for _, i := range of[from] {
			p.items, p.checked = append(p.items, items[i]), append(p.checked, checked[i])
		}
		p.starts = append(p.starts, len(p.items))
	}
	p.errs, p.settled = make([]error, len(order)), make([]bool, len(order))
}

// half writes the sources from lo up to hi, or their halves.
func (p *parting) half(ctx context.Context, lo, hi int) {
	if p.left <= 0 || ctx.Err() != nil {
		return
	}
	p.left--
	err := p.b.attempt(ctx, p.items[p.starts[lo]:p.starts[hi]], p.checked[p.starts[lo]:p.starts[hi]], partTimeout)
	switch {
	case err == nil:
		p.answered = true
		for g := lo; g < hi; g++ {
			p.settled[g] = true
		}
	case hi-lo == 1 && ctx.Err() == nil:
		p.errs[lo] = err
	case hi-lo > 1:
		mid := (lo + hi) / 2
		p.half(ctx, lo, mid)
		p.half(ctx, mid, hi)
	}
}
