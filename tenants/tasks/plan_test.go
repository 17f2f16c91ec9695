package tasks

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// What calls and loops ask all the time stays on its indexes under the row
// policies, with a week of tasks in the tables.
func TestQueriesUseTheirIndexes(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.exec(`insert into task (tenant_id, task_id, kind, args, principal_kind, principal_id, principal_name, scopes, slot, nodes, created_at, start_before, deadline_at, expires_at, state, ended_at)
		select $1, gen_random_uuid(), 'trace_drops', '{}', 'token', 't', '', '{}', i % 100, 1, $2::timestamptz, $2, $2, $2::timestamptz + interval '1 day', 'COMPLETED',
		case when i > 100 then $2 end from generate_series(1, 20000) i`, [16]byte(w.a), start)
	w.exec(`insert into task_run (tenant_id, task_id, node_id, name, state, start_before, deadline_at, ended_at)
		select tenant_id, task_id, $1, 'n1', case when ended_at is null then 'CREATED' else 'COMPLETED' end, start_before, deadline_at, ended_at from task`, [16]byte(w.n1.id))
	w.exec(`analyze task, task_run`)
	var id [16]byte
	w.must(w.conn.QueryRow(ctx, `select task_id from task limit 1`).Scan(&id))
	conns := map[string]*pgx.Conn{}
	for _, role := range []string{"telltale_app", "telltale_ingest", "telltale_jobs"} {
		conns[role] = dbtest.Connect(t, dbtest.As(t, w.dsn, role))
		if _, err := conns[role].Exec(ctx, `select set_config('telltale.tenant', $1, false), set_config('telltale.tenants', $1, false)`, w.a.String()); err != nil {
			t.Fatal(err)
		}
	}
	a, n := [16]byte(w.a), [16]byte(w.n1.id)
	as, ids := [][16]byte{a}, [][16]byte{id}
	for _, c := range []struct {
		role, sql string
		args      []any
	}{
		{"telltale_app", sqlTask, []any{a, id}},
		{"telltale_app", sqlRuns + sqlRunsTail, []any{a, id}},
		{"telltale_app", sqlStates, []any{a, id}},
		{"telltale_app", sqlList + sqlListAll + " order by t.task_id desc limit 50", []any{a, start}},
		{"telltale_app", sqlCountActive, []any{a}},
		{"telltale_ingest", sqlOfNode, []any{a, n, ids}},
		{"telltale_ingest", sqlUnclaimed, []any{as, start}},
		{"telltale_ingest", sqlEnded, []any{as, ids, [][16]byte{n}}},
		{"telltale_ingest", sqlSignatures, []any{as, ids, reasonLost}},
		{"telltale_jobs", sqlDue, []any{start, start, start}},
		{"telltale_jobs", sqlStandings, []any{a, id}},
	} {
		rows, err := conns[c.role].Query(ctx, "explain (costs off) "+c.sql, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%v\n%s", err, c.sql)
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan on task") || !strings.Contains(text, "Index") {
			t.Errorf("%s\n%s", c.sql, text)
		}
	}
}
