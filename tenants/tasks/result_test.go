package tasks

import (
	"testing"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// The ticket's life: a result for a day, the task for a week.
func TestTicketLife(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	id := w.began(w.s, w.me(), drops("n1", 5))
	w.must(ch.Finished(ctx, id, done(1)))
	count := func(table string) (n int) {
		w.must(w.conn.QueryRow(ctx, `select count(*) from `+table).Scan(&n))
		return n
	}
	w.advance(TicketLife - time.Second)
	w.must(w.s.expire(ctx))
	w.check("within its life", w.get(w.s, id), Completed, "")
	w.advance(time.Second)
	for range 2 { // before and after the result is deleted
		task := w.get(w.s, id)
		w.check("over", task, Expired, "ticket_expired")
		if task.Runs[0].Result != nil || task.Runs[0].Next == "" {
			t.Errorf("%+v", task.Runs[0])
		}
		w.must(w.s.expire(ctx))
	}
	if task, result := count("task"), count("task_result"); task != 1 || result != 0 {
		t.Error(task, result)
	}
	w.advance(keptFor)
	w.must(w.s.expire(ctx))
	if task, run := count("task"), count("task_run"); task != 0 || run != 0 {
		t.Error(task, run)
	}
	if _, err := w.s.Get(ctx, w.me(), id); ofError(err) != "NOT_FOUND unknown_ticket ticket_id" {
		t.Error(err)
	}
}

// What a node sends is kept within the product's bounds.
func TestResultBounds(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ch, _ := w.n1.open(w.s, 1)
	big := result(1)
	for i := range 150 {
		big.Rows = append(big.Rows, inspector.ResultRow{Count: uint64(i)})
		big.Samples = append(big.Samples, inspector.ResultSample{At: start})
	}
	id := w.began(w.s, w.me(), drops("n1", 5))
	w.must(ch.Finished(ctx, id, Outcome{State: Completed, Result: big}))
	r := w.get(w.s, id).Runs[0].Result
	if len(r.Rows) != inspector.MaxResultRows || len(r.Samples) != inspector.MaxResultSamples || r.OtherRows != 51 || r.Truncated != 100 || r.Rows[1].Labels == nil {
		t.Errorf("%d rows, %d samples, %d other, %d truncated", len(r.Rows), len(r.Samples), r.OtherRows, r.Truncated)
	}
	huge := result(1)
	huge.Profile = &inspector.Profile{Folded: []inspector.FoldedStack{{Stack: string(make([]byte, inspector.MaxResultBytes/2))}}}
	id = w.began(w.s, w.me(), drops("n1", 5))
	w.must(ch.Finished(ctx, id, Outcome{State: Completed, Result: huge}))
	w.check("too large", w.get(w.s, id), Failed, inspector.ReasonResultTooLarge)
	id = w.began(w.s, w.me(), drops("n1", 5))
	w.must(ch.Finished(ctx, id, Outcome{State: Completed}))
	w.check("no result", w.get(w.s, id), Failed, inspector.ReasonTaskFailed)
}
