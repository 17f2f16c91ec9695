package tenantdb_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

func TestFault(t *testing.T) {
	code := func(c string) error {
		return fmt.Errorf("attempt: %w", &pgconn.PgError{Code: c, Message: "internal text"})
	}
	for _, c := range []struct {
		err    error
		kind   fault.Kind
		reason string
	}{
		{code("23505"), fault.Conflict, "already_exists"},
		{code("23P01"), fault.Conflict, "already_exists"},
		{code("23503"), fault.Conflict, "reference"},
		{code("22021"), fault.Invalid, "invalid_text"},
		{code("22P05"), fault.Invalid, "invalid_text"},
		{code("57014"), fault.Deadline, "database_deadline"},
		{code("25P03"), fault.Deadline, "database_deadline"},
		{code("55P03"), fault.Unavailable, "database_busy"},
		{code("40P01"), fault.Unavailable, "database_busy"},
		{code("25006"), fault.Unavailable, "database_read_only"},
		{code("57P01"), fault.Unavailable, "database_unavailable"},
		{code("57P03"), fault.Unavailable, "database_unavailable"},
		{code("53300"), fault.Unavailable, "database_unavailable"},
		{code("08006"), fault.Unavailable, "database_unavailable"},
		{code("42501"), fault.Internal, "database"},
		{code("42P01"), fault.Internal, "database"},
		{code("23514"), fault.Internal, "database"},
		{fmt.Errorf("x: %w", pgx.ErrNoRows), fault.NotFound, "not_found"},
		{context.DeadlineExceeded, fault.Deadline, "database_deadline"},
		{context.Canceled, fault.Deadline, "canceled"},
		{io.ErrUnexpectedEOF, fault.Unavailable, "database_unavailable"},
	} {
		got := fault.Of(tenantdb.Fault(c.err))
		if got.Kind != c.kind || got.Reason != c.reason || !errors.Is(got, c.err) {
			t.Errorf("%v → %v %s, want %v %s", c.err, got.Kind, got.Reason, c.kind, c.reason)
		}
		if got.Msg == "" || got.Msg == "internal text" {
			t.Errorf("%v → message %q", c.err, got.Msg)
		}
	}
	own := errors.New("not of the database")
	known := fault.New(fault.Denied, "r", "m")
	for _, err := range []error{nil, own, known, fmt.Errorf("wrapped: %w", known)} {
		if got := tenantdb.Fault(err); got != err {
			t.Errorf("%v → %v", err, got)
		}
	}
}

func TestWaitsEnd(t *testing.T) {
	w := newWorld(t)
	db := dbtest.Open(t, tenantdb.Config{DSN: w.dsn, AppConns: 1, Statement: 300 * time.Millisecond, Lock: 50 * time.Millisecond, Idle: 100 * time.Millisecond})
	run := func(ctx context.Context, sql string) error {
		return db.InTenant(ctx, w.a, func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, sql); return err })
	}
	if err := run(t.Context(), `select pg_sleep(30)`); !fault.Is(err, fault.Deadline) {
		t.Errorf("a long statement: %v", err)
	}
	if _, err := tenantdb.Query(t.Context(), db, w.a, `select pg_sleep(30)::text`, nil, pgx.RowTo[string]); !fault.Is(err, fault.Deadline) {
		t.Errorf("a long query: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := run(short, `select pg_sleep(30)`); !fault.Is(err, fault.Deadline) {
		t.Errorf("a caller's deadline: %v", err)
	}

	holder := dbtest.Connect(t, w.dsn)
	must(t, holder, `begin; lock table secret`)
	if err := run(t.Context(), `select * from secret`); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a held lock: %v", err)
	}
	must(t, holder, `rollback`)

	// One that sits in its transaction loses it.
	err := db.InTenant(t.Context(), w.a, func(ctx context.Context, tx pgx.Tx) error {
		wait, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		admin := dbtest.Connect(t, w.dsn)
		for n := 1; n > 0; {
			if err := admin.QueryRow(wait, `select count(*) from pg_stat_activity where datname = current_database() and usename = 'telltale_app'`).Scan(&n); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, `select 1`)
		return err
	})
	if !fault.Is(err, fault.Deadline) && !fault.Is(err, fault.Unavailable) {
		t.Errorf("an idle transaction: %v", err)
	}

	// The only connection is in use.
	err = db.InTenant(t.Context(), w.a, func(ctx context.Context, _ pgx.Tx) error {
		ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		return run(ctx, `select 1`)
	})
	if f := fault.Of(err); f.Kind != fault.Unavailable || f.Reason != "database_busy" {
		t.Errorf("no free connection: %v", err)
	}
	if err := run(t.Context(), `select 1`); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// The postmaster is killed under load: every failure in between is
// Unavailable, and then the same pool works again.
func TestPoolOutlivesTheServer(t *testing.T) {
	srv := dbtest.NewServer(t, nil)
	w := fillWorld(t, srv.Database())
	db := w.open(t)
	look := func(ctx context.Context) error {
		_, err := tenantdb.Query(ctx, db, w.a, `select id from secret`, nil, pgx.RowTo[string])
		return err
	}
	calls := []func(context.Context) error{
		look,
		func(ctx context.Context) error {
			return db.InTenant(ctx, w.a, func(ctx context.Context, tx pgx.Tx) error { _, _, err := count(ctx, tx); return err })
		},
		func(ctx context.Context) error {
			return db.InTenants(ctx, []tenants.TenantID{w.a, w.b}, func(ctx context.Context, tx pgx.Tx) error { _, _, err := count(ctx, tx); return err })
		},
		db.Ping,
	}
	for _, call := range calls {
		if err := call(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	err := db.InTenant(t.Context(), w.a, func(ctx context.Context, tx pgx.Tx) error {
		srv.Kill()
		for {
			if _, err := tx.Exec(ctx, `select 1`); err != nil {
				return err
			}
		}
	})
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("in a transaction: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for i, call := range calls {
		for {
			err := call(ctx)
			if err == nil {
				break
			}
			if !fault.Is(err, fault.Unavailable) {
				t.Fatalf("call %d: %v", i, err)
			}
		}
	}
}
