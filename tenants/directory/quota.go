package directory

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Quotas says what a tenant is held to, with the defaults filled in.
type Quotas interface {
	PolicyOf(ctx context.Context, tenant tenants.TenantID) (tenants.Policy, error)
}

// policyOf is read before a transaction begins: with one open, a second
// connection could be one too many for the pool.
func (s *Service) policyOf(ctx context.Context, tenant tenants.TenantID) (tenants.Policy, error) {
	if s.quotas == nil {
		return tenants.Policy{}.OrDefaults(), nil
	}
	return s.quotas.PolicyOf(ctx, tenant)
}

// nodeSlack is how near to its quota a tenant has to be for its enrolments to
// wait for each other. It is more than the database has connections, and so
// more than can enrol at the same time.
const nodeSlack = 1000

// nodeRoom makes sure that one more node fits.
func nodeRoom(ctx context.Context, tx pgx.Tx, tenant tenants.TenantID, most int) error {
	var n int
	err := tx.QueryRow(ctx, countNodes, tenant, most).Scan(&n)
	if err == nil && n >= most-nodeSlack {
		err = lockedCount(ctx, tx, "nodes", tenant, &n, countNodes, tenant, most)
	}
	if err == nil && n >= most {
		return exhausted("quota_nodes", "max_nodes", n, most, "nodes", "revoke nodes that are gone, or ask the operator of the server for more")
	}
	return err
}

// enrolTokenRoom makes sure that one more live enrolment token fits.
func (s *Service) enrolTokenRoom(ctx context.Context, tx pgx.Tx, tenant tenants.TenantID, most int) error {
	var n int
	err := lockedCount(ctx, tx, "enrol_tokens", tenant, &n, countEnrolTokens, tenant, s.now().UTC())
	if err == nil && n >= most {
		return exhausted("quota_enrol_tokens", "max_enrol_tokens", n, most, "enrolment tokens that still enrol", "revoke those that are not needed, or ask the operator of this server for more")
	}
	return err
}

// lockedCount counts when everybody who counted before has committed.
func lockedCount(ctx context.Context, tx pgx.Tx, kind string, tenant tenants.TenantID, n *int, sql string, args ...any) error {
	b := &pgx.Batch{}
	b.Queue(lockQuota, kind, tenant.String())
	b.Queue(sql, args...).QueryRow(func(row pgx.Row) error { return row.Scan(n) })
	return tx.SendBatch(ctx, b).Close()
}

func exhausted(reason, field string, n, most int, what, next string) error {
	f := fault.Newf(fault.Exhausted, reason, "the tenant has %d of at most %d %s", n, most, what).Do(next)
	f.Field = field
	return f
}

// Counts is how many of each a tenant has, as the quotas count them.
type Counts struct{ Nodes, EnrolTokens int }

// Counts reads how much of its quotas a tenant uses. The caller needs admin and
// must reach all nodes.
func (s *Service) Counts(ctx context.Context, sc tenants.Scope) (c Counts, err error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return Counts{}, err
	}
	if !sc.Nodes.All() {
		return Counts{}, fault.New(fault.Denied, "outside_selector", "the numbers count the whole tenant").
			Do("ask an administrator whose credential is not limited to some nodes")
	}
	b := &pgx.Batch{}
	b.Queue(countNodes, sc.Tenant, nil).QueryRow(func(row pgx.Row) error { return row.Scan(&c.Nodes) })
	b.Queue(countEnrolTokens, sc.Tenant, s.now().UTC()).QueryRow(func(row pgx.Row) error { return row.Scan(&c.EnrolTokens) })
	if err := s.db.Read(ctx, sc.Tenant, b); err != nil {
		return Counts{}, fmt.Errorf("count what the quotas bound: %w", err)
	}
	return c, nil
}
