package rest

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
)

// Policies keeps what tenants are held to.
type Policies interface {
	Policy(ctx context.Context, scope tenants.Scope) (access.PolicyState, error)
	SetPolicy(ctx context.Context, scope tenants.Scope, p tenants.Policy, since *time.Time) (access.PolicyState, error)
}

// policyBody is a policy; what is left out is the server's default.
type policyBody struct {
	Scopes         []string `json:"scopes,omitempty" audit:"value"`
	FirstScopes    []string `json:"first_scopes,omitempty" audit:"value"`
	PrincipalRate  int      `json:"principal_rate,omitempty" audit:"value"`
	TenantRate     int      `json:"tenant_rate,omitempty" audit:"value"`
	MaxNodes       int      `json:"max_nodes,omitempty" audit:"value"`
	MaxTokens      int      `json:"max_tokens,omitempty" audit:"value"`
	MaxIssuers     int      `json:"max_issuers,omitempty" audit:"value"`
	MaxMembers     int      `json:"max_members,omitempty" audit:"value"`
	MaxEnrolTokens int      `json:"max_enrol_tokens,omitempty" audit:"value"`
}

func viewPolicy(p tenants.Policy) policyBody {
	b := policyBody{
		PrincipalRate: p.PrincipalRate, TenantRate: p.TenantRate, MaxNodes: p.MaxNodes, MaxTokens: p.MaxTokens,
		MaxIssuers: p.MaxIssuers, MaxMembers: p.MaxMembers, MaxEnrolTokens: p.MaxEnrolTokens,
	}
	if p.Scopes != 0 {
		b.Scopes = p.Scopes.Words()
	}
	if p.FirstScopes != 0 {
		b.FirstScopes = p.FirstScopes.Words()
	}
	return b
}

// quotasView is a tenant's policy as it was set, and as it works.
type quotasView struct {
	Set       policyBody `json:"set"`
	Effective policyBody `json:"effective"`
	UpdatedAt *time.Time `json:"updated_at,omitempty"`
	UpdatedBy string     `json:"updated_by,omitempty"`
}

func (s *Server) viewQuotas(c *call, p access.PolicyState) quotasView {
	c.version(p.UpdatedAt)
	v := quotasView{Set: viewPolicy(p.Set), Effective: viewPolicy(p.Effective()), UpdatedBy: p.UpdatedBy}
	if !p.UpdatedAt.IsZero() {
		v.UpdatedAt = &p.UpdatedAt
	}
	return v
}

func (s *Server) getQuotas(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	p, err := s.cfg.Policies.Policy(c.r.Context(), c.scope)
	if err != nil {
		return nil, err
	}
	return s.viewQuotas(c, p), nil
}

func (s *Server) setQuotas(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	var in policyBody
	if err := s.decode(c.w, c.r, &in); err != nil {
		return nil, err
	}
	since, err := c.since()
	if err != nil {
		return nil, err
	}
	p := tenants.Policy{
		PrincipalRate: in.PrincipalRate, TenantRate: in.TenantRate, MaxNodes: in.MaxNodes, MaxTokens: in.MaxTokens,
		MaxIssuers: in.MaxIssuers, MaxMembers: in.MaxMembers, MaxEnrolTokens: in.MaxEnrolTokens,
	}
	if p.Scopes, err = scopesOf("scopes", in.Scopes); err != nil {
		return nil, err
	}
	if p.FirstScopes, err = scopesOf("first_scopes", in.FirstScopes); err != nil {
		return nil, err
	}
	if in.Scopes != nil && p.Scopes == 0 {
		return nil, badBody("scopes", "an empty list would allow every scope").Do("name the scopes that tokens may hold, or leave scopes out for all")
	}
	state, err := s.cfg.Policies.SetPolicy(c.r.Context(), c.scope, p, since)
	if err != nil {
		return nil, err
	}
	return s.viewQuotas(c, state), nil
}
