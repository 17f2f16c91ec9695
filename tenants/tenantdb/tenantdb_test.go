package tenantdb_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// world is a database with a table of two tenants' secrets.
type world struct {
	dsn  string
	a, b tenants.TenantID
}

const rowsEach = 3

func newWorld(t *testing.T) world {
	t.Helper()
	return fillWorld(t, dbtest.DSN(t))
}

func fillWorld(t *testing.T, dsn string) world {
	t.Helper()
	w := world{dsn: dsn, a: tenants.NewTenantID(), b: tenants.NewTenantID()}
	super := dbtest.Connect(t, w.dsn)
	must(t, super, `set role telltale_owner`)
	must(t, super, `create table secret (tenant_id uuid, ts timestamptz, id text, word text not null, tags jsonb not null default '{}',
			primary key (tenant_id, ts, id)) partition by range (ts);
		select telltale_protect('secret');
		select telltale_make_partition('secret', '2026-01-01', '2026-01-02');
		create view secret_view with (security_invoker = true) as select * from secret;
		grant select on secret_view to telltale_app;
		create table token (tenant_id uuid, token_id text, primary key (tenant_id, token_id));
		select telltale_protect('token');
		create trigger credential after insert or update or delete on token
		for each row execute function telltale_credential('test', 'token_id')`)
	must(t, super, `reset role`)
	for _, tenant := range []tenants.TenantID{w.a, w.b} {
		for i := range rowsEach {
			must(t, super, `insert into secret values ($1, '2026-01-01T12:00Z', $2, $3)`, tenant.String(), fmt.Sprint(i), "of "+tenant.String())
		}
		must(t, super, `insert into token values ($1, $2)`, tenant.String(), "lookup-"+tenant.String())
	}
	must(t, super, `analyze`)
	return w
}

func (w world) open(t *testing.T) *tenantdb.DB {
	t.Helper()
	return dbtest.Open(t, tenantdb.Config{DSN: w.dsn})
}

