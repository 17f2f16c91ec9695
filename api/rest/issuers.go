package rest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Issuers keeps the identity providers that a tenant trusts.
type Issuers interface {
	CreateIssuer(ctx context.Context, scope tenants.Scope, spec access.IssuerSpec) (tenants.Issuer, error)
	UpdateIssuer(ctx context.Context, scope tenants.Scope, id string, spec access.IssuerSpec, since *time.Time) (tenants.Issuer, error)
	// DraftNew and DraftChange are what would be stored.
	DraftNew(ctx context.Context, scope tenants.Scope, spec access.IssuerSpec) (tenants.Issuer, error)
	DraftChange(ctx context.Context, scope tenants.Scope, id string, spec access.IssuerSpec, since *time.Time) (tenants.Issuer, error)
	DeleteIssuer(ctx context.Context, scope tenants.Scope, id string) error
	GetIssuer(ctx context.Context, scope tenants.Scope, id string) (tenants.Issuer, error)
	ListIssuers(ctx context.Context, scope tenants.Scope, cursor string, limit int) (issuers []tenants.Issuer, next string, err error)
}

// IssuerTester looks whether an issuer answers as it must.
type IssuerTester interface {
	Test(ctx context.Context, issuer tenants.Issuer) []tenants.Step
}

// issuerTestTimeout is the longest that the test of an issuer takes: it asks
// several addresses of it.
const issuerTestTimeout = 20 * time.Second

// roleBody is one rule. It names a claim and its value, or says that it is for
// everybody: a claim that was forgotten must not let everybody in.
type roleBody struct {
	Claim     string        `json:"claim,omitempty"`
	Value     string        `json:"value,omitempty"`
	Everybody bool          `json:"everybody,omitempty"`
	Scopes    []string      `json:"scopes"`
	Nodes     *selectorBody `json:"nodes,omitempty"`
}

// UnmarshalJSON refuses members that it does not know, as selectorBody does.
func (b *roleBody) UnmarshalJSON(in []byte) error {
	type fields roleBody
	return nested("roles", in, (*fields)(b))
}

// issuerView is an issuer without its client secret.
type issuerView struct {
	ID                string     `json:"id"`
	Name              string     `json:"name"`
	URL               string     `json:"url"`
	JWKSURL           string     `json:"jwks_url,omitempty"`
	IntrospectionURL  string     `json:"introspection_url,omitempty"`
	ClientID          string     `json:"client_id,omitempty"`
	HasClientSecret   bool       `json:"has_client_secret"`
	DashboardClientID string     `json:"dashboard_client_id,omitempty"`
	Mode              string     `json:"mode"`
	Audiences         []string   `json:"audiences,omitempty"`
	TenantClaim       string     `json:"tenant_claim,omitempty"`
	TenantValue       string     `json:"tenant_value,omitempty"`
	Types             []string   `json:"types,omitempty"`
	Algorithms        []string   `json:"algorithms,omitempty"`
	ScopeClaim        string     `json:"scope_claim,omitempty"`
	Opaque            bool       `json:"opaque"`
	Roles             []roleBody `json:"roles"`
	Shared            bool       `json:"shared"`
	CreatedAt         time.Time  `json:"created_at"`
	UpdatedAt         time.Time  `json:"updated_at"`
	Notes             []string   `json:"notes,omitempty"`

	Steps []tenants.Step `json:"steps,omitempty"` // of the test before it was stored
}

func viewIssuer(i tenants.Issuer) issuerView {
	v := issuerView{
		ID: i.ID, Name: i.Name, URL: i.URL, JWKSURL: i.JWKSURL, IntrospectionURL: i.IntrospectionURL, ClientID: i.ClientID, HasClientSecret: i.SealedSecret != nil,
		DashboardClientID: i.DashboardClientID, Mode: string(i.Mode), Audiences: i.Audiences, TenantClaim: i.TenantClaim, TenantValue: i.TenantValue,
		Types: i.Types, Algorithms: i.Algorithms, ScopeClaim: i.ScopeClaim, Opaque: i.Opaque, Roles: []roleBody{}, Shared: i.Shared,
		CreatedAt: i.CreatedAt, UpdatedAt: i.UpdatedAt, Notes: access.IssuerNotes(i),
	}
	for _, r := range i.Roles {
		v.Roles = append(v.Roles, roleBody{Claim: r.Claim, Value: r.Value, Everybody: r.Claim == "", Scopes: r.Scopes.Words(), Nodes: selectorOf(r.Nodes)})
	}
	return v
}

