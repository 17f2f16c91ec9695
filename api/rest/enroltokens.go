package rest

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// EnrolTokens keeps the tokens that enrol nodes.
type EnrolTokens interface {
	CreateEnrolToken(ctx context.Context, scope tenants.Scope, spec directory.EnrolTokenSpec) (secret string, tok directory.EnrolToken, err error)
	ListEnrolTokens(ctx context.Context, scope tenants.Scope, cursor string, limit int) (tokens []directory.EnrolToken, next string, err error)
	RevokeEnrolToken(ctx context.Context, scope tenants.Scope, id string) error
}

// enrolTokenView is an enrolment token without its secret.
type enrolTokenView struct {
	ID        string            `json:"id"`
	UsesMax   int               `json:"uses_max"`
	UsesLeft  int               `json:"uses_left"`
	Labels    map[string]string `json:"labels,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	CreatedBy string            `json:"created_by"`
	ExpiresAt time.Time         `json:"expires_at"`
	RevokedAt *time.Time        `json:"revoked_at,omitempty"`
}

func viewEnrolToken(t directory.EnrolToken) enrolTokenView {
	return enrolTokenView{ID: t.ID, UsesMax: t.UsesMax, UsesLeft: t.UsesLeft, Labels: t.Labels, CreatedAt: t.CreatedAt, CreatedBy: t.CreatedBy, ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt}
}

type enrolTokenPage struct {
	EnrolTokens []enrolTokenView `json:"enrol_tokens"`
	page
}

func (s *Server) listEnrolTokens(c *call) (any, error) {
	cursor, limit, err := listArgs(c)
	if err != nil {
		return nil, err
	}
	list, next, err := s.cfg.EnrolTokens.ListEnrolTokens(c.r.Context(), c.scope, cursor, limit)
	if err != nil {
		return nil, err
	}
	out := enrolTokenPage{EnrolTokens: []enrolTokenView{}, page: page{next, c.query.notes}}
	for _, t := range list {
		out.EnrolTokens = append(out.EnrolTokens, viewEnrolToken(t))
	}
	return out, nil
}

type enrolTokenRequest struct {
	Uses     int               `json:"uses,omitempty" audit:"value"`
	ExpiresS int64             `json:"expires_s,omitempty" audit:"value"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// enrolTokenMade is the one answer that holds an enrolment token's secret.
type enrolTokenMade struct {
	EnrolToken enrolTokenView `json:"enrol_token"`
	Secret     string         `json:"secret"`
}

func (s *Server) createEnrolToken(c *call) (any, string, error) {
	if err := c.query.done(); err != nil {
		return nil, "", err
	}
	var in enrolTokenRequest
	if err := s.decode(c.w, c.r, &in); err != nil {
		return nil, "", err
	}
	const most = int64(directory.MaxEnrolTTL / time.Second)
	if in.ExpiresS < 0 || in.ExpiresS > most {
		return nil, "", fault.Bad("expires_s", "want 1 to %d seconds, or none for an hour", most)
	}
	secret, tok, err := s.cfg.EnrolTokens.CreateEnrolToken(c.r.Context(), c.scope, directory.EnrolTokenSpec{Uses: in.Uses, TTL: time.Duration(in.ExpiresS) * time.Second, Labels: in.Labels})
	if err != nil {
		return nil, "", err
	}
	return enrolTokenMade{EnrolToken: viewEnrolToken(tok), Secret: secret}, "", nil
}

func (s *Server) revokeEnrolToken(c *call) error {
	if err := c.query.done(); err != nil {
		return err
	}
	return s.cfg.EnrolTokens.RevokeEnrolToken(c.r.Context(), c.scope, c.r.PathValue("enrol_token"))
}
