package directory

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Bounds of an enrolment token.
const (
	MaxEnrolUses = 100_000
	MaxEnrolTTL  = 90 * 24 * time.Hour
)

// EnrolTokenSpec says what an enrolment token is good for.
type EnrolTokenSpec struct {
	Uses   int               // nodes it enrols, 1 to MaxEnrolUses; zero means 1
	TTL    time.Duration     // time it is good for, up to MaxEnrolTTL; zero means 1 h
	Labels map[string]string // given to each node it enrols
}

// EnrolToken is a stored enrolment token; its secret is not part of it.
type EnrolToken struct {
	ID        string
	UsesMax   int
	UsesLeft  int
	Labels    map[string]string
	CreatedAt time.Time
	ExpiresAt time.Time
	RevokedAt *time.Time // nil: not revoked
	CreatedBy string
}

// NodeFacts is what an agent says of its machine. It is data of untrusted
// origin: unclean text is made safe and long text cut, never refused.
type NodeFacts struct {
	Name         string // display name, usually the host name; empty becomes "node"
	MachineID    string
	BootID       string
	OS           string
	Arch         string
	Kernel       string
	AgentVersion string

	// KeyHash is the SHA-256 of the public key that the agent enrols with, or
	// nil. With it, an agent whose answer was lost may redeem its token once
	// more and gets the node it already is, at no further use.
	KeyHash []byte
}

// clean makes the facts safe to store and show.
func (f NodeFacts) clean() NodeFacts {
	for _, s := range []*string{&f.Name, &f.MachineID, &f.BootID, &f.OS, &f.Arch, &f.Kernel, &f.AgentVersion} {
		*s, _ = inspector.CleanLabel(*s)
	}
	if f.Name == "" {
		f.Name = "node"
	}
	return f
}

// CreateEnrolToken makes an enrolment token and returns its secret, which is
// shown once and kept nowhere. The caller needs admin. A caller that is limited
// to nodes with labels can only make tokens that grant these labels; one that
// is limited to node ids can make none.
func (s *Service) CreateEnrolToken(ctx context.Context, sc tenants.Scope, spec EnrolTokenSpec) (secret string, tok EnrolToken, err error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return "", EnrolToken{}, err
	}
	if spec.Uses == 0 {
		spec.Uses = 1
	}
	if spec.TTL == 0 {
		spec.TTL = time.Hour
	}
	if spec.Uses < 1 || spec.Uses > MaxEnrolUses {
		return "", EnrolToken{}, fault.Bad("uses", "want 1 to %d uses, not %d", MaxEnrolUses, spec.Uses)
	}
	if spec.TTL < 0 || spec.TTL > MaxEnrolTTL {
		return "", EnrolToken{}, fault.Bad("ttl", "want up to %v", MaxEnrolTTL)
	}
	if err := checkLabels(spec.Labels); err != nil {
		return "", EnrolToken{}, err
	}
	if !enrolsWithin(spec.Labels, sc.Nodes) {
		return "", EnrolToken{}, fault.New(fault.Denied, "outside_selector", "the nodes it would enrol lie outside of what you may see").
			Do("grant the labels that your own credential is limited to")
	}
	policy, err := s.policyOf(ctx, sc.Tenant)
	if err != nil {
		return "", EnrolToken{}, fmt.Errorf("read quotas: %w", err)
	}
	now := s.now().UTC().Truncate(time.Microsecond) // as the database keeps it
	secret, hidden := tenants.MintSecret(tenants.EnrolSecret)
	tok = EnrolToken{ID: hidden.ID, UsesMax: spec.Uses, UsesLeft: spec.Uses, Labels: spec.Labels, CreatedAt: now, ExpiresAt: now.Add(spec.TTL), CreatedBy: author(sc)}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		if err := s.enrolTokenRoom(ctx, tx, sc.Tenant, policy.MaxEnrolTokens); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, insertEnrolToken, sc.Tenant, tok.ID, hidden.Hash[:], tok.UsesMax, labelsOrEmpty(tok.Labels), now, tok.CreatedBy, tok.ExpiresAt)
		return err
	})
	if err != nil {
		return "", EnrolToken{}, fmt.Errorf("store enrolment token: %w", err)
	}
	return secret, tok, nil
}

// enrolsWithin reports whether every node that gets these labels is selected.
func enrolsWithin(labels map[string]string, limit tenants.Selector) bool {
	return len(limit.IDs) == 0 && limit.Matches(tenants.NodeID{}, labels)
}

