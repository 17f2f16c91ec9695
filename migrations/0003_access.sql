-- Why:   who may call: operator tokens and the dashboard sessions exchanged
--        for them.
-- Lock:  none on existing tables.
-- Size:  tens of tokens a tenant; one session row a signed-in browser and day.

-- An operator token. Only the SHA-256 of its text is kept. Scopes are stored
-- as words: a bit set would tie the rows to the order of constants in code.
create table operator_token (
    tenant_id    uuid not null references tenant,
    token_id     text not null,
    name         text not null check (length(name) between 1 and 200),
    hash         bytea not null check (length(hash) = 32),
    scopes       text[] not null check (cardinality(scopes) > 0),
    node_labels  jsonb not null default '{}',
    node_ids     uuid[] not null default '{}',
    cidrs        text[] not null default '{}',
    created_at   timestamptz not null,
    created_by   text not null,
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz,
    primary key (tenant_id, token_id)
) with (fillfactor = 80);
create index operator_token_by_age on operator_token (tenant_id, created_at desc, token_id desc);
create index operator_token_by_name on operator_token (tenant_id, name, token_id);
select telltale_protect('operator_token', app => 'select, insert, update', ingest => '', jobs => 'select, update, delete');
create trigger credential after insert or update or delete on operator_token
    for each row execute function telltale_credential('operator', 'token_id');

-- A dashboard session. It is looked up inside the tenant that the URL names,
-- so it needs no row in credential. Only the SHA-256 of the cookie is kept; the
-- CSRF token is derived from the cookie and stored nowhere.
create table browser_session (
    tenant_id    uuid not null,
    session_id   text not null,
    hash         bytea not null check (length(hash) = 32),
    token_id     text not null,
    created_at   timestamptz not null,
    last_seen_at timestamptz not null,
    expires_at   timestamptz not null,
    primary key (tenant_id, session_id),
    foreign key (tenant_id, token_id) references operator_token on delete cascade
) with (fillfactor = 80);
create index browser_session_by_token on browser_session (tenant_id, token_id, session_id);
select telltale_protect('browser_session', app => 'select, insert, update, delete', ingest => '', jobs => 'select, delete');
