package dbtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

func TestNew(t *testing.T) {
	db := dbtest.New(t)
	err := db.InTenant(context.Background(), tenants.NewTenantID(), func(ctx context.Context, tx pgx.Tx) error {
		var user string
		if err := tx.QueryRow(ctx, `select current_user`).Scan(&user); err != nil {
			return err
		}
		if user != "telltale_app" {
			t.Errorf("user = %s", user)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		dbtest.DSN(b)
	}
}
