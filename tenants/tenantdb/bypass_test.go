package tenantdb_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/telltale-dev/telltale/migrations"
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// as opens a plain connection of a role and sets the tenant of a transaction,
// as the package does, but leaves all SQL to the test.
func (w world) as(t *testing.T, role, setting, value string) *pgx.Conn {
	t.Helper()
	conn := dbtest.Connect(t, dbtest.As(t, w.dsn, role))
	must(t, conn, `begin`)
	must(t, conn, `select set_config($1, $2, true)`, setting, value)
	return conn
}

// Each of these is SQL that a defect of ours could run as the application role
// inside tenant A. None may show or touch anything of tenant B; in sql, B
// stands for B's id. (A statement that sets another tenant is the one thing
// row-level security cannot refuse; that is why no caller's text is ever SQL.)
func TestBypasses(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		sql  string
		code string // the refusal, "" for an answer without B in it
	}{
		"all rows":            {sql: `select word from secret`},
		"other's id":          {sql: `select word from secret where tenant_id = 'B'`},
		"or true":             {sql: `select word from secret where tenant_id = 'B' or true`},
		"union":               {sql: `select word from secret union all select word from secret where tenant_id = 'B'`},
		"lateral":             {sql: `select s.word from (values ('B'::uuid)) v(id), lateral (select word from secret where tenant_id = v.id) s`},
		"count":               {sql: `select 'of B' from secret where tenant_id = 'B'`},
		"cursor":              {sql: `declare c cursor for select word from secret; fetch all from c`},
		"view":                {sql: `select word from secret_view where tenant_id = 'B'`},
		"partition":           {sql: `select word from secret_20260101_000000`, code: "42501"},
		"only partition":      {sql: `select word from only secret_20260101_000000`, code: "42501"},
		"lock partition":      {sql: `lock table secret_20260101_000000`, code: "42501"},
		"copy out":            {sql: `copy secret to stdout`},
		"copy partition":      {sql: `copy secret_20260101_000000 to stdout`, code: "42501"},
		"copy query":          {sql: `copy (select word from secret where tenant_id = 'B') to stdout`},
		"copy to program":     {sql: `copy (select 1) to program 'true'`, code: "42501"},
		"row_security off":    {sql: `set local row_security = off; select word from secret`, code: "42501"},
		"reset":               {sql: `reset telltale.tenant; select word from secret`},
		"reset all":           {sql: `reset all; select word from secret`},
		"another role's word": {sql: `select set_config('telltale.tenants', 'B', true); select word from secret`},
		"reset role":          {sql: `reset role; select word from secret`},
		"session auth":        {sql: `reset session authorization; select word from secret`},
		"set role owner":      {sql: `set role telltale_owner`, code: "42501"},
		"set role jobs":       {sql: `set role telltale_jobs`, code: "42501"},
		"set role ingest":     {sql: `set role telltale_ingest`, code: "42501"},
		"set role postgres":   {sql: `set role postgres`, code: "42501"},
		"become postgres":     {sql: `set session authorization postgres`, code: "42501"},
		"alter role":          {sql: `alter role telltale_app bypassrls`, code: "42501"},
		"grant role":          {sql: `grant telltale_jobs to telltale_app`, code: "42501"},
		"disable":             {sql: `alter table secret disable row level security`, code: "42501"},
		"new policy":          {sql: `create policy mine on secret using (true)`, code: "42501"},
		"own function":        {sql: `create function f() returns setof text language sql security definer as 'select word from secret'`, code: "42501"},
		"own view":            {sql: `create view v as select word from secret`, code: "42501"},
		"temporary table":     {sql: `create temporary table credential as select 1`, code: "42501"},
		"temporary function":  {sql: `create function pg_temp.f() returns int language sql as 'select 1'`, code: "42501"},
		"anonymous block":     {sql: `do $$ declare w text; begin for w in select word from secret where tenant_id = 'B' loop raise exception 'seen %', w; end loop; end $$`},
		"leaky condition":     {sql: `select word from secret where word::int > 0 and tenant_id = 'B'`},
		"error by row":        {sql: `select 1 from secret where tenant_id = 'B' and 1 / (case when word like 'of B%' then 0 else 1 end) = 1`},
		"cost of a function":  {sql: `select word from secret where tenant_id <> (select nullif(current_setting('telltale.tenant'), '')::uuid)`},
		"explain":             {sql: `explain (analyze, format text, costs off, timing off, summary off) select 'of ' || tenant_id from secret where word <> ''`},
		"statistics":          {sql: `select coalesce(most_common_vals::text, '') || coalesce(histogram_bounds::text, '') from pg_stats where tablename like 'secret%'`},
		"raw statistics":      {sql: `select * from pg_statistic`, code: "42501"},
		"insert for other":    {sql: `insert into secret values ('B', '2026-01-01T01:00Z', 'x', 'y')`, code: "42501"},
		"insert in partition": {sql: `insert into secret_20260101_000000 values ('B', '2026-01-01T01:00Z', 'x', 'y')`, code: "42501"},
		"copy in":             {sql: `copy secret from stdin`, code: "0A000"},
		"move to other":       {sql: `update secret set tenant_id = 'B'`, code: "42501"},
		"update other":        {sql: `update secret set word = 'mine' where tenant_id = 'B' returning word`},
		"delete other":        {sql: `delete from secret where tenant_id = 'B' returning word`},
		"lock other":          {sql: `select word from secret where tenant_id = 'B' for update`},
		"truncate":            {sql: `truncate secret`, code: "42501"},
		"take other's key":    {sql: `insert into secret values ('B', '2026-01-01T12:00Z', '0', 'y') on conflict (tenant_id, ts, id) do update set word = 'y' returning word`, code: "42501"},
		"list credentials":    {sql: `select tenant_id::text from credential`, code: "42501"},
		"credential pattern":  {sql: `select 'of ' || credential_tenant('test', 'lookup-%')`},
		"write credential":    {sql: `insert into credential values ('test', 'lookup-mine', 'B')`, code: "42501"},
		"credential by row":   {sql: `insert into token values ('B', 'lookup-mine')`, code: "42501"},
		"steal credential":    {sql: `update token set token_id = 'lookup-' || 'B'`, code: "23000"},
		"trigger function":    {sql: `select telltale_credential()`, code: "42501"},
		"protect":             {sql: `select telltale_protect('secret')`, code: "42501"},
		"make partition":      {sql: `select telltale_make_partition('secret', '2026-02-01', '2026-02-02')`, code: "42501"},
		"drop partition":      {sql: `select telltale_drop_partition('secret', '2026-01-01')`, code: "42501"},
		"list partitions":     {sql: `select * from telltale_partitions('secret')`, code: "42501"},
		"server file":         {sql: `select pg_read_file('PG_VERSION')`, code: "42501"},
		"large object file":   {sql: `select lo_import('/etc/passwd')`, code: "42501"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := w.as(t, migrations.AppRole, "telltale.tenant", w.a.String())
			got, err := everything(t.Context(), conn, strings.ReplaceAll(c.sql, "'B'", "'"+w.b.String()+"'"))
			var pe *pgconn.PgError
			switch {
			case err == nil:
			case !errors.As(err, &pe):
				t.Fatal(err)
			case strings.Contains(pe.Message+pe.Detail+pe.Hint, w.b.String()) && !strings.Contains(name, "for other"):
				t.Errorf("the error shows the other tenant: %v %s", pe, pe.Detail)
			}
			if c.code != "" && (pe == nil || pe.Code != c.code) {
				t.Errorf("got %v, want SQLSTATE %s", err, c.code)
			}
			if strings.Contains(got, "of "+w.b.String()) {
				t.Errorf("saw the other tenant: %s", got)
			}
			if strings.HasPrefix(name, "explain") && strings.Contains(got, "rows=6 ") {
				t.Errorf("the plan counts the other tenant's rows: %s", got)
			}
		})
	}
	super := dbtest.Connect(t, w.dsn)
	var intact int
	if err := super.QueryRow(t.Context(), `select count(*) from secret where tenant_id = $1 and word = $2`, w.b.String(), "of "+w.b.String()).Scan(&intact); err != nil || intact != rowsEach {
		t.Errorf("%d of the other tenant's rows are intact, %v", intact, err)
	}
}

