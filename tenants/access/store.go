package access

import (
	"fmt"
	"net/netip"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
)

const (
	tokenColumns = `tenant_id, token_id, name, hash, scopes, node_labels, node_ids, cidrs, created_at, created_by, expires_at, revoked_at, last_used_at`

	insertToken = `insert into operator_token (tenant_id, token_id, name, hash, scopes, node_labels, node_ids, cidrs, created_at, created_by, expires_at)
		values ($1, $2, $3, $4, $5, $6, $7::text[]::uuid[], $8, $9, $10, $11)`

	selectToken = `select ` + tokenColumns + ` from operator_token where tenant_id = $1 and token_id = $2`

	selectTokens = `select ` + tokenColumns + ` from operator_token
		where tenant_id = $1 and ($2::timestamptz is null or (created_at, token_id) < ($2, $3::text))
		order by created_at desc, token_id desc limit $4`

	revokeToken = `update operator_token set revoked_at = $3 where tenant_id = $1 and token_id = $2 and revoked_at is null`

	revokeByName = `update operator_token set revoked_at = $3 where tenant_id = $1 and name = $2 and revoked_at is null`

	touchTokens = `update operator_token t set last_used_at = u.at
		from unnest($2::text[], $3::timestamptz[]) as u(id, at)
		where t.tenant_id = $1 and t.token_id = u.id and (t.last_used_at is null or t.last_used_at < u.at)`

	insertSession = `insert into browser_session (tenant_id, session_id, hash, token_id, facts, created_at, last_seen_at, expires_at)
		values ($1, $2, $3, nullif($4, ''), $5, $6, $7, $8)`

	selectSession = `select tenant_id, session_id, hash, coalesce(token_id, ''), facts, created_at, last_seen_at, expires_at
		from browser_session where tenant_id = $1 and session_id = $2`

	deleteSession = `delete from browser_session where tenant_id = $1 and session_id = $2`

	touchSessions = `update browser_session s set last_seen_at = u.at
		from unnest($2::text[], $3::timestamptz[]) as u(id, at)
		where s.tenant_id = $1 and s.session_id = u.id and s.last_seen_at < u.at`

	sweepSessions = `delete from browser_session where expires_at <= $1`
)

func scanToken(row pgx.CollectableRow) (t Token, err error) {
	var (
		hash         []byte
		words, cidrs []string
		ids          [][16]byte
	)
	err = row.Scan((*[16]byte)(&t.Tenant), &t.ID, &t.Name, &hash, &words, &t.Nodes.Labels, &ids, &cidrs, &t.CreatedAt, &t.CreatedBy, &t.ExpiresAt, &t.RevokedAt, &t.LastUsedAt)
	if err != nil {
		return Token{}, err
	}
	copy(t.Hash[:], hash)
	// A word this program does not know grants nothing: the row may be newer.
	t.Scopes, _ = tenants.ParseScopes(words)
	for _, id := range ids {
		t.Nodes.IDs = append(t.Nodes.IDs, tenants.NodeID(id))
	}
	for _, c := range cidrs {
		// A network that cannot be read must not widen the token to all.
		p, err := netip.ParsePrefix(c)
		if err != nil {
			return Token{}, fmt.Errorf("token %s: %w", t.ID, err)
		}
		t.CIDRs = append(t.CIDRs, p)
	}
	return t, nil
}

func scanSession(row pgx.CollectableRow) (s Session, err error) {
	var hash []byte
	err = row.Scan((*[16]byte)(&s.Tenant), &s.ID, &hash, &s.TokenID, &s.Facts, &s.CreatedAt, &s.LastSeenAt, &s.ExpiresAt)
	copy(s.Hash[:], hash)
	return s, err
}
