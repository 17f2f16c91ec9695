// Package access owns who may call: the operator tokens of each tenant, the
// dashboard sessions that were exchanged for them, the identity providers that
// a tenant trusts with its members there, and what the tenant as a whole is
// held to.
//
// It alone writes the tables operator_token, browser_session, issuer, member
// and tenant_policy. It stores and finds credentials and rules; whether a token
// is good is decided by package auth, which it does not know, as it knows no
// header, cookie or route.
//
// Start reading at CreateToken; session.go is what auth needs for cookies,
// trust.go what it needs for tokens of an issuer.
package access

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Bounds of an operator token.
const (
	MaxTokenName = 200 // bytes
	MaxCIDRs     = 32
	MaxNodeIDs   = 200
)

// Token is one operator token without its secret.
type Token = tenants.OperatorToken

// TokenSpec says what a new token may do.
type TokenSpec struct {
	Name      string           // for people; need not be unique
	Scopes    tenants.Scopes   // at least one
	ExpiresAt *time.Time       // nil: never
	Nodes     tenants.Selector // zero: all nodes
	CIDRs     []netip.Prefix   // networks it is accepted from; empty: any
}

// Service keeps tokens and sessions. It is safe for concurrent use; only Run
// works by itself.
type Service struct {
	db       *tenantdb.DB
	log      *slog.Logger
	now      func() time.Time
	sealer   Sealer
	loopback bool
}

// Config tunes a Service. The zero value is ready, but for issuers with a
// client secret.
type Config struct {
	Now               func() time.Time // the clock; nil means time.Now
	Sealer            Sealer           // seals the client secrets of issuers; nil: none can be stored
	AllowHTTPLoopback bool             // issuers may have http URLs on loopback addresses, for development
}

// New makes a Service on a migrated database.
func New(db *tenantdb.DB, log *slog.Logger, cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Service{db: db, log: log, now: cfg.Now, sealer: cfg.Sealer, loopback: cfg.AllowHTTPLoopback}
}

// CreateToken makes an operator token and returns its secret, which is shown
// once and kept nowhere. The caller needs admin; one that is limited to some
// nodes can only make tokens limited at least as much.
func (s *Service) CreateToken(ctx context.Context, sc tenants.Scope, spec TokenSpec) (secret string, tok Token, err error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return "", Token{}, err
	}
	now := s.now().UTC().Truncate(time.Microsecond) // as the database keeps it
	if err := spec.check(now); err != nil {
		return "", Token{}, err
	}
	if !narrower(spec.Nodes, sc.Nodes) {
		return "", Token{}, fault.New(fault.Denied, "outside_selector", "the token would reach nodes that you may not see").
			Do("limit the token to the nodes that your own credential is limited to")
	}
	secret, hidden := tenants.MintSecret(tenants.OperatorSecret)
	tok = Token{
		ID: hidden.ID, Hash: hidden.Hash, Tenant: sc.Tenant, Name: spec.Name, Scopes: spec.Scopes, Nodes: spec.Nodes,
		CIDRs: spec.CIDRs, CreatedAt: now, CreatedBy: author(sc), ExpiresAt: spec.ExpiresAt,
	}
	cidrs := []string{}
	for _, c := range spec.CIDRs {
		cidrs = append(cidrs, c.String())
	}
	labels, ids := selectorColumns(spec.Nodes)
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		if err := tokenQuota.room(ctx, tx, sc.Tenant); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insertToken, tok.Tenant, tok.ID, tok.Name, tok.Hash[:], tok.Scopes.Words(), labels, ids, cidrs, tok.CreatedAt, tok.CreatedBy, tok.ExpiresAt)
		return err
	})
	if err != nil {
		return "", Token{}, fmt.Errorf("store operator token: %w", err)
	}
	s.log.Info("operator token made", "tenant", sc.Tenant, "token", tok.ID, "name", tok.Name, "scopes", tok.Scopes.String(), "by", tok.CreatedBy)
	return secret, tok, nil
}

func (spec TokenSpec) check(now time.Time) error {
	if strings.TrimSpace(spec.Name) == "" || len(spec.Name) > MaxTokenName || inspector.CleanText(spec.Name) != spec.Name {
		return fault.Bad("name", "want 1 to %d bytes of plain text", MaxTokenName)
	}
	if err := checkScopes("scopes", spec.Scopes); err != nil {
		return err
	}
	if spec.ExpiresAt != nil && !spec.ExpiresAt.After(now) {
		return fault.Bad("expires_at", "want a time after the server's %s", now.Format(time.RFC3339))
	}
	if len(spec.CIDRs) > MaxCIDRs {
		return fault.Bad("cidrs", "at most %d networks, not %d", MaxCIDRs, len(spec.CIDRs))
	}
	for i, c := range spec.CIDRs {
		if !c.IsValid() || c.Addr().Is4In6() {
			return fault.Bad("cidrs", "network %d is not of the form 192.0.2.0/24 or 2001:db8::/32", i)
		}
	}
	return checkSelector("nodes", spec.Nodes)
}

