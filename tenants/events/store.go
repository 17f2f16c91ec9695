package events

// Statements. tenant_id is first in every key, and ts is bounded everywhere,
// so that partitions are left alone.
const (
	sqlTurn = `select pg_advisory_xact_lock(hashtextextended('event/' || $1::text, 0))`

	sqlFind = `
select e.id, e.ts, e.severity, e.state, e.last_said, e.sample_count, e.truncated, e.lost,
  (select count(*) from event_context c where c.tenant_id = e.tenant_id and c.ts = e.ts and c.event_id = e.id and c.ts >= $5 and c.ts <= $6)
  from event e
 where e.tenant_id = $1 and e.node_id = $2 and e.fingerprint = $3 and e.begun = $4 and e.ts >= $5 and e.ts <= $6 and e.origin = 'probe' limit 1`

	sqlEarlier = `select count(*) from event where tenant_id = $1 and node_id = $2 and fingerprint = $3 and ts >= $4 and ts < $5`

	sqlLater = `
update event set recurrence = recurrence + 1
 where tenant_id = $1 and node_id = $2 and fingerprint = $3 and ts > $4 and ts <= $5`

	sqlLately = `
select count(*) from (select from event where tenant_id = $1 and node_id = $2 and kind = $6 and ts > $3 and ts <= $4 limit $5) x`

	sqlInsert = `
insert into event (tenant_id, ts, id, node_id, kind, severity, state, origin, fingerprint, begun, last_said, last_seen, skew_ms,
  sample_count, truncated, lost, recurrence, labels, samples, title, task_id)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)`

	sqlPromoted = `
select ts, id, title, severity from event
 where tenant_id = $1 and node_id = $2 and fingerprint = $3 and ts >= $4 and ts <= $5 and origin = 'task' order by ts limit 1`

	sqlRetitle = `
update event set title = $4, severity = $5 where tenant_id = $1 and ts = $2 and id = $3`

	sqlUpdate = `
update event set severity = greatest(severity, $4::smallint), state = $5, last_said = greatest(last_said, $6), last_seen = greatest(last_seen, $7),
  sample_count = greatest(sample_count, $8), truncated = greatest(truncated, $9), lost = greatest(lost, $10),
  samples = coalesce($11::jsonb, samples), skew_ms = coalesce(skew_ms, $12)
 where tenant_id = $1 and ts = $2 and id = $3`
)

// Reading.
const (
	// The columns of an event e with its node n, see scanEvent; the bounds of ts
	// follow (sqlSince and sqlUntil), so that the planner leaves alone all other
	// partitions of the snapshots too. A snapshot that is gone is unavailable.
	sqlColumns = `e.ts, e.id, e.node_id, n.name, e.kind, e.severity, e.state, e.origin, e.fingerprint, e.last_seen, e.skew_ms is not null,
  e.sample_count, e.truncated, e.lost, e.recurrence, e.labels, e.title, e.task_id,
  coalesce((select c.status from event_context c where c.tenant_id = $1 and c.ts = e.ts and c.event_id = e.id`
	sqlSince      = ` and c.ts >= `
	sqlUntil      = ` and c.ts <= `
	sqlColumnsEnd = ` order by c.n desc limit 1), 'unavailable')`

	sqlOne = `
select ` + sqlColumns + sqlSince + `$2` + sqlUntil + `$2` + sqlColumnsEnd + `, e.samples
  from event e join node n on n.tenant_id = $1 and n.node_id = e.node_id
 where e.tenant_id = $1 and e.ts = $2 and e.id = $3`

	sqlContexts = `
select why, at, status, reason, before, during, after
  from event_context where tenant_id = $1 and ts = $2 and event_id = $3 order by n`

	sqlNearby = `
select ` + sqlColumns + sqlSince + `$3` + sqlUntil + `$4` + sqlColumnsEnd + `
  from (select * from event where tenant_id = $1 and node_id = (select node_id from event where tenant_id = $1 and ts = $2 and id = $5) and ts >= $3 and ts <= $4 and id <> $5 order by ts desc, id desc limit 20) e
  join node n on n.tenant_id = $1 and n.node_id = e.node_id
 order by e.ts desc, e.id desc`

	// The state of nodes; conditions follow. $2 now - NodeStaleAfter, $3 now -
	// offlineAfter.
	sqlAudience = `
with x as materialized (
select n.node_id, n.name, case
    when n.revoked_at is not null then 'revoked'
    when s.session_id is null then 'never'
    when s.closed_at is not null or s.last_seen <= $3::timestamptz then 'offline'
    when s.last_seen <= $2::timestamptz then 'stale'
    when abs(s.skew_ms) > 3600000 then 'quarantined'
    else '' end as state
  from node n left join node_session s on s.tenant_id = $1 and s.node_id = n.node_id and s.current
 where n.tenant_id = $1`
	sqlAudienceTail = `)
select '00000000-0000-0000-0000-000000000000'::uuid, '', '', count(*), count(*) filter (where state <> '') from x
union all (select node_id, name, state, 0, 0 from x where state <> '' order by name, node_id limit 50)`

	sqlIDs = `select n.node_id from node n where n.tenant_id = $1`
)

// Snapshots.
const (
	// What finds $12 of its node waiting gets no snapshot, for $13.
	sqlPutContext = `
insert into event_context (tenant_id, ts, event_id, n, node_id, why, at, status, reason, metrics, due_at)
select $1, $2, $3, $4, $5, $6, $7, case when f.much then 'unavailable' else $8::text end, case when f.much then $13::text else $9::text end, $10,
  case when not f.much then $11::timestamptz end
  from (select $8::text = 'pending' and $12::int <= (select count(*) from (
    select from event_context where tenant_id = $1 and node_id = $5 and due_at is not null limit $12) x)) f(much)`

	// Tenants take turns, and within one its nodes do, so that a flood of one
	// delays no other. More are looked at than taken: another replica may be at
	// the same ones.
	sqlClaim = `
with due as (
  select tenant_id, ts, event_id, n, due_at, row_number() over (partition by tenant_id order by of_node, due_at) as turn
    from (select tenant_id, ts, event_id, n, due_at, row_number() over (partition by tenant_id, node_id order by due_at) as of_node
            from event_context where due_at <= $1) w
   order by turn, due_at limit 4 * $3::int),
 mine as (
  select c.tenant_id, c.ts, c.event_id, c.n
    from due d join event_context c on c.tenant_id = d.tenant_id and c.ts = d.ts and c.event_id = d.event_id and c.n = d.n
   where c.due_at <= $1 order by d.turn, d.due_at limit $3 for update of c skip locked)
update event_context c set due_at = $2, attempts = c.attempts + 1
  from mine x where c.tenant_id = x.tenant_id and c.ts = x.ts and c.event_id = x.event_id and c.n = x.n
returning c.tenant_id, c.ts, c.event_id, c.n, c.node_id, c.at, c.metrics, c.attempts`

	sqlFill = `
update event_context set status = $6, reason = $7, before = $8, during = $9, after = $10, due_at = $11
 where tenant_id = $1 and ts = $2 and event_id = $3 and n = $4 and attempts = $5`
)

// Maintenance.
const (
	sqlMaintainLock = `select pg_try_advisory_xact_lock(hashtext('telltale_event_maintenance'))`
	sqlYounger      = `select count(*) from (select from event where ts >= $1 limit $2) x`
)
