package audit

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// chain is a world whose tenants have three seals each, of five, five and two
// rows, and one row that is not sealed.
func chain(t testing.TB) *world {
	w := newWorld(t)
	for _, n := range []int{5, 5, 2} {
		for i := range n {
			w.s.Note(entry(w.admin, fmt.Sprintf("tool_%d", i)))
			w.s2.Note(entry(w.other, fmt.Sprintf("tool_%d", i)))
			w.advance(time.Second)
		}
		w.flush(w.s, w.s2)
		w.seal(w.s)
	}
	w.s.Note(entry(w.admin, "late"))
	w.flush(w.s)
	return w
}

func TestVerify(t *testing.T) {
	w := chain(t)
	for tenant, unsealed := range map[tenants.TenantID]int64{w.a: 1, w.b: 0} {
		v := w.verify(tenant)
		if v.Broken != nil || v.Seals != 3 || v.Rows != 12 || v.Unsealed != unsealed || v.FirstSeal != 1 || v.LastSeal != 3 || len(v.Head) != 64 || v.Gaps != 0 || v.Lost != 0 {
			t.Errorf("%+v", v)
		}
		if !v.First.Equal(start) || !v.Last.After(start.Add(11*time.Second)) || v.KeptFrom.After(start) {
			t.Errorf("%+v", v)
		}
	}
	if v := w.verify(tenants.NewTenantID()); v.Broken != nil || v.Seals != 0 || v.Head != "" {
		t.Errorf("a tenant without an audit: %+v", v)
	}
	for _, r := range w.list(w.admin, Query{}).Entries {
		if (r.Seal == 0) != (r.Action == "late") {
			t.Errorf("%s bears seal %d", r.Action, r.Seal)
		}
	}
}

