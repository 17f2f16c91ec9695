// Package tenantdb owns the connections to PostgreSQL and the one way to use
// them: a transaction in which the tenants it may see are set, so that
// row-level security answers for everything a query forgets.
//
// Three roles, three pools: the application role sees one tenant (InTenant,
// Query, Read, Write), the ingest role a list of tenants (InTenants, WriteAll),
// the jobs role all of them (Jobs). Pools are not handed out: no statement runs without one
// of these. Whatever text reaches a query must be a parameter; the settings are
// a net below the code, not a wall against SQL written by a caller, who could
// set another tenant himself.
//
// The package knows no table. Start at Open, then InTenant and Query.
package tenantdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// The login roles; migrations make them.
const (
	appRole    = "telltale_app"
	ingestRole = "telltale_ingest"
	jobsRole   = "telltale_jobs"
)

// Config says how to reach the database. Zero values ask for the defaults.
//
// DSN is the base: each pool connects with it as its own role, with the same
// host, database, password and TLS settings (a password file with a line for
// each role works). AppDSN, IngestDSN and JobsDSN replace it for one pool, for
// databases where each role has its own password or another name; such a user
// must be a member of the role that migrations made. Pools log in as their
// role and never say SET ROLE, which a statement could take back.
type Config struct {
	DSN       string
	AppDSN    string
	IngestDSN string
	JobsDSN   string
	ListenDSN string // of the Bus, which no pooler in transaction mode can carry; empty: as the application pool

	AppConns    int // most connections of the application pool; 0 is 8
	IngestConns int // of the ingest pool; 0 is 4
	JobsConns   int // of the jobs pool; 0 is 2

	Statement time.Duration // longest statement; 0 is 15 s, for jobs four times that
	Lock      time.Duration // longest wait for a lock; 0 is 3 s
	Idle      time.Duration // longest pause inside a transaction; 0 is 10 s

	// Pooler says that a pooler in transaction mode (pgbouncer) stands
	// between: no prepared statements, and the limits above are set in each
	// transaction.
	Pooler bool
}

// DB is the database as its tenants see it. It is safe for concurrent use.
type DB struct {
	app, ingest, jobs *pool
	log               *slog.Logger

	reads, statements atomic.Uint64 // see ReadCounts
}

// pool is one role's connections with the limits that its transactions carry.
type pool struct {
	*pgxpool.Pool
	role  string
	limit time.Duration // bounds a call whose context has no earlier deadline
	// The limits as statements, where connections do not carry them.
	begin    string   // to follow BEGIN
	perBatch []string // to lead a batch
}

// Open makes the pools and checks that each role can log in and cannot bypass
// row-level security. ctx bounds the check. Close the result.
func Open(ctx context.Context, cfg Config, log *slog.Logger) (*DB, error) {
	cfg.fill()
	db := &DB{log: log}
	for _, p := range []struct {
		to        **pool
		role, dsn string
		conns     int
		statement time.Duration
	}{
		{&db.app, appRole, cfg.AppDSN, cfg.AppConns, cfg.Statement},
		{&db.ingest, ingestRole, cfg.IngestDSN, cfg.IngestConns, cfg.Statement},
		{&db.jobs, jobsRole, cfg.JobsDSN, cfg.JobsConns, 4 * cfg.Statement},
	} {
		opened, err := cfg.open(ctx, p.role, p.dsn, p.conns, p.statement)
		if err != nil {
			db.Close()
			return nil, err
		}
		*p.to = opened
		if err := opened.check(ctx); err != nil {
			db.Close()
			return nil, err
		}
	}
	return db, nil
}

func (c *Config) fill() {
	c.AppConns = or(c.AppConns, 8)
	c.IngestConns = or(c.IngestConns, 4)
	c.JobsConns = or(c.JobsConns, 2)
	c.Statement = or(c.Statement, 15*time.Second)
	c.Lock = or(c.Lock, 3*time.Second)
	c.Idle = or(c.Idle, 10*time.Second)
}

func or[T int | time.Duration](v, otherwise T) T {
	if v <= 0 {
		return otherwise
	}
	return v
}

