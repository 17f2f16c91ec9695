package audit

// Statements. tenant_id is first in every key; at is bounded wherever that
// leaves partitions alone.
const (
	// A batch whose answer was lost is written again: its rows are there.
	sqlInsert = `
insert into audit (tenant_id, at, id, principal_kind, principal_id, principal_name, client, surface, action, arguments,
  outcome, reason, bytes, duration_us, reference, from_addr, count, replica, seq)
select * from unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
  $11::text[], $12::text[], $13::bigint[], $14::bigint[], $15::text[], $16::text[], $17::int[], $18::text[], $19::bigint[])
on conflict do nothing`

	// What scanRow reads.
	sqlColumns = `tenant_id, at, id, principal_kind, principal_id, principal_name, client, surface, action, arguments,
  outcome, reason, bytes, duration_us, reference, from_addr, count, replica, seq`

	sqlList = `
select ` + sqlColumns + `, coalesce(seal_no, 0)
  from audit
 where tenant_id = $1 and at >= $2 and at <= $3 and (at, id) < ($3, $4)`
	sqlListPrincipal = ` and principal_id = `
	sqlListKind      = ` and principal_kind = `
	sqlListAction    = ` and action = `
	sqlListOutcome   = ` and outcome = `
	sqlListReference = ` and reference <> '' and reference = `
	sqlListEnd       = ` order by at desc, id desc limit $5`
)

// The doors.
const (
	sqlRefusals = `
insert into refusal (tenant_id, hour, surface, reason, from_net, count, first_at, last_at, reference)
select * from unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::timestamptz[], $8::timestamptz[], $9::text[])
on conflict (tenant_id, hour, surface, reason, from_net) do update set count = refusal.count + excluded.count,
  first_at = least(refusal.first_at, excluded.first_at), last_at = greatest(refusal.last_at, excluded.last_at), reference = excluded.reference`

	sqlRefusalList = `
select hour, surface, reason, from_net, count, first_at, last_at, reference
  from refusal where tenant_id = $1 and hour >= $2 order by hour desc, surface, reason, from_net limit $3`

	sqlAttempts = `
insert into attempt (tenant_id, attempt_id, at, reference, step, class, surface, issuer, expected, received, principal, client, from_addr, kind)
select * from unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
  $11::text[], $12::text[], $13::text[], $14::text[])
on conflict do nothing`

	// The newest of each kind stay, as many as its bound ($2, $3); the others are
	// counted with those that were never written ($4, $5, $6).
	sqlTrimAttempts = `
with gone as (
  delete from attempt a using (
    select x.tenant_id, x.attempt_id
      from (select tenant_id, attempt_id, kind, row_number() over (partition by tenant_id, kind order by attempt_id desc) as n
              from attempt where tenant_id = any ($1::uuid[])) x
      join unnest($2::text[], $3::int[]) as bound(kind, most) on bound.kind = x.kind
     where x.n > bound.most) old
   where a.tenant_id = old.tenant_id and a.attempt_id = old.attempt_id
  returning a.tenant_id, a.kind),
lost as (
  select tenant_id, kind, count(*) as n from gone group by tenant_id, kind
  union all select * from unnest($4::uuid[], $5::text[], $6::bigint[]))
insert into attempt_dropped (tenant_id, hour, kind, count)
select tenant_id, $7, kind, sum(n) from lost group by tenant_id, kind
on conflict (tenant_id, hour, kind) do update set count = attempt_dropped.count + excluded.count`

	sqlDropped = `
select kind, sum(count)::bigint from attempt_dropped where tenant_id = $1 and hour > $2 group by kind`

	sqlAttemptColumns = `at, reference, step, class, surface, issuer, expected, received, principal, client, from_addr`

	sqlAttemptByReference = `
select ` + sqlAttemptColumns + ` from attempt where tenant_id = $1 and reference = $2 and at > $3
 order by step = 'call_refused', attempt_id desc limit 1`

	// What was pushed out of the attempts may have its row in the audit, or be the
	// one that a count of refusals names.
	sqlCallByReference = `
select at, reason, surface, action || ' ' || arguments, principal_id, client, from_addr
  from audit where tenant_id = $1 and reference <> '' and reference = $2 and at > $3 and outcome in ('refused', 'failed')
 order by at desc limit 1`

	sqlRefusalByReference = `
select last_at, reason, surface from refusal where tenant_id = $1 and reference = $2 and last_at > $3 and hour >= date_trunc('hour', $3::timestamptz) limit 1`

	sqlAttemptsRecent = `
select ` + sqlAttemptColumns + ` from attempt where tenant_id = $1 and at > $2 order by attempt_id desc limit $3`
)

// Sealing and keeping, by the role that sees all tenants.
const (
	sqlLock = `select pg_try_advisory_xact_lock(hashtext('telltale_audit_seal'))`

	sqlUnsealed = `
select tenant_id from audit where seal_no is null and at < $1 group by tenant_id order by min(at) limit $2`

	sqlLastSeal = `select seal_no, hash from audit_seal where tenant_id = $1 order by seal_no desc limit 1`

	sqlToSeal = `
select ` + sqlColumns + ` from audit where tenant_id = $1 and seal_no is null and at < $2 order by at, id limit $3`

	sqlSealRows = `
update audit a set seal_no = $2, seal_pos = x.pos
  from unnest($3::timestamptz[], $4::uuid[]) with ordinality x(at, id, pos)
 where a.tenant_id = $1 and a.at = x.at and a.id = x.id and a.at >= $5 and a.at <= $6 and a.seal_no is null`

	sqlPutSeal = `
insert into audit_seal (tenant_id, seal_no, prev_hash, hash, rows, first_at, last_at, digests, sealed_at, sealed_by)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

	// The newest seal of a tenant always stays: the next one links to it.
	sqlPruneSeals = `
delete from audit_seal s using (
  select tenant_id, coalesce(min(seal_no) filter (where last_at >= $1), max(seal_no)) as keep from audit_seal group by tenant_id) k
 where s.tenant_id = k.tenant_id and s.seal_no < k.keep`

	sqlOldRefusals  = `delete from refusal where hour < $1`
	sqlManyRefusals = `
delete from refusal r using (
  select tenant_id, hour, surface, reason, from_net, row_number() over (partition by tenant_id order by hour desc, count desc, surface, reason, from_net) as n
    from refusal) x
 where x.n > $1 and r.tenant_id = x.tenant_id and r.hour = x.hour and r.surface = x.surface and r.reason = x.reason and r.from_net = x.from_net`
	sqlOldAttempts = `delete from attempt where at < $1`
	sqlOldDropped  = `delete from attempt_dropped where hour < $1`
)

// The walk of a chain.
const (
	sqlSeals = `
select seal_no, prev_hash, hash, rows, first_at, last_at, digests, sealed_at, sealed_by
  from audit_seal where tenant_id = $1 and seal_no > $2 order by seal_no limit $3`

	sqlSealed = `
select ` + sqlColumns + `, seal_no, seal_pos
  from audit where tenant_id = $1 and seal_no > $2 and seal_no <= $3 order by seal_no, seal_pos, at, id`

	sqlBeside = `
select count(*) from audit a
 where a.tenant_id = $1 and a.seal_no is not null and not exists (select from audit_seal s where s.tenant_id = $1 and s.seal_no = a.seal_no)`

	sqlWaiting = `
select replica, seq, at from audit where tenant_id = $1 and seal_no is null`

	sqlBorn  = `select created_at from tenant where tenant_id = $1`
	sqlFloor = `select min(lo) from telltale_partitions('audit')`
)
