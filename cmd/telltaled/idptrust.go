package main

import (
	"context"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
)

// demoIssuer is the name of the issuer that dev has its tenants trust.
const demoIssuer = "Demo identity provider"

// demoRoles are what the groups of the demo accounts may do in a tenant. Both
// tenants share the issuer, so that a group of the other one is nothing here.
func demoRoles(slug string) []tenants.RoleRule {
	var all tenants.Scopes
	for _, s := range tenants.AllScopes() {
		all |= s
	}
	return []tenants.RoleRule{
		{Claim: "groups", Value: slug + "-sre", Scopes: tenants.Read | tenants.Payloads | tenants.Diagnose | tenants.Act | tenants.Approve},
		{Claim: "groups", Value: slug + "-viewers", Scopes: tenants.Read},
		{Claim: "groups", Value: slug + "-admins", Scopes: all},
	}
}

// trustIDP has a tenant trust the running provider, and no longer one of an
// earlier run that had another address. Unless it is empty, first is what the
// tenant's first challenge asks for. p is nil when none runs.
func (a *app) trustIDP(ctx context.Context, slug string, p *identityProvider, first tenants.Scopes) error {
	ten, err := a.directory.TenantBySlug(ctx, slug)
	if err != nil {
		return err
	}
	sc := auth.Local(ten, "telltaled dev", tenants.Admin)
	var old []tenants.Issuer
	for cursor, more := "", true; more; more = cursor != "" {
		var page []tenants.Issuer
		if page, cursor, err = a.access.ListIssuers(ctx, sc, cursor, 0); err != nil {
			return err
		}
		old = append(old, page...)
	}
	for _, i := range old {
		if i.Name == demoIssuer && (p == nil || i.URL != p.issuer) {
			if err := a.access.DeleteIssuer(ctx, sc, i.ID); err != nil {
				return err
			}
		}
	}
	if p == nil {
		return nil
	}
	_, err = a.access.PutIssuer(ctx, sc, access.IssuerSpec{
		Name: demoIssuer, URL: p.issuer, Mode: tenants.AudienceResource,
		ClientID: "telltale-server", ClientSecret: &p.serverSecret, DashboardClientID: "telltale-dashboard",
		Opaque: slug == "globex", // the provider gives acme's people JWTs
		Roles:  demoRoles(slug),
	})
	if err != nil || first == 0 {
		return err
	}
	policy, err := a.access.Policy(ctx, sc)
	if err != nil {
		return err
	}
	policy.Set.FirstScopes = first
	_, err = a.access.SetPolicy(ctx, sc, policy.Set, &policy.UpdatedAt)
	return err
}
