package rest

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Policies keeps what tenants are held to.
type Policies interface {
	Policy(ctx context.Context, scope tenants.Scope) (access.PolicyState, error)
	SetPolicy(ctx context.Context, scope tenants.Scope, p tenants.Policy, since *time.Time) (access.PolicyState, error)
}

// policyBody is a policy as it is shown; what is left out is the server's
// default.
type policyBody struct {
	Scopes         []string `json:"scopes,omitempty"`
	FirstScopes    []string `json:"first_scopes,omitempty"`
	PrincipalRate  int      `json:"principal_rate,omitempty"`
	TenantRate     int      `json:"tenant_rate,omitempty"`
	MaxNodes       int      `json:"max_nodes,omitempty"`
	MaxTokens      int      `json:"max_tokens,omitempty"`
	MaxIssuers     int      `json:"max_issuers,omitempty"`
	MaxMembers     int      `json:"max_members,omitempty"`
	MaxEnrolTokens int      `json:"max_enrol_tokens,omitempty"`
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
	Most      policyBody `json:"most"` // how far an administrator may go
	UpdatedAt *time.Time `json:"updated_at,omitempty"`
	UpdatedBy string     `json:"updated_by,omitempty"`
}

func (s *Server) viewQuotas(c *call, p access.PolicyState) quotasView {
	c.version(p.UpdatedAt)
	v := quotasView{Set: viewPolicy(p.Set), Effective: viewPolicy(p.Effective()), Most: viewPolicy(p.Most()), UpdatedBy: p.UpdatedBy}
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

// setQuotas changes what is named and keeps the rest, so that a change of one
// number takes nothing back that somebody else gave.
func (s *Server) setQuotas(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	var in policyChange
	if err := s.decode(c.w, c.r, &in); err != nil {
		return nil, err
	}
	since, err := c.since()
	if err != nil {
		return nil, err
	}
	change, err := in.change()
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		old, err := s.cfg.Policies.Policy(c.r.Context(), c.scope)
		if err != nil {
			return nil, err
		}
		at := &old.UpdatedAt // what is kept must not have changed meanwhile
		if since != nil {
			at = since
		}
		state, err := s.cfg.Policies.SetPolicy(c.r.Context(), c.scope, change(old.Set), at)
		if since == nil && try < policyTries && err != nil && fault.Of(err).Reason == "changed_meanwhile" {
			continue
		}
		if err != nil {
			return nil, err
		}
		return s.viewQuotas(c, state), nil
	}
}
