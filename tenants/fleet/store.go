package fleet

// The SQL of this slice. Every statement names its tenant; row-level security
// holds below. A test prepares each one against the migrated schema.
//
// A statement that begins with sqlNodes may be narrowed by where in scope.go.

// sqlNodes joins each node with its newest stream.
// Its parameters: $1 tenant, $2 now - NodeStaleAfter, $3 now - OfflineAfter.
const sqlNodes = `
  from node n
  left join node_session s on s.tenant_id = $1 and s.node_id = n.node_id and s.current
 where n.tenant_id = $1`

// sqlStatus derives a node's status, see the constants in fleet.go.
const sqlStatus = `case
    when n.revoked_at is not null then 'revoked'
    when s.session_id is null then 'never'
    when s.closed_at is null and s.duplicate_at > $3::timestamptz then 'duplicate'
    when s.closed_at is not null or ` + sqlSeen + ` <= $3::timestamptz then 'offline'
    when ` + sqlSeen + ` <= $2::timestamptz then 'stale'
    when abs(s.skew_ms) > 3600000 then 'quarantined'
    else 'online' end`

// sqlSeen is the last sign of life; null without a stream.
const sqlSeen = `s.last_seen`

// sqlRow are the columns of a row, see scanRow.
const sqlRow = `select n.node_id, n.name, ` + sqlStatus + ` as status, ` + sqlSeen + ` as seen,
  coalesce(nullif(s.agent_version, ''), n.agent_version) as version, coalesce(nullif(s.kernel, ''), n.kernel) as kernel,
  coalesce(nullif(s.os, ''), n.os) as os, coalesce(nullif(s.arch, ''), n.arch) as arch, s.skew_ms, n.enrolled_at,
  coalesce(nullif(s.machine_id, ''), n.machine_id) as machine`

// sqlLabels are the keys and values of the labels of the node p, in turn.
const sqlLabels = `array(select array[l.key, l.value] from node_label l where l.tenant_id = $1 and l.node_id = p.node_id)`

// sqlOthers are the other identities that report the machine of p.
const sqlOthers = ` from node n where n.tenant_id = $1 and n.machine_id = p.machine and p.machine <> '' and n.node_id <> p.node_id`

// A page of nodes with their labels, and whether another identity in scope
// reports the same machine. The rows of the page stand between, the scope's
// conditions after sqlPageSame.
const (
	sqlPage     = `select p.*, ` + sqlLabels + `, o.same is not null from (`
	sqlPageSame = `) p left join lateral (select true as same` + sqlOthers
	sqlPageTail = ` limit 1) o on true order by p.name, p.node_id`
)

// The nodes that a word may mean, each with its labels, where its reports
// stand, its latest headline values, and the other identities in scope on its
// machine: ids and names in turn. The rows stand between, the scope's
// conditions after sqlMeantOthers, the order after sqlMeantHead.
const (
	sqlMeant = `
select p.*, ` + sqlLabels + `, h.epoch, h.seq, h.last_ts, h.head_set, h.vals, h.missing, h.expired, h.refused,
  array(select array[n.node_id::text, n.name]`
	sqlMeantOthers = sqlOthers
	sqlMeantFrom   = ` order by n.node_id limit 10) from (`
	sqlMeantHead   = `) p left join node_head h on h.tenant_id = $1 and h.node_id = p.node_id`
)

const (
	sqlSessions = `
select session_id, replica, remote, machine_id, boot_id, agent_version, connected_at, last_seen, closed_at, close_reason,
       skew_ms, cert_not_after, counters, current
  from node_session where tenant_id = $1 and node_id = $2
 order by closed_at is not null, connected_at desc limit 8`

	sqlCapabilities = `
select component, signal, level, source, reason, since
  from capability where tenant_id = $1 and node_id = $2 order by component, signal limit 500`

	sqlModulesOff = `
select module, by, at from module_switch where tenant_id = $1 and node_id = $2 and off order by module limit 100`

	// What of a node is kept out, here and in the metrics slice, and what is
	// switched off for it: one statement, because most often there is nothing.
	sqlKeptOff = `
select false, reason, n, first_at, last_at, example from quarantine where tenant_id = $1 and node_id = $2
union all
select false, reason, n, first_at, last_at, example from win_quarantine where tenant_id = $1 and node_id = $2
union all
select true, module, 0, at, at, by from module_switch where tenant_id = $1 and node_id = $2 and off limit 300`
)

