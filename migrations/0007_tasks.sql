-- Why:   bounded work on nodes: what was asked, how it stands on each node and
--        what each node found.
-- Lock:  none on existing tables; creates empty tables.
-- Size:  task some 500 bytes a task and task_run 300 bytes a node of it, kept
--        seven days; task_result up to 512 KiB a run, usually some KiB
--        compressed, kept a day.

-- One row a task. slot is one of the tenant's places for active tasks, free
-- again when ended_at is set: its unique index is the limit. The skipped
-- arrays are the nodes of a fan-out that got no run, and why. state is what
-- the runs add up to once ended_at is set.
create table task (
    tenant_id       uuid        not null,
    task_id         uuid        not null,
    kind            text        not null,
    args            jsonb       not null,
    principal_kind  text        not null,
    principal_id    text        not null,
    principal_name  text        not null,
    scopes          text[]      not null,
    labels          jsonb,
    slot            smallint    not null,
    nodes           int         not null,
    created_at      timestamptz not null,
    start_before    timestamptz not null,
    deadline_at     timestamptz not null,
    expires_at      timestamptz not null,
    state           text        not null,
    ended_at        timestamptz,
    skipped_nodes   uuid[]      not null default '{}',
    skipped_names   text[]      not null default '{}',
    skipped_reasons text[]      not null default '{}',
    primary key (tenant_id, task_id)
) with (fillfactor = 90);
create unique index task_active on task (tenant_id, slot) where ended_at is null;
create index task_by_age on task (tenant_id, expires_at);
select telltale_protect('task', app => 'select, insert, update', ingest => 'select, update', jobs => 'select, update, delete');

-- One row a node of a task. replica is the server process that holds the
-- node's channel, '' while none does; started_ns the life of the agent that
-- got the request. Copies of the task's times let the sweep read this alone.
create table task_run (
    tenant_id     uuid        not null,
    task_id       uuid        not null,
    node_id       uuid        not null,
    name          text        not null,
    state         text        not null,
    error_kind    text        not null default '',
    reason        text        not null default '',
    arg           text        not null default '',
    message       text        not null default '',
    next_step     text        not null default '',
    start_before  timestamptz not null,
    deadline_at   timestamptz not null,
    dispatched_at timestamptz,
    started_at    timestamptz,
    cancel_at     timestamptz,
    ended_at      timestamptz,
    lease_until   timestamptz,
    replica       text        not null default '',
    started_ns    bigint      not null default 0,
    permille      int         not null default 0,
    primary key (tenant_id, task_id, node_id)
) with (fillfactor = 70);
create index task_run_active on task_run (tenant_id, node_id, task_id) where ended_at is null;
select telltale_protect('task_run', app => 'select, insert, update', ingest => 'select, update', jobs => 'select, update, delete');

-- What a node found, as JSON: partial while it runs.
create table task_result (
    tenant_id uuid    not null,
    task_id   uuid    not null,
    node_id   uuid    not null,
    partial   boolean not null,
    body      bytea   not null,
    primary key (tenant_id, task_id, node_id)
);
select telltale_protect('task_result', app => 'select', ingest => 'select, insert, update', jobs => 'select, delete');
