package access

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Bounds of a member.
const (
	MaxSubject    = 255 // bytes of a subject; OpenID Connect Core, section 2, has the same
	MaxMemberName = 200 // bytes
)

// MemberSpec says whom to admit, and with what.
type MemberSpec struct {
	IssuerID string           // one of the tenant's issuers
	Subject  string           // the exact `sub` of its tokens
	Name     string           // for people; may be empty
	Scopes   tenants.Scopes   // at least one; they cap what the tokens hold
	Nodes    tenants.Selector // zero: all nodes
}

func (m MemberSpec) check() error {
	if err := checkText("subject", m.Subject, 1, MaxSubject); err != nil {
		return err
	}
	if err := checkText("name", m.Name, 0, MaxMemberName); err != nil {
		return err
	}
	if err := checkScopes("scopes", m.Scopes); err != nil {
		return err
	}
	return checkSelector("nodes", m.Nodes)
}

// CreateMember admits a person or client by name. The caller needs admin; one
// that is limited to some nodes can only admit people to nodes within. A
// subject that is a member already is a Conflict.
func (s *Service) CreateMember(ctx context.Context, sc tenants.Scope, spec MemberSpec) (tenants.Member, error) {
	return s.storeMember(ctx, sc, spec, false)
}

// PutMember is CreateMember, but changes the member when there is one with this
// issuer and subject.
func (s *Service) PutMember(ctx context.Context, sc tenants.Scope, spec MemberSpec) (tenants.Member, error) {
	return s.storeMember(ctx, sc, spec, true)
}

func (s *Service) storeMember(ctx context.Context, sc tenants.Scope, spec MemberSpec, replace bool) (m tenants.Member, err error) {
	issuer, err := s.memberAllowed(sc, spec)
	if err != nil {
		return m, err
	}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		full := memberQuota.room(ctx, tx, sc.Tenant) // its lock also keeps two from adding one subject
		if full != nil && !fault.Is(full, fault.Exhausted) {
			return full
		}
		old, found, err := oneMember(ctx, tx, lockMemberBySubject, sc.Tenant, issuer, spec.Subject)
		switch {
		case err != nil:
			return err
		case found && (!replace || !narrower(old.Nodes, sc.Nodes)):
			return fault.New(fault.Conflict, "member_exists", "this subject of the issuer is a member already").Do("change the member that there is")
		case found:
			m, err = s.changeMember(ctx, tx, sc, old, spec)
			return err
		case full != nil:
			return full
		}
		now := s.now().UTC().Truncate(time.Microsecond)
		m = tenants.Member{
			ID: uuid.Must(uuid.NewV7()).String(), Tenant: sc.Tenant, IssuerID: issuer, Subject: spec.Subject, Name: spec.Name,
			Scopes: spec.Scopes, Nodes: spec.Nodes, CreatedAt: now, CreatedBy: author(sc),
		}
		labels, ids := selectorColumns(spec.Nodes)
		_, err = tx.Exec(ctx, insertMember, sc.Tenant, m.ID, issuer, m.Subject, m.Name, m.Scopes.Words(), labels, ids, now, m.CreatedBy)
		if tenantdb.Violated(err, "member_tenant_id_issuer_id_fkey") {
			return badIssuer()
		}
		return err
	})
	if err != nil {
		return tenants.Member{}, fmt.Errorf("store member: %w", err)
	}
	s.log.Info("member admitted", "tenant", sc.Tenant, "member", m.ID, "issuer", m.IssuerID, "scopes", m.Scopes.String(), "by", author(sc))
	return m, nil
}

// memberAllowed holds a spec against its bounds and against what the caller
// may give, and answers the issuer's id in its canonical form.
func (s *Service) memberAllowed(sc tenants.Scope, spec MemberSpec) (issuer string, err error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return "", err
	}
	if err := spec.check(); err != nil {
		return "", err
	}
	id, err := uuid.Parse(spec.IssuerID)
	if err != nil {
		return "", badIssuer()
	}
	if !narrower(spec.Nodes, sc.Nodes) {
		return "", fault.New(fault.Denied, "outside_selector", "the member would reach nodes that you may not see").
			Do("limit the member to the nodes that your own credential is limited to")
	}
	return id.String(), nil
}

