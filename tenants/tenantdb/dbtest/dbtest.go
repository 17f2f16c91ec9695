// Package dbtest gives each test a database of its own on a real PostgreSQL.
//
// A test binary starts one private server when its first test asks, on a copy
// of a cluster that holds a migrated template database; the cluster is built
// once for each set of migrations and kept in the temporary directory. Each
// test's database is cloned from the template and dropped at its end. The
// server ends with the test binary, killed or not, and its directory is
// removed then. No TestMain is needed. It knows no slice. Start at New.
package dbtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/migrations"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/localpg"
)

const (
	template = "telltale_template"
	patience = 60 * time.Second // for any single step
)

// shared is the server of this test binary. It has to outlive single tests,
// and tests have no common owner to hand it down: hence the package variable.
var shared struct {
	once sync.Once
	srv  *localpg.Server
	err  error
}

var serial atomic.Int64 // numbers the databases

// New answers the tenantdb of a fresh migrated database. Pool and database are
// gone when the test and its subtests have ended. It may be called many times
// in a test and by parallel tests.
func New(t testing.TB) *tenantdb.DB {
	t.Helper()
	return Open(t, tenantdb.Config{DSN: DSN(t)})
}

// DSN answers the superuser's connection string of a fresh migrated database,
// for tests that need two pools on it, or the owner's view.
func DSN(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() { shared.srv, _, shared.err = startCopy(nil) })
	if shared.err != nil {
		t.Fatalf("start PostgreSQL for the tests: %v", shared.err)
	}
	return clone(t, shared.srv)
}

// Open opens a pool that closes with the test. Zero pool sizes become small
// ones.
func Open(t testing.TB, cfg tenantdb.Config) *tenantdb.DB {
	t.Helper()
	if cfg.AppConns == 0 {
		cfg.AppConns = 4
	}
	if cfg.IngestConns == 0 {
		cfg.IngestConns = 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := tenantdb.Open(ctx, cfg, quiet())
	if err != nil {
		t.Fatalf("open the test database: %v", err)
	}
	t.Cleanup(db.Close)
	return db
}

// Connect opens a plain connection that closes with the test: with DSN's
// string a superuser's, whom no row policy binds. For arranging and checking,
// never as the code under test.
func Connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connect to the test database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// As answers dsn with another user, for example migrations.AppRole.
func As(t testing.TB, dsn, user string) string {
	t.Helper()
	return withUser(t, dsn, user)
}

func clone(t testing.TB, srv *localpg.Server) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", serial.Add(1))
	// file_copy forces checkpoints, which are cheap without fsync, but block
	// parallel tests; wal_log took half as long with eight at a time.
	admin(t, srv, "create database "+name+" template "+template+" strategy wal_log", "revoke temporary on database "+name+" from public")
	t.Cleanup(func() { admin(t, srv, "drop database if exists "+name+" with (force)") })
	return srv.DSN(name)
}

func admin(t testing.TB, srv *localpg.Server, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, srv.DSN("postgres"))
	if err != nil {
		t.Errorf("connect to the test server: %v", err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// migrate builds the template on a running server.
func migrate(ctx context.Context, srv *localpg.Server) error {
	if err := srv.CreateDatabase(ctx, template); err != nil {
		return err
	}
	return migrations.Apply(ctx, srv.DSN(template), quiet())
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }
