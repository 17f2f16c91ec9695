package events

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

func TestPartitions(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	s := w.service(nil, Config{Keep: 2})
	parts := func() int64 {
		return 100*w.count(`select count(*) from telltale_partitions('event')`) + w.count(`select count(*) from telltale_partitions('event_context')`)
	}
	w.record(w.n1, w.report("first", 0)) // the writer makes what is missing
	if got := parts(); got != 101 {
		t.Errorf("%d partitions", got)
	}
	for range 2 {
		if err := s.maintain(ctx); err != nil {
			t.Fatal(err)
		}
		if got := parts(); got != 303 {
			t.Errorf("%d partitions", got)
		}
	}
	step := func(d time.Duration, want int64) {
		t.Helper()
		w.advance(d)
		if err := s.maintain(ctx); err != nil {
			t.Fatal(err)
		}
		if got := w.count(`select count(*) from event`); got != want {
			t.Errorf("%d events", got)
		}
	}
	step(31*day, 1) // old, but one of the newest two
	w.record(w.n1, w.report("second", 0))
	step(0, 2)
	w.record(w.other, w.report("third", 0))
	step(0, 2) // two newer ones are there
	step(100*day, 2)
	step(81*day, 0) // whatever their number
	if got := w.count(`select count(*) from pg_class c join pg_inherits i on i.inhrelid = c.oid where i.inhparent in ('event'::regclass, 'event_context'::regclass)
		and c.relkind = 'r' and not (relrowsecurity and relforcerowsecurity)`); got != 0 {
		t.Errorf("%d partitions without row-level security", got)
	}
	w.record(w.n1, w.report("gone", 0))
	for _, table := range []string{"event", "event_context"} {
		w.exec(fmt.Sprintf("drop table %s_%s", table, w.now().Truncate(day).Format("20060102_150405")))
	}
	w.record(w.n1, w.report("again", 0)) // the writer's memory was wrong
}

func TestOneReplicaMaintains(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	tx, err := w.conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, sqlMaintainLock); err != nil {
		t.Fatal(err)
	}
	if err := w.s.maintain(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `rollback`); err != nil {
		t.Fatal(err)
	}
	if n := w.count(`select count(*) from telltale_partitions('event')`); n != 0 {
		t.Errorf("%d partitions made while another replica held the lock", n)
	}
}

// TestPrepare holds every statement to the migrated schema.
func TestPrepare(t *testing.T) {
	w := newWorld(t)
	sel := tenants.Selector{Labels: map[string]string{"a": "b", "c": "d"}, IDs: []tenants.NodeID{tenants.NewNodeID()}}
	list := []string{sqlTurn, sqlFind, sqlEarlier, sqlLater, sqlLately, sqlInsert, sqlPromoted, sqlRetitle, sqlUpdate, sqlContexts, sqlNearby, sqlPutContext, sqlClaim, sqlFill,
		sqlMaintainLock, sqlYounger, newStatement(sqlOne, 1, 2, 3).in(sel).String(), newStatement(sqlIDs, 1).in(sel).String(),
		newStatement(sqlAudience, 1, 2, 3).in(sel).add(sqlAudienceTail).String()}
	for _, q := range []ListQuery{{}, {Kinds: []string{"slow_io"}, State: "open"}, {Origin: FromTask}, {MinSeverity: "critical"}} {
		for _, c := range []crowd{{all: true}, {ids: make([][16]byte, 2)}, {ids: make([][16]byte, 100)}} {
			p := picking{s: w.s, q: q, crowd: c, tenant: w.a, limit: 5}
			s, _ := p.statement()
			list = append(list, s.String())
		}
	}
	for i, sql := range list {
		if _, err := w.conn.Prepare(context.Background(), fmt.Sprintf("q%d", i), sql); err != nil {
			t.Errorf("%v in\n%s", err, sql)
		}
	}
}
