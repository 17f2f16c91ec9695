package tenantdb

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/telltale-dev/telltale/tenants"
)

// The settings that lead a batch of writes. What follows names its rows by
// keys and has one way to go: a plan for these values instead of the kept one
// would cost more than the statement.
const (
	setOne  = `select set_config('telltale.tenant', $1, true), set_config('plan_cache_mode', 'force_generic_plan', true)`
	setList = `select set_config('telltale.tenants', $1, true), set_config('plan_cache_mode', 'force_generic_plan', true)`

	setOneSoon = setOne + `, set_config('synchronous_commit', 'off', true)`
)

// KeepPlans is a statement for a batch that reads: what follows it in the batch
// is run by the plan that its connection keeps, whatever its values are. For
// statements that find a few rows by whole keys.
const KeepPlans = `select set_config('plan_cache_mode', 'force_generic_plan', true)`

// Write is InTenant for statements that do not depend on each other's answers:
// the queued statements of a batch and their commit in one round trip. When
// Write returns nil they are committed; an error of the database undoes all of
// them. A callback runs before the commit is known and its own error undoes
// nothing, so that it must only take an answer in. The batch must not hold
// BEGIN or COMMIT.
//
// As with a commit whose answer is lost, the statements may have taken effect
// when the error is Unavailable, Deadline or stems from a callback.
func (db *DB) Write(ctx context.Context, tenant tenants.TenantID, batch *pgx.Batch) error {
	if tenant.IsZero() {
		return noTenant()
	}
	return db.app.write(ctx, setOne, tenant.String(), batch)
}

// WriteSoon is Write for what nobody is told of yet: everybody sees it when
// WriteSoon returns, and it is on disk a moment later. A crash of the database
// or its machine (not of this process) within three times its wal_writer_delay,
// 0.6 s by default, undoes it.
func (db *DB) WriteSoon(ctx context.Context, tenant tenants.TenantID, batch *pgx.Batch) error {
	if tenant.IsZero() {
		return noTenant()
	}
	return db.app.write(ctx, setOneSoon, tenant.String(), batch)
}

// WriteAll is Write for the ingest role and the rows of all listed tenants, as
// InTenants has them.
func (db *DB) WriteAll(ctx context.Context, list []tenants.TenantID, batch *pgx.Batch) error {
	words, err := wordsOf(list)
	if err != nil {
		return err
	}
	return db.ingest.write(ctx, setList, words, batch)
}

// write sends a batch, which is one implicit transaction up to its end.
func (p *pool) write(ctx context.Context, setting, value string, batch *pgx.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	var late error
	conn, err := p.with(ctx, func(conn *pgxpool.Conn) error {
		err := conn.SendBatch(ctx, p.lead(setting, value, batch)).Close()
		if err != nil && pgconn.SafeToRetry(err) { // nothing was sent
			return err
		}
		late = err
		return nil
	})
	if err != nil {
		return err
	}
	conn.Release() // drops a connection that is not fit for the next one
	return Fault(late)
}

// pingAfter is how long a connection may have been idle and still be trusted
// because it is silent.
const pingAfter = 30 * time.Second

// silent reports whether nothing is to be read from an idle connection, not
// even its end. One whose server stopped has that, and a word before; the pool
// tries such a connection before it hands it out. A look costs no round trip.
func silent(conn net.Conn) bool {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peek error
	var b [1]byte
	// Not by raw.Read: the driver may have a read of its own under way, for
	// which that would wait.
	err = raw.Control(func(fd uintptr) {
		_, _, peek = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	})
	return err == nil && (errors.Is(peek, syscall.EAGAIN) || errors.Is(peek, syscall.EINTR))
}
