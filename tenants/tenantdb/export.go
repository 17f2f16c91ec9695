package tenantdb

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/telltale-dev/telltale/tenants"
)

// ExportLimit bounds one export.
const ExportLimit = 10 * time.Minute

const (
	// readableTables lists the tables of tenants that the application role may
	// read, each with its columns of bytes.
	readableTables = `select c.relname, coalesce(array_agg(a.attname::text order by a.attname) filter (where a.atttypid = 'bytea'::regtype), '{}')
		from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
		and has_table_privilege(c.oid, 'select')
		group by c.relname having bool_or(a.attname = 'tenant_id') order by c.relname`

	exportTable = `select convert_to((to_jsonb(t) - $2::text[])::text, 'UTF8') from %s t where tenant_id = $1`
)

// Export hands every row of one tenant to each, as a JSON object, table by
// table, from one snapshot. Columns of bytes are left out, because secrets and
// their hashes are among them, unless keep names them ("win.vals"); kept ones
// are hexadecimal with \x in front. skip names tables to leave out. An error
// of each ends the export. The row is valid until each returns.
//
// It holds one connection for as long as each takes, ExportLimit at most.
func (db *DB) Export(ctx context.Context, tenant tenants.TenantID, keep, skip []string, each func(table string, row []byte) error) error {
	if tenant.IsZero() {
		return noTenant()
	}
	ctx, cancel := context.WithTimeout(ctx, ExportLimit)
	defer cancel()
	var tx pgx.Tx
	conn, err := db.app.with(ctx, func(conn *pgxpool.Conn) (err error) {
		tx, err = conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: fmt.Sprintf(
			"begin isolation level repeatable read read only; set local statement_timeout = %d; set local idle_in_transaction_session_timeout = %d; select set_config('telltale.tenant', '%s', true)",
			ExportLimit.Milliseconds(), ExportLimit.Milliseconds(), tenant)})
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Release()
	defer func() {
		undo, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		_ = tx.Rollback(undo) // nothing was written
	}()
	type table struct {
		name  string
		bytes []string
	}
	rows, err := tx.Query(ctx, readableTables)
	if err != nil {
		return fmt.Errorf("list the tables of tenants: %w", Fault(err))
	}
	tables, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t table, err error) { return t, row.Scan(&t.name, &t.bytes) })
	if err != nil {
		return fmt.Errorf("list the tables of tenants: %w", Fault(err))
	}
	for _, t := range tables {
		if slices.Contains(skip, t.name) {
			continue
		}
		hide := slices.DeleteFunc(t.bytes, func(c string) bool { return slices.Contains(keep, t.name+"."+c) })
		rows, err := tx.Query(ctx, fmt.Sprintf(exportTable, pgx.Identifier{t.name}.Sanitize()), tenant, hide)
		if err != nil {
			return fmt.Errorf("export %s: %w", t.name, Fault(err))
		}
		var row []byte
		_, err = pgx.ForEachRow(rows, []any{&row}, func() error { return each(t.name, row) })
		if err != nil {
			return fmt.Errorf("export %s: %w", t.name, Fault(err))
		}
	}
	return nil
}