// ListEnrolTokens lists enrolment tokens, the newest first, those that are over
// included. The caller needs admin; one that is limited to some nodes sees the
// tokens it could have made. limit as in tenants.ClampRows; cursor is empty or
// the last answer's next, which is empty at the end.
func (s *Service) ListEnrolTokens(ctx context.Context, sc tenants.Scope, cursor string, limit int) (tokens []EnrolToken, next string, err error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return nil, "", err
	}
	rows, _ := tenants.ClampRows(limit)
	at, id, err := parseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	tokens = []EnrolToken{}
	for len(tokens) < rows {
		page, err := tenantdb.Query(ctx, s.db, sc.Tenant, listEnrolTokens, []any{sc.Tenant, at, id, rows}, pgx.RowToStructByPos[EnrolToken])
		if err != nil {
			return nil, "", fmt.Errorf("list enrolment tokens: %w", err)
		}
		for _, t := range page {
			at, id = &t.CreatedAt, t.ID
			if enrolsWithin(t.Labels, sc.Nodes) {
				if tokens = append(tokens, t); len(tokens) == rows {
					return tokens, formatCursor(t), nil
				}
			}
		}
		if len(page) < rows {
			break
		}
	}
	return tokens, "", nil
}

func formatCursor(t EnrolToken) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(t.CreatedAt.UnixMicro(), 10) + " " + t.ID))
}

func parseCursor(cursor string) (at *time.Time, id string, err error) {
	if cursor == "" {
		return nil, "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	micros, id, ok := strings.Cut(string(raw), " ")
	n, numErr := strconv.ParseInt(micros, 10, 64)
	if err != nil || !ok || numErr != nil || len(cursor) > 64 || strings.ContainsRune(id, 0) || n < 0 || n > 1e17 {
		return nil, "", fault.Bad("cursor", "want the next_cursor of an earlier answer")
	}
	t := time.UnixMicro(n).UTC()
	return &t, id, nil
}

// RevokeEnrolToken ends an enrolment token; nodes it enrolled stay. Revoking it
// again changes nothing. NotFound when the tenant has none with this id, or its
// nodes lie outside of what the caller may see.
func (s *Service) RevokeEnrolToken(ctx context.Context, sc tenants.Scope, id string) error {
	if err := sc.Require(tenants.Admin); err != nil {
		return err
	}
	none := fault.New(fault.NotFound, "unknown_enrol_token", "no such enrolment token").Do("list the enrolment tokens to see their ids")
	if strings.ContainsRune(id, 0) || !utf8.ValidString(id) {
		return none
	}
	tok, found, err := tenantdb.QueryOne(ctx, s.db, sc.Tenant, selectEnrolToken, []any{sc.Tenant, id}, pgx.RowToStructByPos[EnrolToken])
	if err != nil {
		return fmt.Errorf("find enrolment token: %w", err)
	}
	if !found || !enrolsWithin(tok.Labels, sc.Nodes) { // its labels never change
		return none
	}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, revokeEnrolToken, sc.Tenant, id, s.now().UTC())
		return err
	})
	if err != nil {
		return fmt.Errorf("revoke enrolment token: %w", err)
	}
	s.log.Info("enrolment token revoked", "tenant", sc.Tenant, "token", id, "by", author(sc))
	return nil
}

// RedeemEnrolToken turns one use of a token into a node, in one transaction: N
// uses make N nodes, whoever asks at the same time. Refusals are Unauthorized
// with a reason (malformed_token, bad_checksum, unknown_token, token_expired,
// token_revoked, token_spent), Denied (tenant_suspended) or Exhausted
// (quota_nodes); what is wrong with a token is told only to who holds its
// secret.
func (s *Service) RedeemEnrolToken(ctx context.Context, secret string, facts NodeFacts) (tenants.TenantID, tenants.NodeID, error) {
	none := func(err error) (tenants.TenantID, tenants.NodeID, error) {
		return tenants.TenantID{}, tenants.NodeID{}, err
	}
	hidden, flaw := tenants.ParseSecret(tenants.EnrolSecret, secret)
	switch flaw {
	case tenants.SecretMalformed:
		return none(refused("malformed_token", "this is no enrolment token"))
	case tenants.SecretChecksum:
		return none(refused("bad_checksum", "the enrolment token is mistyped or cut"))
	}
	if len(facts.KeyHash) != 0 && len(facts.KeyHash) != 32 {
		return none(fault.Bad("key_hash", "want 32 bytes"))
	}
	tenant, found, err := s.db.CredentialTenant(ctx, "enrol", hidden.ID)
	if err != nil {
		return none(fmt.Errorf("find enrolment token: %w", err))
	}
	if !found {
		return none(refused("unknown_token", "the enrolment token is not known"))
	}
	policy, err := s.policyOf(ctx, tenant)
	if err != nil {
		return none(fmt.Errorf("read quotas: %w", err))
	}
	var node tenants.NodeID
	err = s.db.InTenant(ctx, tenant, func(ctx context.Context, tx pgx.Tx) error {
		node, err = s.redeem(ctx, tx, tenant, hidden, facts.clean(), policy.MaxNodes)
		return err
	})
	if err != nil {
		return none(fmt.Errorf("redeem enrolment token: %w", err))
	}
	return tenant, node, nil
}

