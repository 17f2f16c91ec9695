-- Why:   anomalies that nodes report, findings that people promote, and the
--        snapshots of metrics around them.
-- Lock:  none on existing tables; creates empty tables.
-- Size:  about 1 KiB an event with its samples, 2 KiB a snapshot; daily
--        partitions, kept 30 days. A node makes some tens of events a day.

-- One row a spell of trouble. ts is when it was first seen, by the server's
-- clock and to the millisecond, which is also the time inside id: whoever has
-- the id knows the partition. (node_id, fingerprint, begun) names the record
-- as its node does; begun and last_said are by the node's clock and decide
-- which report is the newer one. The key on ts and id alone lists events; the
-- second index finds a record again and its earlier spells; the third lists
-- kinds and severities without reading the rest. A report moves no indexed
-- column but severity, which rarely rises.
create table event (
    tenant_id    uuid        not null,
    ts           timestamptz not null,
    id           uuid        not null,
    node_id      uuid        not null,
    kind         text        not null,
    severity     smallint    not null check (severity between 0 and 2),
    state        text        not null check (state in ('open', 'flapping', 'ended')),
    origin       text        not null check (origin in ('probe', 'task')),
    fingerprint  bytea       not null check (length(fingerprint) = 16),
    begun        timestamptz not null,
    last_said    timestamptz not null,
    last_seen    timestamptz not null,
    skew_ms      bigint,
    sample_count bigint      not null,
    truncated    bigint      not null,
    lost         bigint      not null,
    recurrence   int         not null,
    labels       jsonb       not null,
    samples      jsonb       not null,
    title        text        not null default '',
    task_id      uuid,
    primary key (tenant_id, ts, id)
) partition by range (ts);
create index event_by_fingerprint on event (tenant_id, node_id, fingerprint, ts desc);
create index event_by_kind on event (tenant_id, kind, severity, ts desc, id desc);
select telltale_protect('event', app => 'select, insert', ingest => 'select, insert, update', jobs => 'select');

-- Snapshots, numbered within their event. due_at is when a worker looks at one
-- next, and null when it is done; whoever claims one moves due_at ahead, so
-- that another takes over if it dies.
create table event_context (
    tenant_id uuid        not null,
    ts        timestamptz not null,
    event_id  uuid        not null,
    n         smallint    not null,
    node_id   uuid        not null,
    why       text        not null check (why in ('first', 'severity', 'recurrence')),
    at        timestamptz not null,
    status    text        not null check (status in ('pending', 'partial', 'complete', 'unavailable')),
    reason    text        not null default '',
    metrics   text[]      not null,
    before    jsonb       not null default '[]',
    during    jsonb       not null default '[]',
    after     jsonb       not null default '[]',
    attempts  int         not null default 0,
    due_at    timestamptz,
    primary key (tenant_id, ts, event_id, n)
) partition by range (ts);
create index event_context_due on event_context (tenant_id, due_at) where due_at is not null;
select telltale_protect('event_context', app => 'select, insert', ingest => 'select, insert, update', jobs => 'select, update');
