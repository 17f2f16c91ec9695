-- Why:   what every later migration stands on: row policies, partition makers
--        and the lookup from a credential to its tenant.
-- Lock:  none on existing tables; creates one empty table and some functions.
-- Size:  credential holds one row of about 100 bytes for each live credential.
--
-- Runs as telltale_owner. Roles are made before the first migration, because
-- they belong to the cluster and not to the database (see roles.go).

-- Later functions start without EXECUTE for anybody but their owner.
alter default privileges revoke execute on functions from public;

-- telltale_policy switches row-level security on and writes the three
-- policies. The sub-selects make each setting an InitPlan, read once for a
-- statement; nullif is needed because a setting reads '' after the transaction
-- that set it. A missing setting gives null, and null selects nothing.
create function telltale_policy(tbl regclass, tenant_column name) returns void
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
declare
    one  text := format('%I = (select nullif(current_setting(''telltale.tenant'', true), '''')::uuid)', tenant_column);
    many text := format('%I = any ((select string_to_array(nullif(current_setting(''telltale.tenants'', true), ''''), '','')::uuid[])::uuid[])', tenant_column);
begin
    execute format('alter table %s enable row level security', tbl);
    execute format('alter table %s force row level security', tbl);
    execute format('create policy app on %s to telltale_app using (%s) with check (%s)', tbl, one, one);
    execute format('create policy ingest on %s to telltale_ingest using (%s) with check (%s)', tbl, many, many);
    execute format('create policy jobs on %s to telltale_jobs using (true) with check (true)', tbl);
end $$;

-- telltale_protect makes tbl a tenant table: policies as above, and the
-- privileges named for each role ('' for none). Call it once, right after
-- create table. Never grant truncate, references or trigger: row-level
-- security does not govern them.
create function telltale_protect(
    tbl regclass,
    app text default 'select, insert, update, delete',
    ingest text default 'select, insert, update, delete',
    jobs text default 'select, insert, update, delete',
    tenant_column name default 'tenant_id') returns void
language plpgsql set search_path = pg_catalog, public, pg_temp as $$
begin
    perform public.telltale_policy(tbl, tenant_column);
    execute format('revoke all on table %s from public', tbl);
    if app <> '' then execute format('grant %s on table %s to telltale_app', app, tbl); end if;
    if ingest <> '' then execute format('grant %s on table %s to telltale_ingest', ingest, tbl); end if;
    if jobs <> '' then execute format('grant %s on table %s to telltale_jobs', jobs, tbl); end if;
end $$;

-- telltale_parent finds a partitioned table of this schema that telltale_owner
-- owns and that is no partition itself, and refuses everything else.
create function telltale_parent(parent text) returns oid
language plpgsql stable set search_path = pg_catalog, public, pg_temp as $$
declare
    found_oid oid;
begin
    select c.oid into found_oid
      from pg_class c
      join pg_partitioned_table p on p.partrelid = c.oid
     where c.relnamespace = 'public'::regnamespace and c.relname = parent
       and c.relkind = 'p' and not c.relispartition and p.partstrat = 'r' and p.partnatts = 1
       and c.relowner = 'telltale_owner'::regrole;
    if found_oid is null then
        raise exception 'telltale: % is not a range-partitioned table', quote_ident(left(parent, 63)) using errcode = 'undefined_table';
    end if;
    return found_oid;
end $$;

-- telltale_partitions lists the partitions of parent with their bounds,
-- oldest first. It reads the catalogue and no rows.
create function telltale_partitions(parent text)
returns table (name text, lo timestamptz, hi timestamptz)
language sql stable security definer
set search_path = pg_catalog, public, pg_temp set timezone = 'UTC' as $$
    select c.relname::text, b.m[1]::timestamptz, b.m[2]::timestamptz
      from pg_inherits i
      join pg_class c on c.oid = i.inhrelid,
   lateral (select regexp_match(pg_get_expr(c.relpartbound, c.oid), $re$FROM \('([^']+)'\) TO \('([^']+)'\)$re$) as m) b
     where i.inhparent = public.telltale_parent(parent)
     order by 2
$$;

-- telltale_make_partition makes the partition of parent for lo <= key < hi and
-- answers whether it was missing. The table is built beside its parent and
-- then attached, which needs no exclusive lock: writers and readers go on.
-- It carries the policies and grants nothing, so that it can be reached
-- through its parent alone. Many callers at once are fine.
create function telltale_make_partition(parent text, lo timestamptz, hi timestamptz) returns boolean
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp set timezone = 'UTC' as $$
declare
    parent_oid oid := public.telltale_parent(parent);
    part text := parent || '_' || to_char(lo, 'YYYYMMDD_HH24MISS');
