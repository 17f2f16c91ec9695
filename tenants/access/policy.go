package access

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// limit is one number of a policy: how it is named, where it is, its default,
// and the most that the operator of the server may give.
type limit struct {
	field     string
	of        func(*tenants.Policy) *int
	otherwise int
	most      int
}

var limits = []limit{
	{"principal_rate", func(p *tenants.Policy) *int { return &p.PrincipalRate }, tenants.DefaultPrincipalRate, 10_000_000},
	{"tenant_rate", func(p *tenants.Policy) *int { return &p.TenantRate }, tenants.DefaultTenantRate, 100_000_000},
	{"max_nodes", func(p *tenants.Policy) *int { return &p.MaxNodes }, tenants.DefaultMaxNodes, 1_000_000},
	{"max_tokens", func(p *tenants.Policy) *int { return &p.MaxTokens }, tenants.DefaultMaxTokens, 100_000},
	{"max_issuers", func(p *tenants.Policy) *int { return &p.MaxIssuers }, tenants.DefaultMaxIssuers, 100},
	{"max_members", func(p *tenants.Policy) *int { return &p.MaxMembers }, tenants.DefaultMaxMembers, 1_000_000},
	{"max_enrol_tokens", func(p *tenants.Policy) *int { return &p.MaxEnrolTokens }, tenants.DefaultMaxEnrolTokens, 100_000},
}

// PolicyState is a tenant's policy as it was set, and since when.
type PolicyState struct {
	Set       tenants.Policy // zero fields: the server's defaults
	UpdatedAt time.Time      // zero: never set
	UpdatedBy string

	// Given is what the operator of the server gave beyond the default, by the
	// limit's field, whatever the tenant's administrators set since.
	Given map[string]int
}

// Most is how far an administrator of the tenant may go: the server's default,
// or what the operator of the server gave beyond it. It says nothing of scopes.
func (p PolicyState) Most() tenants.Policy {
	var out tenants.Policy
	for _, l := range limits {
		*l.of(&out) = min(l.most, max(l.otherwise, p.Given[l.field], *l.of(&p.Set)))
	}
	return out
}

// givenAfter is what the operator has given once p is set: an operator's new
// number counts from now on, an administrator's takes nothing back.
func (p PolicyState) givenAfter(sc tenants.Scope, set tenants.Policy) map[string]int {
	out := map[string]int{}
	most := p.Most()
	for _, l := range limits {
		n := *l.of(&most)
		if sc.Principal.Kind == tenants.LocalPrincipal && *l.of(&set) != *l.of(&p.Set) {
			n = *l.of(&set)
		}
		if n > l.otherwise {
			out[l.field] = n
		}
	}
	return out
}

// Effective is the policy with the defaults filled in.
func (p PolicyState) Effective() tenants.Policy { return p.Set.OrDefaults() }

// Policy reads what a tenant is held to. The caller needs admin.
func (s *Service) Policy(ctx context.Context, sc tenants.Scope) (PolicyState, error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return PolicyState{}, err
	}
	return s.policy(ctx, sc.Tenant)
}

// PolicyOf reads what a tenant is held to, with the defaults filled in. It is
// for the server's own limits and asks for no scope.
func (s *Service) PolicyOf(ctx context.Context, tenant tenants.TenantID) (tenants.Policy, error) {
	p, err := s.policy(ctx, tenant)
	return p.Effective(), err
}

func (s *Service) policy(ctx context.Context, tenant tenants.TenantID) (PolicyState, error) {
	p, _, err := tenantdb.QueryOne(ctx, s.db, tenant, selectPolicy, []any{tenant}, scanPolicy)
	if err != nil {
		return PolicyState{}, fmt.Errorf("read policy: %w", err)
	}
	return p, nil
}

// SetPolicy replaces what a tenant is held to. The caller needs admin and must
// reach all nodes. The operator of the server gives a tenant its limits; an
// administrator of the tenant may set them anywhere up to the server's default
// or the higher number that the operator gave last; see PolicyState.Most. since is the UpdatedAt that the
// change was made on, or zero for whatever is there; a Precondition fault with
// reason changed_meanwhile when it is another.
func (s *Service) SetPolicy(ctx context.Context, sc tenants.Scope, p tenants.Policy, since *time.Time) (PolicyState, error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return PolicyState{}, err
	}
	if !sc.Nodes.All() {
		return PolicyState{}, TooWide("a tenant's limits reach all of its nodes")
	}
	if p.Scopes&^tenants.EveryScope != 0 {
		return PolicyState{}, fault.Bad("scopes", "want some of %s, or none for all", tenants.EveryScope)
	}
	if p.FirstScopes&^tenants.EveryScope != 0 || p.Scopes != 0 && p.FirstScopes&^p.Scopes.Effective() != 0 {
		return PolicyState{}, fault.Bad("first_scopes", "want some of %s: what the first challenge asks for must be allowed", p.OrDefaults().Scopes)
	}
	var out PolicyState
	err := s.db.InTenant(ctx, sc.Tenant, func(ctx context.Context, tx pgx.Tx) error {
		old, err := lockedPolicy(ctx, tx, sc.Tenant)
		if err != nil {
			return err
		}
		if since != nil && !since.Equal(old.UpdatedAt) {
			return changedMeanwhile()
		}
		if err := checkLimits(sc, p, old); err != nil {
			return err
		}
		out = PolicyState{Set: p, UpdatedAt: later(s.now(), old.UpdatedAt), UpdatedBy: author(sc), Given: old.givenAfter(sc, p)}
		_, err = tx.Exec(ctx, upsertPolicy, sc.Tenant, p.Scopes.Words(), p.FirstScopes.Words(), p.PrincipalRate, p.TenantRate,
			p.MaxNodes, p.MaxTokens, p.MaxIssuers, p.MaxMembers, p.MaxEnrolTokens, out.UpdatedAt, out.UpdatedBy, out.Given)
		return err
	})
	if err != nil {
		return PolicyState{}, fmt.Errorf("store policy: %w", err)
	}
	s.log.Info("policy changed", "tenant", sc.Tenant, "by", out.UpdatedBy)
	return out, nil
}