// Whoever changes what was sealed is found, whatever he changes.
func TestTampering(t *testing.T) {
	w := chain(t)
	row := ` where tenant_id = $1 and seal_no = 2 and seal_pos = 3`
	seal := ` where tenant_id = $1 and seal_no = 2`
	cases := []struct{ name, sql, what string }{
		{"deleted row", `delete from audit` + row, "missing row in seal 2 at place 3"},
		{"deleted rows", `delete from audit` + seal, "missing row in seal 2 at place 1"},
		{"deleted last row", `delete from audit where tenant_id = $1 and seal_no = 3 and seal_pos = 2`, "missing row in seal 3 at place 2"},
		{"deleted first row", `delete from audit where tenant_id = $1 and seal_no = 1 and seal_pos = 1`, "missing row in seal 1 at place 1"},
		{"added row", copied(`2, 6`) + row, "added row in seal 2 at place 6"},
		{"added row in a place that is taken", copied(`2, 3`) + row, "row in seal 2 at place"},
		{"added row before the first", copied(`2, 0`) + row, "added row in seal 2"},
		{"added row of no seal", copied(`9, 1`) + row, "added row"},
		{"added row before all seals", copied(`0, 1`) + row, "added row"},
		{"swapped places", `update audit set seal_pos = case seal_pos when 3 then 4 else 3 end where tenant_id = $1 and seal_no = 2 and seal_pos in (3, 4)`, "changed row in seal 2 at place 3"},
		{"swapped times", `update audit a set at = b.at from audit b where a.tenant_id = $1 and a.seal_no = 2 and a.seal_pos in (3, 4) and b.tenant_id = $1 and b.seal_no = 2 and b.seal_pos = 7 - a.seal_pos`, "changed row in seal 2 at place 3"},
		{"moved to another seal", `update audit set seal_no = 3, seal_pos = 3` + row, "missing row in seal 2 at place 3"},
		{"unsealed", `update audit set seal_no = null, seal_pos = null` + row, "missing row in seal 2 at place 3"},
		{"deleted seal", `delete from audit_seal` + seal, "missing seal in seal 2"},
		{"deleted first seal", `delete from audit_seal where tenant_id = $1 and seal_no = 1`, "missing seal in seal 1"},
		{"deleted first seal and its rows", `with x as (delete from audit where tenant_id = $1 and seal_no = 1) delete from audit_seal where tenant_id = $1 and seal_no = 1`, "missing seal in seal 1"},
		{"deleted last seal", `delete from audit_seal where tenant_id = $1 and seal_no = 3`, "added row"},
		{"added seal", `insert into audit_seal select tenant_id, 4, prev_hash, hash, rows, first_at, last_at, digests, sealed_at, sealed_by from audit_seal where tenant_id = $1 and seal_no = 3`, "changed seal in seal 4"},
	}
	// Every column of a row, and of a seal.
	for _, c := range []struct{ table, where, what, except string }{
		{"audit", row, "changed row in seal 2 at place 3", " tenant_id seal_no seal_pos "},
		{"audit_seal", seal, "seal 2", " tenant_id seal_no "},
	} {
		rows, err := w.conn.Query(t.Context(), `select column_name::text, data_type::text from information_schema.columns where table_schema = 'public' and table_name = $1 order by ordinal_position`, c.table)
		if err != nil {
			t.Fatal(err)
		}
		var column, kind string
		n := 0
		_, err = pgx.ForEachRow(rows, []any{&column, &kind}, func() error {
			n++
			if strings.Contains(c.except, " "+column+" ") {
				return nil
			}
			change := map[string]string{
				"timestamp with time zone": column + " + interval '1 microsecond'", "uuid": "gen_random_uuid()", "text": column + " || ' '",
				"bigint": column + " + 1", "integer": column + " + 1", "bytea": "set_byte(" + column + ", 7, get_byte(" + column + ", 7) # 1)",
			}[kind]
			if column == "outcome" {
				change = "'failed'"
			}
			set := column + " = " + change
			if column == "rows" {
				set += ", digests = digests || prev_hash"
			}
			cases = append(cases, struct{ name, sql, what string }{c.table + "." + column, `update ` + c.table + ` set ` + set + c.where, c.what})
			return nil
		})
		if err != nil || n < 10 {
			t.Fatal(n, err)
		}
	}
	w.exec(`set session_replication_role = replica`) // no trigger stops whoever owns the database
	for _, c := range cases {
		w.exec(`create temp table was_audit as select * from audit; `)
		w.exec(`create temp table was_seal as select * from audit_seal`)
		tag, err := w.conn.Exec(t.Context(), c.sql, w.a)
		if err != nil || tag.RowsAffected() == 0 {
			t.Errorf("%s: %v %v", c.name, tag, err)
		}
		if v := w.verify(w.a); v.Broken == nil || !strings.Contains(v.Broken.Error(), c.what) {
			t.Errorf("%s: want %q, got %v", c.name, c.what, v.Broken)
		}
		if v := w.verify(w.b); v.Broken != nil {
			t.Errorf("%s: the other tenant's chain: %v", c.name, v.Broken)
		}
		w.exec(`delete from audit`)
		w.exec(`delete from audit_seal`)
		w.exec(`insert into audit select * from was_audit`)
		w.exec(`insert into audit_seal select * from was_seal`)
		w.exec(`drop table was_audit, was_seal`)
		if v := w.verify(w.a); v.Broken != nil {
			t.Fatalf("after %s: %v", c.name, v.Broken)
		}
	}

	// Rows, and whole chains, do not fit another tenant.
	w.exec(`update audit set tenant_id = case when tenant_id = $1 then $2::uuid else $1::uuid end where seal_no = 2 and seal_pos = 3`, w.a, w.b)
	for _, tenant := range []tenants.TenantID{w.a, w.b} {
		if v := w.verify(tenant); v.Broken == nil || v.Broken.What != "changed row" || v.Broken.Seal != 2 {
			t.Errorf("swapped rows: %v", v.Broken)
		}
	}
	w.exec(`update audit set tenant_id = case when tenant_id = $1 then $2::uuid else $1::uuid end where seal_no = 2 and seal_pos = 3`, w.a, w.b)
	w.exec(`delete from audit where tenant_id = $1`, w.a)
	w.exec(`delete from audit_seal where tenant_id = $1`, w.a)
	w.exec(`update audit set tenant_id = $1`, w.a)
	w.exec(`update audit_seal set tenant_id = $1`, w.a)
	if v := w.verify(w.a); v.Broken == nil {
		t.Error("another tenant's whole chain passes")
	}
}

// copied copies a row to another place of the chain.
func copied(place string) string {
	return `insert into audit select tenant_id, at, gen_random_uuid(), principal_kind, principal_id, principal_name, client, surface, action, arguments,
		outcome, reason, bytes, duration_us, reference, from_addr, count, replica, seq, ` + place + ` from audit`
}