begin
    if lo is null or hi is null or not isfinite(lo) or not isfinite(hi) or hi <= lo or hi - lo > interval '32 days' then
        raise exception 'telltale: a partition spans more than nothing and at most 32 days' using errcode = 'invalid_parameter_value';
    end if;
    if length(part) > 63 then
        raise exception 'telltale: the partition name % is too long', part using errcode = 'name_too_long';
    end if;
    perform pg_advisory_xact_lock(hashtext('telltale_partition'), parent_oid::int);
    if exists (select from public.telltale_partitions(parent) p where p.lo = telltale_make_partition.lo and p.hi = telltale_make_partition.hi) then
        return false;
    end if;
    if (select count(*) from pg_inherits where inhparent = parent_oid) >= 4000 then
        raise exception 'telltale: % has 4000 partitions; is the maintenance loop running?', parent using errcode = 'program_limit_exceeded';
    end if;
    execute format('create table public.%I (like public.%I including all)', part, parent);
    perform public.telltale_policy(format('public.%I', part)::regclass, 'tenant_id');
    execute format('alter table public.%I attach partition public.%I for values from (%L) to (%L)', parent, part, lo, hi);
    return true;
end $$;

-- telltale_drop_partition drops the partition of parent that starts at lo and
-- answers whether there was one. The drop takes an exclusive lock on the
-- parent for a moment; it waits half a second for it at most and then fails
-- with lock_not_available, so that a long read never makes the writers queue.
create function telltale_drop_partition(parent text, lo timestamptz) returns boolean
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp set timezone = 'UTC' set lock_timeout = '500ms' as $$
declare
    parent_oid oid := public.telltale_parent(parent);
    part text;
begin
    perform pg_advisory_xact_lock(hashtext('telltale_partition'), parent_oid::int);
    select p.name into part from public.telltale_partitions(parent) p where p.lo = telltale_drop_partition.lo;
    if part is null then
        return false;
    end if;
    execute format('drop table public.%I', part);
    return true;
end $$;

grant execute on function telltale_partitions(text) to telltale_ingest, telltale_jobs;
grant execute on function telltale_make_partition(text, timestamptz, timestamptz) to telltale_ingest, telltale_jobs;
grant execute on function telltale_drop_partition(text, timestamptz) to telltale_jobs;

-- credential leads from a credential's public lookup id to its tenant, before
-- a tenant is known. It holds no secret. No role but the owner may touch it:
-- triggers on the tables that hold the credentials write it, and
-- credential_tenant reads one row by its whole key, so it cannot be listed.
create table credential (
    kind      text not null check (kind ~ '^[a-z_]{1,32}$'),
    lookup_id text not null check (length(lookup_id) between 8 and 128),
    tenant_id uuid not null,
    primary key (kind, lookup_id)
);
alter table credential enable row level security;
revoke all on table credential from public;

-- telltale_credential keeps credential in step with one tenant table. Its
-- arguments are the kind and the column of the lookup id, for example
--   create trigger credential after insert or update or delete on enrol_token
--   for each row execute function telltale_credential('enrol', 'lookup_id');
create function telltale_credential() returns trigger
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    was text;
    is_now text;
begin
    if tg_op <> 'INSERT' then was := to_jsonb(old) ->> tg_argv[1]; end if;
    if tg_op <> 'DELETE' then is_now := to_jsonb(new) ->> tg_argv[1]; end if;
    if tg_op = 'UPDATE' then
        if was is distinct from is_now or old.tenant_id is distinct from new.tenant_id then
            raise exception 'telltale: a credential keeps its lookup id and its tenant' using errcode = 'integrity_constraint_violation';
        end if;
        return null;
    end if;
    if tg_op = 'INSERT' then
        insert into public.credential (kind, lookup_id, tenant_id) values (tg_argv[0], is_now, new.tenant_id);
    else
        delete from public.credential where kind = tg_argv[0] and lookup_id = was and tenant_id = old.tenant_id;
    end if;
    return null;
end $$;

-- credential_tenant answers the tenant of one credential, or null.
create function credential_tenant(kind text, lookup_id text) returns uuid
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select c.tenant_id from public.credential c
     where c.kind = credential_tenant.kind and c.lookup_id = credential_tenant.lookup_id
$$;
grant execute on function credential_tenant(text, text) to telltale_app;