func checkLimits(sc tenants.Scope, p tenants.Policy, old PolicyState) error {
	bound := old.Most()
	for _, l := range limits {
		most, whose, hint := l.most, "", "set a lower number"
		if sc.Principal.Kind != tenants.LocalPrincipal {
			most, hint = *l.of(&bound), "ask the operator of this server for more"
			if most > l.otherwise {
				whose = ", which the operator of this server gave"
			}
		}
		if n := *l.of(&p); n < 0 || n > most {
			return fault.Bad(l.field, "want 1 to %d%s, or 0 for the server's default of %d, not %d", most, whose, l.otherwise, n).Do(hint)
		}
	}
	return nil
}

// lockedPolicy reads the policy for a change; changes of one tenant wait for
// each other.
func lockedPolicy(ctx context.Context, tx pgx.Tx, tenant tenants.TenantID) (PolicyState, error) {
	if _, err := tx.Exec(ctx, lockKind, "policy", tenant.String()); err != nil {
		return PolicyState{}, err
	}
	rows, err := tx.Query(ctx, selectPolicy, tenant)
	if err != nil {
		return PolicyState{}, err
	}
	list, err := pgx.CollectRows(rows, scanPolicy)
	if err != nil || len(list) == 0 {
		return PolicyState{}, err
	}
	return list[0], nil
}

// quota is something of which a tenant may have so many.
type quota struct {
	reason string
	field  string
	what   string
	max    func(tenants.Policy) int
	count  string // counts what there is; $1 is the tenant
	next   string
}

var (
	tokenQuota = quota{"quota_tokens", "max_tokens", "operator tokens", func(p tenants.Policy) int { return p.MaxTokens }, countTokens,
		"revoke tokens that are not needed, or ask the operator of this server for more"}
	issuerQuota = quota{"quota_issuers", "max_issuers", "issuers", func(p tenants.Policy) int { return p.MaxIssuers }, countIssuers,
		"remove issuers that are not needed, or ask the operator of this server for more"}
	memberQuota = quota{"quota_members", "max_members", "members", func(p tenants.Policy) int { return p.MaxMembers }, countMembers,
		"remove members that are not needed, admit people by a rule of their issuer, or ask the operator of this server for more"}
)

// room makes sure that one more fits. Whoever adds one waits here for the
// others until they are committed, so that the count is true.
func (q quota) room(ctx context.Context, tx pgx.Tx, tenant tenants.TenantID) error {
	var n int
	p := PolicyState{}
	b := &pgx.Batch{}
	b.Queue(lockKind, q.field, tenant.String())
	b.Queue(selectPolicy, tenant).Query(func(rows pgx.Rows) error {
		list, err := pgx.CollectRows(rows, scanPolicy)
		if len(list) > 0 {
			p = list[0]
		}
		return err
	})
	b.Queue(q.count, tenant).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return err
	}
	if most := q.max(p.Effective()); n >= most {
		f := fault.Newf(fault.Exhausted, q.reason, "the tenant has %d of at most %d %s", n, most, q.what).Do(q.next)
		f.Field = q.field
		return f
	}
	return nil
}

// Counts is how many of each a tenant has, as the quotas count them.
type Counts struct{ Tokens, Issuers, Members int }

// Counts reads how much of its quotas a tenant uses. The caller needs admin and
// must reach all nodes.
func (s *Service) Counts(ctx context.Context, sc tenants.Scope) (c Counts, err error) {
	if err := sc.Require(tenants.Admin); err != nil {
		return Counts{}, err
	}
	if !sc.Nodes.All() {
		return Counts{}, TooWide("the numbers count the whole tenant")
	}
	b := &pgx.Batch{}
	for sql, n := range map[string]*int{countTokens: &c.Tokens, countIssuers: &c.Issuers, countMembers: &c.Members} {
		b.Queue(sql, sc.Tenant).QueryRow(func(row pgx.Row) error { return row.Scan(n) })
	}
	if err := s.db.Read(ctx, sc.Tenant, b); err != nil {
		return Counts{}, fmt.Errorf("count what the quotas bound: %w", err)
	}
	return c, nil
}

// later is the clock's time, but after what was noted before: times of change
// tell changes apart. The database keeps microseconds.
func later(now, before time.Time) time.Time {
	now = now.UTC().Truncate(time.Microsecond)
	if !now.After(before) {
		return before.Add(time.Microsecond)
	}
	return now
}

func changedMeanwhile() *fault.Error {
	return fault.New(fault.Precondition, "changed_meanwhile", "somebody else changed it since you read it").Do("read it again and repeat your change")
}

// TooWide refuses a caller that is limited to some nodes what reaches all of
// them; msg says what that is.
func TooWide(msg string) *fault.Error {
	return fault.New(fault.Denied, "outside_selector", msg).Do("ask an administrator whose credential is not limited to some nodes")
}
