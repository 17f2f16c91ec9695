package migrations_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// global lists the tables that belong to no tenant, and why they may exist.
var global = map[string]string{
	"schema_migration": "what was applied; no data of anybody",
	"credential":       "leads from a lookup id to its tenant; no role may read it",
	"issuer_trust":     "says who trusts an issuer; no role may read it",
}

// policyText is one text for all policies of the table with this oid.
const policyText = `(select string_agg(polname || case when polpermissive then '' else ' restrictive' end || ' ' || polcmd::text
	|| ' to ' || array_to_string(array(select r::regrole::text from unnest(polroles) r), ',')
	|| ' ' || coalesce(pg_get_expr(polqual, polrelid), '-') || ' ' || coalesce(pg_get_expr(polwithcheck, polrelid), '-'), '; ' order by polname)
	from pg_policy where polrelid = %s)`

// rightPolicies answers what policyText must be, as this server prints it.
func rightPolicies(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	const one = `tenant_id = (select nullif(current_setting('telltale.tenant', true), '')::uuid)`
	const many = `tenant_id = any ((select string_to_array(nullif(current_setting('telltale.tenants', true), ''), ',')::uuid[])::uuid[])`
	must(t, conn, `begin; create table reference (tenant_id uuid);
		create policy app on reference to telltale_app using (`+one+`) with check (`+one+`);
		create policy ingest on reference to telltale_ingest using (`+many+`) with check (`+many+`);
		create policy jobs on reference to telltale_jobs using (true) with check (true)`)
	defer must(t, conn, `rollback`)
	return get[string](t, conn, `select `+fmt.Sprintf(policyText, `'reference'::regclass`))
}

// faults lists everything in the schema that would let tenants meet.
func faults(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	var out []string
	ask := func(about, sql string, args ...any) {
		t.Helper()
		rows, err := conn.Query(t.Context(), sql, args...)
		if err != nil {
			t.Fatalf("%s: %v", about, err)
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", about, err)
		}
		for _, n := range names {
			out = append(out, about+": "+n)
		}
	}
	tables := []string{}
	for name := range global {
		tables = append(tables, name)
	}
	const tenantTables = `with t as (
		select c.oid, c.relname::text as name, c.relrowsecurity as on, c.relforcerowsecurity as forced, c.relispartition as part
		  from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and c.relname <> all ($1)) `

	ask("no column tenant_id uuid not null", tenantTables+`select name from t where not exists (
		select from pg_attribute a where a.attrelid = t.oid and a.attname = 'tenant_id' and a.atttypid = 'uuid'::regtype and a.attnotnull)`, tables)
	ask("row-level security is not enabled and forced", tenantTables+`select name from t where not (t.on and forced)`, tables)
	ask("policies", tenantTables+`select name || ' has ' || coalesce(p.text, 'none')
		from t, lateral (select `+fmt.Sprintf(policyText, "t.oid")+` as text) p where p.text is distinct from $2`, tables, rightPolicies(t, conn))
	ask("no primary key", tenantTables+`select name from t where not exists (
		select from pg_constraint k where k.conrelid = t.oid and k.contype = 'p')`, tables)
	ask("key does not start with tenant_id", tenantTables+`select name || ' ' || k.conname from t join pg_constraint k on k.conrelid = t.oid
		join pg_attribute a on a.attrelid = t.oid and a.attnum = k.conkey[1]
		where k.contype in ('p', 'u', 'f', 'x') and a.attname <> 'tenant_id'`, tables)
	ask("foreign key does not lead to tenant_id first", tenantTables+`select name || ' ' || k.conname from t join pg_constraint k on k.conrelid = t.oid
		join pg_attribute a on a.attrelid = k.confrelid and a.attnum = k.confkey[1]
		where k.contype = 'f' and a.attname <> 'tenant_id'`, tables)
	ask("index does not start with tenant_id", tenantTables+`select name || ' ' || i.indexrelid::regclass::text from t join pg_index i on i.indrelid = t.oid
		left join pg_attribute a on a.attrelid = t.oid and a.attnum = i.indkey[0]
		where a.attname is distinct from 'tenant_id'`, tables)
	ask("owned by another than telltale_owner", `select c.relname::text from pg_class c
		where c.relnamespace = 'public'::regnamespace and c.relowner <> 'telltale_owner'::regrole`)
	ask("privilege that row-level security does not govern", `select c.relname || ' ' || a.privilege_type || ' to ' || a.grantee::regrole::text
		from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'public'::regnamespace and a.grantee <> c.relowner
		and (a.grantee = 0 or a.privilege_type not in ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'USAGE'))`)
	ask("partition with privileges of its own", `select c.relname || ' to ' || a.grantee::regrole::text
		from pg_class c, aclexplode(c.relacl) a where c.relispartition and c.relkind in ('r', 'p') and a.grantee <> c.relowner`)
	ask("default partition", `select c.relname::text from pg_class c where c.relispartition and pg_get_expr(c.relpartbound, c.oid) = 'DEFAULT'`)
	ask("view that runs as its owner", `select c.relname::text from pg_class c where c.relnamespace = 'public'::regnamespace
		and (c.relkind = 'm' or c.relkind = 'v' and not coalesce('security_invoker=true' = any (c.reloptions) or 'security_invoker=on' = any (c.reloptions), false))`)
	ask("definer function without a fixed search_path", `select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'public'::regnamespace
		and p.prosecdef and not coalesce((select bool_or(s = 'search_path=pg_catalog, public, pg_temp') from unnest(p.proconfig) s), false)`)
	ask("function that everybody may run", `select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'public'::regnamespace
		and has_function_privilege('public', p.oid, 'execute')`)
	ask("function that claims to be leakproof", `select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'public'::regnamespace and p.proleakproof`)
	ask("global table that a role may touch", `select c.relname || ' ' || a.privilege_type || ' to ' || a.grantee::regrole::text
		from pg_class c, aclexplode(c.relacl) a where c.relname = any ($1) and a.grantee <> c.relowner
		and not (c.relname = 'schema_migration' and a.privilege_type = 'SELECT')`, tables)
	slices.Sort(out)
	return out
}