// Streams. Opening and closing streams of one node take turns, so that exactly
// one row is current.
const (
	sqlTurn = `select pg_advisory_xact_lock(hashtextextended('node_session/' || $1::text, 0))`

	sqlKeepSessions = `
delete from node_session where tenant_id = $1 and node_id = $2 and closed_at is not null
   and session_id not in (select session_id from node_session where tenant_id = $1 and node_id = $2 order by connected_at desc limit 6)`

	sqlFormer = `
select session_id, machine_id, boot_id, started_ns, last_seen, closed_at is null and not waiting, agent_version, kernel, config_digest
  from node_session where tenant_id = $1 and node_id = $2 order by connected_at desc, session_id desc limit 32`

	// An open stream that has long been silent was lost with its replica.
	sqlLoseSessions = `
update node_session set closed_at = last_seen, close_reason = 'lost'
 where tenant_id = $1 and node_id = $2 and closed_at is null and last_seen < $3`

	sqlNotCurrent = `update node_session set current = false where tenant_id = $1 and node_id = $2 and current`

	sqlOpenSession = `
insert into node_session (tenant_id, node_id, session_id, replica, remote, machine_id, boot_id, agent_version, kernel, os, arch,
  cert_not_after, connected_at, last_seen, duplicate_at, started_ns, waiting, config_digest)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13, $14, $15, $16, $17)`

	// The open streams of other lives that were let in before this one came.
	sqlRivals = `
select o.session_id, o.replica, o.last_seen, s.connected_at, (o.machine_id, o.boot_id) <> (s.machine_id, s.boot_id)
  from node_session s join node_session o on o.tenant_id = s.tenant_id and o.node_id = s.node_id and o.session_id <> s.session_id
 where s.tenant_id = $1 and s.node_id = $2 and s.session_id = $3 and o.closed_at is null and not o.waiting
   and (o.machine_id, o.boot_id, o.started_ns) <> (s.machine_id, s.boot_id, s.started_ns)
   and o.connected_at <= s.connected_at`

	sqlAdmitSession = `update node_session set waiting = false where tenant_id = $1 and node_id = $2 and session_id = $3`

	sqlCloseSession = `
update node_session set closed_at = $4, last_seen = greatest(last_seen, $4), close_reason = $5
 where tenant_id = $1 and node_id = $2 and session_id = $3 and closed_at is null`

	// The newest open stream is the current one, else the newest of all.
	sqlPromote = `
update node_session set current = true
 where tenant_id = $1 and node_id = $2 and session_id = (
    select session_id from node_session where tenant_id = $1 and node_id = $2 order by closed_at is not null, connected_at desc, session_id desc limit 1)`

	sqlSeenMany = `
update node_session s set last_seen = greatest(s.last_seen, u.at), skew_ms = coalesce(u.skew, s.skew_ms),
  counters = coalesce(u.counters::jsonb, s.counters)
from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::timestamptz[], $5::bigint[], $6::text[]) as u(t, n, id, at, skew, counters)
where s.tenant_id = u.t and s.node_id = u.n and s.session_id = u.id`

	// Two open streams of different lives of one node of which the older one was
	// heard of after the younger one opened: both are alive. A reboot, or a new
	// start of the agent, leaves an older stream that stays silent.
	sqlMarkDuplicates = `
update node_session s set duplicate_at = $3::timestamptz
from unnest($1::uuid[], $2::uuid[]) as u(t, n)
where s.tenant_id = u.t and s.node_id = u.n and s.closed_at is null
  and exists (select from node_session o where o.tenant_id = s.tenant_id and o.node_id = s.node_id and o.session_id <> s.session_id
    and o.closed_at is null and (o.machine_id, o.boot_id, o.started_ns) <> (s.machine_id, s.boot_id, s.started_ns)
    and least(o.last_seen, s.last_seen) > $4::timestamptz
    and case when o.connected_at < s.connected_at then o.last_seen > s.connected_at else s.last_seen > o.connected_at end)`
)

