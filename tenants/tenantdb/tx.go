package tenantdb

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// MaxTenants bounds the list of one InTenants call.
const MaxTenants = 1000

// InTenant runs fn in a transaction of the application role that sees the rows
// of one tenant. It commits when fn returns nil and rolls back otherwise, also
// when fn panics. The setting travels with BEGIN, in one round trip, and ends
// with the transaction. The zero tenant is refused.
//
// A call lasts at most Config.Statement and 5 s, 20 s by default. Errors of the
// database come back as faults (see Fault), fn's own errors as they are. fn must not
// keep tx, must not be run twice for one effect outside the database, and must
// not wait for anything but the database.
func (db *DB) InTenant(ctx context.Context, tenant tenants.TenantID, fn func(context.Context, pgx.Tx) error) error {
	if tenant.IsZero() {
		return noTenant()
	}
	return db.app.run(ctx, "; select set_config('telltale.tenant', '"+tenant.String()+"', true)", fn)
}

// InTenants is InTenant for the ingest role and the rows of all listed
// tenants. The list has 1 to MaxTenants entries; repeated ones are fine.
func (db *DB) InTenants(ctx context.Context, list []tenants.TenantID, fn func(context.Context, pgx.Tx) error) error {
	words, err := wordsOf(list)
	if err != nil {
		return err
	}
	return db.ingest.run(ctx, "; select set_config('telltale.tenants', '"+words+"', true)", fn)
}

// wordsOf is a list of tenants as the setting holds it.
func wordsOf(list []tenants.TenantID) (string, error) {
	words := make([]string, len(list))
	for i, t := range list {
		if t.IsZero() {
			return "", noTenant()
		}
		words[i] = t.String()
	}
	slices.Sort(words)
	words = slices.Compact(words)
	switch {
	case len(words) == 0:
		return "", noTenant()
	case len(words) > MaxTenants:
		return "", fault.Newf(fault.Exhausted, "too_many_tenants", "one transaction spans at most %d tenants, not %d", MaxTenants, len(words))
	}
	return strings.Join(words, ","), nil
}

// Jobs is InTenant for the jobs role, which sees all tenants: for maintenance
// loops and for what is done before or above a tenant (create, list, find by
// slug). A call lasts at most 65 s by default. Nothing that serves a
// principal's query belongs here.
func (db *DB) Jobs(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return db.jobs.run(ctx, "", fn)
}

func noTenant() error {
	return fault.New(fault.Internal, "no_tenant", "the server asked its database without a tenant")
}

// run is the one place where transactions begin. settings are statements to
// send with BEGIN.
func (p *pool) run(ctx context.Context, settings string, fn func(context.Context, pgx.Tx) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	var tx pgx.Tx
	conn, err := p.with(ctx, func(conn *pgxpool.Conn) (err error) {
		tx, err = conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: "begin" + p.begin + settings})
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Release() // drops a connection that is still in a transaction
	committed := false
	defer func() {
		if committed {
			return
		}
		undo, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		_ = tx.Rollback(undo)
	}()
	if err := fn(ctx, tx); err != nil {
		return Fault(err)
	}
	if err := tx.Commit(ctx); err != nil {
		return Fault(err)
	}
	committed = true
	return nil
}

// with acquires a connection and makes first use of it. Connections in the
// pool break unseen when the server restarts; as first has no effect that
// lasts, it is tried once more on a new connection then. The caller releases
// the result. Errors are faults.
func (p *pool) with(ctx context.Context, first func(*pgxpool.Conn) error) (*pgxpool.Conn, error) {
	for again := true; ; again = false {
		conn, err := p.Acquire(ctx)
		if err != nil {
			return nil, p.busy(ctx, err)
		}
		if err = first(conn); err == nil {
			return conn, nil
		}
		broken := conn.Conn().IsClosed() && ctx.Err() == nil
		conn.Release()
		if !broken || !again {
			return nil, Fault(err)
		}
		p.Reset() // the others are no better
	}
}

// busy tells a full pool from a database that does not answer.
func (p *pool) busy(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		if s := p.Stat(); s.AcquiredConns() >= s.MaxConns() {
			return fault.New(fault.Unavailable, "database_busy", "all database connections are in use").Do("try again in a moment").Because(err)
		}
	}
	return Fault(err)
}