func must(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// count answers how many secrets a transaction sees, and of how many tenants.
func count(ctx context.Context, tx pgx.Tx) (rows, owners int, err error) {
	err = tx.QueryRow(ctx, `select count(*), count(distinct tenant_id) from secret`).Scan(&rows, &owners)
	return rows, owners, err
}

func TestWhoSeesWhat(t *testing.T) {
	w := newWorld(t)
	db := w.open(t)
	look := func(rows, owners int) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			gotRows, gotOwners, err := count(ctx, tx)
			if gotRows != rows || gotOwners != owners {
				t.Errorf("%d rows of %d tenants, want %d of %d", gotRows, gotOwners, rows, owners)
			}
			return err
		}
	}
	for name, err := range map[string]error{
		"one":       db.InTenant(t.Context(), w.a, look(rowsEach, 1)),
		"stranger":  db.InTenant(t.Context(), tenants.NewTenantID(), look(0, 0)),
		"list":      db.InTenants(t.Context(), []tenants.TenantID{w.a, w.b, w.a}, look(2*rowsEach, 2)),
		"short":     db.InTenants(t.Context(), []tenants.TenantID{w.b}, look(rowsEach, 1)),
		"strangers": db.InTenants(t.Context(), []tenants.TenantID{tenants.NewTenantID()}, look(0, 0)),
		"jobs":      db.Jobs(t.Context(), look(2*rowsEach, 2)),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNoTenantIsRefused(t *testing.T) {
	db := newWorld(t).open(t)
	never := func(context.Context, pgx.Tx) error { t.Error("it ran"); return nil }
	many := make([]tenants.TenantID, tenantdb.MaxTenants+1)
	for i := range many {
		many[i] = tenants.NewTenantID()
	}
	_, qErr := tenantdb.Query(t.Context(), db, tenants.TenantID{}, `select 1`, nil, pgx.RowTo[int])
	for name, c := range map[string]struct {
		err  error
		kind fault.Kind
	}{
		"zero":         {db.InTenant(t.Context(), tenants.TenantID{}, never), fault.Internal},
		"zero in list": {db.InTenants(t.Context(), []tenants.TenantID{tenants.NewTenantID(), {}}, never), fault.Internal},
		"empty list":   {db.InTenants(t.Context(), nil, never), fault.Internal},
		"long list":    {db.InTenants(t.Context(), many, never), fault.Exhausted},
		"query":        {qErr, fault.Internal},
	} {
		if !fault.Is(c.err, c.kind) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

func TestCommitAndRollback(t *testing.T) {
	w := newWorld(t)
	db := w.open(t)
	add := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into secret values ($1, '2026-01-01T13:00Z', 'new', 'x')`, w.a.String())
		return err
	}
	rows := func() (n int) {
		t.Helper()
		if err := db.InTenant(t.Context(), w.a, func(ctx context.Context, tx pgx.Tx) (err error) { n, _, err = count(ctx, tx); return err }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	own := errors.New("own")
	err := db.InTenant(t.Context(), w.a, func(ctx context.Context, tx pgx.Tx) error { return errors.Join(add(ctx, tx), own) })
	if !errors.Is(err, own) || rows() != rowsEach {
		t.Errorf("after an error of its own: %v, %d rows", err, rows())
	}
	func() {
		defer func() {
			if recover() != own {
				t.Error("the panic was swallowed")
			}
		}()
		_ = db.InTenant(t.Context(), w.a, func(ctx context.Context, tx pgx.Tx) error { _ = add(ctx, tx); panic(own) })
	}()
	if rows() != rowsEach {
		t.Errorf("after a panic: %d rows", rows())
	}
	if err := db.InTenant(t.Context(), w.a, add); err != nil || rows() != rowsEach+1 {
		t.Errorf("after a commit: %v, %d rows", err, rows())
	}
	if err := db.InTenant(t.Context(), w.a, add); !fault.Is(err, fault.Conflict) || !tenantdb.Violated(err, "secret_20260101_000000_pkey") {
		t.Errorf("the same key again: %v", err)
	}
	// The row of another tenant cannot be written either.
	for name, tenant := range map[string]tenants.TenantID{"app": w.b} {
		if err := db.InTenant(t.Context(), tenant, add); !fault.Is(err, fault.Internal) {
			t.Errorf("%s wrote for another tenant: %v", name, err)
		}
		if err := db.InTenants(t.Context(), []tenants.TenantID{tenant}, add); !fault.Is(err, fault.Internal) {
			t.Errorf("%s wrote for another tenant: %v", name, err)
		}
	}
	for _, s := range db.Stats() {
		if s.InUse != 0 {
			t.Errorf("%s still holds %d connections", s.Role, s.InUse)
		}
	}
}

// Many callers of two tenants share two connections, in every way there is to
// ask, with failures and give-ups between. None may see the other's rows.
func TestTenantsNeverMeet(t *testing.T) {
	w := newWorld(t)
	db := dbtest.Open(t, tenantdb.Config{DSN: w.dsn, AppConns: 2})
	own := func(me tenants.TenantID, ids []string) {
		if len(ids) != rowsEach {
			t.Errorf("%d rows, want %d", len(ids), rowsEach)
		}
		for _, id := range ids {
			if id != me.String() {
				t.Errorf("%v saw a row of %v", me, id)
			}
		}
	}
	const all = `select tenant_id::text from secret`
	ways := []func(context.Context, tenants.TenantID){
		func(ctx context.Context, me tenants.TenantID) {
			if ids, err := tenantdb.Query(ctx, db, me, all, nil, pgx.RowTo[string]); err != nil {
				t.Error(err)
			} else {
				own(me, ids)
			}
		},
		func(ctx context.Context, me tenants.TenantID) {
			err := db.InTenant(ctx, me, func(ctx context.Context, tx pgx.Tx) error {
				rows, err := tx.Query(ctx, all)
				if err != nil {
					return err
				}
				ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
				own(me, ids)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		},
		func(ctx context.Context, me tenants.TenantID) { // fails inside
			_ = db.InTenant(ctx, me, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `select 1/0`)
				return err
			})
			_, _ = tenantdb.Query(ctx, db, me, `select 1/0`, nil, pgx.RowTo[int])
		},
		func(ctx context.Context, me tenants.TenantID) { // ends the transaction behind our back
			_ = db.InTenant(ctx, me, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `commit`)
				if err == nil {
					var n int
					if err = tx.QueryRow(ctx, `select count(*) from secret`).Scan(&n); n != 0 {
						t.Errorf("the tenant outlived its transaction: %d rows", n)
					}
				}
				return err
			})
		},
		func(ctx context.Context, me tenants.TenantID) { // gives up in the middle
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, _ = tenantdb.Query(ctx, db, me, `select pg_sleep(0.005)::text`, nil, pgx.RowTo[string])
		},
	}
	var wg sync.WaitGroup
	for g := range 8 {
		me := []tenants.TenantID{w.a, w.b}[g%2]
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 60 {
				ways[r.IntN(len(ways))](t.Context(), me)
			}
		})
	}
	wg.Wait()
}

func TestOpenRefusesWrongLogins(t *testing.T) {
	dsn := dbtest.DSN(t)
	_, err := tenantdb.Open(t.Context(), tenantdb.Config{DSN: dsn, AppDSN: dsn}, nil)
	if !fault.Is(err, fault.Precondition) || !strings.Contains(err.Error(), "bypasses") {
		t.Errorf("the superuser as telltale_app: %v", err)
	}
	_, err = tenantdb.Open(t.Context(), tenantdb.Config{DSN: dsn, AppDSN: dbtest.As(t, dsn, "telltale_ingest")}, nil)
	if !fault.Is(err, fault.Precondition) || !strings.Contains(err.Error(), "no member") {
		t.Errorf("telltale_ingest as telltale_app: %v", err)
	}
	_, err = tenantdb.Open(t.Context(), tenantdb.Config{DSN: dsn, AppDSN: dbtest.As(t, dsn, "nobody_here")}, nil)
	if f := fault.Of(err); f.Kind != fault.Precondition || !strings.Contains(f.Next, "telltaled migrate") {
		t.Errorf("an unknown role: %v", err)
	}
	_, err = tenantdb.Open(t.Context(), tenantdb.Config{DSN: "postgres://u:hunter2@h:port/x"}, nil)
	if !fault.Is(err, fault.Invalid) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a bad connection string: %v", err)
	}
}
