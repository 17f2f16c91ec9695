package tasks

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// ending is the end of one run by one message.
type ending struct {
	run    runKey
	by     message
	to     State
	why    *inspector.Refusal // clean; nil: no reason
	at     time.Time
	began  *time.Time            // when the node accepted it, if that is known here
	result []byte                // JSON; nil: what is there stays
	found  *inspector.TaskResult // what result reads as
	alone  bool                  // the run is known to be its task's only one
	done   bool                  // set: this end took place
	closed bool                  // set: it was the last of its task

	// Set with done, as the row has them.
	name     string
	started  *time.Time
	permille int
}

// words is why a run ended as its row keeps it.
func (e *ending) words() (why inspector.Refusal) {
	if e.why != nil && e.to != Completed {
		why = *e.why
	}
	if e.to == Cancelled {
		why.Kind = ""
	}
	return why
}

// ended makes an ending by a message whose reason the server knows.
func ended(run runKey, was State, by message, at time.Time) *ending {
	to, _ := next(was, by)
	return &ending{run: run, by: by, to: to, why: by.why(was), at: at}
}

// queueEnds queues what ends runs in one transaction: the locks of their tasks
// in order of id, each run, its result, and the tasks whose last run it was.
// A run that the message cannot end any more stays as it is.
func queueEnds(b *pgx.Batch, ends []*ending) {
	for _, e := range ends {
		e.done, e.closed = false, false
	}
	if len(ends) == 1 && ends[0].alone {
		ends[0].queueAlone(b)
		return
	}
	slices.SortFunc(ends, func(a, c *ending) int { return bytes.Compare(a.run.task[:], c.run.task[:]) })
	for i, e := range ends {
		if i == 0 || ends[i-1].run.taskKey != e.run.taskKey {
			b.Queue(sqlLockTask, [16]byte(e.run.tenant), [16]byte(e.run.task))
		}
	}
	for _, e := range ends {
		b.Queue(sqlEndRun, e.row()...).
			Query(func(rows pgx.Rows) error {
				_, err := pgx.ForEachRow(rows, []any{&e.name, &e.started, &e.permille}, func() error { e.done = true; return nil })
				return err
			})
		if e.result != nil {
			b.Queue(sqlPutResult, [16]byte(e.run.tenant), [16]byte(e.run.task), [16]byte(e.run.node), e.to != Completed, e.result, string(e.to), e.at)
		}
	}
	for i, e := range ends {
		if i == 0 || ends[i-1].run.taskKey != e.run.taskKey {
			b.Queue(sqlCloseTask, [16]byte(e.run.tenant), [16]byte(e.run.task), e.at, rank()).
				Exec(func(tag pgconn.CommandTag) error { e.closed = tag.RowsAffected() == 1; return nil })
		}
	}
}

// row are the parameters of sqlEndRun.
func (e *ending) row() []any {
	why := e.words()
	ran := e.by == completed || e.by == failed || e.by == cancelled
	return []any{[16]byte(e.run.tenant), [16]byte(e.run.task), [16]byte(e.run.node), string(e.to), why.Kind, why.Reason, why.Arg, why.Msg, why.Next,
		e.at, e.began, ran, e.by.from(e.to)}
}

// queueAlone queues the same for the run of a task that has no other, in one
// statement.
func (e *ending) queueAlone(b *pgx.Batch) {
	b.Queue(sqlEndAlone, append(e.row(), e.result)...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&e.name, &e.started, &e.permille, &e.closed}, func() error { e.done = true; return nil })
		return err
	})
}

// endRuns ends runs of one tenant as the ingest role.
func (s *Service) endRuns(ctx context.Context, tenant tenants.TenantID, ends []*ending) error {
	if len(ends) == 0 {
		return nil
	}
	err := again(func() error {
		b := &pgx.Batch{}
		queueEnds(b, ends)
		return s.db.WriteAll(ctx, []tenants.TenantID{tenant}, b)
	})
	if err != nil {
		return tenantdb.Fault(err)
	}
	s.afterEnds(ends)
	return nil
}

// afterEnds counts ends and tells who waits for them. The commit is behind.
func (s *Service) afterEnds(ends []*ending) {
	told := map[taskKey]bool{}
	for _, e := range ends {
		if !e.done {
			continue
		}
		s.counts.end(e.to)
		s.watches.ended(e)
		if !told[e.run.taskKey] {
			told[e.run.taskKey] = true
			s.moved(e.run.taskKey)
		}
	}
}
