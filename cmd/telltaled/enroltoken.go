package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/directory"
)

func enrolTokenCreate(ctx context.Context, e env, args []string) error {
	var tenant string
	var uses int
	var ttl time.Duration
	var labels words
	return withAdmin(ctx, e, "enrol-token create", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG` (mandatory)")
		fs.IntVar(&uses, "uses", 1, "how many `NODES` it may enrol")
		fs.DurationVar(&ttl, "expires", 24*time.Hour, "`DURATION` it is valid for")
		fs.Var(&labels, "labels", "`LABELS` it gives to its nodes (key=value, comma-separated)")
	}, nil, func(ctx context.Context, a *admin, _ []string) error {
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		spec := directory.EnrolTokenSpec{Uses: uses, TTL: ttl}
		if spec.Labels, err = parseLabels(labels); err != nil {
			return err
		}
		secret, _, err := a.directory.CreateEnrolToken(ctx, sc, spec)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.stderr, "enrolment token of tenant %s for %d node(s), valid for %s; it is shown this once:\n", tenant, uses, ttl)
		fmt.Fprintln(e.stdout, secret)
		return nil
	})
}

func enrolTokenList(ctx context.Context, e env, args []string) error {
	var tenant string
	return withAdmin(ctx, e, "enrol-token list", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG` (mandatory)")
	}, nil, func(ctx context.Context, a *admin, _ []string) error {
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		return table(e.stdout, "ID\tUSES LEFT\tLABELS\tSTATE\tCREATED", func(row func(...any)) error {
			for cursor := ""; ; {
				list, next, err := a.directory.ListEnrolTokens(ctx, sc, cursor, tenants.MaxListRows)
				if err != nil {
					return err
				}
				for _, t := range list {
					row(t.ID, fmt.Sprintf("%d of %d", t.UsesLeft, t.UsesMax), labelText(t.Labels), enrolState(t, time.Now()), when(&t.CreatedAt))
				}
				if cursor = next; cursor == "" {
					return nil
				}
			}
		})
	})
}

func enrolState(t directory.EnrolToken, now time.Time) string {
	switch {
	case t.RevokedAt != nil:
		return "revoked " + when(t.RevokedAt)
	case t.UsesLeft == 0:
		return "used up"
	case now.After(t.ExpiresAt):
		return "expired " + when(&t.ExpiresAt)
	}
	return "valid until " + when(&t.ExpiresAt)
}

func enrolTokenRevoke(ctx context.Context, e env, args []string) error {
	var tenant string
	return withAdmin(ctx, e, "enrol-token revoke", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG` (mandatory)")
	}, []string{"ID"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		if err := a.directory.RevokeEnrolToken(ctx, sc, args[0]); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "enrolment token %s enrols nobody any more; the nodes it enrolled stay\n", args[0])
		return nil
	})
}
