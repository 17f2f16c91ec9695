package migrations_test

import (
	"context"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/migrations"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// empty answers a database without our schema.
func empty(t *testing.T) string {
	t.Helper()
	dsn := dbtest.DSN(t)
	conn := dbtest.Connect(t, dsn)
	must(t, conn, `drop schema public cascade; create schema public`)
	return dsn
}

func must(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func get[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// set makes a file system of migrations from names and texts in turn.
func set(files ...string) fs.FS {
	m := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		m[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	return m
}

func applyFS(t *testing.T, dsn string, fsys fs.FS) error {
	t.Helper()
	return migrations.ApplyFS(t.Context(), dsn, slog.New(slog.DiscardHandler), fsys, 50*time.Millisecond, 5*time.Millisecond, 20*time.Second)
}

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not say %q: %v", w, err)
		}
	}
}

const (
	one = `create table thing (v int)`
	two = `alter table thing add column w int`
)

func TestApplyInOrderAndOnce(t *testing.T) {
	dsn := empty(t)
	for range 2 {
		if err := applyFS(t, dsn, set("0001_one.sql", one, "0002_two.sql", two)); err != nil {
			t.Fatal(err)
		}
	}
	if err := applyFS(t, dsn, set("0001_one.sql", one, "0002_two.sql", two, "0005_five.sql", `drop table thing`)); err != nil {
		t.Fatal(err)
	}
	conn := dbtest.Connect(t, dsn)
	if got := get[string](t, conn, `select string_agg(name, ' ' order by applied_at, version) from schema_migration`); got != "0001_one.sql 0002_two.sql 0005_five.sql" {
		t.Errorf("applied %s", got)
	}
	if got := get[string](t, conn, `select tableowner from pg_tables where tablename = 'schema_migration'`); got != migrations.OwnerRole {
		t.Errorf("owner %s", got)
	}
}

func TestApplyByManyAtOnce(t *testing.T) {
	dsn := empty(t)
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = applyFS(t, dsn, set("0001_one.sql", one+`; select pg_sleep(0.1)`, "0002_two.sql", two))
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestApplyRefuses(t *testing.T) {
	dsn := empty(t)
	if err := applyFS(t, dsn, set("0001_one.sql", one, "0003_two.sql", two)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files fs.FS
		words []string
	}{
		"a changed file":  {set("0001_one.sql", one+` `, "0003_two.sql", two), []string{"0001_one.sql was changed"}},
		"a newer schema":  {set("0001_one.sql", one), []string{"newer than this program", "0003_two.sql"}},
		"a late file":     {set("0001_one.sql", one, "0002_x.sql", `select 1`, "0003_two.sql", two), []string{"0002_x.sql comes before"}},
		"a failing file":  {set("0001_one.sql", one, "0003_two.sql", two, "0004_bad.sql", "create table half ();\n\nselect nonsense"), []string{"0004_bad.sql", "line 3", "nonsense"}},
		"a badly named":   {set("1_one.sql", one), []string{"NNNN_words.sql"}},
		"a number twice":  {set("0001_one.sql", one, "0001_two.sql", two), []string{"used twice"}},
		"more than owner": {set("0001_one.sql", one, "0003_two.sql", two, "0004_su.sql", `create role telltale_intruder superuser`), []string{"0004_su.sql", "SQLSTATE 42501"}},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, applyFS(t, dsn, c.files), c.words...) })
	}
	if get[bool](t, dbtest.Connect(t, dsn), `select to_regclass('half') is not null`) {
		t.Error("a failed file left its first half")
	}
}

// hold locks the table as an idle transaction of a forgotten client does.
func hold(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c := dbtest.Connect(t, dsn+"&application_name=forgotten")
	must(t, c, `begin; select * from thing`)
	return c
}