// makePartitions gives every partitioned table a partition.
func makePartitions(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	must(t, conn, `select telltale_make_partition(relname, '2026-01-01T00:00Z', '2026-01-01T01:00Z')
		from pg_class where relnamespace = 'public'::regnamespace and relkind = 'p' and not relispartition`)
}

func TestCatalogue(t *testing.T) {
	conn := dbtest.Connect(t, dbtest.DSN(t))
	makePartitions(t, conn)
	for _, f := range faults(t, conn) {
		t.Error(f)
	}
	for name := range global {
		if !get[bool](t, conn, `select to_regclass('public.' || $1) is not null`, name) {
			t.Errorf("the list of global tables names %s, which does not exist", name)
		}
	}
}

// The test above is worth what it finds.
func TestCatalogueFindsFaults(t *testing.T) {
	for name, c := range map[string]struct{ sql, want string }{
		"no tenant":       {`create table bad (id int primary key)`, "no column tenant_id uuid not null: bad"},
		"no policy":       {`create table bad (tenant_id uuid, id uuid, primary key (tenant_id, id))`, "policies: bad has none"},
		"not enabled":     {`create table bad (tenant_id uuid primary key)`, "row-level security is not enabled and forced: bad"},
		"not forced":      {protected + `alter table bad no force row level security`, "row-level security is not enabled and forced: bad"},
		"another policy":  {protected + `create policy more on bad to telltale_app using (true)`, "policies: bad has app"},
		"a policy less":   {protected + `drop policy jobs on bad`, "policies: bad has app"},
		"no primary key":  {`create table bad (tenant_id uuid not null); select telltale_protect('bad')`, "no primary key: bad"},
		"key order":       {`create table bad (tenant_id uuid, id uuid, primary key (id, tenant_id)); select telltale_protect('bad')`, "key does not start with tenant_id: bad bad_pkey"},
		"unique order":    {protected + `alter table bad add unique (id)`, "key does not start with tenant_id: bad bad_id_key"},
		"foreign key":     {protected + `create table worse (tenant_id uuid, id uuid primary key); alter table bad add foreign key (id) references worse`, "key does not start with tenant_id: bad bad_id_fkey"},
		"foreign target":  {protected + `create table worse (id uuid primary key); alter table bad add foreign key (tenant_id) references worse`, "foreign key does not lead to tenant_id first: bad bad_tenant_id_fkey"},
		"index order":     {protected + `create index bad_by_id on bad (id)`, "index does not start with tenant_id: bad bad_by_id"},
		"expression":      {protected + `create index bad_by_text on bad ((id::text), tenant_id)`, "index does not start with tenant_id: bad bad_by_text"},
		"truncate":        {protected + `grant truncate on bad to telltale_jobs`, "privilege that row-level security does not govern: bad TRUNCATE to telltale_jobs"},
		"public":          {protected + `grant select on bad to public`, "privilege that row-level security does not govern: bad SELECT to -"},
		"bare partition":  {parent + `create table bad_p partition of bad for values from ('2026-01-01') to ('2026-01-02')`, "row-level security is not enabled and forced: bad_p"},
		"open partition":  {parent + `select telltale_make_partition('bad', '2026-01-01', '2026-01-02'); grant select on bad_20260101_000000 to telltale_app`, "partition with privileges of its own: bad_20260101_000000 to telltale_app"},
		"default":         {parent + `create table bad_p partition of bad default`, "default partition: bad_p"},
		"view":            {protected + `create view bad_view as select * from bad`, "view that runs as its owner: bad_view"},
		"materialised":    {protected + `create materialized view bad_view as select * from bad`, "view that runs as its owner: bad_view"},
		"definer":         {`create function bad() returns int security definer language sql as 'select 1'`, "definer function without a fixed search_path: bad()"},
		"public function": {`create function bad() returns int language sql as 'select 1'; grant execute on function bad() to public`, "function that everybody may run: bad()"},
		"credential":      {`grant select on credential to telltale_app`, "global table that a role may touch: credential SELECT to telltale_app"},
		"owner":           {`reset role; create table bad (tenant_id uuid primary key)`, "owned by another than telltale_owner: bad"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dbtest.Connect(t, dbtest.DSN(t))
			must(t, conn, `set role telltale_owner`)
			must(t, conn, c.sql)
			must(t, conn, `reset role`)
			got := faults(t, conn)
			if !slices.ContainsFunc(got, func(f string) bool { return strings.HasPrefix(f, c.want) }) {
				t.Errorf("want a fault %q, got %v", c.want, got)
			}
		})
	}
}