type issuerPage struct {
	Issuers []issuerView `json:"issuers"`
	page
}

func (s *Server) listIssuers(c *call) (any, error) {
	cursor, limit, err := listArgs(c)
	if err != nil {
		return nil, err
	}
	list, next, err := s.cfg.Issuers.ListIssuers(c.r.Context(), c.scope, cursor, limit)
	if err != nil {
		return nil, err
	}
	out := issuerPage{Issuers: []issuerView{}, page: page{next, c.query.notes}}
	for _, i := range list {
		out.Issuers = append(out.Issuers, viewIssuer(i))
	}
	return out, nil
}

type issuerRequest struct {
	Name              string     `json:"name,omitempty" audit:"value"`
	URL               string     `json:"url,omitempty" audit:"value"`
	JWKSURL           string     `json:"jwks_url,omitempty"`
	IntrospectionURL  string     `json:"introspection_url,omitempty"`
	ClientID          string     `json:"client_id,omitempty"`
	ClientSecret      *string    `json:"client_secret,omitempty"`
	DashboardClientID string     `json:"dashboard_client_id,omitempty"`
	Mode              string     `json:"mode,omitempty" audit:"value"`
	Audiences         []string   `json:"audiences,omitempty"`
	TenantClaim       string     `json:"tenant_claim,omitempty"`
	TenantValue       string     `json:"tenant_value,omitempty"`
	Types             []string   `json:"types,omitempty"`
	Algorithms        []string   `json:"algorithms,omitempty"`
	ScopeClaim        string     `json:"scope_claim,omitempty"`
	Opaque            bool       `json:"opaque,omitempty"`
	Roles             []roleBody `json:"roles,omitempty"`
}

// issuerSpec reads what is to be stored, and whether a failing test keeps it
// from being stored.
func (s *Server) issuerSpec(c *call) (spec access.IssuerSpec, force bool, err error) {
	force = c.query.oneOf("force", "false", "true") == "true"
	if err := c.query.done(); err != nil {
		return spec, force, err
	}
	var in issuerRequest
	if err := s.decode(c.w, c.r, &in); err != nil {
		return spec, force, err
	}
	if force {
		rec := callOf(c.r.Context())
		rec.sent = append(rec.sent, "force=true")
	}
	spec = access.IssuerSpec{
		Name: in.Name, URL: in.URL, JWKSURL: in.JWKSURL, IntrospectionURL: in.IntrospectionURL, ClientID: in.ClientID, ClientSecret: in.ClientSecret,
		DashboardClientID: in.DashboardClientID, Mode: tenants.AudienceMode(in.Mode), Audiences: in.Audiences, TenantClaim: in.TenantClaim, TenantValue: in.TenantValue,
		Types: in.Types, Algorithms: in.Algorithms, ScopeClaim: in.ScopeClaim, Opaque: in.Opaque,
	}
	for n, r := range in.Roles {
		field := fmt.Sprintf("roles[%d]", n)
		if r.Everybody == (r.Claim != "" || r.Value != "") {
			return spec, force, badBody(field, "a rule has a claim and a value, or is for everybody").Do(`give claim and value, or "everybody": true for whoever has an account at the issuer`)
		}
		rule := tenants.RoleRule{Claim: r.Claim, Value: r.Value}
		if !r.Everybody && r.Claim == "" {
			return spec, force, badBody(field+".claim", "the claim is missing")
		}
		if rule.Scopes, err = scopesOf(field+".scopes", r.Scopes); err != nil {
			return spec, force, err
		}
		if rule.Nodes, err = r.Nodes.selector(field + ".nodes"); err != nil {
			return spec, force, err
		}
		spec.Roles = append(spec.Roles, rule)
	}
	return spec, force, nil
}

