package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// tenantExport writes all of a tenant's rows, to a file by rename or to stdout.
func tenantExport(ctx context.Context, e env, args []string) error {
	var path string
	return withAdminFor(ctx, e, exportTimeout, "tenant export", args, func(fs *flag.FlagSet) {
		fs.StringVar(&path, "out", "-", "`FILE` to write, one JSON object a line; - is standard output")
	}, []string{"SLUG"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, args[0])
		if err != nil {
			return err
		}
		write := func(w io.Writer) error {
			end, err := a.directory.Export(ctx, sc, w)
			if err == nil {
				fmt.Fprintf(e.stderr, "%d rows of tenant %s, SHA-256 of the lines before the last: %s\n", end.Rows, args[0], end.SHA256)
			}
			return err
		}
		if path == "-" {
			return write(e.stdout)
		}
		f, err := os.CreateTemp(filepath.Dir(path), ".telltale-*") // mode 0600
		if err != nil {
			return err
		}
		if err = errors.Join(write(f), f.Sync(), f.Close()); err == nil {
			err = os.Rename(f.Name(), path)
		}
		if err != nil {
			os.Remove(f.Name())
		}
		return err
	})
}

func tenantDelete(ctx context.Context, e env, args []string) error {
	var confirm string
	var without bool
	return withAdminFor(ctx, e, exportTimeout, "tenant delete", args, func(fs *flag.FlagSet) {
		fs.StringVar(&confirm, "confirm", "", "the `SLUG` once more, because this cannot be undone (mandatory)")
		fs.BoolVar(&without, "without-export", false, "delete although no export was made in the last 24 hours")
	}, []string{"SLUG"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, args[0])
		if err != nil {
			return err
		}
		if err := a.directory.Delete(ctx, sc, confirm, without); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "tenant %s is deleted: no credential of it is accepted anywhere after %s; a running server erases its rows within a minute; its slug stays taken and its audit stays until it ages out\n",
			args[0], tenants.RevocationDelay)
		return nil
	})
}
