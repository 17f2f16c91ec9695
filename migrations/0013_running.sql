-- Why:   what a tenant's nodes run decides which tools its models are shown; one
--        look must not walk through the signals of every node.
-- Lock:  share lock on capability while the index is made; agents' reports of
--        capabilities wait for it.
-- Size:  about 60 bytes a signal that is not off; 10,000 nodes with 30 signals
--        have 18 MB, made in under a second.

create index capability_running on capability (tenant_id, component, node_id) where level <> 'off';
