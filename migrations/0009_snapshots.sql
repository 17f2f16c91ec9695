-- Why:   a node may have so many snapshots waiting and no more, which each new
--        one counts; and who waits is asked for by tenant and node, in turn.
-- Lock:  event_context while the index is made, which holds only what waits.
-- Size:  in place of an index of the same rows.

drop index event_context_due;
create index event_context_due on event_context (tenant_id, node_id, due_at) where due_at is not null;
