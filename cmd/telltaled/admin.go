package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// adminTimeout bounds one administrative command.
const adminTimeout = 30 * time.Second

// withAdmin parses the flags of an administrative command and runs it
// connected. define adds the command's own flags.
func withAdmin(ctx context.Context, e env, name string, args []string, define func(*flag.FlagSet), operands int, run func(context.Context, *admin, []string) error) error {
	var d database
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.String("config", "", "YAML `FILE` of settings")
	d.flags(fs)
	if define != nil {
		define(fs)
	}
	if err := load(fs, e, args); err != nil {
		return err
	}
	if fs.NArg() != operands {
		return fmt.Errorf("%w: want %d operand(s) after the flags, got %d", errUsage, operands, fs.NArg())
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	a, err := d.open(ctx, newLogger(e.stderr, "warn", "text"))
	if err != nil {
		return err
	}
	defer a.db.Close()
	return run(ctx, a, fs.Args())
}

func tenantCreate(ctx context.Context, e env, args []string) error {
	var name string
	return withAdmin(ctx, e, "tenant create", args, func(fs *flag.FlagSet) {
		fs.StringVar(&name, "name", "", "display `NAME`; default: the slug")
	}, 1, func(ctx context.Context, a *admin, args []string) error {
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
	return withAdmin(ctx, e, "tenant list", args, nil, 0, func(ctx context.Context, a *admin, _ []string) error {
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
	}, 1, func(ctx context.Context, a *admin, args []string) error {
		if err := a.directory.SetSuspended(ctx, args[0], !resume); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "tenant %s is %s on every replica within %s\n", args[0], pick(resume, "active", "suspended"), tenants.RevocationDelay)
		return nil
	})
}

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

func parseLabels(list words) (map[string]string, error) {
	var out map[string]string
	for _, l := range list {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("%w: %q is no label of the form key=value", errUsage, l)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out, nil
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

func enrolTokenCreate(ctx context.Context, e env, args []string) error {
	var tenant string
	var uses int
	var ttl time.Duration
	var labels words
	return withAdmin(ctx, e, "enrol-token create", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG`")
		fs.IntVar(&uses, "uses", 1, "how many `NODES` it may enrol")
		fs.DurationVar(&ttl, "expires", 24*time.Hour, "life of the token")
		fs.Var(&labels, "labels", "`LABELS` it gives to its nodes (key=value, comma-separated)")
	}, 0, func(ctx context.Context, a *admin, _ []string) error {
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

func nodeRevoke(ctx context.Context, e env, args []string) error {
	var tenant string
	return withAdmin(ctx, e, "node revoke", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG`")
	}, 1, func(ctx context.Context, a *admin, args []string) error {
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

// table prints aligned columns.
func table(w io.Writer, head string, rows func(row func(...any)) error) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, head)
	err := rows(func(cells ...any) {
		text := make([]string, len(cells))
		for i, c := range cells {
			text[i] = fmt.Sprint(c)
		}
		fmt.Fprintln(tw, strings.Join(text, "\t"))
	})
	return errors.Join(err, tw.Flush())
}

func pick(cond bool, yes, no string) string {
	if cond {
		return yes
	}
	return no
}

func when(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

// explain turns an error into what a person at the shell needs: the message
// and the next step, without the program's inner words.
func explain(err error) string {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err.Error()
	}
	s := f.Error()
	if f.Next != "" {
		s += "\n  " + f.Next
	}
	return s
}
