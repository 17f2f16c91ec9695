package tenantdb

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const (
	// tenantTables lists the tables that hold rows of tenants, by name; a
	// partitioned one stands for its partitions.
	tenantTables = `select c.relname from pg_class c
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
		and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped)
		order by c.relname`

	// eraseSome deletes a bounded number of rows, so that no transaction and no
	// lock lasts long. The name is one that the catalogue gave.
	eraseSome = `delete from %[1]s where tenant_id = $1 and (tableoid, ctid) in
		(select tableoid, ctid from %[1]s where tenant_id = $1 limit $2)`

	eraseRows = 5000
)

// Erase deletes the rows of one tenant from every table that has any, but for
// the tables named in keep, and returns how many there were. Tables that refer
// to others go first: what a foreign key still holds is tried again. It works
// in many short transactions and may be called again after an error.
func (db *DB) Erase(ctx context.Context, tenant tenants.TenantID, keep ...string) (rows int64, err error) {
	if tenant.IsZero() {
		return 0, noTenant()
	}
	var tables []string
	err = db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
		found, err := tx.Query(ctx, tenantTables)
		if err != nil {
			return err
		}
		tables, err = pgx.CollectRows(found, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("list the tables of tenants: %w", err)
	}
	tables = slices.DeleteFunc(tables, func(t string) bool { return slices.Contains(keep, t) })
	for len(tables) > 0 {
		var held []string
		var last error
		for _, table := range tables {
			n, err := db.eraseTable(ctx, tenant, table)
			rows += n
			switch {
			case fault.Is(err, fault.Conflict): // a foreign key holds it
				held, last = append(held, table), err
			case err != nil:
				return rows, fmt.Errorf("erase from %s: %w", table, err)
			}
		}
		if len(held) == len(tables) {
			return rows, fmt.Errorf("erase from %s: %w", held[0], last)
		}
		tables = held
	}
	return rows, nil
}

func (db *DB) eraseTable(ctx context.Context, tenant tenants.TenantID, table string) (rows int64, err error) {
	sql := fmt.Sprintf(eraseSome, pgx.Identifier{table}.Sanitize())
	for {
		var n int64
		err := db.Jobs(ctx, func(ctx context.Context, tx pgx.Tx) error {
			tag, err := tx.Exec(ctx, sql, tenant, eraseRows)
			n = tag.RowsAffected()
			return err
		})
		rows += n
		if err != nil || n < eraseRows {
			return rows, err
		}
	}
}
