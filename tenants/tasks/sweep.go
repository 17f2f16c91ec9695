package tasks

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// keptFor is how long a task's rows outlive its ticket.
const keptFor = 7*24*time.Hour - TicketLife

// Sweep ends the runs of all tenants that time has ended. Run calls it every
// second on each replica; they pass over what another one is at.
func (s *Service) Sweep(ctx context.Context) error {
	now := s.clock()
	var due []taskKey
	err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		due = nil
		rows, err := tx.Query(ctx, sqlDue, now, now.Add(-answerGrace), now.Add(-DeadlineGrace))
		if err != nil {
			return err
		}
		var k taskKey
		_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&k.tenant), (*[16]byte)(&k.task)}, func() error {
			due = append(due, k)
			return nil
		})
		return err
	})
	for _, k := range due {
		if err := s.sweepTask(ctx, k, now); err != nil {
			return err
		}
	}
	return tenantdb.Fault(err)
}

// sweepTask ends what is due of one task and stops it on its nodes.
func (s *Service) sweepTask(ctx context.Context, k taskKey, now time.Time) error {
	var ends []*ending
	replicas := map[runKey]string{}
	err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		ends = nil
		t, id := [16]byte(k.tenant), [16]byte(k.task)
		locked, err := tx.Exec(ctx, sqlTryLockTask, t, id)
		if err != nil || locked.RowsAffected() == 0 {
			return err
		}
		rows, err := tx.Query(ctx, sqlStandings, t, id)
		if err != nil {
			return err
		}
		var node tenants.NodeID
		var replica string
		var r standing
		_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&node), (*string)(&r.state), &replica, &r.startBefore, &r.deadline, &r.lease, &r.cancelAt}, func() error {
			r.held = replica != ""
			if by, is := r.due(now); is {
				run := runKey{k, node}
				ends = append(ends, ended(run, r.state, by, now))
				if r.state != Created {
					replicas[run] = replica
				}
			}
			return nil
		})
		if err != nil || len(ends) == 0 {
			return err
		}
		b := &pgx.Batch{}
		queueEnds(b, ends)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return tenantdb.Fault(err)
	}
	s.afterEnds(ends)
	for run, replica := range replicas {
		s.routeCancel(run, replica)
	}
	return nil
}

// expire deletes the results of tickets whose life is over, and in time the
// tasks.
func (s *Service) expire(ctx context.Context) error {
	now := s.clock()
	why := ticketExpired()
	for _, step := range []struct {
		sql  string
		args []any
	}{
		{sqlExpireTasks, []any{now, why.Kind, why.Reason, why.Msg, why.Next}},
		{sqlForget, []any{now.Add(-keptFor)}},
	} {
		for more := true; more; {
			err := s.db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, step.sql, step.args...)
				more = tag.RowsAffected() == 500
				return err
			})
			if err != nil {
				return tenantdb.Fault(err)
			}
		}
	}
	return nil
}