func (s *Service) redeem(ctx context.Context, tx pgx.Tx, tenant tenants.TenantID, hidden tenants.Secret, f NodeFacts, maxNodes int) (tenants.NodeID, error) {
	now := s.now().UTC()
	var (
		none      tenants.NodeID
		hash      []byte
		left      int
		labels    map[string]string
		expires   time.Time
		revoked   *time.Time
		suspended bool
	)
	// The row stays locked to the end: the count and the node are one change.
	err := tx.QueryRow(ctx, lockEnrolToken, tenant, hidden.ID).Scan(&hash, &left, &labels, &expires, &revoked, &suspended)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !hidden.Hash.Equal(tenants.SecretHash(hash)) {
		return none, refused("unknown_token", "the enrolment token is not known")
	}
	if err != nil {
		return none, err
	}
	if suspended {
		return none, fault.New(fault.Denied, "tenant_suspended", "the tenant is suspended").Do("ask the operator of this server")
	}
	if revoked != nil {
		return none, refused("token_revoked", "the enrolment token was withdrawn")
	}
	if f.KeyHash != nil {
		if node, found, err := enrolledAs(ctx, tx, tenant, hidden.ID, f.KeyHash); err != nil || found {
			return node, err
		}
	}
	switch {
	case !now.Before(expires):
		return none, fault.Newf(fault.Unauthorized, "token_expired", "the enrolment token expired at %s; the server's clock reads %s", expires.UTC().Format(time.RFC3339), now.Format(time.RFC3339)).Do(newTokenHint)
	case left <= 0:
		return none, refused("token_spent", "every use of the enrolment token is spent")
	}
	if err := nodeRoom(ctx, tx, tenant, maxNodes); err != nil {
		return none, err
	}
	node := tenants.NewNodeID()
	b := &pgx.Batch{}
	b.Queue(useEnrolToken, tenant, hidden.ID)
	b.Queue(insertNode, tenant, node, f.Name, f.MachineID, f.BootID, f.OS, f.Arch, f.Kernel, f.AgentVersion, hidden.ID, f.KeyHash, now)
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		b.Queue(insertLabel, tenant, node, k, labels[k])
	}
	return node, tx.SendBatch(ctx, b).Close()
}

// enrolledAs finds the node that a key already became with this token.
func enrolledAs(ctx context.Context, tx pgx.Tx, tenant tenants.TenantID, token string, key []byte) (node tenants.NodeID, found bool, err error) {
	var revoked *time.Time
	err = tx.QueryRow(ctx, selectEnrolledAs, tenant, token, key).Scan((*[16]byte)(&node), &revoked)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return tenants.NodeID{}, false, nil
	case err != nil:
		return tenants.NodeID{}, false, err
	case revoked != nil:
		return tenants.NodeID{}, false, refused("node_revoked", "the node with this key was revoked")
	}
	return node, true, nil
}

const newTokenHint = "ask an administrator of the tenant for a new enrolment token"

func refused(reason, msg string) *fault.Error {
	return fault.New(fault.Unauthorized, reason, msg).Do(newTokenHint)
}

func checkLabels(labels map[string]string) error {
	if len(labels) > tenants.MaxNodeLabels {
		return fault.Bad("labels", "at most %d labels, not %d", tenants.MaxNodeLabels, len(labels))
	}
	for k, v := range labels {
		for _, text := range []string{k, v} {
			if clean, changed := inspector.CleanLabel(text); changed {
				return fault.Bad("labels", "want plain text of at most %d bytes, not %.40q", inspector.MaxLabelBytes, clean)
			}
		}
		if k == "" {
			return fault.Bad("labels", "a label needs a name")
		}
	}
	return nil
}

func labelsOrEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// author names the principal that made a row.
func author(sc tenants.Scope) string { return string(sc.Principal.Kind) + ":" + sc.Principal.ID }
