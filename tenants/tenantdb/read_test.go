package tenantdb_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

func TestQueries(t *testing.T) {
	w := newWorld(t)
	for name, cfg := range map[string]tenantdb.Config{"direct": {DSN: w.dsn}, "through a pooler": {DSN: w.dsn, Pooler: true}} {
		t.Run(name, func(t *testing.T) {
			db := dbtest.Open(t, cfg)
			const sql = `select id from secret where ts >= $1 order by id`
			since := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for range 3 { // the later ones find their statements prepared
				got, err := tenantdb.Query(t.Context(), db, w.a, sql, []any{since}, pgx.RowTo[string])
				if diff := cmp.Diff([]string{"0", "1", "2"}, got); err != nil || diff != "" {
					t.Errorf("%v %s", err, diff)
				}
			}
			got, err := tenantdb.Query(t.Context(), db, tenants.NewTenantID(), sql, []any{since}, pgx.RowTo[string])
			if err != nil || got == nil || len(got) != 0 {
				t.Errorf("stranger: %v, %v", got, err)
			}
			word, found, err := tenantdb.QueryOne(t.Context(), db, w.b, `select word from secret where id = '1'`, nil, pgx.RowTo[string])
			if err != nil || !found || word != "of "+w.b.String() {
				t.Errorf("one: %q, %v, %v", word, found, err)
			}
			if _, found, err = tenantdb.QueryOne(t.Context(), db, w.b, `select word from secret where id = 'none'`, nil, pgx.RowTo[string]); err != nil || found {
				t.Errorf("none: %v, %v", found, err)
			}
			if _, err := tenantdb.Query(t.Context(), db, w.a, `delete from secret returning id`, nil, pgx.RowTo[string]); !fault.Is(err, fault.Internal) && !fault.Is(err, fault.Unavailable) {
				t.Errorf("a query wrote: %v", err)
			}
			// A failed batch leaves the connection fit for the next.
			if got, err := tenantdb.Query(t.Context(), db, w.a, sql, []any{since}, pgx.RowTo[string]); err != nil || len(got) != rowsEach {
				t.Errorf("after a failure: %v, %v", got, err)
			}
			var limits string
			err = db.InTenant(t.Context(), w.a, func(ctx context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, `select concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'))`).Scan(&limits)
			})
			if err != nil || limits != "15s 3s 10s" {
				t.Errorf("limits %q, %v", limits, err)
			}
		})
	}
}

func TestReadIsOneSnapshotOfSettings(t *testing.T) {
	w := newWorld(t)
	db := w.open(t)
	var b pgx.Batch
	var first, second int
	b.Queue(`select count(*) from secret`).QueryRow(func(r pgx.Row) error { return r.Scan(&first) })
	b.Queue(`select count(*) from secret where word = $1`, "of "+w.b.String()).QueryRow(func(r pgx.Row) error { return r.Scan(&second) })
	if err := db.Read(t.Context(), w.b, &b); err != nil || first != rowsEach || second != rowsEach {
		t.Errorf("%d, %d, %v", first, second, err)
	}
}

// TestReadKept: a statement is planned once, for each tenant alike, and sees
// its tenant alone; elsewhere plans are the server's choice.
func TestReadKept(t *testing.T) {
	w := newWorld(t)
	for name, cfg := range map[string]tenantdb.Config{"direct": {DSN: w.dsn, AppConns: 1}, "through a pooler": {DSN: w.dsn, AppConns: 1, Pooler: true}} {
		t.Run(name, func(t *testing.T) {
			db := dbtest.Open(t, cfg)
			const sql = `select word from secret where ts >= $1 order by id limit $2`
			for range 3 {
				for _, tenant := range []tenants.TenantID{w.a, w.b} {
					var b pgx.Batch
					var words []string
					var mode string
					b.Queue(sql, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), 1).Query(func(rows pgx.Rows) (err error) {
						words, err = pgx.CollectRows(rows, pgx.RowTo[string])
						return err
					})
					b.Queue(`select current_setting('plan_cache_mode')`).QueryRow(func(r pgx.Row) error { return r.Scan(&mode) })
					if err := db.ReadKept(t.Context(), tenant, &b); err != nil || mode != "force_generic_plan" {
						t.Errorf("%q, %v", mode, err)
					}
					if diff := cmp.Diff([]string{"of " + tenant.String()}, words); diff != "" {
						t.Error(diff)
					}
				}
			}
			mode, _, err := tenantdb.QueryOne(t.Context(), db, w.a, `select current_setting('plan_cache_mode')`, nil, pgx.RowTo[string])
			if err != nil || mode != "auto" {
				t.Errorf("after it: %q, %v", mode, err)
			}
			var b pgx.Batch
			b.Queue(`delete from secret`)
			if err := db.ReadKept(t.Context(), w.a, &b); err == nil {
				t.Error("a reading wrote")
			}
			if cfg.Pooler {
				return
			}
			var generic, custom int
			plans := func(r pgx.CollectableRow) (int, error) { return 0, r.Scan(&generic, &custom) }
			if _, _, err := tenantdb.QueryOne(t.Context(), db, w.a, `select generic_plans, custom_plans from pg_prepared_statements where statement = $1`, []any{sql}, plans); err != nil || generic != 6 || custom != 0 {
				t.Errorf("planned for all %d times, for one call %d times: %v", generic, custom, err)
			}
		})
	}
}

// TestPlanning: the planner is told of these statements, unless the operator
// tells it otherwise.
func TestPlanning(t *testing.T) {
	w := newWorld(t)
	for params, want := range map[string]string{"": "1.1 off", "&random_page_cost=3": "3 off", "&jit=on": "1.1 on"} {
		db := dbtest.Open(t, tenantdb.Config{DSN: w.dsn + params})
		got, _, err := tenantdb.QueryOne(t.Context(), db, w.a, `select current_setting('random_page_cost') || ' ' || current_setting('jit')`, nil, pgx.RowTo[string])
		if err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", params, got, err, want)
		}
	}
}

func TestCredentialTenant(t *testing.T) {
	w := newWorld(t)
	db := w.open(t)
	for lookup, want := range map[string]tenants.TenantID{"lookup-" + w.a.String(): w.a, "lookup-" + w.b.String(): w.b, "lookup-%": {}, "": {}} {
		got, found, err := db.CredentialTenant(t.Context(), "test", lookup)
		if err != nil || got != want || found == want.IsZero() {
			t.Errorf("%q: %v, %v, %v", lookup, got, found, err)
		}
	}
	if _, found, err := db.CredentialTenant(t.Context(), "other", "lookup-"+w.a.String()); err != nil || found {
		t.Errorf("another kind: %v, %v", found, err)
	}
	if _, _, err := db.CredentialTenant(t.Context(), "test", "lookup\x00"); !fault.Is(err, fault.Invalid) {
		t.Errorf("a zero byte: %v", err)
	}
	if err := db.InTenant(t.Context(), w.a, func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, `delete from token`); return err }); err != nil {
		t.Fatal(err)
	}
	if _, found, _ := db.CredentialTenant(t.Context(), "test", "lookup-"+w.a.String()); found {
		t.Error("the deleted credential still leads to its tenant")
	}
	if _, found, _ := db.CredentialTenant(t.Context(), "test", "lookup-"+w.b.String()); !found {
		t.Error("the other tenant's credential went with it")
	}
}