const (
	protected = `create table bad (tenant_id uuid, id uuid, primary key (tenant_id, id)); select telltale_protect('bad'); `
	parent    = `create table bad (tenant_id uuid, ts timestamptz, primary key (tenant_id, ts)) partition by range (ts); select telltale_protect('bad'); `
)

func TestPartitions(t *testing.T) {
	dsn := dbtest.DSN(t)
	owner := dbtest.Connect(t, dsn)
	must(t, owner, `set role telltale_owner`)
	must(t, owner, parent+`create index bad_more on bad (tenant_id, ts desc)`)
	ingest := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_ingest"))
	jobs := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_jobs"))

	const mk = `select telltale_make_partition('bad', $1, $2)`
	for _, hour := range []string{"00", "01", "02"} {
		lo, hi := "2026-01-01T"+hour+":00Z", "2026-01-01T"+hour+":59:60Z"
		if !get[bool](t, ingest, mk, lo, hi) {
			t.Errorf("%s was not made", lo)
		}
		if get[bool](t, jobs, mk, lo, hi) {
			t.Errorf("%s was made twice", lo)
		}
	}
	list := func() string {
		return get[string](t, jobs, `select string_agg(name || to_char(lo at time zone 'UTC', ' HH24:MI') || to_char(hi at time zone 'UTC', '-HH24:MI'), ', ' order by lo) from telltale_partitions('bad')`)
	}
	want := "bad_20260101_000000 00:00-01:00, bad_20260101_010000 01:00-02:00, bad_20260101_020000 02:00-03:00"
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Error(diff)
	}
	must(t, ingest, `begin; select set_config('telltale.tenants', '00000000-0000-0000-0000-00000000000a', true);
		insert into bad values ('00000000-0000-0000-0000-00000000000a', '2026-01-01T01:30Z'); commit`)

	for name, sql := range map[string]string{
		"overlap":      `select telltale_make_partition('bad', '2026-01-01T00:30Z', '2026-01-01T01:30Z')`,
		"empty":        `select telltale_make_partition('bad', '2026-01-02', '2026-01-02')`,
		"too wide":     `select telltale_make_partition('bad', '2026-01-02', '2026-03-02')`,
		"for ever":     `select telltale_make_partition('bad', '2026-01-02', 'infinity')`,
		"null":         `select telltale_make_partition('bad', null, '2026-01-02')`,
		"plain table":  `select telltale_make_partition('credential', '2026-01-02', '2026-01-03')`,
		"no table":     `select telltale_make_partition('x"; drop table credential', '2026-01-02', '2026-01-03')`,
		"a partition":  `select telltale_make_partition('bad_20260101_000000', '2026-01-02', '2026-01-03')`,
		"other schema": `select telltale_make_partition('pg_catalog.pg_class', '2026-01-02', '2026-01-03')`,
		"ingest drops": `select telltale_drop_partition('bad', '2026-01-01')`,
	} {
		if _, err := ingest.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	app := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_app"))
	if _, err := app.Exec(t.Context(), `select telltale_make_partition('bad', '2026-01-02', '2026-01-03')`); err == nil {
		t.Error("the application role makes partitions")
	}

	// A long read holds the drop up, which gives way; writers do not wait.
	must(t, jobs, `begin; select count(*) from bad`)
	other := dbtest.Connect(t, dbtest.As(t, dsn, "telltale_jobs"))
	if _, err := other.Exec(t.Context(), `select telltale_drop_partition('bad', '2026-01-01T01:00Z')`); err == nil || !strings.Contains(err.Error(), "55P03") {
		t.Errorf("drop under a reader: %v", err)
	}
	must(t, jobs, `rollback`)
	if !get[bool](t, jobs, `select telltale_drop_partition('bad', '2026-01-01T01:00Z')`) {
		t.Error("not dropped")
	}
	if get[bool](t, jobs, `select telltale_drop_partition('bad', '2026-01-01T01:00Z')`) {
		t.Error("dropped twice")
	}
	if got := list(); strings.Contains(got, "01:00-02:00") {
		t.Error(got)
	}
	if got := faults(t, dbtest.Connect(t, dsn)); len(got) > 0 {
		t.Error(got)
	}
}
