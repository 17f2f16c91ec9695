package rest

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Door tells what happened to those who tried to connect.
type Door interface {
	ByReference(ctx context.Context, t tenants.TenantID, reference string) (tenants.Attempt, error)
	Recent(ctx context.Context, scope tenants.Scope) (audit.Recent, error)
	// Attempt never blocks.
	Attempt(a tenants.Attempt)
}

// Tenants finds a tenant by its slug.
type Tenants interface {
	TenantBySlug(ctx context.Context, slug string) (tenants.Tenant, error)
}

// Trusts tells whom a tenant trusts.
type Trusts interface {
	Trust(ctx context.Context, t tenants.TenantID) (tenants.Trust, error)
}

// connectPage is the address that people open: the dashboard's page for a
// browser, the same facts as JSON for everything else.
func (s *Server) connectPage(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Accept")
	if s.cfg.Dashboard != nil && strings.Contains(r.Header.Get("Accept"), "text/html") {
		s.cfg.Dashboard.ServeHTTP(w, r)
		return
	}
	s.connect(w, r)
}

// connect is the self-test of a connector. With the reference id of a refusal
// anybody learns the class of the failed check and the next step; an
// administrator of the tenant sees what was expected and received, the last
// attempts, and how the tenant is set up. An unknown tenant is answered as one
// that does not know the reference id.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Add("Vary", "Authorization")
	h.Add("Vary", "Cookie")
	slug, q := r.PathValue("tenant"), parseParams(r.URL.RawQuery)
	reference := q.text("reference")
	if err := q.done(); err != nil {
		s.fail(w, r, err)
		return
	}
	v, err := s.connectView(r, slug, reference)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	s.write(w, r, http.StatusOK, v)
}

var errReference = fault.New(fault.NotFound, "reference_unknown", "no attempt of the last 24 hours has this reference id at this address").
	Do("copy the id of the header Telltale-Reference again; attempts are kept for 24 hours, of each kind the newest, and the server's log has them all")

func (s *Server) connectView(r *http.Request, slug, reference string) (any, error) {
	if tenants.CheckSlug(slug) != nil {
		return nil, errReference
	}
	ctx := r.Context()
	scope, ok := s.cfg.Guards.Gate.Peek(r)
	admin := ok && scope.Granted.Has(tenants.Admin)
	if admin {
		callOf(ctx).scope = scope
	}
	out := connection{
		Endpoints: endpoints{MCP: s.cfg.Site.MCP(slug), REST: s.cfg.Site.REST(slug), Metadata: s.cfg.Site.Metadata(slug), MetadataBeside: s.cfg.Site.MCP(slug) + "/.well-known/oauth-protected-resource"},
		Next:      []string{"give the reference id of a refusal as ?reference=ID to learn which check failed", "sign in as an administrator of this tenant to see the last attempts with their values"},
	}
	if reference != "" {
		found, err := s.attempt(ctx, slug, reference)
		if err != nil {
			return nil, err
		}
		shown := s.attemptOf(found, scope)
		if !admin {
			return verdict{reference, shown.Class, shown.Detail, shown.Next}, nil
		}
		out.Attempt, out.Next = &shown, shown.Next
	} else if admin {
		out.Next = []string{}
	}
	if !admin {
		return out, nil
	}
	last, err := s.cfg.Door.Recent(ctx, scope)
	if err != nil {
		return nil, err
	}
	out.Admin = true
	for _, a := range last.Attempts {
		out.Attempts = append(out.Attempts, s.attemptOf(a, scope))
	}
	out.Dropped = last.Dropped
	out.Checklist, err = s.checklist(ctx, scope)
	return out, err
}

// attempt finds what a reference id leads to. Whatever is missing, the tenant or
// the attempt, the answer is the same.
func (s *Server) attempt(ctx context.Context, slug, reference string) (tenants.Attempt, error) {
	t, err := s.cfg.Tenants.TenantBySlug(ctx, slug)
	if err == nil {
		var a tenants.Attempt
		if a, err = s.cfg.Door.ByReference(ctx, t.ID, reference); err == nil {
			return a, nil
		}
	}
	if fault.Is(err, fault.NotFound) {
		err = errReference
	}
	return tenants.Attempt{}, err
}

// checklist is what an administrator can set right without any attempt.
func (s *Server) checklist(ctx context.Context, scope tenants.Scope) ([]tenants.Step, error) {
	var trust tenants.Trust
	if s.cfg.Trusts != nil {
		var err error
		if trust, err = s.cfg.Trusts.Trust(ctx, scope.Tenant); err != nil {
			return nil, err
		}
	}
	list := []tenants.Step{
		{Name: "mcp_url", OK: true, Received: s.cfg.Site.MCP(scope.Slug)},
		{Name: "metadata_url", OK: true, Received: s.cfg.Site.Metadata(scope.Slug)},
		{Name: "issuer", OK: len(trust.Issuers) > 0, Expected: "at least one identity provider", Received: fmt.Sprintf("%d of them", len(trust.Issuers))},
	}
	if !list[2].OK {
		list[2].Next = "add the identity provider that your people sign in with, or use operator tokens"
	}
	for _, i := range trust.Issuers {
		roles := tenants.Step{Name: "roles", OK: len(i.Roles) > 0, Expected: "a rule that gives scopes to those who sign in at " + i.URL, Received: tenants.RuleCount(len(i.Roles))}
		if !roles.OK {
			roles.Next = "add a rule to the issuer, or members by name: without either nobody of it may do anything"
		}
		list = append(list, roles)
	}
	return list, nil
}

