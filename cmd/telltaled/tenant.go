package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

func tenantCreate(ctx context.Context, e env, args []string) error {
	var name string
	return withAdmin(ctx, e, "tenant create", args, func(fs *flag.FlagSet) {
		fs.StringVar(&name, "name", "", "display `NAME`; default: the slug")
	}, []string{"SLUG"}, func(ctx context.Context, a *admin, args []string) error {
		if name == "" {
			name = args[0]
		}
		t, err := a.directory.CreateTenant(ctx, args[0], name)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "created tenant %s (%s)\n", t.Slug, t.ID)
		return nil
	})
}

func tenantList(ctx context.Context, e env, args []string) error {
	return withAdmin(ctx, e, "tenant list", args, nil, nil, func(ctx context.Context, a *admin, _ []string) error {
		list, err := a.directory.ListTenants(ctx)
		if err != nil {
			return err
		}
		return table(e.stdout, "SLUG\tNAME\tSTATE\tMCP\tCREATED", func(row func(...any)) error {
			for _, t := range list {
				row(t.Slug, t.Name, pick(t.Suspended, "suspended", "active"), pick(t.MCPDisabled, "off", "on"), t.CreatedAt.UTC().Format(time.RFC3339))
			}
			return nil
		})
	})
}

func tenantSuspend(ctx context.Context, e env, args []string) error {
	var resume bool
	return withAdmin(ctx, e, "tenant suspend", args, func(fs *flag.FlagSet) {
		fs.BoolVar(&resume, "resume", false, "end a suspension instead")
	}, []string{"SLUG"}, func(ctx context.Context, a *admin, args []string) error {
		if _, err := a.scope(ctx, args[0]); err != nil {
			return err
		}
		if err := a.directory.SetSuspended(ctx, args[0], !resume); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "tenant %s is %s on every replica within %s\n", args[0], pick(resume, "active", "suspended"), tenants.RevocationDelay)
		if resume {
			fmt.Fprintln(e.stdout, "its agents come back by themselves within two minutes")
		}
		return nil
	})
}

func tenantMCP(ctx context.Context, e env, args []string) error {
	return withAdmin(ctx, e, "tenant mcp", args, nil, []string{"SLUG", "on|off"}, func(ctx context.Context, a *admin, args []string) error {
		if args[1] != "on" && args[1] != "off" {
			return fmt.Errorf("%w: %q: want on or off", errUsage, args[1])
		}
		if _, err := a.scope(ctx, args[0]); err != nil {
			return err
		}
		if err := a.directory.SetMCP(ctx, args[0], args[1] == "on"); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "every replica has MCP of tenant %s switched %s within %s\n", args[0], args[1], tenants.RevocationDelay)
		return nil
	})
}
