package access

import (
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
)

const (
	issuerColumns = `tenant_id, issuer_id::text, url, name, jwks_url, introspection_url, client_id, sealed_secret, dashboard_client_id,
		mode, audiences, tenant_claim, tenant_value, types, algorithms, scope_claim, opaque, roles, created_at, updated_at, issuer_shared(url)`

	selectTrust = `select ` + issuerColumns + ` from issuer where tenant_id = $1 order by created_at, issuer_id limit 200`

	selectIssuer = `select ` + issuerColumns + ` from issuer where tenant_id = $1 and issuer_id = $2`

	selectIssuerByURL = `select ` + issuerColumns + ` from issuer where tenant_id = $1 and url = $2`

	lockIssuer = selectIssuer + ` for no key update`

	lockIssuerByURL = selectIssuerByURL + ` for no key update`

	selectIssuers = `select ` + issuerColumns + ` from issuer
		where tenant_id = $1 and ($2::timestamptz is null or (created_at, issuer_id) < ($2, $3::uuid))
		order by created_at desc, issuer_id desc limit $4`

	insertIssuer = `insert into issuer (tenant_id, issuer_id, url, name, jwks_url, introspection_url, client_id, sealed_secret, dashboard_client_id,
		mode, audiences, tenant_claim, tenant_value, types, algorithms, scope_claim, opaque, roles, updated_at, created_at, created_by)
		values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)`

	updateIssuer = `update issuer set name = $4, jwks_url = $5, introspection_url = $6, client_id = $7, sealed_secret = $8, dashboard_client_id = $9,
		mode = $10, audiences = $11, tenant_claim = $12, tenant_value = $13, types = $14, algorithms = $15, scope_claim = $16, opaque = $17, roles = $18,
		updated_at = $19 where tenant_id = $1 and issuer_id = $2 and url = $3`

	deleteIssuer = `delete from issuer where tenant_id = $1 and issuer_id = $2`

	selectShared = `select issuer_shared($1)`

	countIssuers = `select count(*) from issuer where tenant_id = $1`

	memberColumns = `tenant_id, member_id::text, issuer_id::text, subject, name, scopes, node_labels, node_ids, created_at, created_by`

	selectMember = `select ` + memberColumns + ` from member where tenant_id = $1 and member_id = $2`

	lockMember = selectMember + ` for no key update`

	selectMemberBySubject = `select ` + memberColumns + ` from member where tenant_id = $1 and issuer_id = $2 and subject = $3`

	lockMemberBySubject = selectMemberBySubject + ` for no key update`

	selectMembers = `select ` + memberColumns + ` from member
		where tenant_id = $1 and ($2::timestamptz is null or (created_at, member_id) < ($2, $3::uuid)) and ($5::uuid is null or issuer_id = $5)
		order by created_at desc, member_id desc limit $4`

	insertMember = `insert into member (tenant_id, member_id, issuer_id, subject, name, scopes, node_labels, node_ids, created_at, updated_at, created_by)
		values ($1, $2, $3, $4, $5, $6, $7, $8::text[]::uuid[], $9, $9, $10)`

	updateMember = `update member set name = $3, scopes = $4, node_labels = $5, node_ids = $6::text[]::uuid[], updated_at = $7
		where tenant_id = $1 and member_id = $2`

	deleteMember = `delete from member where tenant_id = $1 and member_id = $2`

	countMembers = `select count(*) from member where tenant_id = $1`

	countTokens = `select count(*) from operator_token where tenant_id = $1 and revoked_at is null`

	// lockKind makes the changes of one kind in one tenant wait for each other.
	lockKind = `select pg_advisory_xact_lock(hashtext('telltale_access_' || $1::text), hashtext($2))`

	selectPolicy = `select scopes, first_scopes, principal_rate, tenant_rate, max_nodes, max_tokens, max_issuers, max_members, max_enrol_tokens, updated_at, updated_by, ceilings
		from tenant_policy where tenant_id = $1`

	upsertPolicy = `insert into tenant_policy (tenant_id, scopes, first_scopes, principal_rate, tenant_rate, max_nodes, max_tokens, max_issuers, max_members,
		max_enrol_tokens, updated_at, updated_by, ceilings) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
		on conflict (tenant_id) do update set scopes = excluded.scopes, first_scopes = excluded.first_scopes, principal_rate = excluded.principal_rate,
		tenant_rate = excluded.tenant_rate, max_nodes = excluded.max_nodes, max_tokens = excluded.max_tokens, max_issuers = excluded.max_issuers,
		max_members = excluded.max_members, max_enrol_tokens = excluded.max_enrol_tokens, updated_at = excluded.updated_at, updated_by = excluded.updated_by,
		ceilings = excluded.ceilings`
)