// everything runs a text of one or more statements and joins all they print,
// what COPY sends included.
func everything(ctx context.Context, conn *pgx.Conn, sql string) (string, error) {
	var out strings.Builder
	if strings.HasPrefix(sql, "copy") && strings.Contains(sql, "to stdout") {
		_, err := conn.PgConn().CopyTo(ctx, &out, sql)
		return out.String(), err
	}
	results := conn.PgConn().Exec(ctx, sql)
	for results.NextResult() {
		r := results.ResultReader()
		for r.NextRow() {
			for _, v := range r.Values() {
				out.Write(v)
				out.WriteByte(' ')
			}
		}
		if _, err := r.Close(); err != nil {
			_ = results.Close()
			return out.String(), err
		}
	}
	return out.String(), results.Close()
}

// Without its setting, or with that of another role, a role sees nothing.
func TestUnsetSettingSeesNothing(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct{ role, setting, value string }{
		"app unset":           {migrations.AppRole, "application_name", "x"},
		"app empty":           {migrations.AppRole, "telltale.tenant", ""},
		"app, other setting":  {migrations.AppRole, "telltale.tenants", w.a.String()},
		"ingest unset":        {migrations.IngestRole, "application_name", "x"},
		"ingest empty":        {migrations.IngestRole, "telltale.tenants", ""},
		"ingest, app setting": {migrations.IngestRole, "telltale.tenant", w.a.String()},
	} {
		conn := w.as(t, c.role, c.setting, c.value)
		var n int
		if err := conn.QueryRow(t.Context(), `select count(*) from secret`).Scan(&n); err != nil || n != 0 {
			t.Errorf("%s: %d rows, %v", name, n, err)
		}
		if c.value == "" {
			must(t, conn, `commit`) // the setting now reads '' and not null
			if err := conn.QueryRow(t.Context(), `select count(*) from secret`).Scan(&n); err != nil || n != 0 {
				t.Errorf("%s, after commit: %d rows, %v", name, n, err)
			}
		}
	}
	for name, c := range map[string]struct{ role, setting, value string }{
		"app":    {migrations.AppRole, "telltale.tenant", "x"},
		"ingest": {migrations.IngestRole, "telltale.tenants", w.a.String() + ",x"},
	} {
		conn := w.as(t, c.role, c.setting, c.value)
		var n int
		if err := conn.QueryRow(t.Context(), `select count(*) from secret`).Scan(&n); err == nil {
			t.Errorf("%s: a broken setting gave %d rows", name, n)
		}
	}
}

// The policy costs one look at the setting, not one a row, and lets the key's
// index be used, by one tenant and by a list.
func TestPolicyIsAnInitPlan(t *testing.T) {
	w := newWorld(t)
	for role, setting := range map[string]string{migrations.AppRole: "telltale.tenant", migrations.IngestRole: "telltale.tenants"} {
		conn := w.as(t, role, setting, w.a.String())
		plan, err := everything(t.Context(), conn, `set local enable_seqscan = off; explain (costs off) select * from secret where ts = '2026-01-01T12:00Z' and id = '1'`)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(plan, "InitPlan 1") || !strings.Contains(plan, "Index Cond: ((tenant_id = ") {
			t.Errorf("%s: %s", role, plan)
		}
	}
}