// Capabilities, switches, refusals.
const (
	sqlPutCapabilities = `
insert into capability as c (tenant_id, node_id, component, signal, level, source, reason, since)
select $1, $2, u.c, u.s, u.l, u.src, u.r, $3 from unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[]) as u(c, s, l, src, r)
on conflict (tenant_id, node_id, component, signal) do update
  set level = excluded.level, source = excluded.source, reason = excluded.reason, since = excluded.since
  where (c.level, c.source, c.reason) is distinct from (excluded.level, excluded.source, excluded.reason)`

	sqlDropCapabilities = `
delete from capability c where c.tenant_id = $1 and c.node_id = $2
   and not exists (select from unnest($3::text[], $4::text[]) as u(c, s) where u.c = c.component and u.s = c.signal)`

	sqlSwitchOff = `
insert into module_switch as m (tenant_id, node_id, module, off, by, at)
select $1, $2, u.m, true, $3, $4 from unnest($5::text[]) as u(m)
on conflict (tenant_id, node_id, module) do update set off = true, by = excluded.by, at = excluded.at where not m.off
returning module`

	sqlSwitchBack = `
update module_switch set off = false, by = $3, at = $4
 where tenant_id = $1 and node_id = $2 and off and not (module = any($5::text[]))
returning module`

	sqlOffModules = `select module from module_switch where tenant_id = $1 and node_id = $2 and off order by module limit 100`

	sqlSwitchedOff = `
select m.node_id, m.module from unnest($1::uuid[], $2::uuid[]) u(t, n)
  join module_switch m on m.tenant_id = u.t and m.node_id = u.n where m.off order by 1, 2`

	sqlQuarantineOne = `
insert into quarantine as q (tenant_id, node_id, reason, n, first_at, last_at, example) values ($1, $2, $3, $4, $5, $5, $6)
on conflict (tenant_id, node_id, reason) do update set n = q.n + excluded.n, last_at = excluded.last_at, example = excluded.example`
)

// The overview. Each is followed by the scope's conditions, then by its tail.
const (
	// The shares of all nodes, then those that are away, by name.
	sqlByStatus     = `with x as materialized (` + sqlStates
	sqlByStatusTail = `)
select null::uuid, '', status, version, kernel, count(*), max(seen) from x group by 3, 4, 5
union all (select node_id, name, status, '', '', 0, null from x where status <> 'online' order by name, node_id limit 50)`

	// The same in two statements, of which a large fleet needs the second one
	// only when nodes are away. Materialized, so that the order does not lead to
	// a look-up of every single node's stream.
	sqlShares     = `select null::uuid, '', status, version, kernel, count(*), max(seen) from (` + sqlStates
	sqlSharesTail = `) x group by 3, 4, 5`
	sqlAway       = `with x as materialized (select n.node_id, n.name, ` + sqlStatus + ` as status` + sqlNodes
	sqlAwayTail   = `) select node_id, name, status, '', '', 0, null::timestamptz from x where status <> 'online' order by name, node_id limit 50`

	sqlStates = `
select n.node_id, n.name, ` + sqlStatus + ` as status, ` + sqlSeen + ` as seen,
  coalesce(nullif(s.agent_version, ''), n.agent_version) as version, coalesce(nullif(s.kernel, ''), n.kernel) as kernel` + sqlNodes

	sqlHeads = `select h.node_id, h.vals from node_head h
 where h.tenant_id = $1 and h.last_ts > $2 and h.head_set = $3 and h.vals is not null
   and h.node_id not in (select node_id from node where tenant_id = $1 and revoked_at is not null)`

	// With names, which would cost a large fleet a join of all its nodes.
	sqlHeadsNamed = `select h.node_id, h.vals, n.name from node_head h join node n on n.tenant_id = $1 and n.node_id = h.node_id
 where h.tenant_id = $1 and h.last_ts > $2 and h.head_set = $3 and h.vals is not null and n.revoked_at is null`

	// What is not full on how many nodes, and one of them.
	sqlUnhealthy = `
select u.*, e.node_id, e.name, e.reason from (
select c.component, c.signal, c.level, count(*) as n from capability c
 where c.tenant_id = $1 and c.level <> 'full'
   and c.node_id not in (select node_id from node where tenant_id = $1 and revoked_at is not null)`
	sqlUnhealthyExample = ` group by 1, 2, 3 order by 4 desc, 1, 2, 3 limit 20) u left join lateral (
    select c.node_id, n.name, c.reason from capability c join node n on n.tenant_id = $1 and n.node_id = c.node_id
     where c.tenant_id = $1 and c.component = u.component and c.signal = u.signal and c.level = u.level and n.revoked_at is null`
	sqlUnhealthyTail = ` limit 1) e on true order by u.n desc, 1, 2, 3`

	sqlKept = `
select q.reason, sum(q.n)::bigint, count(distinct q.node_id) from (
    select node_id, reason, n from quarantine where tenant_id = $1
    union all select node_id, reason, n from win_quarantine where tenant_id = $1) q
  where true`
	sqlKeptTail = ` group by 1 order by 2 desc limit 20`

	// For a restricted principal: only rows of nodes in scope.
	sqlOnlyOf = ` in (select n.node_id from node n where n.tenant_id = $1`

	sqlNames = `select node_id, name from node where tenant_id = $1 and node_id = any($2::uuid[])`
)