func (s *Server) createIssuer(c *call) (any, string, error) {
	spec, force, err := s.issuerSpec(c)
	if err != nil {
		return nil, "", err
	}
	draft, err := s.cfg.Issuers.DraftNew(c.r.Context(), c.scope, spec)
	if err != nil {
		return nil, "", err
	}
	steps, err := s.tested(c, draft, force)
	if err != nil {
		return nil, "", err
	}
	i, err := s.cfg.Issuers.CreateIssuer(c.r.Context(), c.scope, spec)
	if err != nil {
		return nil, "", err
	}
	c.version(i.UpdatedAt)
	v := viewIssuer(i)
	v.Steps = steps
	return v, "issuers/" + i.ID, nil
}

func (s *Server) getIssuer(c *call) (any, error) {
	i, err := s.issuerOf(c)
	if err != nil {
		return nil, err
	}
	c.version(i.UpdatedAt)
	return viewIssuer(i), nil
}

func (s *Server) issuerOf(c *call) (tenants.Issuer, error) {
	if err := c.query.done(); err != nil {
		return tenants.Issuer{}, err
	}
	return s.cfg.Issuers.GetIssuer(c.r.Context(), c.scope, c.r.PathValue("issuer"))
}

func (s *Server) updateIssuer(c *call) (any, error) {
	spec, force, err := s.issuerSpec(c)
	if err != nil {
		return nil, err
	}
	since, err := c.since()
	if err != nil {
		return nil, err
	}
	id := c.r.PathValue("issuer")
	draft, err := s.cfg.Issuers.DraftChange(c.r.Context(), c.scope, id, spec, since)
	if err != nil {
		return nil, err
	}
	steps, err := s.tested(c, draft, force)
	if err != nil {
		return nil, err
	}
	i, err := s.cfg.Issuers.UpdateIssuer(c.r.Context(), c.scope, id, spec, since)
	if err != nil {
		return nil, err
	}
	c.version(i.UpdatedAt)
	v := viewIssuer(i)
	v.Steps = steps
	return v, nil
}

// tested asks an issuer that is about to be stored, and refuses it when a step
// fails. force stores it all the same.
func (s *Server) tested(c *call, draft tenants.Issuer, force bool) ([]tenants.Step, error) {
	steps := s.cfg.IssuerTest.Test(c.r.Context(), draft)
	var failed, next []string
	for _, step := range steps {
		if step.OK {
			continue
		}
		what := step.Name
		if step.Received != "" {
			what += " (received " + step.Received + ")"
		}
		failed = append(failed, what)
		if step.Next != "" {
			next = append(next, step.Name+": "+step.Next)
		}
	}
	if len(failed) == 0 || force {
		return steps, nil
	}
	return nil, fault.New(fault.Precondition, "issuer_test_failed", "nothing was stored: the test of the issuer failed at "+strings.Join(failed, ", ")).
		Do(strings.Join(append(next, "mend it, or store it all the same with ?force=true"), "; "))
}

func (s *Server) deleteIssuer(c *call) error {
	if err := c.query.done(); err != nil {
		return err
	}
	return s.cfg.Issuers.DeleteIssuer(c.r.Context(), c.scope, c.r.PathValue("issuer"))
}

// issuerTest is what a test found. Each step says what was expected and what
// was received, which never is a token or a secret.
type issuerTest struct {
	Issuer      string         `json:"issuer"`
	OK          bool           `json:"ok"`
	Steps       []tenants.Step `json:"steps"`
	ReferenceID string         `json:"reference_id"`
}

// testIssuer asks the issuer itself, from this server. It is for who may change
// issuers: its answer tells what the server's network reaches.
func (s *Server) testIssuer(w http.ResponseWriter, r *http.Request) {
	scope, _ := auth.ScopeFrom(r.Context())
	i, err := s.issuerOf(&call{w: w, r: r, scope: scope, query: parseParams(r.URL.RawQuery)})
	if err == nil && !scope.Nodes.All() {
		err = access.TooWide("the test of an issuer is for who may change it")
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	out := issuerTest{Issuer: i.URL, OK: true, Steps: s.cfg.IssuerTest.Test(r.Context(), i), ReferenceID: auth.Reference(w)}
	for _, step := range out.Steps {
		out.OK = out.OK && step.OK
	}
	s.write(w, r, http.StatusOK, out)
}