// UpdateMember changes a member; its issuer and subject stay, and may be left
// out. NotFound when the tenant has none with this id, or it reaches further
// than the caller.
func (s *Service) UpdateMember(ctx context.Context, sc tenants.Scope, id string, spec MemberSpec) (m tenants.Member, err error) {
	old, err := s.GetMember(ctx, sc, id)
	if err != nil {
		return m, err
	}
	if spec.IssuerID == "" {
		spec.IssuerID = old.IssuerID
	}
	if spec.Subject == "" {
		spec.Subject = old.Subject
	}
	issuer, err := s.memberAllowed(sc, spec)
	if err != nil {
		return m, err
	}
	if issuer != old.IssuerID || spec.Subject != old.Subject {
		return m, fault.Bad("subject", "a member keeps its issuer and its subject").Do("add another member, and remove this one")
	}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		old, found, err := oneMember(ctx, tx, lockMember, sc.Tenant, old.ID)
		if err != nil {
			return err
		}
		if !found || !narrower(old.Nodes, sc.Nodes) {
			return noMember()
		}
		m, err = s.changeMember(ctx, tx, sc, old, spec)
		return err
	})
	if err != nil {
		return tenants.Member{}, fmt.Errorf("change member: %w", err)
	}
	s.log.Info("member changed", "tenant", sc.Tenant, "member", m.ID, "scopes", m.Scopes.String(), "by", author(sc))
	return m, nil
}

func (s *Service) changeMember(ctx context.Context, tx pgx.Tx, sc tenants.Scope, m tenants.Member, spec MemberSpec) (tenants.Member, error) {
	m.Name, m.Scopes, m.Nodes = spec.Name, spec.Scopes, spec.Nodes
	labels, ids := selectorColumns(spec.Nodes)
	_, err := tx.Exec(ctx, updateMember, sc.Tenant, m.ID, m.Name, m.Scopes.Words(), labels, ids, s.now().UTC())
	return m, err
}

// DeleteMember removes a member: its tokens lose what it gave them within
// tenants.RevocationDelay on every replica. NotFound as in UpdateMember.
func (s *Service) DeleteMember(ctx context.Context, sc tenants.Scope, id string) error {
	m, err := s.GetMember(ctx, sc, id)
	if err != nil {
		return err
	}
	err = s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		old, found, err := oneMember(ctx, tx, lockMember, sc.Tenant, m.ID)
		if err != nil {
			return err
		}
		if !found || !narrower(old.Nodes, sc.Nodes) {
			return noMember()
		}
		_, err = tx.Exec(ctx, deleteMember, sc.Tenant, m.ID)
		return err
	})
	if err != nil {
		return fmt.Errorf("remove member: %w", err)
	}
	s.log.Info("member removed", "tenant", sc.Tenant, "member", m.ID, "issuer", m.IssuerID, "by", author(sc))
	return nil
}

// GetMember reads one member; NotFound as in UpdateMember.
func (s *Service) GetMember(ctx context.Context, sc tenants.Scope, id string) (tenants.Member, error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return tenants.Member{}, err
	}
	key, err := uuid.Parse(id)
	if err != nil {
		return tenants.Member{}, noMember()
	}
	m, found, err := tenantdb.QueryOne(ctx, s.db, sc.Tenant, selectMember, []any{sc.Tenant, key.String()}, scanMember)
	if err != nil {
		return tenants.Member{}, fmt.Errorf("find member: %w", err)
	}
	if !found || !narrower(m.Nodes, sc.Nodes) {
		return tenants.Member{}, noMember()
	}
	return m, nil
}

// ListMembers lists members, the newest first: all, or those of one issuer
// (its id, or empty). A caller that is limited to some nodes sees those that it
// could have made. limit and cursor are as in ListTokens.
func (s *Service) ListMembers(ctx context.Context, sc tenants.Scope, issuerID, cursor string, limit int) (members []tenants.Member, next string, err error) {
	var issuer *string
	if issuerID != "" {
		id, err := uuid.Parse(issuerID)
		if err != nil {
			return nil, "", badIssuer()
		}
		text := id.String()
		issuer = &text
	}
	return list(ctx, s, sc, listing[tenants.Member]{
		what: "members", sql: selectMembers, more: []any{issuer}, scan: scanMember, uuids: true,
		key:  func(m tenants.Member) (time.Time, string) { return m.CreatedAt, m.ID },
		keep: func(m tenants.Member) bool { return narrower(m.Nodes, sc.Nodes) },
	}, cursor, limit)
}

func oneMember(ctx context.Context, tx pgx.Tx, sql string, args ...any) (m tenants.Member, found bool, err error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return m, false, err
	}
	list, err := pgx.CollectRows(rows, scanMember)
	if err != nil || len(list) == 0 {
		return m, false, err
	}
	return list[0], true, nil
}

func badIssuer() *fault.Error {
	return fault.Bad("issuer_id", "want the id of one of the tenant's issuers").Do("list the issuers to see their ids")
}
