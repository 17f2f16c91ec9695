package tenantdb

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/telltale-dev/telltale/tenants"
)

// setTenant is queued before the reads of one batch. The batch is one implicit
// transaction, in which the settings hold and which may not write.
const setTenant = `select set_config('telltale.tenant', $1, true), set_config('transaction_read_only', 'on', true)`

// setTenantKept is setTenant for statements whose plans are kept, see ReadKept.
const setTenantKept = setTenant + `, set_config('plan_cache_mode', 'force_generic_plan', true)`

// Read runs the queued queries of a batch for one tenant, as the application
// role, in one round trip and one read-only transaction. Give each queued
// query its callback before (batch.Queue(sql, args…).Query(…), QueryRow or
// Exec); the callbacks run in order, the first error ends the batch. The batch
// must not hold BEGIN or COMMIT and is spent afterwards.
func (db *DB) Read(ctx context.Context, tenant tenants.TenantID, batch *pgx.Batch) error {
	return db.read(ctx, setTenant, tenant, batch)
}

// ReadKept is Read for statements that are planned once for each connection,
// whatever their parameters. For a statement with a limit or on partitions
// PostgreSQL plans each call anew, which takes several times as long as running
// it, because it takes the plan made for all for a dear one. It fits statements
// that have one good plan for all tenants and parameters, such as keysets and
// look-ups by key: hold that with a plan on many partitions and on a large and
// a small tenant.
func (db *DB) ReadKept(ctx context.Context, tenant tenants.TenantID, batch *pgx.Batch) error {
	return db.read(ctx, setTenantKept, tenant, batch)
}

func (db *DB) read(ctx context.Context, setting string, tenant tenants.TenantID, batch *pgx.Batch) error {
	if tenant.IsZero() {
		return noTenant()
	}
	p := db.app
	db.reads.Add(1)
	db.statements.Add(uint64(batch.Len()))
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	began := false // a callback may have run
	var late error
	conn, err := p.with(ctx, func(conn *pgxpool.Conn) error {
		begin(ctx)
		all := p.lead(setting, tenant.String(), batch)
		all.QueuedQueries[0].Exec(func(pgconn.CommandTag) error { began = true; return nil })
		err := conn.SendBatch(ctx, all).Close()
		if began {
			late = err // not to be repeated
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	conn.Release()
	return Fault(late)
}

// ReadCounts answers how many round trips Read, ReadKept and Query have made
// since the start, and how many statements were in them: tests hold each
// question to its number.
func (db *DB) ReadCounts() (trips, statements uint64) { return db.reads.Load(), db.statements.Load() }

// lead makes a batch of a setting, the limits that the connection does not
// carry, and the queries of another batch. They are copies, in one piece: the
// sending leaves in a query what its connection knows of it, and with another
// connection that is wrong.
func (p *pool) lead(setting, value string, batch *pgx.Batch) *pgx.Batch {
	own := 1 + len(p.perBatch)
	copies := make([]pgx.QueuedQuery, own+batch.Len())
	copies[0] = pgx.QueuedQuery{SQL: setting, Arguments: []any{value}}
	for i, l := range p.perBatch {
		copies[1+i] = pgx.QueuedQuery{SQL: l}
	}
	all := &pgx.Batch{QueuedQueries: make([]*pgx.QueuedQuery, len(copies))}
	for i, q := range batch.QueuedQueries {
		copies[own+i] = *q
	}
	for i := range copies {
		all.QueuedQueries[i] = &copies[i]
	}
	return all
}

// Query runs one query for one tenant in one round trip (see Read) and scans
// each row with scan, for example pgx.RowToStructByPos[T]. No rows give an
// empty slice.
func Query[T any](ctx context.Context, db *DB, tenant tenants.TenantID, sql string, args []any, scan pgx.RowToFunc[T]) ([]T, error) {
	out := []T{}
	var b pgx.Batch
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		out, err = pgx.AppendRows(out, rows, scan)
		return err
	})
	if err := db.Read(ctx, tenant, &b); err != nil {
		return nil, err
	}
	return out, nil
}

// QueryOne is Query for at most one row; found is false when there is none.
// Further rows are ignored.
func QueryOne[T any](ctx context.Context, db *DB, tenant tenants.TenantID, sql string, args []any, scan pgx.RowToFunc[T]) (row T, found bool, err error) {
	var b pgx.Batch
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		row, err = pgx.CollectOneRow(rows, scan)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		found = err == nil
		return err
	})
	err = db.Read(ctx, tenant, &b)
	return row, found && err == nil, err
}

// CredentialTenant finds the tenant of a credential by its kind and public
// lookup id, before a tenant is known. It proves nothing: verify the credential
// inside that tenant. found is false for an unknown one.
func (db *DB) CredentialTenant(ctx context.Context, kind, lookupID string) (tenant tenants.TenantID, found bool, err error) {
	p := db.app
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	var id *[16]byte
	conn, err := p.with(ctx, func(conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, `select public.credential_tenant($1, $2)`, kind, lookupID).Scan(&id)
	})
	if err != nil {
		return tenants.TenantID{}, false, err
	}
	conn.Release()
	if id == nil {
		return tenants.TenantID{}, false, nil
	}
	return tenants.TenantID(*id), true, nil
}
