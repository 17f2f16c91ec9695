package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/telltale-dev/telltale/tenants"
)

func nodeRevoke(ctx context.Context, e env, args []string) error {
	var tenant string
	return withAdmin(ctx, e, "node revoke", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG` (mandatory)")
	}, []string{"NODE"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		id, name, err := a.directory.ResolveNode(ctx, sc, args[0])
		if err != nil {
			return err
		}
		if err := a.directory.RevokeNode(ctx, sc, id); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "node %s (%s) is cut off within %s; enrol it anew to let it back\n", name, id, tenants.RevocationDelay)
		return nil
	})
}
