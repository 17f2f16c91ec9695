package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"

	"github.com/telltale-dev/telltale/tenants"
)

// tenantQuotas shows what a tenant is held to, and sets what is given. The
// operator of the server may go above the defaults, which the tenant's own
// administrators may not.
func tenantQuotas(ctx context.Context, e env, args []string) error {
	numbers := []struct {
		name, help string
		given      int
		of         func(*tenants.Policy) *int
	}{
		{"principal-rate", "`CALLS` a minute of one caller", -1, func(p *tenants.Policy) *int { return &p.PrincipalRate }},
		{"tenant-rate", "`CALLS` a minute of the whole tenant", -1, func(p *tenants.Policy) *int { return &p.TenantRate }},
		{"max-nodes", "`NODES` that are not revoked", -1, func(p *tenants.Policy) *int { return &p.MaxNodes }},
		{"max-tokens", "operator `TOKENS` that are not revoked", -1, func(p *tenants.Policy) *int { return &p.MaxTokens }},
		{"max-issuers", "`ISSUERS`", -1, func(p *tenants.Policy) *int { return &p.MaxIssuers }},
		{"max-members", "`MEMBERS`", -1, func(p *tenants.Policy) *int { return &p.MaxMembers }},
		{"max-enrol-tokens", "enrolment `TOKENS` that still enrol", -1, func(p *tenants.Policy) *int { return &p.MaxEnrolTokens }},
	}
	var scopes, first string
	return withAdmin(ctx, e, "tenant quotas", args, func(fs *flag.FlagSet) {
		for n := range numbers {
			fs.IntVar(&numbers[n].given, numbers[n].name, -1, numbers[n].help+"; 0 is the server's default, -1 leaves it as it is")
		}
		fs.StringVar(&scopes, "scopes", "", "comma-separated `SCOPES` that cap every token of an issuer; all lifts the cap")
		fs.StringVar(&first, "first-scopes", "", "comma-separated `SCOPES` that the first challenge asks a client for; read is the default")
	}, []string{"SLUG"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, args[0])
		if err != nil {
			return err
		}
		state, err := a.access.Policy(ctx, sc)
		if err != nil {
			return err
		}
		p, changed := state.Set, false
		for _, n := range numbers {
			if n.given >= 0 {
				*n.of(&p), changed = n.given, true
			}
		}
		for _, s := range []struct {
			given string
			to    *tenants.Scopes
		}{{scopes, &p.Scopes}, {first, &p.FirstScopes}} {
			if s.given == "" {
				continue
			}
			if changed = true; s.given == "all" {
				*s.to = 0
				continue
			}
			var w words
			_ = w.Set(s.given)
			if *s.to, err = parseScopeWords(w); err != nil {
				return err
			}
		}
		if changed {
			if state, err = a.access.SetPolicy(ctx, sc, p, &state.UpdatedAt); err != nil {
				return err
			}
		}
		set, works, most := state.Set, state.Effective(), state.Most()
		return table(e.stdout, "QUOTA\tSET\tEFFECTIVE\tADMINISTRATOR MAX", func(row func(...any)) error {
			for _, n := range numbers {
				row(n.name, pick(*n.of(&set) == 0, "default", strconv.Itoa(*n.of(&set))), *n.of(&works), *n.of(&most))
			}
			row("scopes", pick(set.Scopes == 0, "default", shortScopes(set.Scopes)), shortScopes(works.Scopes), "-")
			row("first-scopes", pick(set.FirstScopes == 0, "default", shortScopes(set.FirstScopes)), shortScopes(works.FirstScopes), "-")
			if changed {
				fmt.Fprintf(e.stderr, "the quotas of tenant %s are changed; every replica follows within %s\n", args[0], tenants.RevocationDelay)
			}
			return nil
		})
	})
}
