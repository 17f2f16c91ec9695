package directory

import (
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// swapID puts another look-up id into an enrolment secret and mends its checksum.
func swapID(secret, id string) string {
	parts := strings.Split(secret, "_")
	body := parts[0] + "_" + id + "_" + parts[2]
	return fmt.Sprintf("%s_%08x", body, crc32.ChecksumIEEE([]byte(body)))
}

// Every query fits the migrated schema and the rights of the role that runs it.
func TestQueriesFitTheSchema(t *testing.T) {
	dsn := dbtest.DSN(t)
	app := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_app"))
	jobs := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_jobs"))
	for i, sql := range []string{
		selectTenant, selectCAs, lockCAs, insertCA, insertEnrolToken, selectEnrolToken, listEnrolTokens, lockQuota, countEnrolTokens, countNodes, revokeEnrolToken, lockEnrolToken, useEnrolToken, selectEnrolledAs,
		insertNode, insertLabel, selectRevoked, selectSuspended, selectNodeByID, selectNodesByName, selectIdentity, selectLabels, revokeNode, updateFacts,
	} {
		if _, err := app.Prepare(t.Context(), fmt.Sprintf("app%d", i), sql); err != nil {
			t.Errorf("%v\n%s", err, sql)
		}
	}
	for i, sql := range []string{insertTenant, selectTenants, updateSuspended, updateMCPDisabled, suspendOwn, markExported, markDeleted, selectDeleted, markErased} {
		if _, err := jobs.Prepare(t.Context(), fmt.Sprintf("jobs%d", i), sql); err != nil {
			t.Errorf("%v\n%s", err, sql)
		}
	}
}

// The queries that every call makes stay on their indexes under row policies:
// an operator that is not leakproof would read the whole tenant.
func TestQueriesUseTheirIndexes(t *testing.T) {
	dsn := dbtest.DSN(t)
	super := dbtest.Connect(t, dsn)
	tenant := tenants.NewTenantID().String()
	for _, sql := range []string{
		`insert into tenant (tenant_id, slug, name, created_at) select case n when 1 then '` + tenant + `'::uuid else gen_random_uuid() end, 't' || n, 't', now() from generate_series(1, 20) n`,
		`insert into node (tenant_id, node_id, name, enrol_token, enrolled_at, revoked_at)
			select tenant_id, gen_random_uuid(), slug || 'n' || n, '', now(), case when n % 500 = 0 then now() end from tenant, generate_series(1, 1000) n`,
		`insert into node_label (tenant_id, node_id, key, value) select tenant_id, node_id, 'site', 's' || right(name, 1) from node`,
		`analyze`,
	} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	app, ingest := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_app")), dbtest.Connect(t, dbtest.As(t, dsn, "telltale_ingest"))
	for role, conn := range map[string]*pgx.Conn{"tenant": app, "tenants": ingest} {
		if _, err := conn.Exec(t.Context(), `select set_config('telltale.`+role+`', $1, false)`, tenant); err != nil {
			t.Fatal(err)
		}
	}
	key, values, one := []string{"site"}, []string{"s1"}, []string{tenant}
	for _, c := range []struct {
		conn *pgx.Conn
		sql  string
		args []any
	}{
		{app, selectNodesByName, []any{tenant, "t1n7", nil, key, values}},
		{app, selectNodesByName, []any{tenant, "t1n7", one, key, values}},
		{app, selectNodeByID, []any{tenant, tenant, nil, key, values}},
		{app, selectIdentity, []any{tenant, tenant}},
		{app, selectLabels, []any{tenant, tenant}},
		{app, selectEnrolledAs, []any{tenant, "x", []byte("x")}},
		{app, countNodes, []any{tenant, tenants.DefaultMaxNodes}},
		{ingest, selectRevoked, []any{one, one}},
	} {
		rows, err := c.conn.Query(t.Context(), "explain (costs off) "+c.sql, c.args...)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%v\n%s", err, c.sql)
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan on node") || !strings.Contains(text, "Index Cond") {
			t.Errorf("%s\n%s", c.sql, text)
		}
	}
}

func TestSlugCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSlugCache(3*time.Second, 2)
		put := func(slug string, found bool) { c.put(slug, Tenant{Slug: slug}, found, c.asked()) }
		state := func(slug string) string {
			_, found, fresh := c.get(slug)
			return fmt.Sprint(found, fresh)
		}
		want := func(slug, w string) {
			t.Helper()
			if got := state(slug); got != w {
				t.Errorf("%s: %s, want %s", slug, got, w)
			}
		}
		put("acme", true)
		for _, guess := range []string{"x", "y", "z", "u"} {
			put(guess, false)
		}
		want("acme", "true true") // guesses do not push out what is real
		if len(c.unknown) != 2 || c.evicted != 2 {
			t.Errorf("%d guesses kept, %d evicted", len(c.unknown), c.evicted)
		}
		time.Sleep(3 * time.Second) // the bubble's clock
		want("acme", "false false")

		late := c.asked()
		c.drop("acme")
		c.put("acme", Tenant{Suspended: false}, true, late)
		want("acme", "false false") // read before the change: not kept
		put("acme", false)
		put("acme", true)
		want("acme", "true true")
		c.drop("acme")
		want("acme", "false false")
	})
}

// A suspension made by another replica is seen when the time to live is over.
func TestSuspensionOnAnotherReplica(t *testing.T) {
	db := dbtest.New(t)
	here := New(db, slog.New(slog.DiscardHandler), Config{TenantTTL: 50 * time.Millisecond})
	there := New(db, slog.New(slog.DiscardHandler), Config{})
	if _, err := here.CreateTenant(t.Context(), "acme", ""); err != nil {
		t.Fatal(err)
	}
	if tn, err := here.TenantBySlug(t.Context(), "acme"); err != nil || tn.Suspended {
		t.Fatal(tn, err)
	}
	if err := there.SetSuspended(t.Context(), "acme", true); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(tenants.RevocationDelay)
	for {
		tn, err := here.TenantBySlug(t.Context(), "acme")
		if err != nil {
			t.Fatal(err)
		}
		if tn.Suspended {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the suspension was not noticed")
		}
	}
}