func (c *Config) open(ctx context.Context, role, dsn string, conns int, statement time.Duration) (*pool, error) {
	own := dsn != ""
	if !own {
		dsn = c.DSN
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The parser's error may show the connection string's password.
		return nil, fault.Newf(fault.Invalid, "bad_dsn", "the connection string for %s cannot be read", role)
	}
	if !own {
		cfg.ConnConfig.User = role
	}
	cfg.MaxConns, cfg.MinConns = int32(conns), 0
	cfg.MaxConnLifetime, cfg.MaxConnLifetimeJitter = time.Hour, 6*time.Minute
	cfg.MaxConnIdleTime = 10 * time.Minute
	cfg.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		return p.IdleDuration > pingAfter || !silent(p.Conn.PgConn().Conn())
	}
	cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	limits := map[string]time.Duration{
		"statement_timeout":                   statement,
		"lock_timeout":                        c.Lock,
		"idle_in_transaction_session_timeout": c.Idle,
	}
	p := &pool{role: role, limit: statement + 5*time.Second}
	if c.Pooler {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		cfg.ConnConfig.StatementCacheCapacity = 0
		for _, k := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
			p.begin += fmt.Sprintf("; set local %s = %d", k, limits[k].Milliseconds())
			p.perBatch = append(p.perBatch, fmt.Sprintf("select set_config('%s', '%d', true)", k, limits[k].Milliseconds()))
		}
	} else {
		for k, d := range limits {
			cfg.ConnConfig.RuntimeParams[k] = strconv.FormatInt(d.Milliseconds(), 10)
		}
		for k, v := range planning {
			if _, set := cfg.ConnConfig.RuntimeParams[k]; !set { // the DSN's word counts
				cfg.ConnConfig.RuntimeParams[k] = v
			}
		}
		cfg.ConnConfig.RuntimeParams["timezone"] = "UTC"
		cfg.ConnConfig.RuntimeParams["application_name"] = "telltaled " + role
	}
	if p.Pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, fmt.Errorf("open the pool of %s: %w", role, Fault(err))
	}
	return p, nil
}

// planning is what the planner is told of this product's statements, whoever
// runs the server. They read a few rows of one tenant by its keys, from pages
// that are in memory: with the default cost of a random page, made for disks,
// the planner walks whole tables once for every row of another, and goes on so
// when they have grown, because plans are kept. Compiling a statement takes
// longer than any of them runs.
var planning = map[string]string{"random_page_cost": "1.1", "jit": "off"}

// check refuses a login that row-level security does not bind, and one that is
// not what it should be.
func (p *pool) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	var mighty, member bool
	err := p.QueryRow(ctx, `select r.rolsuper or r.rolbypassrls,
		coalesce(pg_has_role(current_user, (select oid from pg_roles where rolname = $1), 'usage'), false)
		from pg_roles r where r.rolname = current_user`, p.role).Scan(&mighty, &member)
	var pe *pgconn.PgError
	switch {
	case errors.As(err, &pe) && (strings.HasPrefix(pe.Code, "28") || pe.Code == "3D000"): // login refused, no such database
		return fault.Newf(fault.Precondition, "login_refused", "the database refuses the login of %s", p.role).
			Do("run telltaled migrate, which makes the roles and the schema in an existing database; give each role its password or a DSN of its own").Because(err)
	case err != nil:
		return fmt.Errorf("log in to the database as %s: %w", p.role, Fault(err))
	case mighty:
		return fault.Newf(fault.Precondition, "role_bypasses", "the database user for %s is a superuser or bypasses row-level security", p.role).
			Do("connect as a role without SUPERUSER and BYPASSRLS; telltaled migrate makes the right ones")
	case !member:
		return fault.Newf(fault.Precondition, "role_missing", "the database user for %s is no member of it", p.role).
			Do("run telltaled migrate, then grant the role to the user")
	}
	return nil
}

// Ping reports whether all three roles reach the database, for readiness.
func (db *DB) Ping(ctx context.Context) error {
	for _, p := range db.pools() {
		conn, err := p.with(ctx, func(conn *pgxpool.Conn) error { return conn.Ping(ctx) })
		if err != nil {
			return fmt.Errorf("ping as %s: %w", p.role, err)
		}
		conn.Release()
	}
	return nil
}

// PoolStat is the state of one role's pool.
type PoolStat struct {
	Role                   string
	Max, Open, Idle, InUse int
	Waits                  int64         // acquisitions that found no idle connection, since the start
	Waited                 time.Duration // all the time that acquisitions took
}

// Stats answers the state of the pools, for metrics.
func (db *DB) Stats() []PoolStat {
	var out []PoolStat
	for _, p := range db.pools() {
		s := p.Stat()
		out = append(out, PoolStat{
			Role: p.role, Max: int(s.MaxConns()), Open: int(s.TotalConns()), Idle: int(s.IdleConns()),
			InUse: int(s.AcquiredConns()), Waits: s.EmptyAcquireCount(), Waited: s.AcquireDuration(),
		})
	}
	return out
}

func (db *DB) pools() []*pool { return []*pool{db.app, db.ingest, db.jobs} }

// Close waits for the calls in flight and closes all connections.
func (db *DB) Close() {
	for _, p := range db.pools() {
		if p != nil {
			p.Pool.Close()
		}
	}
}
