package tasks

// The SQL of this slice. Every statement names its tenant; row-level security
// holds below. A test prepares each one against the migrated schema.
//
// Whoever ends runs locks their tasks first, in order of id; statements that
// touch runs of many tasks skip what is locked.

// Starting, as the application role.
const (
	// A task and its runs, or nothing of both when $5 is not a free place. A
	// place that another start takes at the same moment makes the insert wait
	// for it and then do nothing. One statement, because each one costs its
	// messages and its start.
	sqlStart = `with place(i) as (values ($5::int)),` + sqlStartIn

	// The same for a node that the look which the batch began with has found:
	// $27 is its tenants.Target.Key.
	sqlStartFound = `with place(i) as (select $5::int where current_setting('telltale.found', true) = $27::text),` + sqlStartIn

	// The same at whichever place is free; $5 is MaxActive.
	sqlStartFree = `
with place as (
  select i from generate_series(1, $5::int) i
   where not exists (select from task o where o.tenant_id = $1 and o.slot = i and o.ended_at is null)
   order by random() limit 1),` + sqlStartIn

	sqlStartIn = `
stored as (
  insert into task (tenant_id, task_id, kind, args, slot, principal_kind, principal_id, principal_name, scopes, labels, nodes,
    created_at, start_before, deadline_at, expires_at, state, skipped_nodes, skipped_names, skipped_reasons)
  select $1, $2, $3, $4, place.i, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19 from place
  on conflict (tenant_id, slot) where ended_at is null do nothing returning task_id)
insert into task_run (tenant_id, task_id, node_id, name, state, start_before, deadline_at, dispatched_at, lease_until, replica, started_ns)
select $1, $2, u.n, u.name, u.s, $13, $20, case when u.s <> 'CREATED' then $12::timestamptz end, case when u.s <> 'CREATED' then $21::timestamptz end,
  case when u.s <> 'CREATED' then $22 else '' end, u.life
  from unnest($23::uuid[], $24::text[], $25::text[], $26::bigint[]) as u(n, name, s, life)
 where exists (select from stored)`

	// A fan-out that no node can take has ended when it is stored.
	sqlInsertEnded = `
insert into task (tenant_id, task_id, kind, args, slot, principal_kind, principal_id, principal_name, scopes, labels, nodes,
  created_at, start_before, deadline_at, expires_at, state, skipped_nodes, skipped_names, skipped_reasons, ended_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $12)`

	sqlCountActive = `select count(*) from task where tenant_id = $1 and ended_at is null`
)

// Ending.
const (
	sqlLockTask    = `select task_id from task where tenant_id = $1 and task_id = $2 for update`
	sqlTryLockTask = sqlLockTask + ` skip locked`
	sqlEndRun      = `
update task_run set state = $4, error_kind = $5, reason = $6, arg = $7, message = $8, next_step = $9, ended_at = $10,
  started_at = coalesce(started_at, $11::timestamptz, case when $12::bool then dispatched_at end), lease_until = null,
  permille = case when $4 = 'COMPLETED' then 1000 else permille end
 where tenant_id = $1 and task_id = $2 and node_id = $3 and state = any($13::text[])
returning name, started_at, permille`

	// Only beside the end that brought it.
	sqlPutResult = `
insert into task_result (tenant_id, task_id, node_id, partial, body)
select $1, $2, $3, $4, $5 where exists (
  select from task_run where tenant_id = $1 and task_id = $2 and node_id = $3 and state = $6 and ended_at = $7)
on conflict (tenant_id, task_id, node_id) do update set partial = excluded.partial, body = excluded.body`

	// $4 is rank().
	sqlCloseTask = `
update task t set state = x.state, ended_at = $3
  from (select count(*) filter (where ended_at is null) as active, ($4::text[])[min(array_position($4::text[], state))] as state
          from task_run where tenant_id = $1 and task_id = $2) x
 where t.tenant_id = $1 and t.task_id = $2 and t.ended_at is null and x.active = 0`

	// All of an end at once, for the run of a task that has no other: the lock of
	// the task, the run, its result unless $14 is null, and the task. With more
	// runs it would not do, because it sees the others as they were before the
	// lock.
	sqlEndAlone = `
with alone as (
  select from task where tenant_id = $1 and task_id = $2 and nodes = 1 for update),
run as (
  update task_run set state = $4, error_kind = $5, reason = $6, arg = $7, message = $8, next_step = $9, ended_at = $10,
    started_at = coalesce(started_at, $11::timestamptz, case when $12::bool then dispatched_at end), lease_until = null,
    permille = case when $4 = 'COMPLETED' then 1000 else permille end
    from alone
   where tenant_id = $1 and task_id = $2 and node_id = $3 and state = any($13::text[])
  returning name, started_at, permille),
result as (
  insert into task_result (tenant_id, task_id, node_id, partial, body)
  select $1, $2, $3, $4 <> 'COMPLETED', $14::bytea from run where $14::bytea is not null
  on conflict (tenant_id, task_id, node_id) do update set partial = excluded.partial, body = excluded.body),
over as (
  update task set state = $4, ended_at = $10 from run where tenant_id = $1 and task_id = $2 and ended_at is null returning task_id)
select name, started_at, permille, exists (select from over) from run`

	sqlNodesOf = `select node_id from task_run where tenant_id = $1 and task_id = $2 and ended_at is null`

	sqlAskCancel = `
update task_run set cancel_at = coalesce(cancel_at, $3)
 where tenant_id = $1 and task_id = $2 and node_id = any($4::uuid[]) and state = any($5::text[])
returning node_id, replica`
)

