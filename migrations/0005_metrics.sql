-- Why:   hot metrics: what windows look like, where each node's reports stand,
--        and the windows of the last hours.
-- Lock:  none on existing tables; creates empty tables.
-- Size:  layout some KiB a distinct set of series, node_head 300 bytes a node,
--        win about 10 bytes a sample, kept six hours in hourly partitions.

-- A set of series, content-addressed. layout_id is the head of the hash. used_at
-- is written at most every few hours; what nobody has used for a day is removed.
create table layout (
    tenant_id  uuid        not null,
    layout_id  bigint      not null,
    hash       bytea       not null check (length(hash) = 32),
    component  text        not null,
    series     int         not null,
    encoded    bytea       not null,
    created_at timestamptz not null,
    used_at    timestamptz not null,
    primary key (tenant_id, layout_id),
    unique (tenant_id, hash)
);
select telltale_protect('layout', app => 'select', ingest => 'select, insert, update', jobs => 'select, update, delete');

-- Where a node's reports stand, and its latest headline values. Half of each
-- page stays free: every write of a window updates this row in place. head_set
-- names the list of metrics that vals follows.
create table node_head (
    tenant_id   uuid        not null,
    node_id     uuid        not null,
    epoch       bigint      not null,
    seq         bigint      not null,
    last_ts     timestamptz,
    head_set    int         not null default 0,
    vals        float8[],
    missing     bigint      not null default 0,
    expired     bigint      not null default 0,
    refused     bigint      not null default 0,
    primary key (tenant_id, node_id)
) with (fillfactor = 50);
select telltale_protect('node_head', app => 'select', ingest => 'select, insert, update', jobs => 'select, delete');

-- One packed window. ts is its end by the server's time; the agent's own end
-- is ts + skew_ms where skew_ms is set. Null counts are zero.
create table win (
    tenant_id uuid        not null,
    node_id   uuid        not null,
    ts        timestamptz not null,
    seq       bigint      not null,
    layout_id bigint      not null,
    samples   bigint,
    lost      bigint,
    folded    bigint,
    refused   int,
    skew_ms   int,
    dur_ms    int         not null,
    component text        not null,
    vals      bytea       not null,
    primary key (tenant_id, node_id, ts, seq)
) partition by range (ts);
alter table win alter column vals set storage main;
select telltale_protect('win', app => 'select', ingest => 'select, insert', jobs => 'select');

-- What was kept out of win, per node and reason.
create table win_quarantine (
    tenant_id uuid        not null,
    node_id   uuid        not null,
    reason    text        not null,
    n         bigint      not null,
    first_at  timestamptz not null,
    last_at   timestamptz not null,
    example   text        not null,
    primary key (tenant_id, node_id, reason)
);
select telltale_protect('win_quarantine', app => 'select', ingest => 'select, insert, update', jobs => 'select, delete');
