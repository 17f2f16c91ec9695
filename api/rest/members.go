package rest

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
)

// Members keeps who is admitted by name.
type Members interface {
	CreateMember(ctx context.Context, scope tenants.Scope, spec access.MemberSpec) (tenants.Member, error)
	UpdateMember(ctx context.Context, scope tenants.Scope, id string, spec access.MemberSpec) (tenants.Member, error)
	DeleteMember(ctx context.Context, scope tenants.Scope, id string) error
	GetMember(ctx context.Context, scope tenants.Scope, id string) (tenants.Member, error)
	ListMembers(ctx context.Context, scope tenants.Scope, issuerID, cursor string, limit int) (members []tenants.Member, next string, err error)
}

type memberView struct {
	ID        string        `json:"id"`
	IssuerID  string        `json:"issuer_id"`
	Subject   string        `json:"subject"`
	Name      string        `json:"name,omitempty"`
	Scopes    []string      `json:"scopes"`
	Nodes     *selectorBody `json:"nodes,omitempty"`
	CreatedAt time.Time     `json:"created_at"`
	CreatedBy string        `json:"created_by"`
}

func viewMember(m tenants.Member) memberView {
	return memberView{ID: m.ID, IssuerID: m.IssuerID, Subject: m.Subject, Name: m.Name, Scopes: m.Scopes.Words(), Nodes: selectorOf(m.Nodes), CreatedAt: m.CreatedAt, CreatedBy: m.CreatedBy}
}

type memberPage struct {
	Members []memberView `json:"members"`
	page
}

func (s *Server) listMembers(c *call) (any, error) {
	issuer := c.query.text("issuer")
	cursor, limit, err := listArgs(c)
	if err != nil {
		return nil, err
	}
	list, next, err := s.cfg.Members.ListMembers(c.r.Context(), c.scope, issuer, cursor, limit)
	if err != nil {
		return nil, respell(err, "issuer_id", "issuer")
	}
	out := memberPage{Members: []memberView{}, page: page{next, c.query.notes}}
	for _, m := range list {
		out.Members = append(out.Members, viewMember(m))
	}
	return out, nil
}

type memberRequest struct {
	IssuerID string        `json:"issuer_id" audit:"value"`
	Subject  string        `json:"subject" audit:"value"`
	Name     string        `json:"name,omitempty"`
	Scopes   []string      `json:"scopes" audit:"value"`
	Nodes    *selectorBody `json:"nodes,omitempty"`
}

func (s *Server) memberSpec(c *call) (spec access.MemberSpec, err error) {
	if err := c.query.done(); err != nil {
		return spec, err
	}
	var in memberRequest
	if err := s.decode(c.w, c.r, &in); err != nil {
		return spec, err
	}
	spec = access.MemberSpec{IssuerID: in.IssuerID, Subject: in.Subject, Name: in.Name}
	if spec.Scopes, err = scopesOf("scopes", in.Scopes); err != nil {
		return spec, err
	}
	spec.Nodes, err = in.Nodes.selector("nodes")
	return spec, err
}

func (s *Server) createMember(c *call) (any, string, error) {
	spec, err := s.memberSpec(c)
	if err != nil {
		return nil, "", err
	}
	m, err := s.cfg.Members.CreateMember(c.r.Context(), c.scope, spec)
	if err != nil {
		return nil, "", err
	}
	return viewMember(m), "members/" + m.ID, nil
}

func (s *Server) getMember(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	m, err := s.cfg.Members.GetMember(c.r.Context(), c.scope, c.r.PathValue("member"))
	if err != nil {
		return nil, err
	}
	return viewMember(m), nil
}

func (s *Server) updateMember(c *call) (any, error) {
	spec, err := s.memberSpec(c)
	if err != nil {
		return nil, err
	}
	m, err := s.cfg.Members.UpdateMember(c.r.Context(), c.scope, c.r.PathValue("member"), spec)
	if err != nil {
		return nil, err
	}
	return viewMember(m), nil
}

func (s *Server) deleteMember(c *call) error {
	if err := c.query.done(); err != nil {
		return err
	}
	return s.cfg.Members.DeleteMember(c.r.Context(), c.scope, c.r.PathValue("member"))
}
