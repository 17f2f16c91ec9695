-- Why:   how nodes are: their streams, what they can measure, what is switched
--        off for them and what was kept out of their data.
-- Lock:  none on existing tables; creates empty tables.
-- Size:  node_session a few rows a node, capability some 30 rows a node,
--        module_switch and quarantine near nothing.

-- One row a stream. current marks the newest stream of its node, so that
-- lists need no ordering; older rows are removed when a new stream opens.
-- started_ns is the start of the agent by its own clock. A waiting stream has
-- not been let in: another life of the node's identity is live.
create table node_session (
    tenant_id      uuid        not null,
    node_id        uuid        not null,
    session_id     uuid        not null,
    replica        text        not null,
    remote         text        not null,
    machine_id     text        not null,
    boot_id        text        not null,
    agent_version  text        not null,
    kernel         text        not null,
    os             text        not null,
    arch           text        not null,
    cert_not_after timestamptz,
    connected_at   timestamptz not null,
    last_seen      timestamptz not null,
    closed_at      timestamptz,
    close_reason   text        not null default '',
    skew_ms        bigint,
    counters       jsonb       not null default '{}',
    current        boolean     not null default true,
    duplicate_at   timestamptz,
    started_ns     bigint      not null default 0,
    waiting        boolean     not null default false,
    primary key (tenant_id, node_id, session_id)
) with (fillfactor = 70);
create unique index node_session_current on node_session (tenant_id, node_id) where current;
select telltale_protect('node_session', app => 'select', jobs => 'select, delete');

-- One row a signal. since moves only when the state changes.
create table capability (
    tenant_id uuid        not null,
    node_id   uuid        not null,
    component text        not null,
    signal    text        not null,
    level     text        not null check (level in ('full', 'degraded', 'off')),
    source    text        not null,
    reason    text        not null,
    since     timestamptz not null,
    primary key (tenant_id, node_id, component, signal)
);
create index capability_unhealthy on capability (tenant_id, component, signal, level, node_id) where level <> 'full';
select telltale_protect('capability', app => 'select', jobs => 'select, delete');

-- What was last switched for a node; a row with off = false says who lifted a
-- switch. Replicas ask for the state of their live nodes.
create table module_switch (
    tenant_id uuid        not null,
    node_id   uuid        not null,
    module    text        not null,
    off       boolean     not null,
    by        text        not null,
    at        timestamptz not null,
    primary key (tenant_id, node_id, module)
);
select telltale_protect('module_switch', ingest => 'select', jobs => 'select, delete');

-- Reports refused before they reached a service, per node and reason.
create table quarantine (
    tenant_id uuid        not null,
    node_id   uuid        not null,
    reason    text        not null,
    n         bigint      not null,
    first_at  timestamptz not null,
    last_at   timestamptz not null,
    example   text        not null,
    primary key (tenant_id, node_id, reason)
);
select telltale_protect('quarantine', app => 'select', jobs => 'select, delete');
