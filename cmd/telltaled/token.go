package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
)

func tokenCreate(ctx context.Context, e env, args []string) error {
	var tenant, name, node string
	var scopes, cidrs, labels words
	var ttl time.Duration
	return withAdmin(ctx, e, "token create", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG` (mandatory)")
		fs.StringVar(&name, "name", "", "`WORDS` that say what the token is for (mandatory)")
		fs.Var(&scopes, "scopes", "what it may do, comma-separated `SCOPES` (mandatory): read, payloads (unredacted bodies), diagnose (tasks), act (jobs), approve (gates), maintain, admin (tenant administration)")
		fs.DurationVar(&ttl, "expires", 0, "`DURATION` it is valid for, such as 720h; 0 is for ever")
		fs.Var(&labels, "nodes", "only nodes with these `LABELS` (key=value, comma-separated)")
		fs.StringVar(&node, "node", "", "only this node, by `ID` or name")
		fs.Var(&cidrs, "networks", "only from these `NETWORKS` (comma-separated prefixes)")
	}, nil, func(ctx context.Context, a *admin, _ []string) error {
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		spec, err := tokenSpec(name, scopes, cidrs, labels, ttl)
		if err != nil {
			return err
		}
		if node != "" {
			id, _, err := a.directory.ResolveNode(ctx, sc, node)
			if err != nil {
				return err
			}
			spec.Nodes.IDs = []tenants.NodeID{id}
		}
		secret, tok, err := a.access.CreateToken(ctx, sc, spec)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.stderr, "operator token %s of tenant %s with %s; it is shown this once:\n", tok.ID, tenant, tok.Scopes)
		fmt.Fprintln(e.stdout, secret)
		return nil
	})
}

func tokenSpec(name string, scopes, cidrs, labels words, ttl time.Duration) (access.TokenSpec, error) {
	spec := access.TokenSpec{Name: name}
	if name == "" {
		return spec, fmt.Errorf("%w: --name is missing: say what the token is for", errUsage)
	}
	var err error
	if spec.Scopes, err = parseScopeWords(scopes); err != nil {
		return spec, err
	}
	if ttl < 0 {
		return spec, fmt.Errorf("%w: --expires is negative", errUsage)
	}
	if ttl > 0 {
		at := time.Now().Add(ttl)
		spec.ExpiresAt = &at
	}
	if spec.Nodes.Labels, err = parseLabels(labels); err != nil {
		return spec, err
	}
	for _, c := range cidrs {
		p, err := netip.ParsePrefix(c)
		if err != nil {
			return spec, fmt.Errorf("%w: --networks: %q is no prefix such as 10.0.0.0/8", errUsage, c)
		}
		spec.CIDRs = append(spec.CIDRs, p)
	}
	return spec, nil
}

func tokenList(ctx context.Context, e env, args []string) error {
	var tenant string
	return withAdmin(ctx, e, "token list", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG` (mandatory)")
	}, nil, func(ctx context.Context, a *admin, _ []string) error {
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		return table(e.stdout, "ID\tNAME\tSCOPES\tLIMITED TO\tSTATE\tLAST USED", func(row func(...any)) error {
			for cursor := ""; ; {
				list, next, err := a.access.ListTokens(ctx, sc, cursor, tenants.MaxListRows)
				if err != nil {
					return err
				}
				for _, t := range list {
					row(t.ID, t.Name, t.Scopes, tokenLimits(t), tokenState(t, time.Now()), when(t.LastUsedAt))
				}
				if cursor = next; cursor == "" {
					return nil
				}
			}
		})
	})
}

// tokenLimits says which nodes and networks a token is limited to.
func tokenLimits(t access.Token) string {
	var out []string
	if len(t.Nodes.Labels) > 0 {
		out = append(out, labelText(t.Nodes.Labels))
	}
	for _, id := range t.Nodes.IDs {
		out = append(out, "node "+id.String())
	}
	for _, c := range t.CIDRs {
		out = append(out, "from "+c.String())
	}
	if out == nil {
		return "-"
	}
	return strings.Join(out, ", ")
}

func tokenState(t access.Token, now time.Time) string {
	switch {
	case t.RevokedAt != nil:
		return "revoked " + when(t.RevokedAt)
	case t.ExpiresAt == nil:
		return "valid"
	case now.After(*t.ExpiresAt):
		return "expired " + when(t.ExpiresAt)
	}
	return "valid until " + when(t.ExpiresAt)
}

func tokenRevoke(ctx context.Context, e env, args []string) error {
	var tenant string
	return withAdmin(ctx, e, "token revoke", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG` (mandatory)")
	}, []string{"ID"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		if err := a.access.RevokeToken(ctx, sc, args[0]); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "token %s is refused on every replica within %s\n", args[0], tenants.RevocationDelay)
		return nil
	})
}
