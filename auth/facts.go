package auth

import (
	"context"
	"strings"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Facts are what a verified access token says of its holder, as far as it is
// needed to judge it again without the token. They hold no credential, may be
// stored as JSON, and give nobody a scope by themselves: see Reevaluate.
type Facts struct {
	Issuer    string              `json:"issuer"` // tenants.Issuer.ID
	IssuerURL string              `json:"iss"`
	Subject   string              `json:"sub"`
	Client    string              `json:"client,omitempty"`
	Name      string              `json:"name,omitempty"`
	Scopes    tenants.Scopes      `json:"scopes"`           // as the token has them
	Claims    map[string][]string `json:"claims,omitempty"` // those that the tenant's rules looked at
}

// Principal names the holder: issuer|subject|client. A "|" or "%" inside of a
// part is escaped, so that no two holders share a name.
func (f Facts) Principal() tenants.Principal {
	return tenants.Principal{
		Kind: tenants.OAuthPrincipal, ID: part(f.IssuerURL) + "|" + part(f.Subject) + "|" + part(f.Client),
		Name: f.Name, Client: f.Client,
	}
}

func part(s string) string {
	if !strings.ContainsAny(s, "|%") {
		return s
	}
	return strings.NewReplacer("%", "%25", "|", "%7C").Replace(s)
}

// gather takes the facts out of verified claims.
func gather(i *issuerView, c claims) Facts {
	f := Facts{Issuer: i.ID, IssuerURL: i.URL, Subject: c.text("sub"), Claims: map[string][]string{}}
	for _, name := range []string{"client_id", "azp", "cid", "appid"} {
		if s := c.text(name); plain(s) {
			f.Client = s
			break
		}
	}
	for _, name := range []string{"name", "preferred_username", "username", "email"} {
		if f.Name = clean(c.text(name), 80); f.Name != "" {
			break
		}
	}
	f.Scopes, _ = tenants.ParseScopes(scopeWords(i.ScopeClaim, c))
	for _, path := range i.looks {
		if ws := words(c.at(path)); len(ws) > 0 {
			f.Claims[path] = ws
		}
	}
	return f
}

// scopeWords reads the scopes: a string with spaces, or an array.
func scopeWords(name string, c claims) []string {
	v := c.at(name)
	if name == "" {
		if v = c["scope"]; v == nil {
			v = c["scp"]
		}
	}
	if s, ok := v.(string); ok {
		return strings.Fields(s)
	}
	ws, _ := strictWords(v)
	return ws
}

// admit judges facts by today's roles, members and policy.
func (o *OAuth) admit(ctx context.Context, t tenants.Tenant, v *trustView, i *issuerView, f Facts) (tenants.Scope, error) {
	member, err := o.member(ctx, t.ID, i.ID, f.Subject)
	if err != nil {
		return tenants.Scope{}, err
	}
	could, nodes := obtainable(grants(i, f, member), v.trust.Policy)
	held := f.Scopes.Effective() & could
	p := f.Principal()
	switch {
	case could == 0:
		return tenants.Scope{}, &Failure{Class: NoRole, Issuer: f.IssuerURL, Principal: p,
			Expected: "a membership, or a claim that a role rule names", Received: seen(i, f)}
	case t.Suspended:
		return tenants.Scope{}, failed(Suspended)
	case held == 0:
		return tenants.Scope{}, &Failure{Class: NoScope, Issuer: f.IssuerURL, Principal: p, Obtainable: could,
			Expected: "one or more of " + could.String(), Received: f.Scopes.String()}
	}
	return tenants.Scope{Tenant: t.ID, Slug: t.Slug, Principal: p, Granted: held, Obtainable: could, Nodes: nodes}, nil
}

// seen shows an administrator the claims that no rule matched.
func seen(i *issuerView, f Facts) string {
	var out []string
	for _, path := range i.looks {
		out = append(out, path+"="+strings.Join(f.Claims[path], ","))
	}
	return clean("sub="+f.Subject+" "+strings.Join(out, " "), maxNoted)
}

func (o *OAuth) member(ctx context.Context, t tenants.TenantID, issuer, subject string) (*tenants.Member, error) {
	m, found, err := o.members.load(ctx, t.String()+issuer+"|"+subject, 0, func(ctx context.Context) (tenants.Member, bool, error) {
		m, err := o.store.Member(ctx, t, issuer, subject)
		if fault.Is(err, fault.NotFound) {
			return m, false, nil
		}
		return m, err == nil, err
	})
	if err != nil || !found || m.Subject != subject || m.IssuerID != issuer {
		return nil, err
	}
	return &m, nil
}

// Reevaluate judges the facts of a token that was verified earlier by today's
// issuers, roles, members and policy: what an administrator took away since
// is gone within tenants.RevocationDelay. Whoever keeps facts sees to it that
// they end; nothing here asks the issuer again.
func (o *OAuth) Reevaluate(ctx context.Context, t tenants.Tenant, f Facts) (tenants.Scope, error) {
	v, err := o.view(ctx, t.ID)
	if err != nil {
		return tenants.Scope{}, err
	}
	i := v.byID(f.Issuer)
	if i == nil || i.URL != f.IssuerURL || f.Subject == "" {
		return tenants.Scope{}, &Failure{Class: IssuerUnknown, Issuer: clean(f.IssuerURL, maxNoted), Expected: v.urls(), Received: clean(f.IssuerURL, maxNoted)}
	}
	if err := checkTenant(i, f); err != nil {
		return tenants.Scope{}, err
	}
	return o.admit(ctx, t, &v, i, f)
}
