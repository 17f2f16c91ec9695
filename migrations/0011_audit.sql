-- Why:   who did what, sealed into one hash chain a tenant; and the attempts to
--        connect, which lead from a reference id to the check that failed.
-- Lock:  none on existing tables; creates empty tables.
-- Size:  about 500 bytes a call with its indexes, kept 400 days in weekly
--        partitions: days would make 400 of them, and a walk of the chain or of
--        the list looks into each; refusal at most 2,000 rows a tenant, attempt
--        at most 100.

-- One row a call, a write or a refusal. replica is one life of one server
-- process, seq its number there and within the tenant: a gap is a row that was
-- lost. A row is sealed once, which gives it its seal's number and its place
-- in it; what is not sealed within minutes shows that nobody seals.
create table audit (
    tenant_id      uuid        not null,
    at             timestamptz not null,
    id             uuid        not null,
    principal_kind text        not null,
    principal_id   text        not null,
    principal_name text        not null,
    client         text        not null,
    surface        text        not null,
    action         text        not null,
    arguments      text        not null,
    outcome        text        not null check (outcome in ('ok', 'refused', 'failed', 'started')),
    reason         text        not null,
    bytes          bigint      not null,
    duration_us    bigint      not null,
    reference      text        not null,
    from_addr      text        not null,
    count          int         not null check (count > 0),
    replica        text        not null,
    seq            bigint      not null,
    seal_no        bigint,
    seal_pos       int,
    primary key (tenant_id, at, id),
    check ((seal_no is null) = (seal_pos is null))
) partition by range (at);
create index audit_by_principal on audit (tenant_id, principal_id, at desc, id desc);
create index audit_by_reference on audit (tenant_id, reference) where reference <> '';
create index audit_by_seal on audit (tenant_id, seal_no, seal_pos);
create index audit_unsealed on audit (tenant_id, at, id) where seal_no is null;
select telltale_protect('audit', app => 'select, insert', ingest => 'insert', jobs => 'select');
grant update (seal_no, seal_pos) on audit to telltale_jobs;

-- What grants cannot say: a row is written unsealed, sealed once, and nothing
-- else ever happens to it. Only its whole partition is dropped, with age.
create function telltale_audit_append_only() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    same public.audit;
begin
    if tg_op = 'INSERT' then
        if new.seal_no is null and new.seal_pos is null then
            return new;
        end if;
        raise exception 'telltale: an audit row is written without a seal' using errcode = 'integrity_constraint_violation';
    end if;
    if tg_op = 'UPDATE' then
        same := new;
        same.seal_no := null;
        same.seal_pos := null;
        if old.seal_no is null and new.seal_no is not null and same is not distinct from old then
            return new;
        end if;
    end if;
    raise exception 'telltale: the audit is append-only' using errcode = 'integrity_constraint_violation';
end $$;
create trigger append_only before insert or update or delete on audit
    for each row execute function telltale_audit_append_only();

-- One row a seal. hash is over the hash before it, every other column and
-- every row that the seal covers; digests are the rows' own hashes in their
-- order, to tell which one differs. first_at and last_at are the least and
-- greatest time of its rows, which lie in one partition: a seal's rows go
-- together.
create table audit_seal (
    tenant_id uuid        not null,
    seal_no   bigint      not null check (seal_no > 0),
    prev_hash bytea       not null check (length(prev_hash) = 32),
    hash      bytea       not null check (length(hash) = 32),
    rows      int         not null check (rows > 0),
    first_at  timestamptz not null,
    last_at   timestamptz not null,
    digests   bytea       not null check (length(digests) = 32 * rows),
    sealed_at timestamptz not null,
    sealed_by text        not null,
    primary key (tenant_id, seal_no)
);
select telltale_protect('audit_seal', app => 'select', ingest => '', jobs => 'select, insert, delete');

-- No seal changes. One may go when its rows went with their partition, and
-- only from the chain's beginning: what stays is one unbroken chain, whose
-- first seal records the hash of the one before it.
create function telltale_audit_seal_stays() returns trigger
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    kept_from timestamptz;
begin
    if tg_op = 'UPDATE' then
        raise exception 'telltale: a seal of the audit never changes' using errcode = 'integrity_constraint_violation';
    end if;
    select min(p.lo) into kept_from from public.telltale_partitions('audit') p;
    if exists (select from gone g where g.last_at >= kept_from)
        or exists (select from gone g join public.audit_seal s on s.tenant_id = g.tenant_id and s.seal_no < g.seal_no) then
        raise exception 'telltale: only seals whose rows are past retention go, the oldest first' using errcode = 'integrity_constraint_violation';
    end if;
    return null;
end $$;
create trigger stays_delete after delete on audit_seal referencing old table as gone
    for each statement execute function telltale_audit_seal_stays();
create trigger stays_update before update on audit_seal
    for each row execute function telltale_audit_seal_stays();

-- Refusals of callers whom nobody verified, folded by the hour. from_net is
-- the caller's network, /24 or /48, and '' for those beyond the bound.
create table refusal (
    tenant_id uuid        not null,
    hour      timestamptz not null,
    surface   text        not null,
    reason    text        not null,
    from_net  text        not null,
    count     bigint      not null check (count > 0),
    first_at  timestamptz not null,
    last_at   timestamptz not null,
    reference text        not null,
    primary key (tenant_id, hour, surface, reason, from_net)
);
select telltale_protect('refusal', app => 'select', ingest => 'select, insert, update, delete', jobs => 'select, delete');

-- What happened at a tenant's door: the newest 100 of the last 24 hours.
create table attempt (
    tenant_id  uuid        not null,
    attempt_id uuid        not null,
    at         timestamptz not null,
    reference  text        not null,
    step       text        not null,
    class      text        not null,
    surface    text        not null,
    issuer     text        not null,
    expected   text        not null,
    received   text        not null,
    principal  text        not null,
    client     text        not null,
    from_addr  text        not null,
    primary key (tenant_id, attempt_id)
);
create index attempt_by_reference on attempt (tenant_id, reference, attempt_id desc);
select telltale_protect('attempt', app => 'select', ingest => 'select, insert, delete', jobs => 'select, delete');
