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

// Read runs the queued queries of a batch for one tenant, as the application
// role, in one round trip and one read-only transaction. Give each queued
// query its callback before (batch.Queue(sql, args…).Query(…), QueryRow or
// Exec); the callbacks run in order, the first error ends the batch. The batch
// must not hold BEGIN or COMMIT and is spent afterwards.
func (db *DB) Read(ctx context.Context, tenant tenants.TenantID, batch *pgx.Batch) error {
	if tenant.IsZero() {
		return noTenant()
	}
	p := db.app
	ctx, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	began := false // a callback may have run
	var late error
	conn, err := p.with(ctx, func(conn *pgxpool.Conn) error {
		all := &pgx.Batch{}
		all.Queue(setTenant, tenant.String()).Exec(func(pgconn.CommandTag) error { began = true; return nil })
		for _, l := range p.perBatch {
			all.Queue(l)
		}
		queueAll(all, batch)
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

// queueAll queues the queries of a batch in another one. They are copies: the
// sending leaves in a query what its connection knows of it, and with another
// connection that is wrong.
func queueAll(all, batch *pgx.Batch) {
	for _, q := range batch.QueuedQueries {
		again := *q
		all.QueuedQueries = append(all.QueuedQueries, &again)
	}
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
