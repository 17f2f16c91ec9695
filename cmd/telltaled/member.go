package main

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
)

func memberAdd(ctx context.Context, e env, args []string) error {
	var spec access.MemberSpec
	var scopes, labels words
	var node string
	return withAdmin(ctx, e, "member add", args, func(fs *flag.FlagSet) {
		fs.StringVar(&spec.Name, "name", "", "`WORDS` for people")
		fs.Var(&scopes, "scopes", "what it may do at most, comma-separated `SCOPES` (mandatory): read, payloads, diagnose, act, approve, maintain, admin")
		fs.Var(&labels, "nodes", "only nodes with these `LABELS` (key=value, comma-separated)")
		fs.StringVar(&node, "node", "", "only this node, by `ID` or name")
	}, []string{"SLUG", "ISSUER", "SUBJECT"}, func(ctx context.Context, a *admin, args []string) error {
		var err error
		if spec.Scopes, err = parseScopeWords(scopes); err != nil {
			return err
		}
		if spec.Nodes.Labels, err = parseLabels(labels); err != nil {
			return err
		}
		sc, i, err := a.issuer(ctx, args[0], args[1])
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
		spec.IssuerID, spec.Subject = i.ID, args[2]
		m, err := a.access.PutMember(ctx, sc, spec)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "member %s: %s of %s may hold %s in tenant %s\n", m.ID, m.Subject, i.URL, shortScopes(m.Scopes), args[0])
		return nil
	})
}

// parseScopeWords reads scopes, with or without their prefix.
func parseScopeWords(list words) (tenants.Scopes, error) {
	full := make([]string, len(list))
	for n, w := range list {
		full[n] = "telltale:" + strings.TrimPrefix(w, "telltale:")
	}
	s, unknown := tenants.ParseScopes(full)
	if len(unknown) > 0 || s == 0 {
		return 0, fmt.Errorf("%w: --scopes wants one or more of read, payloads, diagnose, act, approve, maintain, admin; got %q", errUsage, strings.Join(list, ","))
	}
	return s, nil
}

func memberList(ctx context.Context, e env, args []string) error {
	var issuer string
	return withAdmin(ctx, e, "member list", args, func(fs *flag.FlagSet) {
		fs.StringVar(&issuer, "issuer", "", "only members of this `ISSUER`, by id, URL or name")
	}, []string{"SLUG"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, args[0])
		if err != nil {
			return err
		}
		if issuer != "" {
			_, i, err := a.issuer(ctx, args[0], issuer)
			if err != nil {
				return err
			}
			issuer = i.ID
		}
		known, err := a.issuers(ctx, sc)
		if err != nil {
			return err
		}
		urls := map[string]string{}
		for _, i := range known {
			urls[i.ID] = i.URL
		}
		return table(e.stdout, "ID\tSUBJECT\tNAME\tISSUER\tSCOPES\tLIMITED TO\tCREATED", func(row func(...any)) error {
			for cursor := ""; ; {
				list, next, err := a.access.ListMembers(ctx, sc, issuer, cursor, tenants.MaxListRows)
				if err != nil {
					return err
				}
				for _, m := range list {
					row(m.ID, m.Subject, dash(m.Name), urls[m.IssuerID], shortScopes(m.Scopes), tokenLimits(access.Token{Nodes: m.Nodes}), m.CreatedAt.UTC().Format(time.RFC3339))
				}
				if cursor = next; cursor == "" {
					return nil
				}
			}
		})
	})
}

func memberRemove(ctx context.Context, e env, args []string) error {
	return withAdmin(ctx, e, "member remove", args, nil, []string{"SLUG", "MEMBER"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, args[0])
		if err != nil {
			return err
		}
		if err := a.access.DeleteMember(ctx, sc, args[1]); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "member %s is admitted no longer, on every replica within %s\n", args[1], tenants.RevocationDelay)
		return nil
	})
}
