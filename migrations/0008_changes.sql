-- Why:   what changed on a node and when, so that trouble can be laid beside it.
-- Lock:  node_session for a moment, for a column with a constant default;
--        creates one empty table.
-- Size:  at most 500 rows of 200 bytes a node, kept 30 days; some rows a week.

-- The digest of the configuration that an agent runs with; '' is unknown.
alter table node_session add column config_digest text not null default '';

-- One row a change. subject names what changed where the kind has several: a
-- module, or component.signal of a capability. before and after are what was
-- and what is, untrusted text.
create table node_change (
    tenant_id uuid        not null,
    node_id   uuid        not null,
    at        timestamptz not null,
    change_id uuid        not null,
    kind      text        not null check (kind in ('agent_started', 'agent_upgraded', 'boot', 'kernel', 'config', 'module_off', 'module_on', 'capability')),
    subject   text        not null default '',
    before    text        not null default '',
    after     text        not null default '',
    primary key (tenant_id, node_id, at, change_id)
);
select telltale_protect('node_change', app => 'select, insert, delete', ingest => 'select, insert, delete', jobs => 'select, delete');