// The roles of the server cannot do what a thief of its credentials would like.
func TestAppendOnly(t *testing.T) {
	w := chain(t)
	as := func(role string) *pgx.Conn {
		conn := dbtest.Connect(t, dbtest.As(t, w.dsn, role))
		if _, err := conn.Exec(t.Context(), `select set_config('telltale.tenant', $1, false), set_config('telltale.tenants', $1, false)`, w.a.String()); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	app, ingest, jobs := as("telltale_app"), as("telltale_ingest"), as("telltale_jobs")
	partition := ""
	if err := w.conn.QueryRow(t.Context(), `select name from telltale_partitions('audit') limit 1`).Scan(&partition); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		who  string
		conn *pgx.Conn
		sql  []string
	}{
		{"app", app, []string{`update audit set outcome = 'ok'`, `update audit set seal_no = 9, seal_pos = 1`, `delete from audit`, `truncate audit`,
			`insert into audit_seal select tenant_id, 9, prev_hash, hash, rows, first_at, last_at, digests, sealed_at, sealed_by from audit_seal`,
			`update audit_seal set hash = prev_hash`, `delete from audit_seal`, copied(`9, 1`), `delete from ` + partition, `select * from ` + partition,
			`insert into audit select gen_random_uuid(), at, id, principal_kind, principal_id, principal_name, client, surface, action, arguments, outcome, reason, bytes, duration_us, reference, from_addr, count, replica, seq, null, null from audit`,
			`delete from attempt`, `insert into attempt select * from attempt`, `delete from refusal`, `alter table audit disable trigger all`}},
		{"ingest", ingest, []string{`select * from audit`, `update audit set outcome = 'ok'`, `delete from audit`, `select * from audit_seal`, `delete from audit_seal`}},
		{"jobs", jobs, []string{`update audit set outcome = 'ok'`, `delete from audit`, copied(`9, 1`), copied(`null, null`), `truncate audit`,
			`update audit set seal_no = 9, seal_pos = 1 where seal_no = 2`, `update audit set seal_no = null, seal_pos = null`, `update audit set seal_no = 9 where seal_no is null`,
			`update audit_seal set hash = prev_hash`, `delete from audit_seal`, `delete from audit_seal where seal_no = 3`, `delete from audit_seal where seal_no = 1`, `alter table audit disable trigger append_only`}},
	} {
		for _, sql := range c.sql {
			if tag, err := c.conn.Exec(t.Context(), sql); err == nil {
				t.Errorf("%s may: %s (%v)", c.who, sql, tag)
			}
		}
	}
	// Not even the owner, without taking the triggers away.
	for _, sql := range []string{`update audit set outcome = 'ok'`, `delete from audit`, `update audit_seal set hash = prev_hash`, `delete from audit_seal`, copied(`9, 1`)} {
		if _, err := w.conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("the owner may: %s", sql)
		}
	}
	// A row that takes its seal changes in no other column.
	rows, err := w.conn.Query(t.Context(), `select column_name::text, data_type::text from information_schema.columns where table_schema = 'public' and table_name = 'audit'`)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Name, Kind string }])
	if err != nil || len(columns) != 21 {
		t.Fatal(len(columns), err)
	}
	for _, c := range columns {
		change := map[string]string{"timestamp with time zone": c.Name + " + interval '1 microsecond'", "uuid": "gen_random_uuid()", "text": c.Name + " || ' '", "bigint": c.Name + " + 1", "integer": c.Name + " + 1"}[c.Kind]
		switch c.Name {
		case "seal_no", "seal_pos":
			continue
		case "outcome":
			change = "case outcome when 'failed' then 'ok' else 'failed' end"
		}
		_, err := w.conn.Exec(t.Context(), `update audit set seal_no = 9, seal_pos = 1, `+c.Name+` = `+change+` where seal_no is null`)
		if err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("a row took its seal with another %s: %v", c.Name, err)
		}
	}
	if n := 0; app.QueryRow(t.Context(), `select count(*) from audit where tenant_id <> $1`, w.a).Scan(&n) != nil || n != 0 {
		t.Errorf("app sees %d rows of other tenants", n)
	}
	if v := w.verify(w.a); v.Broken != nil || v.Rows != 12 || v.Unsealed != 1 {
		t.Errorf("%+v", v)
	}
}

// A replica that could not write for a while brings its rows late, and below
// times that are sealed; rows of two partitions never share a seal.
func TestLateRowsAndPartitions(t *testing.T) {
	w := newWorld(t)
	w.clock.Store(time.Date(2026, 3, 8, 23, 59, 50, 0, time.UTC).UnixNano()) // a Sunday
	w.s2.Note(entry(w.admin, "late_one"))
	for range 4 {
		w.s.Note(entry(w.admin, "in_time"))
		w.advance(4 * time.Second)
	}
	w.s2.Note(entry(w.admin, "late_two"))
	w.flush(w.s)
	w.seal(w.s)
	if v := w.verify(w.a); v.Broken != nil || v.Seals != 2 || v.Rows != 4 {
		t.Errorf("two weeks: %+v", v)
	}
	w.flush(w.s2)
	if v := w.verify(w.a); v.Broken != nil || v.Rows != 4 || v.Unsealed != 2 || v.Oldest.Day() != 8 {
		t.Errorf("late rows: %+v", v)
	}
	w.seal(w.s2)
	if v := w.verify(w.a); v.Broken != nil || v.Seals != 4 || v.Rows != 6 || v.Unsealed != 0 {
		t.Errorf("late rows, sealed: %+v", v)
	}
}

