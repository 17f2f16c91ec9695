package directory

import "github.com/jackc/pgx/v5"

// Row-level security leaves only leakproof operators to an index, so every
// filter here is an equality or a keyset comparison.
const (
	tenantColumns = `tenant_id, slug, name, suspended, suspended_by, mcp_disabled, created_at, exported_at, deleted_at`

	insertTenant = `insert into tenant (tenant_id, slug, name, created_at) values ($1, $2, $3, $4)`

	selectTenant = `select ` + tenantColumns + ` from tenant where tenant_id = $1`

	selectTenants = `select ` + tenantColumns + ` from tenant where deleted_at is null order by slug`

	updateSuspended = `update tenant set suspended = $2, suspended_by = case when $2 then 'operator' else '' end where slug = $1 and deleted_at is null`

	suspendOwn = `update tenant set suspended = $2, suspended_by = case when $2 then 'admin' else '' end
		where tenant_id = $1 and deleted_at is null and suspended_by <> 'operator'`

	markExported = `update tenant set exported_at = $2 where tenant_id = $1`

	markDeleted = `update tenant set deleted_at = coalesce(deleted_at, $2), suspended = true, suspended_by = 'operator' where tenant_id = $1`

	selectDeleted = `select tenant_id from tenant where deleted_at < $1 and erased_at is null order by deleted_at limit 20`

	markErased = `update tenant set erased_at = $2 where tenant_id = $1`

	updateMCPDisabled = `update tenant set mcp_disabled = $2 where slug = $1 and deleted_at is null`

	selectCAs = `select ca_id::text, cert, sealed_key, not_before, not_after from tenant_ca where tenant_id = $1 order by ca_id`

	lockCAs = `select pg_advisory_xact_lock(hashtext('telltale_ca'), hashtext($1))`

	insertCA = `insert into tenant_ca (tenant_id, ca_id, cert, sealed_key, not_before, not_after)
		select $1, $2::uuid, $3, $4, $5, $6
		where coalesce((select ca_id::text from tenant_ca where tenant_id = $1 order by ca_id desc limit 1), '') = $7::text`

	insertEnrolToken = `insert into enrol_token (tenant_id, token_id, hash, uses_max, uses_left, labels, created_at, created_by, expires_at)
		values ($1, $2, $3, $4, $4, $5, $6, $7, $8)`

	enrolTokenColumns = `token_id, uses_max, uses_left, labels, created_at, expires_at, revoked_at, created_by`

	selectEnrolToken = `select ` + enrolTokenColumns + ` from enrol_token where tenant_id = $1 and token_id = $2`

	listEnrolTokens = `select ` + enrolTokenColumns + ` from enrol_token
		where tenant_id = $1 and ($2::timestamptz is null or (created_at, token_id) < ($2, $3::text))
		order by created_at desc, token_id desc limit $4`

	// lockQuota makes those who add one of a kind to a tenant wait for each other.
	lockQuota = `select pg_advisory_xact_lock(hashtext('telltale_quota_' || $1::text), hashtext($2))`

	countEnrolTokens = `select count(*) from enrol_token where tenant_id = $1 and revoked_at is null and uses_left > 0 and expires_at > $2`

	// countNodes counts up to $2, or all.
	countNodes = `select count(*) from (select from node where tenant_id = $1 and revoked_at is null limit $2) n`

	revokeEnrolToken = `update enrol_token set revoked_at = coalesce(revoked_at, $3) where tenant_id = $1 and token_id = $2`

	lockEnrolToken = `select e.hash, e.uses_left, e.labels, e.expires_at, e.revoked_at, t.suspended
		from enrol_token e join tenant t on t.tenant_id = e.tenant_id
		where e.tenant_id = $1 and e.token_id = $2 for no key update of e`

	useEnrolToken = `update enrol_token set uses_left = uses_left - 1 where tenant_id = $1 and token_id = $2`

	selectEnrolledAs = `select node_id, revoked_at from node where tenant_id = $1 and enrol_token = $2 and enrol_key = $3`

	insertNode = `insert into node (tenant_id, node_id, name, machine_id, boot_id, os, arch, kernel, agent_version, enrol_token, enrol_key, enrolled_at)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

	insertLabel = `insert into node_label (tenant_id, node_id, key, value) values ($1, $2, $3, $4)`

	// visibleNode keeps what the selector selects: $3 the ids (null: all), $4
	// and $5 the label names and values, each of which the node must carry.
	visibleNode = ` and ($3::uuid[] is null or n.node_id = any ($3::uuid[]))
		and not exists (select from unnest($4::text[], $5::text[]) as want(key, value)
			where not exists (select from node_label l
				where l.tenant_id = $1 and l.node_id = n.node_id and l.key = want.key and l.value = want.value))`

	selectNodeByID = `select n.node_id, n.name, n.revoked_at is not null from node n
		where n.tenant_id = $1 and n.node_id = $2` + visibleNode

	selectNodesByName = `select n.node_id, n.name, n.revoked_at is not null from node n
		where n.tenant_id = $1 and n.name = $2` + visibleNode + ` order by n.revoked_at is not null, n.node_id limit 11`

	selectIdentity = `select t.slug, n.name, n.revoked_at is not null, t.suspended
		from node n join tenant t on t.tenant_id = n.tenant_id where n.tenant_id = $1 and n.node_id = $2`

	selectLabels = `select key, value from node_label where tenant_id = $1 and node_id = $2`

	revokeNode = `update node set revoked_at = coalesce(revoked_at, $3) where tenant_id = $1 and node_id = $2`

	updateFacts = `update node set machine_id = $3, boot_id = $4, os = $5, arch = $6, kernel = $7, agent_version = $8
		where tenant_id = $1 and node_id = $2
		and (machine_id, boot_id, os, arch, kernel, agent_version) is distinct from ($3::text, $4::text, $5::text, $6::text, $7::text, $8::text)`
)

func scanTenant(row pgx.CollectableRow) (t Tenant, err error) {
	return t, row.Scan((*[16]byte)(&t.ID), &t.Slug, &t.Name, &t.Suspended, &t.SuspendedBy, &t.MCPDisabled, &t.CreatedAt, &t.ExportedAt, &t.DeletedAt)
}
