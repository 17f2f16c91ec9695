package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// options are the waits of one run; tests shorten them.
type options struct {
	lockTimeout time.Duration // one wait for a lock; others queue behind it, so it is short
	backoff     time.Duration // first pause after a refused lock, doubled up to 16 times
	deadline    time.Duration // all waits for the locks of one migration
}

var standard = options{lockTimeout: time.Second, backoff: 250 * time.Millisecond, deadline: 5 * time.Minute}

// lockKey is the advisory lock that one migrating process holds at a time.
const lockKey = 0x7e117a1e

// Apply makes the roles, then runs every migration that the database lacks.
// dsn names a user that may create roles and owns the database (or is a
// superuser); it must lead to PostgreSQL itself, not to a transaction pooler.
//
// Several processes may call it at once: one works, the others wait and find
// nothing left to do. A statement that cannot get its lock within a second is
// rolled back and tried again with growing pauses, so that the service keeps
// answering meanwhile; after five minutes of this Apply gives up and names the
// sessions in its way. What a migration does once it has its locks takes its
// time; ctx alone ends it. Apply refuses a database that is newer than this program
// and one whose applied files differ from this program's.
func Apply(ctx context.Context, dsn string, log *slog.Logger) error {
	return apply(ctx, dsn, log, files, standard)
}

func apply(ctx context.Context, dsn string, log *slog.Logger, fsys fs.FS, opt options) error {
	all, err := load(fsys)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to migrate: %w", err)
	}
	defer func() {
		closing, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		_ = conn.Close(closing)
	}()
	r := &run{conn: conn, log: log, opt: opt, all: all}
	if err := r.retry(ctx, "prepare roles", func() error { return prepare(ctx, conn) }); err != nil {
		return err
	}
	for {
		more := false
		err := r.retry(ctx, "migrate", func() (err error) {
			more, err = r.step(ctx)
			return err
		})
		if err != nil || !more {
			return err
		}
	}
}

func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["application_name"] = "telltale migrate"
	cfg.ConnectTimeout = 10 * time.Second
	return pgx.ConnectConfig(ctx, cfg)
}

type run struct {
	conn *pgx.Conn
	log  *slog.Logger
	opt  options
	all  []migration
}

// step applies the next missing migration and reports whether there may be
// another. All it does, its look at what is applied included, happens in one
// transaction under the advisory lock.
func (r *run) step(ctx context.Context) (more bool, err error) {
	tx, err := r.conn.Begin(ctx)
	if err != nil {
		return false, fmt.Errorf("begin: %w", err)
	}
	defer func() {
		undo, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		_ = tx.Rollback(undo) // no-op after the commit
	}()
	setup := fmt.Sprintf(`set local lock_timeout = %d; set local statement_timeout = 0;
		set local role %s; set local search_path = public, pg_temp; select pg_advisory_xact_lock(%d)`,
		r.opt.lockTimeout.Milliseconds(), OwnerRole, lockKey)
	if _, err := tx.Exec(ctx, setup); err != nil {
		return false, fmt.Errorf("take the migration lock: %w", err)
	}
	next, err := r.next(ctx, tx)
	if err != nil || next == nil {
		return false, err
	}
	began := time.Now()
	if _, err := tx.Exec(ctx, next.sql); err != nil {
		return false, fmt.Errorf("%s: %w", next.name, explain(err, next.sql))
	}
	_, err = tx.Exec(ctx, `insert into public.schema_migration (version, name, checksum, applied_at) values ($1, $2, $3, $4)`,
		next.version, next.name, next.checksum, began)
	if err != nil {
		return false, fmt.Errorf("record %s: %w", next.name, err)
	}
	if err := tx.Commit(ctx); err != nil {
		return false, fmt.Errorf("commit %s: %w", next.name, err)
	}
	r.log.Info("migration applied", "file", next.name, "took", time.Since(began).Round(time.Millisecond))
	return true, nil
}