// verdict is all that a reference id alone gives.
type verdict struct {
	Reference string   `json:"reference_id"`
	Class     string   `json:"class"` // of the failed check; "none" where none failed
	Detail    string   `json:"detail"`
	Next      []string `json:"next"`
}

type connection struct {
	Endpoints endpoints       `json:"endpoints"`
	Admin     bool            `json:"admin"` // the caller is an administrator of this tenant
	Attempt   *attempt        `json:"attempt,omitempty"`
	Attempts  []attempt       `json:"attempts,omitempty"` // the newest first
	Dropped   []audit.Dropped `json:"dropped,omitempty"`  // of which kinds of attempts some were too many
	Checklist []tenants.Step  `json:"checklist,omitempty"`
	Next      []string        `json:"next"`
}

type endpoints struct {
	MCP            string `json:"mcp_url"`
	REST           string `json:"rest_url"`
	Metadata       string `json:"metadata_url"`
	MetadataBeside string `json:"metadata_beside_url"`
}

// attempt is one thing that happened at the tenant's door.
type attempt struct {
	At        time.Time           `json:"at"`
	Reference string              `json:"reference_id"`
	Step      tenants.AttemptStep `json:"step"`
	Class     string              `json:"class"`
	Detail    string              `json:"detail"`
	Surface   string              `json:"surface"`
	Issuer    string              `json:"issuer,omitempty"`
	Expected  string              `json:"expected,omitempty"`
	Received  string              `json:"received,omitempty"`
	Principal string              `json:"principal,omitempty"`
	Client    string              `json:"client,omitempty"`
	From      string              `json:"from,omitempty"`
	Next      []string            `json:"next"`
}

// attemptOf is an attempt as scope may see it. What was called with which
// arguments may name nodes: who is limited to some sees it of its own calls
// alone.
func (s *Server) attemptOf(a tenants.Attempt, scope tenants.Scope) attempt {
	if a.Step == tenants.StepCall && !scope.Nodes.All() && a.Principal != scope.Principal.ID {
		a.Expected, a.Received = "", ""
	}
	out := attempt{At: a.At, Reference: a.Reference, Step: a.Step, Class: a.Class, Surface: a.Surface, Issuer: a.Issuer,
		Expected: a.Expected, Received: a.Received, Principal: a.Principal, Client: a.Client, Next: []string{}}
	if a.From != (netip.Addr{}) {
		out.From = a.From.String()
	}
	f := &auth.Failure{Class: auth.Class(a.Class)}
	next := ""
	switch {
	case a.Step == tenants.StepMetadata:
		out.Class, out.Detail = "none", "the metadata of this tenant was read"
	case a.Step == tenants.StepAccepted:
		out.Class, out.Detail = "none", "the token was accepted"
	case a.Step == tenants.StepCall:
		out.Detail, next = s.meaning(a.Class)
	case a.Class == "scope":
		out.Detail, next = "scope: the credential is good and lacks a scope", "let the client ask for the scopes that the challenge names, or ask an administrator for a role with them"
	default:
		out.Class = string(f.Public()) // what the caller was told, and no more
		if out.Detail, next = f.Description(), fault.Of(f.Unwrap()).Next; out.Detail == "" {
			out.Detail, next = s.meaning(a.Class)
		}
	}
	if next != "" {
		out.Next = append(out.Next, next)
	}
	return out
}

// meaning is what the reason of a refused or failed call says, and what to do.
func (s *Server) meaning(reason string) (detail, next string) {
	if s.cfg.Meaning != nil {
		if means, next, known := s.cfg.Meaning(reason); known {
			return reason + ": " + means, next
		}
	}
	return reason + ": the call was refused or failed for this reason", "read the answer's own text; give the operator of this server the reference id if it does not help"
}

// reported gives whoever has the reference id of a problem document something
// to look up: what no challenge and no entry of the audit says already. It is
// nothing when the caller was gone.
func (s *Server) reported(r *http.Request, rec *record, reference string, status int) {
	route := chi.RouteContext(r.Context()).RoutePattern()
	if rec.err == nil || rec.audited || status < http.StatusBadRequest || status == statusClientClosed || strings.HasPrefix(route, "/t/{tenant}/connect") {
		return
	}
	tenant := rec.scope.Tenant
	if tenant.IsZero() {
		path, under := strings.CutPrefix(r.URL.Path, "/t/")
		slug, _, _ := strings.Cut(path, "/")
		if !under || tenants.CheckSlug(slug) != nil {
			return
		}
		t, err := s.cfg.Tenants.TenantBySlug(context.WithoutCancel(r.Context()), slug)
		if err != nil {
			return // nobody's
		}
		tenant = t.ID
	}
	f := fault.Of(rec.err)
	what := methodOf(r.Method) + " " + strings.TrimPrefix(strings.TrimPrefix(route, base), "/")
	if f.Field != "" {
		what += " (" + f.Field + ")"
	}
	a := tenants.Attempt{Tenant: tenant, Reference: reference, Step: tenants.StepCall, Class: problemOf(f, reference).Reason, Surface: "rest",
		Received: what + ": " + f.Msg, Principal: rec.scope.Principal.ID, Client: rec.scope.Principal.Client}
	if rec.scope.Principal.Kind == tenants.SessionPrincipal {
		a.Surface = "dashboard"
	}
	if s.cfg.Site != nil {
		a.From = s.cfg.Site.ClientAddr(r)
	}
	s.cfg.Door.Attempt(a)
}
