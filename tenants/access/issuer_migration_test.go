package access

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// An issuer that was stored before a tenant claim counted stands in nobody's
// way once the schema knows: the migration looks at what is there.
func TestStoredIssuersOfManyOrganisations(t *testing.T) {
	dsn := dbtest.DSN(t)
	db := dbtest.Open(t, tenantdb.Config{DSN: dsn})
	w := &world{now: time.Now().UTC(), acme: addTenant(t, db, "acme"), globex: addTenant(t, db, "globex")}
	w.Service = New(db, slog.New(slog.DiscardHandler), Config{})
	everybody := []tenants.RoleRule{{Scopes: tenants.Read}}
	tied := IssuerSpec{URL: idp, Roles: everybody, TenantClaim: "hd", TenantValue: "acme.example"}
	w.put(t, w.acme, tied)
	w.put(t, w.acme, IssuerSpec{URL: idp + "/open", Roles: everybody})
	again, err := os.ReadFile("../../migrations/0017_shared_issuers.sql")
	if err != nil {
		t.Fatal(err)
	}
	super := dbtest.Connect(t, dsn)
	for _, sql := range []string{`update issuer_trust set everybody = true`, "begin; set local role telltale_owner; " + string(again) + "; commit"} {
		if _, err := super.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	tied.TenantValue = "globex.example"
	w.put(t, w.globex, tied)
	if _, err := w.PutIssuer(t.Context(), w.globex, IssuerSpec{URL: idp + "/open"}); err == nil {
		t.Error("an open issuer was shared")
	}
}