func scanIssuer(row pgx.CollectableRow) (i tenants.Issuer, err error) {
	var roles []byte
	err = row.Scan((*[16]byte)(&i.Tenant), &i.ID, &i.URL, &i.Name, &i.JWKSURL, &i.IntrospectionURL, &i.ClientID, &i.SealedSecret, &i.DashboardClientID,
		&i.Mode, &i.Audiences, &i.TenantClaim, &i.TenantValue, &i.Types, &i.Algorithms, &i.ScopeClaim, &i.Opaque, &roles, &i.CreatedAt, &i.UpdatedAt, &i.Shared)
	if err != nil {
		return tenants.Issuer{}, err
	}
	if i.Roles, err = decodeRoles(roles); err != nil {
		return tenants.Issuer{}, fmt.Errorf("issuer %s: %w", i.ID, err)
	}
	return i, nil
}

func scanMember(row pgx.CollectableRow) (m tenants.Member, err error) {
	var words []string
	var ids [][16]byte
	err = row.Scan((*[16]byte)(&m.Tenant), &m.ID, &m.IssuerID, &m.Subject, &m.Name, &words, &m.Nodes.Labels, &ids, &m.CreatedAt, &m.CreatedBy)
	if err != nil {
		return tenants.Member{}, err
	}
	m.Scopes, _ = tenants.ParseScopes(words)
	for _, id := range ids {
		m.Nodes.IDs = append(m.Nodes.IDs, tenants.NodeID(id))
	}
	return m, nil
}

func scanPolicy(row pgx.CollectableRow) (p PolicyState, err error) {
	var scopes, first []string
	err = row.Scan(&scopes, &first, &p.Set.PrincipalRate, &p.Set.TenantRate, &p.Set.MaxNodes, &p.Set.MaxTokens, &p.Set.MaxIssuers,
		&p.Set.MaxMembers, &p.Set.MaxEnrolTokens, &p.UpdatedAt, &p.UpdatedBy, &p.Given)
	if err != nil {
		return PolicyState{}, err
	}
	p.Set.Scopes, _ = tenants.ParseScopes(scopes)
	p.Set.FirstScopes, _ = tenants.ParseScopes(first)
	if len(scopes) > 0 && p.Set.Scopes == 0 {
		// Words of a newer program must not become "no cap".
		return PolicyState{}, fmt.Errorf("the policy's scopes %q are not known to this program", scopes)
	}
	return p, nil
}

// role is a RoleRule as it is stored.
type role struct {
	Claim  string            `json:"claim"`
	Value  string            `json:"value"`
	Scopes []string          `json:"scopes"`
	Labels map[string]string `json:"labels"`
	Nodes  []string          `json:"nodes"`
}

func encodeRoles(rules []tenants.RoleRule) []byte {
	out := make([]role, len(rules))
	for i, r := range rules {
		labels, ids := selectorColumns(r.Nodes)
		out[i] = role{Claim: r.Claim, Value: r.Value, Scopes: r.Scopes.Words(), Labels: labels, Nodes: ids}
	}
	b, err := json.Marshal(out)
	if err != nil {
		panic(err) // strings alone
	}
	return b
}

// decodeRoles fails rather than to give a rule more nodes than it had.
func decodeRoles(b []byte) ([]tenants.RoleRule, error) {
	var in []role
	if err := json.Unmarshal(b, &in); err != nil {
		return nil, fmt.Errorf("read roles: %w", err)
	}
	out := make([]tenants.RoleRule, len(in))
	for i, r := range in {
		out[i] = tenants.RoleRule{Claim: r.Claim, Value: r.Value, Nodes: tenants.Selector{Labels: r.Labels}}
		out[i].Scopes, _ = tenants.ParseScopes(r.Scopes)
		for _, text := range r.Nodes {
			id, err := tenants.ParseNodeID(text)
			if err != nil {
				return nil, fmt.Errorf("read roles: node %q: %w", text, err)
			}
			out[i].Nodes.IDs = append(out[i].Nodes.IDs, id)
		}
	}
	return out, nil
}

// selectorColumns is a selector as it is stored.
func selectorColumns(sel tenants.Selector) (labels map[string]string, ids []string) {
	labels, ids = sel.Labels, []string{}
	if labels == nil {
		labels = map[string]string{}
	}
	for _, id := range sel.IDs {
		ids = append(ids, id.String())
	}
	return labels, ids
}
