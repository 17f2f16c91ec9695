-- Why:   a call's row in the audit cost the database twice what it must: the
--        function that guards the table ran for each row that it let pass, and
--        every row stood in the index of seals before it had one.
-- Lock:  access exclusive on audit while the index is made anew, for as long as an
--        index of so many rows takes; the server's queue of reads holds meanwhile,
--        acts wait up to three seconds.
-- Size:  audit_by_seal loses the rows that wait for their seal.

-- The conditions are those of the function, said so that nothing is called for
-- a row that is written without a seal or takes its first one and changes in
-- nothing else. A new column of the table must be named here too; the tests
-- change each one.
drop trigger append_only on audit;
create trigger append_only_insert before insert on audit for each row
    when (new.seal_no is not null or new.seal_pos is not null)
    execute function telltale_audit_append_only();
create trigger append_only before update on audit for each row
    when (not (old.seal_no is null and old.seal_pos is null and new.seal_no is not null
        and (new.tenant_id, new.at, new.id, new.principal_kind, new.principal_id, new.principal_name, new.client, new.surface, new.action, new.arguments,
             new.outcome, new.reason, new.bytes, new.duration_us, new.reference, new.from_addr, new.count, new.replica, new.seq)
            is not distinct from
            (old.tenant_id, old.at, old.id, old.principal_kind, old.principal_id, old.principal_name, old.client, old.surface, old.action, old.arguments,
             old.outcome, old.reason, old.bytes, old.duration_us, old.reference, old.from_addr, old.count, old.replica, old.seq)))
    execute function telltale_audit_append_only();
create trigger append_only_delete before delete on audit for each row
    execute function telltale_audit_append_only();

drop index audit_by_seal;
create index audit_by_seal on audit (tenant_id, seal_no, seal_pos) where seal_no is not null;
