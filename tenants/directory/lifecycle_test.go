package directory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// full is a world with rows of both tenants in many tables, and a connection
// that sees all of them.
func full(t *testing.T, now *time.Time) (*world, *pgx.Conn) {
	t.Helper()
	dsn := dbtest.DSN(t)
	w := &world{db: dbtest.Open(t, tenantdb.Config{DSN: dsn})}
	w.Service = New(w.db, slog.New(slog.DiscardHandler), Config{Now: func() time.Time { return *now }})
	super := dbtest.Connect(t, dsn)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := super.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
	hour := now.Truncate(time.Hour)
	exec(`select telltale_make_partition('win', $1, $2)`, hour, hour.Add(time.Hour))
	for slug, to := range map[string]*Tenant{"acme": &w.acme, "globex": &w.globex} {
		var err error
		if *to, err = w.CreateTenant(t.Context(), slug, ""); err != nil {
			t.Fatal(err)
		}
		node := w.enrol(t, *to, "web-of-"+slug, map[string]string{"site": slug})
		exec(`insert into operator_token (tenant_id, token_id, name, hash, scopes, created_at, created_by) values ($1, $2, $3, $4, '{telltale:read}', now(), 'x')`,
			to.ID, "token-of-"+slug, "t", bytes.Repeat([]byte{0xab}, 32))
		exec(`insert into browser_session (tenant_id, session_id, hash, token_id, created_at, last_seen_at, expires_at) values ($1, $2, $3, $4, now(), now(), now())`,
			to.ID, "s-"+slug, bytes.Repeat([]byte{0xcd}, 32), "token-of-"+slug)
		exec(`insert into win (tenant_id, node_id, ts, seq, layout_id, samples, dur_ms, component, vals)
			select $1, $2, $3, n, 1, 1, 10000, 'host', '\x01' from generate_series(1, $4) n`, to.ID, node, now, eraseTestRows)
	}
	return w, super
}

// eraseTestRows is more than one batch of an erasure.
const eraseTestRows = 6000

// counts maps each table of tenants to its number of rows of one tenant.
func counts(t *testing.T, super *pgx.Conn, tenant tenants.TenantID) map[string]int {
	t.Helper()
	rows, err := super.Query(t.Context(), `select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant_id'
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, table := range tables {
		var n int
		if err := super.QueryRow(t.Context(), `select count(*) from `+table+` where tenant_id = $1`, tenant).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			out[table] = n
		}
	}
	return out
}

func TestExportHoldsTheTenantAndNoSecret(t *testing.T) {
	now := time.Now().UTC()
	w, _ := full(t, &now)
	var out bytes.Buffer
	end, err := w.Export(t.Context(), admin(w.acme), &out)
	if err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{`"web-of-acme"`, `"token-of-acme"`, `"vals":"\\x01"`, `"table":"node_label"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the export lacks %s", want)
		}
	}
	for _, secret := range []string{"globex", w.globex.ID.String(), strings.Repeat("ab", 32), strings.Repeat("cd", 32), "browser_session", "sealed"} {
		if strings.Contains(text, secret) {
			t.Errorf("the export holds %.20s", secret)
		}
	}
	body, last, _ := strings.Cut(strings.TrimSuffix(text, "\n"), `{"end":`)
	sum := sha256.Sum256([]byte(body))
	if want := fmt.Sprintf(`{"rows":%d,"sha256":"%s"}}`, end.Rows, hex.EncodeToString(sum[:])); last != want || int(end.Rows) != strings.Count(body, "\n") {
		t.Errorf("the last line is %s, want %s", last, want)
	}
	for line := range strings.Lines(text) {
		if !json.Valid([]byte(line)) {
			t.Fatalf("a line is no JSON: %.100s", line)
		}
	}
}

// An export that cannot be written whole does not count as one.
func TestBrokenExportCoversNothing(t *testing.T) {
	now := time.Now().UTC()
	w, _ := full(t, &now)
	gone := errors.New("the reader went away")
	if _, err := w.Export(t.Context(), admin(w.acme), writerFunc(func([]byte) (int, error) { return 0, gone })); !errors.Is(err, gone) {
		t.Fatalf("got %v", err)
	}
	wantFault(t, w.Delete(t.Context(), admin(w.acme), "acme", false), fault.Precondition, "not_exported")
	for range maxExports { // nothing is held after a failure
		w.exports <- struct{}{}
	}
	_, err := w.Export(t.Context(), admin(w.acme), &bytes.Buffer{})
	wantFault(t, err, fault.Exhausted, "too_many_exports")
}

