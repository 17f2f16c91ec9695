-- Why:   a tenant's administrators suspend, resume, export and delete it. A
--        deleted tenant's row stays as a tombstone: its slug is never reused.
-- Lock:  access exclusive on tenant for a moment (no rewrite: constant defaults).
-- Size:  one row a tenant.

alter table tenant
    add column suspended_by text not null default '' check (suspended_by in ('', 'operator', 'admin')),
    add column exported_at  timestamptz,
    add column deleted_at   timestamptz,
    add column erased_at    timestamptz;

-- Who suspended a tenant before this version was the server's operator.
set local role telltale_jobs;
update tenant set suspended_by = 'operator' where suspended;
set local role telltale_owner;

-- Erasing a tenant deletes its rows everywhere but in its own row and in the
-- audit, which ages out by itself.
do $$
declare
    tbl regclass;
begin
    for tbl in
        select c.oid::regclass from pg_class c
         where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
           and c.relname not in ('tenant', 'credential', 'audit', 'audit_seal')
           and exists (select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id' and not a.attisdropped)
    loop
        execute format('grant select, delete on table %s to telltale_jobs', tbl);
    end loop;
end $$;