// next answers the first migration that is not applied, or nil.
func (r *run) next(ctx context.Context, tx pgx.Tx) (*migration, error) {
	var exists bool
	if err := tx.QueryRow(ctx, `select to_regclass('public.schema_migration') is not null`).Scan(&exists); err != nil {
		return nil, fmt.Errorf("look for applied migrations: %w", err)
	}
	if !exists {
		_, err := tx.Exec(ctx, `create table public.schema_migration (
			version int primary key, name text not null, checksum text not null, applied_at timestamptz not null);
			grant select on public.schema_migration to `+AppRole+`, `+IngestRole+`, `+JobsRole)
		if err != nil {
			return nil, fmt.Errorf("create schema_migration: %w", err)
		}
	}
	rows, err := tx.Query(ctx, `select version, name, checksum from public.schema_migration order by version`)
	if err != nil {
		return nil, fmt.Errorf("read applied migrations: %w", err)
	}
	applied, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m migration, err error) {
		return m, row.Scan(&m.version, &m.name, &m.checksum)
	})
	if err != nil {
		return nil, fmt.Errorf("read applied migrations: %w", err)
	}
	return pending(r.all, applied)
}

// pending compares the program's files with the applied ones.
func pending(all, applied []migration) (*migration, error) {
	ours := map[int]*migration{}
	for i := range all {
		ours[all[i].version] = &all[i]
	}
	done := map[int]bool{}
	last := 0
	for _, a := range applied {
		m := ours[a.version]
		switch {
		case m == nil:
			return nil, fmt.Errorf("the database is newer than this program: it has %s; run a newer telltaled", a.name)
		case m.checksum != a.checksum:
			return nil, fmt.Errorf("%s was changed after it had been applied (as %s): restore the file, put the change into a new one", m.name, a.name)
		}
		done[a.version], last = true, a.version
	}
	for i := range all {
		if m := &all[i]; !done[m.version] {
			if m.version < last {
				return nil, fmt.Errorf("%s comes before an applied migration (%d): give it a higher number", m.name, last)
			}
			return m, nil
		}
	}
	return nil, nil
}

// retry runs do until it succeeds, fails for another reason than a lock that
// somebody else holds, or its time is over.
func (r *run) retry(ctx context.Context, what string, do func() error) error {
	pause, began := r.opt.backoff, time.Now()
	for {
		err := do()
		if err == nil || !blocked(err) {
			return err
		}
		if time.Since(began) > r.opt.deadline {
			return fmt.Errorf("%s: gave up after %v: %w; in the way: %s; end that and run it again", what, r.opt.deadline, err, r.holders(ctx))
		}
		r.log.Warn("waiting for a lock", "doing", what, "pause", pause, "err", err)
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%s: %w while waiting for a lock: %w", what, context.Cause(ctx), err)
		}
		pause = min(2*pause, 16*r.opt.backoff)
	}
}

// blocked reports whether err says that another session was in the way.
func blocked(err error) bool {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return false
	}
	return pe.Code == "55P03" || pe.Code == "40P01" || pe.Code == "XX000" && strings.Contains(pe.Message, "tuple concurrently updated")
}

// holders names the sessions with the oldest open transactions.
func (r *run) holders(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	rows, err := r.conn.Query(ctx, `select format('pid %s (%s, %s, %s since %s)', pid, usename, coalesce(nullif(application_name, ''), 'no name'), state, xact_start)
		from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
		order by xact_start limit 3`)
	if err != nil {
		return "unknown"
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		return "no open transaction any more"
	}
	return strings.Join(names, ", ")
}

// explain adds the line of the file to a database error.
func explain(err error, sql string) error {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) || pe.Position <= 0 {
		return err
	}
	runes := []rune(sql)
	at := min(int(pe.Position)-1, len(runes))
	return fmt.Errorf("line %d: %w", 1+strings.Count(string(runes[:at]), "\n"), err)
}
