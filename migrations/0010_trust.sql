-- Why:   whom a tenant trusts: its identity providers with their rules for
--        roles, its members, and what the tenant as a whole is held to.
-- Lock:  none on existing tables, but for an index on node, which holds up
--        enrolments for a moment.
-- Size:  a few issuers, up to some thousand members and one policy a tenant;
--        one row of 150 bytes in issuer_trust for each issuer.

-- issuer_trust says which tenants trust an issuer's URL, and whether one of
-- them lets in everybody there: two tenants of one identity provider must tell
-- their people apart, and neither may see the other's settings. As with
-- credential, no role but the owner may touch it; a trigger on issuer writes
-- it, and a function answers yes or no. Its column is not named tenant_id,
-- because the rows are no tenant's to read, export or erase.
create table issuer_trust (
    url        text not null,
    trusted_by uuid not null,
    everybody  boolean not null,
    primary key (url, trusted_by)
);
alter table issuer_trust enable row level security;
revoke all on table issuer_trust from public;

-- An identity provider whose tokens a tenant accepts. sealed_secret is the
-- secret of the server's client at the issuer, sealed with a key that the
-- database never sees. roles is a list of {claim, value, scopes, labels, nodes}
-- and is never filtered by. updated_at grows with every change.
create table issuer (
    tenant_id           uuid not null references tenant,
    issuer_id           uuid not null,
    url                 text not null check (octet_length(url) between 1 and 512),
    name                text not null check (octet_length(name) between 1 and 200),
    jwks_url            text not null default '',
    introspection_url   text not null default '',
    client_id           text not null default '',
    sealed_secret       bytea,
    dashboard_client_id text not null default '',
    mode                text not null check (mode in ('resource', 'static')),
    audiences           text[] not null default '{}',
    tenant_claim        text not null default '',
    tenant_value        text not null default '',
    types               text[] not null default '{}',
    algorithms          text[] not null default '{}',
    scope_claim         text not null default '',
    opaque              boolean not null default false,
    roles               jsonb not null default '[]' check (jsonb_typeof(roles) = 'array'),
    created_at          timestamptz not null,
    created_by          text not null,
    updated_at          timestamptz not null,
    primary key (tenant_id, issuer_id),
    unique (tenant_id, url),
    check (mode = 'resource' or cardinality(audiences) > 0 and tenant_claim <> '' and tenant_value <> ''),
    check (not opaque or client_id <> '' and sealed_secret is not null)
);
select telltale_protect('issuer', app => 'select, insert, update, delete', ingest => '', jobs => 'select, delete');

-- telltale_issuer keeps issuer_trust in step with issuer and refuses what would
-- let one tenant's people into another tenant: that a tenant admits everybody
-- of an issuer that another one trusts, and that a tenant trusts an issuer
-- whose everybody another one admits. The lock makes two tenants that do it at
-- the same time see each other. An issuer keeps its URL: another URL is another
-- issuer, with other people behind the same subjects.
create function telltale_issuer() returns trigger
language plpgsql security definer set search_path = pg_catalog, public, pg_temp as $$
declare
    opens boolean;
begin
    if tg_op = 'DELETE' then
        delete from public.issuer_trust t where t.url = old.url and t.trusted_by = old.tenant_id;
        return null;
    end if;
    if tg_op = 'UPDATE' and (new.url, new.tenant_id) is distinct from (old.url, old.tenant_id) then
        raise exception 'telltale: an issuer keeps its url and its tenant' using errcode = 'integrity_constraint_violation';
    end if;
    perform pg_advisory_xact_lock(hashtext('telltale_issuer'), hashtext(new.url));
    opens := exists (select from jsonb_array_elements(new.roles) r where coalesce(r ->> 'claim', '') = '');
    if exists (select from public.issuer_trust t where t.url = new.url and t.trusted_by <> new.tenant_id and (opens or t.everybody)) then
        raise exception 'telltale: an issuer of two tenants admits nobody without a rule'
            using errcode = 'integrity_constraint_violation', constraint = case when opens then 'issuer_shared' else 'issuer_taken' end;
    end if;
    insert into public.issuer_trust (url, trusted_by, everybody) values (new.url, new.tenant_id, opens)
        on conflict (url, trusted_by) do update set everybody = excluded.everybody;
    return null;
end $$;
create trigger trust after insert or update or delete on issuer
    for each row execute function telltale_issuer();

-- issuer_shared answers whether another tenant than the one that is set trusts
-- an issuer's URL, and nothing about which one or how.
create function issuer_shared(url text) returns boolean
language sql stable security definer set search_path = pg_catalog, public, pg_temp as $$
    select exists (select from public.issuer_trust t
     where t.url = issuer_shared.url and t.trusted_by <> nullif(current_setting('telltale.tenant', true), '')::uuid)
$$;
grant execute on function issuer_shared(text) to telltale_app;

-- A person or client of an issuer that a tenant admits by name.
create table member (
    tenant_id   uuid not null references tenant,
    member_id   uuid not null,
    issuer_id   uuid not null,
    subject     text not null check (octet_length(subject) between 1 and 255),
    name        text not null default '' check (octet_length(name) <= 200),
    scopes      text[] not null check (cardinality(scopes) > 0),
    node_labels jsonb not null default '{}',
    node_ids    uuid[] not null default '{}',
    created_at  timestamptz not null,
    created_by  text not null,
    updated_at  timestamptz not null,
    primary key (tenant_id, member_id),
    unique (tenant_id, issuer_id, subject),
    foreign key (tenant_id, issuer_id) references issuer on delete cascade
);
create index member_by_age on member (tenant_id, created_at desc, member_id desc);
select telltale_protect('member', app => 'select, insert, update, delete', ingest => '', jobs => 'select, delete');

-- What a tenant as a whole is held to. An empty list of scopes and the number 0
-- stand for the server's default.
create table tenant_policy (
    tenant_id        uuid primary key references tenant,
    scopes           text[] not null default '{}',
    first_scopes     text[] not null default '{}',
    principal_rate   int not null default 0 check (principal_rate >= 0),
    tenant_rate      int not null default 0 check (tenant_rate >= 0),
    max_nodes        int not null default 0 check (max_nodes >= 0),
    max_tokens       int not null default 0 check (max_tokens >= 0),
    max_issuers      int not null default 0 check (max_issuers >= 0),
    max_members      int not null default 0 check (max_members >= 0),
    max_enrol_tokens int not null default 0 check (max_enrol_tokens >= 0),
    updated_at       timestamptz not null,
    updated_by       text not null
);
select telltale_protect('tenant_policy', app => 'select, insert, update', ingest => '', jobs => 'select, delete');

-- Counting what is live, for the quotas.
create index node_live on node (tenant_id, node_id) where revoked_at is null;
create index operator_token_live on operator_token (tenant_id, token_id) where revoked_at is null;
create index enrol_token_by_age on enrol_token (tenant_id, created_at desc, token_id desc);
