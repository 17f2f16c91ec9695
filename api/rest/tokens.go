package rest

import (
	"context"
	"net/netip"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
)

// Tokens keeps operator tokens.
type Tokens interface {
	CreateToken(ctx context.Context, scope tenants.Scope, spec access.TokenSpec) (secret string, tok access.Token, err error)
	ListTokens(ctx context.Context, scope tenants.Scope, cursor string, limit int) (tokens []access.Token, next string, err error)
	RevokeToken(ctx context.Context, scope tenants.Scope, id string) error
}

// tokenView is a token without its secret.
type tokenView struct {
	ID         string        `json:"id"`
	Name       string        `json:"name"`
	Scopes     []string      `json:"scopes"`
	Nodes      *selectorBody `json:"nodes,omitempty"`
	Networks   []string      `json:"networks,omitempty"`
	CreatedAt  time.Time     `json:"created_at"`
	CreatedBy  string        `json:"created_by"`
	ExpiresAt  *time.Time    `json:"expires_at,omitempty"`
	RevokedAt  *time.Time    `json:"revoked_at,omitempty"`
	LastUsedAt *time.Time    `json:"last_used_at,omitempty"`
}

func viewToken(t access.Token) tokenView {
	v := tokenView{
		ID: t.ID, Name: t.Name, Scopes: t.Scopes.Words(), Nodes: selectorOf(t.Nodes), CreatedAt: t.CreatedAt, CreatedBy: t.CreatedBy,
		ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt, LastUsedAt: t.LastUsedAt,
	}
	for _, n := range t.CIDRs {
		v.Networks = append(v.Networks, n.String())
	}
	return v
}

type tokenPage struct {
	Tokens []tokenView `json:"tokens"`
	page
}

func (s *Server) listTokens(c *call) (any, error) {
	cursor, limit, err := listArgs(c)
	if err != nil {
		return nil, err
	}
	list, next, err := s.cfg.Tokens.ListTokens(c.r.Context(), c.scope, cursor, limit)
	if err != nil {
		return nil, err
	}
	out := tokenPage{Tokens: []tokenView{}, page: page{next, c.query.notes}}
	for _, t := range list {
		out.Tokens = append(out.Tokens, viewToken(t))
	}
	return out, nil
}

type tokenRequest struct {
	Name      string        `json:"name" audit:"value"`
	Scopes    []string      `json:"scopes" audit:"value"`
	ExpiresAt *time.Time    `json:"expires_at,omitempty"`
	Nodes     *selectorBody `json:"nodes,omitempty"`
	Networks  []string      `json:"networks,omitempty" audit:"value"`
}

// tokenMade is the one answer that holds a token's secret.
type tokenMade struct {
	Token  tokenView `json:"token"`
	Secret string    `json:"secret"`
}

func (s *Server) createToken(c *call) (any, string, error) {
	if err := c.query.done(); err != nil {
		return nil, "", err
	}
	var in tokenRequest
	if err := s.decode(c.w, c.r, &in); err != nil {
		return nil, "", err
	}
	spec := access.TokenSpec{Name: in.Name, ExpiresAt: in.ExpiresAt}
	var err error
	if spec.Scopes, err = scopesOf("scopes", in.Scopes); err != nil {
		return nil, "", err
	}
	if spec.Nodes, err = in.Nodes.selector("nodes"); err != nil {
		return nil, "", err
	}
	for _, n := range in.Networks {
		p, err := netip.ParsePrefix(n)
		if err != nil {
			return nil, "", badBody("networks", "%q is no network such as 192.0.2.0/24", clip(n))
		}
		spec.CIDRs = append(spec.CIDRs, p)
	}
	secret, tok, err := s.cfg.Tokens.CreateToken(c.r.Context(), c.scope, spec)
	if err != nil {
		return nil, "", respell(err, "cidrs", "networks")
	}
	return tokenMade{Token: viewToken(tok), Secret: secret}, "", nil
}

func (s *Server) revokeToken(c *call) error {
	if err := c.query.done(); err != nil {
		return err
	}
	return s.cfg.Tokens.RevokeToken(c.r.Context(), c.scope, c.r.PathValue("token"))
}
