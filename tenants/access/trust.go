package access

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Trust reads all that a tenant's tokens are judged by, besides its members:
// its issuers with their sealed secrets, and its policy as it was set. A tenant
// that trusts nobody has an empty list. It is for the verifier alone: it asks
// for no scope.
func (s *Service) Trust(ctx context.Context, tenant tenants.TenantID) (tenants.Trust, error) {
	t := tenants.Trust{Issuers: []tenants.Issuer{}}
	b := &pgx.Batch{}
	b.Queue(selectTrust, tenant).Query(func(rows pgx.Rows) (err error) {
		t.Issuers, err = pgx.AppendRows(t.Issuers, rows, scanIssuer)
		return err
	})
	b.Queue(selectPolicy, tenant).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, scanPolicy)
		if len(list) > 0 {
			t.Policy = list[0].Set
		}
		return err
	})
	if err := s.db.Read(ctx, tenant, b); err != nil {
		return tenants.Trust{}, fmt.Errorf("read whom the tenant trusts: %w", err)
	}
	return t, nil
}

// Member finds who is admitted by name: a subject of one of the tenant's
// issuers, by the issuer's id. NotFound when there is none. It is for the
// verifier alone: it asks for no scope.
func (s *Service) Member(ctx context.Context, tenant tenants.TenantID, issuerID, subject string) (tenants.Member, error) {
	id, err := uuid.Parse(issuerID)
	if err != nil || subject == "" || len(subject) > MaxSubject || strings.ContainsRune(subject, 0) || !utf8.ValidString(subject) {
		return tenants.Member{}, noMember()
	}
	m, found, err := tenantdb.QueryOne(ctx, s.db, tenant, selectMemberBySubject, []any{tenant, id.String(), subject}, scanMember)
	if err != nil {
		return tenants.Member{}, fmt.Errorf("find member: %w", err)
	}
	if !found {
		return tenants.Member{}, noMember()
	}
	return m, nil
}

func noMember() *fault.Error {
	return fault.New(fault.NotFound, "unknown_member", "no such member").Do("list the members to see their ids")
}

func noIssuer() *fault.Error {
	return fault.New(fault.NotFound, "unknown_issuer", "no such issuer").Do("list the issuers to see their ids and URLs")
}