func TestRetention(t *testing.T) {
	w := newWorld(t)
	w.s.cfg.Retention = 10 * day
	for range 5 {
		w.s.Note(entry(w.admin, "weekly"))
		w.s.Note(entry(w.other, "weekly"))
		w.flush(w.s)
		w.seal(w.s)
		w.advance(week)
	}
	w.s.Note(entry(w.admin, "now"))
	w.flush(w.s)
	w.seal(w.s)
	w.exec(`update tenant set created_at = $1`, start.Add(-time.Hour))
	if err := w.s.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := w.verify(w.a)
	if v.Broken != nil || v.FirstSeal != 4 || v.LastSeal != 6 || v.Rows != 3 || v.Seals != 3 || v.Expired != 0 {
		t.Errorf("%+v", v)
	}
	if want := time.Date(2026, 3, 23, 0, 0, 0, 0, time.UTC); !v.KeptFrom.Equal(want) {
		t.Errorf("kept from %v, want %v", v.KeptFrom, want)
	}
	// The rest expires, too, but for the seal that the next one links to.
	w.advance(5 * week)
	if err := w.s.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v := w.verify(w.a); v.Broken != nil || v.FirstSeal != 6 || v.Rows != 0 || v.Expired != 1 {
		t.Errorf("%+v", v)
	}
	if v := w.verify(w.b); v.Broken != nil || v.FirstSeal != 5 || v.Rows != 0 || v.Expired != 1 {
		t.Errorf("%+v", v)
	}
	w.s.Note(entry(w.admin, "again"))
	w.flush(w.s)
	w.seal(w.s)
	if v := w.verify(w.a); v.Broken != nil || v.LastSeal != 7 || v.Rows != 1 || v.Expired != 1 {
		t.Errorf("%+v", v)
	}
	// A chain that begins late though nothing of the tenant could have expired.
	w.exec(`update tenant set created_at = $1`, w.now())
	if v := w.verify(w.a); v.Broken == nil || v.Broken.What != "missing seal" {
		t.Errorf("%+v", v)
	}
}

// Two replicas write, seal and drop partitions at once, while the chains are
// walked; then each is whole and holds every row.
func TestTwoReplicas(t *testing.T) {
	w := newWorld(t)
	const writers, each = 4, 150
	db := dbtest.Open(t, tenantdb.Config{DSN: w.dsn, AppConns: 6, IngestConns: 4, JobsConns: 4})
	reps := make([]*Service, 2)
	for i := range reps {
		reps[i] = New(db, Config{Replica: fmt.Sprint(i), Settle: time.Millisecond}, slog.New(slog.DiscardHandler))
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg, side sync.WaitGroup
	for _, s := range reps {
		for n := range writers {
			wg.Go(func() {
				scope := []tenants.Scope{w.admin, w.other}[n%2]
				for i := range each {
					if i%10 == 0 {
						if err := s.Write(ctx, entry(scope, "write")); err != nil {
							t.Error(err)
						}
					} else {
						s.Note(entry(scope, "note"))
					}
					if i%25 == 0 {
						if err := s.flush(ctx); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		for _, loop := range []func(context.Context) error{s.seal, s.keep, func(ctx context.Context) error {
			for _, tenant := range []tenants.TenantID{w.a, w.b} {
				if v, err := s.Verify(ctx, tenant); err == nil && v.Broken != nil {
					return fmt.Errorf("while it grew: %w", v.Broken)
				}
			}
			return nil
		}} {
			side.Go(func() {
				for ctx.Err() == nil {
					if err := loop(ctx); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	for _, s := range reps {
		if err := s.flush(ctx); err != nil {
			t.Error(err)
		}
	}
	stop()
	side.Wait()
	w.settle(reps[0])
	if err := reps[0].seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []tenants.TenantID{w.a, w.b} {
		v, err := reps[1].Verify(t.Context(), tenant)
		if err != nil || v.Broken != nil || v.Rows+v.Unsealed != writers*each || v.Gaps != 0 || v.Lost != 0 {
			t.Errorf("%+v %v", v, err)
		}
	}
}