// Moving runs of nodes whose channels this replica holds, as the ingest role.
const (
	sqlUnclaimed = `
select tenant_id, task_id, node_id from task_run
 where tenant_id = any($1::uuid[]) and ended_at is null and state = 'CREATED' and start_before > $2 limit 2000`

	sqlClaim = `
with mine as (
  select r.tenant_id, r.task_id, r.node_id, u.life
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[]) as u(t, k, n, life)
    join task_run r on r.tenant_id = u.t and r.task_id = u.k and r.node_id = u.n
   where r.state = any($5::text[]) and r.start_before > $7
     for update of r skip locked)
update task_run r set state = $6, dispatched_at = $7, lease_until = $8, replica = $9, started_ns = m.life
  from mine m join task t on t.tenant_id = m.tenant_id and t.task_id = m.task_id
 where r.tenant_id = m.tenant_id and r.task_id = m.task_id and r.node_id = m.node_id
returning r.tenant_id, r.task_id, r.node_id, t.kind, t.args::text, t.principal_kind, t.principal_id, t.principal_name, t.scopes,
  r.start_before, r.deadline_at, t.nodes = 1, t.created_at`

	sqlRenew = `
with mine as (
  select r.tenant_id, r.task_id, r.node_id
    from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u(t, k, n)
    join task_run r on r.tenant_id = u.t and r.task_id = u.k and r.node_id = u.n
   where r.ended_at is null and r.replica in ($4, '')
     for update of r skip locked)
update task_run r set lease_until = $5, replica = $4, reason = case when r.reason = $6 then '' else r.reason end
  from mine m where r.tenant_id = m.tenant_id and r.task_id = m.task_id and r.node_id = m.node_id`

	sqlProgress = `
with mine as (
  select r.tenant_id, r.task_id, r.node_id, u.began, u.permille
    from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::timestamptz[], $5::int[]) as u(t, k, n, began, permille)
    join task_run r on r.tenant_id = u.t and r.task_id = u.k and r.node_id = u.n
   where r.state = any($6::text[])
     for update of r skip locked)
update task_run r set state = $7, started_at = coalesce(r.started_at, m.began), permille = greatest(r.permille, m.permille)
  from mine m where r.tenant_id = m.tenant_id and r.task_id = m.task_id and r.node_id = m.node_id
returning r.tenant_id, r.task_id, r.node_id`

	sqlPutPartials = `
insert into task_result as x (tenant_id, task_id, node_id, partial, body)
select u.t, u.k, u.n, true, u.body from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bytea[]) as u(t, k, n, body)
on conflict (tenant_id, task_id, node_id) do update set body = excluded.body where x.partial`

	sqlEnded = `
select r.tenant_id, r.task_id, r.node_id, r.ended_at is not null
  from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u(t, k, n)
  join task_run r on r.tenant_id = u.t and r.task_id = u.k and r.node_id = u.n`

	// Channels of one node that open at the same moment take turns.
	sqlTurn = `select pg_advisory_xact_lock(hashtextextended('task_run/' || $1::text, 0))`

	// What a node that opens its channel had, and what became of what it names.
	sqlOfNode = `
select task_id, state, started_ns, cancel_at is not null, started_at, deadline_at from task_run
 where tenant_id = $1 and node_id = $2 and ended_at is null
union
select task_id, state, started_ns, cancel_at is not null, started_at, deadline_at from task_run
 where tenant_id = $1 and task_id = any($3::uuid[]) and node_id = $2
 order by 1`

	sqlAdopt = `
update task_run set state = $4, started_at = coalesce(started_at, $5), replica = $6, lease_until = $7, reason = ''
 where tenant_id = $1 and node_id = $2 and task_id = any($3::uuid[]) and state = any($8::text[])`

	sqlLetGo = `
update task_run set replica = '', lease_until = $5, reason = $6
 where tenant_id = $1 and node_id = $2 and task_id = any($3::uuid[]) and replica = $4 and state = any($7::text[])`

	sqlSignatures = `
select u.t, u.k, hashtextextended(string_agg(r.state || r.permille || r.reason, ',' order by r.node_id), 0),
  bool_and(r.ended_at is not null or r.reason = $3)
  from unnest($1::uuid[], $2::uuid[]) as u(t, k) join task_run r on r.tenant_id = u.t and r.task_id = u.k
 group by 1, 2`
)