// A tenant has one export at a time, so that it cannot keep the others from
// theirs.
func TestOneExportATenant(t *testing.T) {
	now := time.Now().UTC()
	w, _ := full(t, &now)
	tried := false
	_, err := w.Export(t.Context(), admin(w.acme), writerFunc(func(b []byte) (int, error) {
		if !tried {
			tried = true
			_, err := w.Export(t.Context(), admin(w.acme), &bytes.Buffer{})
			wantFault(t, err, fault.Exhausted, "too_many_exports")
			if _, err := w.Export(t.Context(), admin(w.globex), &bytes.Buffer{}); err != nil {
				t.Errorf("the other tenant: %v", err)
			}
		}
		return len(b), nil
	}))
	if err != nil || !tried {
		t.Fatal(err)
	}
	if _, err := w.Export(t.Context(), admin(w.acme), &bytes.Buffer{}); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestDeleteErasesOneTenantAlone(t *testing.T) {
	now := time.Now().UTC()
	w, super := full(t, &now)
	other := counts(t, super, w.globex.ID)
	sc := admin(w.acme)

	wantFault(t, w.Delete(t.Context(), sc, "globex", true), fault.Invalid, "invalid_argument")
	wantFault(t, w.Delete(t.Context(), sc, "acme", false), fault.Precondition, "not_exported")
	if _, err := w.Export(t.Context(), sc, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(ExportCovers + time.Second)
	wantFault(t, w.Delete(t.Context(), sc, "acme", false), fault.Precondition, "not_exported")
	if _, err := w.Export(t.Context(), sc, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(t.Context(), sc, "acme", false); err != nil {
		t.Fatal(err)
	}
	_, err := w.TenantBySlug(t.Context(), "acme")
	wantFault(t, err, fault.NotFound, "unknown_tenant")
	_, err = w.CreateTenant(t.Context(), "acme", "")
	wantFault(t, err, fault.Conflict, "slug_taken")
	if err := w.SetSuspended(t.Context(), "acme", false); !fault.Is(err, fault.NotFound) {
		t.Errorf("a deleted tenant was resumed: %v", err)
	}

	if err := w.EraseDeleted(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := counts(t, super, w.acme.ID)["win"]; n == 0 {
		t.Error("the rows went before every replica knew of it")
	}
	now = now.Add(3 * tenants.RevocationDelay)
	for range 2 { // a second run finds nothing to do
		if err := w.EraseDeleted(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if left := counts(t, super, w.acme.ID); len(left) != 2 || left["tenant"] != 1 || left["credential"] != 1 {
		t.Errorf("left of the deleted tenant: %v", left)
	}
	if got := counts(t, super, w.globex.ID); fmt.Sprint(got) != fmt.Sprint(other) {
		t.Errorf("the other tenant had %v and has %v", other, got)
	}
}

func TestSuspendOwnTenant(t *testing.T) {
	w := newWorld(t, Config{})
	sc := admin(w.acme)
	if tn, err := w.Suspend(t.Context(), sc, true); err != nil || !tn.Suspended || tn.SuspendedBy != ByAdmin {
		t.Fatalf("%+v, %v", tn, err)
	}
	if tn, err := w.TenantBySlug(t.Context(), "acme"); err != nil || !tn.Suspended {
		t.Fatalf("%+v, %v", tn, err)
	}
	if tn, err := w.TenantBySlug(t.Context(), "globex"); err != nil || tn.Suspended {
		t.Fatalf("the other tenant: %+v, %v", tn, err)
	}
	if tn, err := w.Suspend(t.Context(), sc, false); err != nil || tn.Suspended {
		t.Fatalf("%+v, %v", tn, err)
	}
	if err := w.SetSuspended(t.Context(), "acme", true); err != nil {
		t.Fatal(err)
	}
	_, err := w.Suspend(t.Context(), sc, false)
	wantFault(t, err, fault.Denied, "suspended_by_operator")

	low := limited(w.globex, map[string]string{"site": "a"})
	_, err = w.Suspend(t.Context(), low, true)
	wantFault(t, err, fault.Denied, "outside_selector")
	_, err = w.Export(t.Context(), low, &bytes.Buffer{})
	wantFault(t, err, fault.Denied, "outside_selector")
	wantFault(t, w.Delete(t.Context(), low, "globex", true), fault.Denied, "outside_selector")
	reader := admin(w.globex)
	reader.Granted = tenants.Read
	_, err = w.Suspend(t.Context(), reader, true)
	wantFault(t, err, fault.Denied, "insufficient_scope")
}

// Every column of bytes is exported on purpose or kept back on purpose, and
// what is named exists: a new secret does not slip out, a chain is not cut.
func TestEveryColumnOfBytesIsDecidedOn(t *testing.T) {
	secret := []string{"operator_token.hash", "enrol_token.hash", "browser_session.hash", "tenant_ca.cert", "tenant_ca.sealed_key", "issuer.sealed_secret", "node.enrol_key"}
	super := dbtest.Connect(t, dbtest.DSN(t))
	rows, err := super.Query(t.Context(), `select c.relname || '.' || a.attname from pg_class c
		join pg_attribute a on a.attrelid = c.oid and a.atttypid = 'bytea'::regtype and not a.attisdropped
		where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
		and exists (select from pg_attribute o where o.attrelid = c.oid and o.attname = 'tenant_id') order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	decided := slices.Sorted(slices.Values(slices.Concat(secret, exportBytes)))
	if diff := cmp.Diff(decided, slices.Sorted(slices.Values(there))); diff != "" {
		t.Errorf("columns of bytes (- decided on, + there):\n%s", diff)
	}
}
