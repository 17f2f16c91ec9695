package metrics

// The SQL of the way in. Every statement names its tenants; row-level security
// holds below. A test prepares each one against the migrated schema.
const (
	// Without a named key: of two that bring one layout at once, the second may
	// meet either unique index first.
	sqlPutLayout = `
insert into layout (tenant_id, layout_id, hash, component, series, encoded, created_at, used_at)
values ($1, $2, $3, $4, $5, $6, $7, $7)
on conflict do nothing`

	sqlLayoutHash = `select hash from layout where tenant_id = $1 and layout_id = $2`

	sqlLayoutByHash = `select encoded, used_at from layout where tenant_id = $1 and hash = $2`

	sqlUseLayout = `update layout set used_at = greatest(used_at, $3) where tenant_id = $1 and layout_id = $2`

	sqlUseLayouts = `
update layout l set used_at = greatest(l.used_at, $3)
  from unnest($1::uuid[], $2::bigint[]) u(t, id) where l.tenant_id = u.t and l.layout_id = u.id`

	sqlDropLayouts = `
delete from layout where (tenant_id, layout_id) in (
    select tenant_id, layout_id from layout where used_at < $1 order by used_at limit $2 for update skip locked)`

	// An agent may bring the epoch forward, after the database was restored
	// from a backup, but not so far that the next ones are out of range.
	sqlOpen = `
insert into node_head as h (tenant_id, node_id, epoch, seq) values ($1, $2, least($3::bigint, 4503599627370496) + 1, 0)
on conflict (tenant_id, node_id) do update set
  epoch = case when h.epoch = $3 then h.epoch else greatest(h.epoch, least($3, 4503599627370496)) + 1 end,
  seq   = case when h.epoch = $3 then h.seq else 0 end
returning epoch, seq`

	sqlSkip = `update node_head set seq = greatest(seq, $4) where tenant_id = $1 and node_id = $2 and epoch = $3`

	// Rows are locked in one order by every batch, so that two batches with
	// the same nodes wait for each other and cannot deadlock.
	sqlLockHeads = `
select h.tenant_id, h.node_id, h.epoch, h.seq, h.last_ts, h.head_set, h.vals
from unnest($1::uuid[], $2::uuid[]) u(t, n)
join node_head h on h.tenant_id = u.t and h.node_id = u.n
order by h.tenant_id, h.node_id
for update of h`

	sqlInsertWin = `
insert into win (tenant_id, node_id, ts, seq, layout_id, samples, lost, folded, refused, skew_ms, dur_ms, component, vals)
select t, n, ts, q, l, nullif(s, 0), nullif(lo, 0), nullif(f, 0), nullif(r, 0), sk, d, c, v
from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::int[], $10::int[], $11::int[], $12::text[], $13::bytea[])
  as u(t, n, ts, q, l, s, lo, f, r, sk, d, c, v)
on conflict do nothing`

	// Counters stop at 2^53-1, which a reader of JSON numbers still reads
	// exactly: no report may make the statement fail.
	sqlMoveHeads = `
update node_head h set
  seq = u.q, last_ts = greatest(h.last_ts, u.ts), head_set = $9,
  vals = case when u.v is null then h.vals else u.v::float8[] end,
  missing = least(least(h.missing, 9007199254740991) + least(u.m, 9007199254740991), 9007199254740991),
  expired = least(least(h.expired, 9007199254740991) + least(u.e, 9007199254740991), 9007199254740991),
  refused = least(least(h.refused, 9007199254740991) + least(u.r, 9007199254740991), 9007199254740991)
from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::timestamptz[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[])
  as u(t, n, q, ts, v, m, e, r)
where h.tenant_id = u.t and h.node_id = u.n`

	sqlKeepOut = `
insert into win_quarantine as w (tenant_id, node_id, reason, n, first_at, last_at, example)
select t, n, r, c, $6::timestamptz, $6::timestamptz, e
from unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::text[]) as u(t, n, r, c, e)
on conflict (tenant_id, node_id, reason) do update set n = w.n + excluded.n, last_at = excluded.last_at, example = excluded.example`

	sqlMaintainLock = `select pg_try_advisory_xact_lock(hashtext('telltale_win_maintenance'))`
)