// Sweeping, as the jobs role.
const (
	// $1 now, $2 now - answerGrace, $3 now - DeadlineGrace.
	sqlDue = `
select distinct tenant_id, task_id from task_run
 where ended_at is null and (case state when 'CREATED' then start_before <= $1
   else lease_until <= $1 or deadline_at <= $3 or cancel_at <= $3 or state = 'DISPATCHED' and start_before <= $2 end)
 limit 500`

	sqlStandings = `
select node_id, state, replica, start_before, deadline_at, lease_until, cancel_at from task_run
 where tenant_id = $1 and task_id = $2 and ended_at is null for update`

	sqlExpireTasks = `
with old as (
  select tenant_id, task_id from task where expires_at <= $1 and ended_at is not null and state <> 'EXPIRED' limit 500 for update skip locked),
 gone as (delete from task_result x using old where x.tenant_id = old.tenant_id and x.task_id = old.task_id),
 runs as (update task_run r set state = 'EXPIRED', error_kind = $2, reason = $3, message = $4, next_step = $5, arg = ''
   from old where r.tenant_id = old.tenant_id and r.task_id = old.task_id)
update task t set state = 'EXPIRED' from old where t.tenant_id = old.tenant_id and t.task_id = old.task_id`

	// Tasks first: what is locked there waits for the next time. A result may
	// be left of a task that was EXPIRED before its ticket was.
	sqlForget = `
with old as (
  select tenant_id, task_id from task where expires_at <= $1 and ended_at is not null limit 500 for update skip locked),
 results as (delete from task_result x using old where x.tenant_id = old.tenant_id and x.task_id = old.task_id),
 runs as (delete from task_run r using old where r.tenant_id = old.tenant_id and r.task_id = old.task_id)
delete from task t using old where t.tenant_id = old.tenant_id and t.task_id = old.task_id`
)

// Reading, as the application role. What a restricted principal may see is
// added at the end of a where clause, see visible.
const (
	sqlTask = `
select kind, args::text, principal_kind, principal_id, principal_name, labels is not null, created_at, deadline_at, expires_at, state, ended_at
  from task where tenant_id = $1 and task_id = $2`

	sqlRuns = `
select r.node_id, r.name, r.state, r.error_kind, r.reason, r.arg, r.message, r.next_step, r.started_at, r.ended_at, r.permille,
  r.lease_until, coalesce(x.partial, false), x.body
  from task_run r left join task_result x on x.tenant_id = $1 and x.task_id = $2 and x.node_id = r.node_id
 where r.tenant_id = $1 and r.task_id = $2`
	sqlRunsTail = ` order by r.name, r.node_id`

	sqlSkipped = `
select r.node_id, r.name, r.reason
  from task t, unnest(t.skipped_nodes, t.skipped_names, t.skipped_reasons) as r(node_id, name, reason)
 where t.tenant_id = $1 and t.task_id = $2`

	sqlStates = `select state, reason from task_run where tenant_id = $1 and task_id = $2`

	// $2 now.
	sqlList = `
select t.task_id, t.kind, case when t.expires_at <= $2 then 'EXPIRED' when t.ended_at is not null then t.state when t.nodes > 1 then 'RUNNING'
   else (select r.state from task_run r where r.tenant_id = $1 and r.task_id = t.task_id limit 1) end,
  t.principal_kind, t.principal_id, t.principal_name, t.created_at, t.ended_at, `
	sqlListAll  = `t.nodes from task t where t.tenant_id = $1`
	sqlListSome = `v.n from task t, lateral (select count(*)::int from task_run r where r.tenant_id = $1 and r.task_id = t.task_id%s) v(n)
 where t.tenant_id = $1 and (v.n > 0 or exists (select from unnest(t.skipped_nodes) as r(node_id) where true%s))`
)
