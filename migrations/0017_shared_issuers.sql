-- Why:   an identity provider of many organisations, such as a public one, serves
--        several tenants when each is tied to its own people by a claim. A rule
--        for everybody of such an issuer admits only tokens with that claim, as
--        a rule on the claim does, so it opens nothing to another tenant and
--        keeps none from trusting the same issuer.
-- Lock:  row locks in issuer_trust for a moment.
-- Size:  one row for each issuer.

create or replace function telltale_issuer() returns trigger
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
    opens := new.tenant_claim = '' and exists (select from jsonb_array_elements(new.roles) r where coalesce(r ->> 'claim', '') = '');
    if exists (select from public.issuer_trust t where t.url = new.url and t.trusted_by <> new.tenant_id and (opens or t.everybody)) then
        raise exception 'telltale: an issuer of two tenants admits nobody without a rule'
            using errcode = 'integrity_constraint_violation', constraint = case when opens then 'issuer_shared' else 'issuer_taken' end;
    end if;
    insert into public.issuer_trust (url, trusted_by, everybody) values (new.url, new.tenant_id, opens)
        on conflict (url, trusted_by) do update set everybody = excluded.everybody;
    return null;
end $$;

do $$
declare
    urls    text[];
    holders uuid[];
begin
    set local role telltale_jobs;
    select array_agg(i.url), array_agg(i.tenant_id) into urls, holders from public.issuer i where i.tenant_claim <> '';
    set local role telltale_owner;
    update public.issuer_trust t set everybody = false
      from unnest(urls, holders) as tied(url, holder) where t.url = tied.url and t.trusted_by = tied.holder;
end $$;