// narrower reports whether every node that s selects is certainly selected by
// limit too.
func narrower(s, limit tenants.Selector) bool {
	for k, v := range limit.Labels {
		if got, ok := s.Labels[k]; !ok || got != v {
			return false
		}
	}
	if len(limit.IDs) == 0 {
		return true
	}
	return len(s.IDs) > 0 && !slices.ContainsFunc(s.IDs, func(id tenants.NodeID) bool { return !slices.Contains(limit.IDs, id) })
}

// ListTokens lists tokens, the newest first, revoked ones included. The caller
// needs admin; one that is limited to some nodes sees the tokens it could have
// made. limit as in tenants.ClampRows; cursor is empty or the last answer's
// next, which is empty at the end.
func (s *Service) ListTokens(ctx context.Context, sc tenants.Scope, cursor string, limit int) (tokens []Token, next string, err error) {
	return list(ctx, s, sc, listing[Token]{
		what: "operator tokens", sql: selectTokens, scan: scanToken,
		key:  func(t Token) (time.Time, string) { return t.CreatedAt, t.ID },
		keep: func(t Token) bool { return narrower(t.Nodes, sc.Nodes) },
	}, cursor, limit)
}

// RevokeToken withdraws a token; sessions exchanged for it end with it, within
// tenants.RevocationDelay on every replica. Revoking it again changes nothing.
// The caller needs admin; NotFound when the tenant has none with this id, or
// it reaches further than the caller.
func (s *Service) RevokeToken(ctx context.Context, sc tenants.Scope, id string) error {
	if err := sc.Require(tenants.Admin); err != nil {
		return err
	}
	tok, err := s.inTenant(ctx, sc.Tenant, id)
	if err != nil {
		return err
	}
	if !narrower(tok.Nodes, sc.Nodes) {
		return noToken()
	}
	_, err = s.revoke(ctx, sc, revokeToken, id)
	return err
}

// RevokeByName withdraws every live token of one name and returns how many
// there were. Only a caller that reaches all nodes may do it.
func (s *Service) RevokeByName(ctx context.Context, sc tenants.Scope, name string) (int, error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return 0, err
	}
	if !sc.Nodes.All() {
		return 0, fault.New(fault.Denied, "outside_selector", "tokens of one name may reach nodes that you may not see").Do("revoke tokens by their id")
	}
	return s.revoke(ctx, sc, revokeByName, name)
}

func (s *Service) revoke(ctx context.Context, sc tenants.Scope, sql, key string) (n int, err error) {
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, sc.Tenant, key, s.now().UTC())
		n = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("revoke operator token: %w", err)
	}
	if n > 0 {
		s.log.Info("operator token revoked", "tenant", sc.Tenant, "token", key, "count", n, "by", author(sc))
	}
	return n, nil
}

// TokenByID finds a token by its public id, whichever tenant it belongs to;
// NotFound when there is none. It is for the verifier alone: it proves nothing
// about a caller.
func (s *Service) TokenByID(ctx context.Context, id string) (Token, error) {
	tenant, found, err := s.db.CredentialTenant(ctx, "operator", id)
	if err != nil {
		return Token{}, fmt.Errorf("find operator token: %w", err)
	}
	if !found {
		return Token{}, noToken()
	}
	return s.inTenant(ctx, tenant, id)
}

func (s *Service) inTenant(ctx context.Context, tenant tenants.TenantID, id string) (Token, error) {
	if strings.ContainsRune(id, 0) {
		return Token{}, noToken()
	}
	tok, found, err := tenantdb.QueryOne(ctx, s.db, tenant, selectToken, []any{tenant, id}, scanToken)
	if err != nil {
		return Token{}, fmt.Errorf("find operator token: %w", err)
	}
	if !found {
		return Token{}, noToken()
	}
	return tok, nil
}

// TouchTokens notes when tokens were last used; a time before the noted one
// changes nothing, an unknown id is ignored.
func (s *Service) TouchTokens(ctx context.Context, tenant tenants.TenantID, uses map[string]time.Time) error {
	return s.touch(ctx, tenant, touchTokens, uses)
}

func (s *Service) touch(ctx context.Context, tenant tenants.TenantID, sql string, uses map[string]time.Time) error {
	ids, times := make([]string, 0, len(uses)), make([]time.Time, 0, len(uses))
	for id, at := range uses {
		ids, times = append(ids, id), append(times, at)
	}
	err := s.db.InTenant(ctx, tenant, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sql, tenant, ids, times)
		return err
	})
	if err != nil {
		return fmt.Errorf("note last use: %w", err)
	}
	return nil
}

func noToken() *fault.Error {
	return fault.New(fault.NotFound, "unknown_token", "no such operator token").Do("list the tokens to see their ids")
}

// author names the principal that made a row.
func author(sc tenants.Scope) string { return string(sc.Principal.Kind) + ":" + sc.Principal.ID }
