-- Why:   who exists: tenants, their nodes and labels, the authorities that name
--        the nodes, and the tokens that enrol them.
-- Lock:  none on existing tables.
-- Size:  one tenant row a tenant, one node row and a few label rows a node.

-- A tenant. No role may delete one: its slug would become free, and a slug is
-- never reused. The slug's uniqueness is that of its row in credential, which
-- also leads from the slug to the tenant before a tenant is known, and refuses
-- a change of it.
create table tenant (
    tenant_id    uuid primary key,
    slug         text not null check (slug ~ '^[a-z0-9-]{1,40}$'),
    slug_key     text not null generated always as ('tenant/' || slug) stored,
    name         text not null check (length(name) between 1 and 200),
    suspended    boolean not null default false,
    mcp_disabled boolean not null default false,
    created_at   timestamptz not null
);
select telltale_protect('tenant', app => 'select', ingest => 'select', jobs => 'select, insert, update');
create trigger credential after insert or update or delete on tenant
    for each row execute function telltale_credential('tenant', 'slug_key');

-- The certificate authorities of a tenant. The newest one signs; every one
-- verifies until its end. The key is sealed for its tenant with a key that the
-- database never sees.
create table tenant_ca (
    tenant_id  uuid not null references tenant,
    ca_id      uuid not null,
    cert       bytea not null,
    sealed_key bytea not null,
    not_before timestamptz not null,
    not_after  timestamptz not null,
    primary key (tenant_id, ca_id)
);
select telltale_protect('tenant_ca', app => 'select, insert', ingest => '', jobs => 'select, delete');

-- A token that enrols nodes. uses_left goes down by one a node; the row lock of
-- that update is what makes N uses enrol N nodes. The labels are given to each
-- node. It is never filtered by them, so jsonb is fine here.
create table enrol_token (
    tenant_id  uuid not null references tenant,
    token_id   text not null,
    hash       bytea not null check (length(hash) = 32),
    uses_max   int not null check (uses_max between 1 and 1000000),
    uses_left  int not null check (uses_left between 0 and uses_max),
    labels     jsonb not null default '{}',
    created_at timestamptz not null,
    created_by text not null,
    expires_at timestamptz not null,
    revoked_at timestamptz,
    primary key (tenant_id, token_id)
);
select telltale_protect('enrol_token', app => 'select, insert, update', ingest => '', jobs => 'select, update, delete');
create trigger credential after insert or update or delete on enrol_token
    for each row execute function telltale_credential('enrol', 'token_id');

-- One machine identity. A revoked node keeps its row, so that its data keeps a
-- name. enrol_key is the SHA-256 of the public key it enrolled with: an agent
-- whose answer was lost asks again with the same key and gets the same node.
create table node (
    tenant_id     uuid not null references tenant,
    node_id       uuid not null,
    name          text not null check (octet_length(name) between 1 and 255),
    machine_id    text not null default '',
    boot_id       text not null default '',
    os            text not null default '',
    arch          text not null default '',
    kernel        text not null default '',
    agent_version text not null default '',
    enrol_token   text not null,
    enrol_key     bytea check (length(enrol_key) = 32),
    enrolled_at   timestamptz not null,
    revoked_at    timestamptz,
    primary key (tenant_id, node_id)
);
create index node_by_name on node (tenant_id, name, node_id);
create index node_by_machine on node (tenant_id, machine_id, node_id);
-- Replicas ask every second which of their live nodes are revoked; almost none is.
create index node_revoked on node (tenant_id, node_id) where revoked_at is not null;
create unique index node_by_enrol_key on node (tenant_id, enrol_token, enrol_key) where enrol_key is not null;
select telltale_protect('node', app => 'select, insert, update', ingest => 'select', jobs => 'select, update');

-- The labels of nodes, one row each: row policies leave only leakproof
-- operators to an index, and those of jsonb are not. Equality and keyset alone.
create table node_label (
    tenant_id uuid not null,
    node_id   uuid not null,
    key       text not null check (octet_length(key) between 1 and 128),
    value     text not null check (octet_length(value) <= 128),
    primary key (tenant_id, node_id, key),
    foreign key (tenant_id, node_id) references node
);
create index node_label_by_value on node_label (tenant_id, key, value, node_id);
select telltale_protect('node_label', app => 'select, insert, update, delete', ingest => 'select', jobs => 'select, delete');
