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
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG`")
		fs.StringVar(&name, "name", "", "what the token is for")
		fs.Var(&scopes, "scopes", "comma-separated `SCOPES`: read, payloads, diagnose, act, approve, maintain, admin")
		fs.DurationVar(&ttl, "expires", 0, "life of the token, for example 720h; 0 is for ever")
		fs.Var(&labels, "nodes", "only nodes with these `LABELS` (key=value, comma-separated)")
		fs.StringVar(&node, "node", "", "only this node, by `ID` or name")
		fs.Var(&cidrs, "networks", "only from these `NETWORKS` (comma-separated prefixes)")
	}, 0, func(ctx context.Context, a *admin, _ []string) error {
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
	full := make([]string, len(scopes))
	for i, s := range scopes {
		full[i] = "telltale:" + strings.TrimPrefix(s, "telltale:")
	}
	var unknown []string
	if spec.Scopes, unknown = tenants.ParseScopes(full); len(unknown) > 0 || spec.Scopes == 0 {
		return spec, fmt.Errorf("%w: --scopes wants one or more of read, payloads, diagnose, act, approve, maintain, admin; got %q", errUsage, strings.Join(scopes, ","))
	}
	if ttl < 0 {
		return spec, fmt.Errorf("%w: --expires is negative", errUsage)
	}
	if ttl > 0 {
		at := time.Now().Add(ttl)
		spec.ExpiresAt = &at
	}
	var err error
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
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG`")
	}, 0, func(ctx context.Context, a *admin, _ []string) error {
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		return table(e.stdout, "ID\tNAME\tSCOPES\tSTATE\tLAST USED", func(row func(...any)) error {
			for cursor := ""; ; {
				list, next, err := a.access.ListTokens(ctx, sc, cursor, tenants.MaxListRows)
				if err != nil {
					return err
				}
				for _, t := range list {
					row(t.ID, t.Name, t.Scopes, tokenState(t, time.Now()), when(t.LastUsedAt))
				}
				if cursor = next; cursor == "" {
					return nil
				}
			}
		})
	})
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
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG`")
	}, 1, func(ctx context.Context, a *admin, args []string) error {
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
