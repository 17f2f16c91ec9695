package metrics

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
	parts := func() int64 { return w.count(`select count(*) from telltale_partitions('win')`) }
	if g := w.s.Gauges(); parts() != 0 || g.PartitionsAhead != 0 {
		t.Fatalf("%d partitions at the start, gauges %+v", parts(), g)
	}
	node := w.node(w.a, "n1")
	w.fill(node, 1, 1) // the writer makes what is missing
	if got := parts(); got != 1 {
		t.Errorf("%d partitions after a write", got)
	}
	for range 2 {
		if err := w.s.maintain(ctx); err != nil {
			t.Fatal(err)
		}
		if g := w.s.Gauges(); parts() != 4 || g.PartitionsAhead != 3 || g.OldestKept != 30*time.Minute || g.Maintained.IsZero() {
			t.Errorf("%d partitions, gauges %+v", parts(), g)
		}
	}
	w.advance(6*time.Hour + 29*time.Minute)
	if err := w.s.maintain(ctx); err != nil {
		t.Fatal(err)
	}
	if got := w.count(`select count(*) from win`); got != 1 {
		t.Errorf("a window was dropped before its whole hour was past retention: %d", got)
	}
	w.advance(2 * time.Minute)
	if err := w.s.maintain(ctx); err != nil {
		t.Fatal(err)
	}
	if got := w.count(`select count(*) from win`); got != 0 {
		t.Errorf("%d windows past retention", got)
	}
	if g := w.s.Gauges(); g.OldestKept > tenants.WindowRetention+time.Hour || g.PartitionsAhead != 3 {
		t.Errorf("gauges %+v", g)
	}
	if got := w.count(`select count(*) from pg_class c join pg_inherits i on i.inhrelid = c.oid where i.inhparent = 'win'::regclass and not (relrowsecurity and relforcerowsecurity)`); got != 0 {
		t.Errorf("%d partitions without row-level security", got)
	}
}

// TestWriterMendsAPartitionThatWasDropped: the writer's memory says that the
// partition exists, and it does not.
func TestWriterMendsAPartitionThatWasDropped(t *testing.T) {
	w := newWorld(t)
	node := w.node(w.a, "n1")
	w.fill(node, 1, 1)
	w.exec(fmt.Sprintf("drop table win_%s", w.now().Truncate(time.Hour).Format("20060102_150405")))
	if o := w.write(w.check(node, report(1, 2, netLayout(), w.now(), netValues(1))))[0]; o.Status != Stored {
		t.Errorf("%+v", o)
	}
	if g := w.s.Gauges(); g.Splits != 0 {
		t.Error("the batch was split for it")
	}
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
	if g := w.s.Gauges(); g.PartitionsAhead != 0 {
		t.Errorf("worked while another replica held the lock: %+v", g)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	stop, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() { done <- w.s.Run(stop) }()
	deadline := time.Now().Add(20 * time.Second)
	for w.s.Gauges().PartitionsAhead != 3 {
		if time.Now().After(deadline) {
			t.Fatal("Run made no partitions")
		}
		w.count(`select 1`)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestPrepare holds every statement to the migrated schema.
func TestPrepare(t *testing.T) {
	w := newWorld(t)
	sel := tenants.Selector{Labels: map[string]string{"a": "b", "c": "d"}, IDs: []tenants.NodeID{tenants.NewNodeID()}}
	scope := reader(w.a, sel)
	heads := &scoped{args: []any{1, 2, 3, 4, 5}}
	heads.sql.WriteString(sqlTopHeads + sqlOnlyOf)
	heads.in(sel)
	heads.sql.WriteString(")" + sqlTopHeadsTail)
	for i, sql := range []string{
		sqlPutLayout, sqlLayoutHash, sqlLayoutByHash, sqlUseLayout, sqlUseLayouts, sqlDropLayouts, sqlOpen, sqlSkip, sqlLockHeads, sqlInsertWin, sqlMoveHeads, sqlKeepOut,
		sqlMaintainLock, sqlOff, sqlWindows, sqlLayouts, sqlSignals, sqlCountNodes, sqlCountHeads + sqlNotRevoked, heads.sql.String(), targetsHead(scope, "", start).sql.String() + sqlSilent,
		targetsQuery(scope, "", sel.Labels, "", start).sql.String(), targetsQuery(scope, "x", nil, "", start).sql.String(),
		targetsQuery(scope, tenants.NewNodeID().String(), nil, "g", start).sql.String(),
	} {
		if _, err := w.conn.Prepare(context.Background(), fmt.Sprintf("q%d", i), sql); err != nil {
			t.Errorf("%v in\n%s", err, sql)
		}
	}
}