func TestApplyBehindAnIdleTransaction(t *testing.T) {
	dsn := empty(t)
	if err := applyFS(t, dsn, set("0001_one.sql", one)); err != nil {
		t.Fatal(err)
	}
	idle := hold(t, dsn)
	waits := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() {
		done <- migrations.ApplyFS(context.Background(), dsn, slog.New(signalHandler{slog.DiscardHandler, waits}),
			set("0001_one.sql", one, "0002_two.sql", two), 50*time.Millisecond, 5*time.Millisecond, 30*time.Second)
	}()
	service := dbtest.Connect(t, dsn)
	for range 3 {
		select {
		case <-waits:
		case err := <-done:
			t.Fatalf("it ended before the lock was free: %v", err)
		case <-time.After(20 * time.Second):
			t.Fatal("no retry")
		}
		// The waiting ALTER holds readers up no longer than its lock_timeout.
		must(t, service, `set statement_timeout = '2s'`)
		get[int](t, service, `select count(*) from thing`)
	}
	must(t, idle, `rollback`)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	get[int](t, service, `select count(w) from thing`)
}

func TestApplyGivesUpAndNamesTheHolder(t *testing.T) {
	dsn := empty(t)
	if err := applyFS(t, dsn, set("0001_one.sql", one)); err != nil {
		t.Fatal(err)
	}
	hold(t, dsn)
	err := migrations.ApplyFS(t.Context(), dsn, slog.New(slog.DiscardHandler), set("0001_one.sql", one, "0002_two.sql", two),
		20*time.Millisecond, 5*time.Millisecond, 500*time.Millisecond)
	wantError(t, err, "gave up after 500ms", "0002_two.sql", "in the way: pid", "forgotten", "idle in transaction")
}

// signalHandler tells of each warning.
type signalHandler struct {
	slog.Handler
	to chan struct{}
}

func (h signalHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h signalHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		select {
		case h.to <- struct{}{}:
		default:
		}
	}
	return nil
}

// A managed database gives its customer no superuser.
func TestApplyWithoutSuperuser(t *testing.T) {
	srv := dbtest.NewServer(t, nil)
	admin := dbtest.Connect(t, srv.DSN("postgres"))
	must(t, admin, `create role deployer login createrole`)
	must(t, admin, `create database managed owner deployer`)
	for range 2 {
		if err := migrations.Apply(t.Context(), dbtest.As(t, srv.DSN("managed"), "deployer"), slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
	}
	must(t, admin, `create database rows owner deployer`)
	if err := applyFS(t, dbtest.As(t, srv.DSN("rows"), "deployer"), set("0001_rows.sql", `create table thing (v int);
		grant select, insert on thing to telltale_jobs;
		set local role telltale_jobs; insert into thing values (1); set local role telltale_owner;
		alter table thing add column w int`)); err != nil {
		t.Errorf("a migration of rows: %v", err)
	}
	must(t, admin, `alter role telltale_app bypassrls`)
	wantError(t, migrations.Apply(t.Context(), srv.DSN("managed"), slog.New(slog.DiscardHandler)), "telltale_app", "NOBYPASSRLS")
}

func TestRoles(t *testing.T) {
	conn := dbtest.Connect(t, dbtest.DSN(t))
	if got := get[int](t, conn, `select count(*) from pg_roles where rolname like 'telltale\_%'
		and not (rolsuper or rolbypassrls or rolcreaterole or rolcreatedb or rolreplication)
		and rolcanlogin = (rolname <> 'telltale_owner')`); got != 4 {
		t.Errorf("%d of 4 roles are as they should be", got)
	}
	if get[bool](t, conn, `select exists (select from pg_auth_members m where m.member::regrole::text like 'telltale\_%')`) {
		t.Error("a role of ours is a member of another and could SET ROLE to it")
	}
	if get[bool](t, conn, `select has_schema_privilege('telltale_app', 'public', 'create')
		or has_database_privilege('telltale_app', current_database(), 'temporary')
		or has_database_privilege('telltale_app', current_database(), 'create')`) {
		t.Error("the application role may create objects")
	}
}
