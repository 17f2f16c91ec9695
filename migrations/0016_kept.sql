-- Why:   what is kept of a tenant's door is bounded by its kind, so that what
--        anybody can cause does not push out what matters, and what was dropped
--        is counted; and the most that the operator of the server ever gave a
--        tenant stays known when its administrator sets less.
-- Lock:  access exclusive on attempt and tenant_policy for a moment; both
--        columns have constant defaults, no row is rewritten.
-- Size:  attempt at most some hundred rows a tenant, attempt_dropped one row a
--        kind and hour for a day, one value a policy.

-- kind is one of the bounds of package tenants/audit.
alter table attempt add column kind text not null default 'refused';

-- How many attempts of a kind found no room since the hour began.
create table attempt_dropped (
    tenant_id uuid        not null,
    hour      timestamptz not null,
    kind      text        not null,
    count     bigint      not null check (count > 0),
    primary key (tenant_id, hour, kind)
);
select telltale_protect('attempt_dropped', app => 'select', ingest => 'select, insert, update', jobs => 'select, delete');

-- The numbers above the server's default that the operator gave, by the name of
-- their limit: how far an administrator may go again.
alter table tenant_policy add column ceilings jsonb not null default '{}';
