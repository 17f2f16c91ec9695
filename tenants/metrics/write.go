package metrics

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// maxAttempts bounds the transactions of one Write that has to be split.
const maxAttempts = 64

// Write commits at most MaxBatch checked reports of any tenants in one
// transaction. Reports of one node are taken in order of seq; one below the
// node's high-water mark is Replayed. When the batch fails for the sake of one
// report it is split, so that the others get through: a report the database
// refuses is Quarantined, and a transient failure of a part makes its reports,
// and later ones of their nodes, Retry.
// The error is non-nil only when nothing was committed; the outcomes then are
// all Retry.
func (s *Service) Write(ctx context.Context, batch []Checked) ([]Outcome, error) {
	if len(batch) > MaxBatch {
		return nil, fault.Newf(fault.Exhausted, "batch_too_large", "a batch holds at most %d reports, this has %d", MaxBatch, len(batch))
	}
	w := &writing{s: s, batch: batch, out: make([]Outcome, len(batch)), order: make([]int, len(batch)),
		now: s.now(), held: map[nodeKey]error{}}
	for i, c := range batch {
		w.order[i] = i
		w.out[i] = Outcome{Tenant: c.tenant, Node: c.node, Epoch: uint64(c.epoch), Seq: uint64(c.seq), Status: Retry, Err: errNotTried}
		if c.node.IsZero() {
			return nil, fault.New(fault.Internal, "internal", "the server failed to store a report").Because(errors.New("a Checked that no Check made"))
		}
	}
	if len(batch) == 0 {
		return w.out, nil
	}
	slices.SortStableFunc(w.order, func(i, j int) int {
		a, b := &batch[i], &batch[j]
		return cmp.Or(compareKeys(a.nodeKey, b.nodeKey), cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.seq, b.seq))
	})
	err := w.run(ctx, w.order)
	s.count(w)
	return w.out, err
}

var errNotTried = fault.New(fault.Unavailable, "not_committed", "the report was not committed").Do("send it again")

// writing is one Write under way.
type writing struct {
	s        *Service
	batch    []Checked
	out      []Outcome
	order    []int // indices of batch by node, epoch, seq
	now      time.Time
	held     map[nodeKey]error // nodes whose later reports must wait
	attempts int
	conflict int
}

// run commits the reports of list, or splits it. It returns an error only when
// nothing of list was or can be committed now.
func (w *writing) run(ctx context.Context, list []int) error {
	list = w.free(list)
	if len(list) == 0 {
		return nil
	}
	err := w.commit(ctx, list)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || !ofData(err) || w.attempts >= maxAttempts {
		err = tenantdb.Fault(err)
		w.hold(list, err)
		return err
	}
	w.s.counts.splits.Add(1)
	if len(list) == 1 {
		c := &w.batch[list[0]]
		if c.reason != "" || c.plain { // nothing of it can be left out: the failure lies elsewhere
			err = tenantdb.Fault(err)
			w.hold(list, err)
			return err
		}
		bad := *c
		bad.reason, bad.example, bad.vals, bad.heads = ReasonRefused, refusal(*c, err), nil, nil
		w.batch = slices.Clone(w.batch) // the caller's slice stays as it was
		w.batch[list[0]] = bad
		return w.run(ctx, list)
	}
	half := len(list) / 2
	left := w.run(ctx, list[:half])
	right := w.run(ctx, list[half:])
	if left != nil && right != nil {
		return left
	}
	return nil
}

// free leaves out the reports of nodes that are held up.
func (w *writing) free(list []int) []int {
	if len(w.held) == 0 {
		return list
	}
	var out []int
	for _, i := range list {
		if err, ok := w.held[w.batch[i].nodeKey]; ok {
			w.out[i].Status, w.out[i].Err = Retry, err
			continue
		}
		out = append(out, i)
	}
	return out
}

func (w *writing) hold(list []int, err error) {
	for _, i := range list {
		w.held[w.batch[i].nodeKey] = err
		w.out[i].Status, w.out[i].Err = Retry, err
	}
}

// ofData reports whether a failure may be the fault of one report: wrong data
// (class 22), a violated constraint (23), or a partition that cannot be made.
func ofData(err error) bool {
	var pe *pgconn.PgError
	if errors.As(err, &pe) {
		return len(pe.Code) == 5 && (pe.Code[:2] == "22" || pe.Code[:2] == "23" || pe.Code == "54000")
	}
	return false
}

func refusal(c Checked, err error) string {
	var pe *pgconn.PgError
	code := "unknown"
	if errors.As(err, &pe) {
		code = pe.Code
	}
	return c.keepOut(ReasonRefused, Report{Epoch: uint64(c.epoch), Seq: uint64(c.seq), Start: c.ts.Add(-time.Duration(c.durMS) * time.Millisecond),
		End: c.ts, Packed: c.vals}, c.ts).example + ", SQLSTATE " + code
}

// count adds a finished Write to the service's counters.
func (s *Service) count(w *writing) {
	for i, o := range w.out {
		switch o.Status {
		case Stored:
			s.counts.written.Add(1)
			s.counts.refused.Add(uint64(w.batch[i].refused))
		case Replayed:
			s.counts.replayed.Add(1)
		case Quarantined:
			s.counts.quarantined.Add(1)
		case Expired:
			s.counts.expired.Add(1)
		}
	}
	s.counts.conflicts.Add(uint64(w.conflict))
}

// tenantsOf lists the tenants of a sorted list of reports once each.
func (w *writing) tenantsOf(list []int) []tenants.TenantID {
	var ids []tenants.TenantID
	for _, i := range list {
		if t := w.batch[i].tenant; len(ids) == 0 || ids[len(ids)-1] != t {
			ids = append(ids, t)
		}
	}
	return ids
}
