package tenantdb_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

func BenchmarkQuery(b *testing.B) {
	db, tenant := dbtest.New(b), tenants.NewTenantID()
	for b.Loop() {
		if _, err := tenantdb.Query(b.Context(), db, tenant, `select 1`, nil, pgx.RowTo[int]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkInTenant(b *testing.B) {
	db, tenant := dbtest.New(b), tenants.NewTenantID()
	for b.Loop() {
		err := db.InTenant(b.Context(), tenant, func(ctx context.Context, tx pgx.Tx) error {
			var n int
			return tx.QueryRow(ctx, `select 1`).Scan(&n)
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkInTenants writes one row for each of 500 tenants in a transaction,
// as a batch of windows does, and reports rows a second.
func BenchmarkInTenants(b *testing.B) {
	dsn := dbtest.DSN(b)
	super := dbtest.Connect(b, dsn)
	if _, err := super.Exec(b.Context(), `set role telltale_owner; create table bench (tenant_id uuid, ts timestamptz, n bigint, primary key (tenant_id, ts, n)); select telltale_protect('bench')`); err != nil {
		b.Fatal(err)
	}
	db := dbtest.Open(b, tenantdb.Config{DSN: dsn})
	list := make([]tenants.TenantID, 500)
	words := make([]string, len(list))
	for i := range list {
		list[i] = tenants.NewTenantID()
		words[i] = list[i].String()
	}
	n := 0
	for b.Loop() {
		n++
		err := db.InTenants(b.Context(), list, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `insert into bench select t, $2, $3 from unnest($1::uuid[]) t on conflict do nothing`, words, time.Unix(0, 0), n)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(list)*b.N)/b.Elapsed().Seconds(), "rows/s")
}
