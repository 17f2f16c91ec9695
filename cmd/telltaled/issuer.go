package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// issuerTools is what the commands about issuers need besides the database.
type issuerTools struct {
	cfg    config // the settings of serve that they share
	sealer *auth.Sealer
	oauth  *auth.OAuth
}

// allowLoopback is the next step where an issuer is plain http on this machine.
const allowLoopback = "on a development stack, give --allow-http-loopback to this command too; elsewhere give the provider's https URL"

// withIssuers is withAdmin for commands that seal, or ask an issuer.
func withIssuers(ctx context.Context, e env, name string, args []string, define func(*flag.FlagSet), operands []string, run func(context.Context, *admin, *issuerTools, []string) error) error {
	var d database
	var it issuerTools
	before := func() error { return it.open(&d) }
	return withAdminOn(ctx, e, &d, before, adminTimeout, name, args, func(fs *flag.FlagSet) {
		fs.StringVar(&it.cfg.keyFile, "key-file", "", "the server's key `FILE`; needed for client secrets")
		fs.Var(&it.cfg.issuerNets, "issuer-networks", "private `NETWORKS` in which identity providers may live; as the server has them")
		fs.BoolVar(&it.cfg.issuerLoopback, "allow-http-loopback", false, "also take http URLs on this machine, as 'telltaled dev' does")
		define(fs)
	}, operands, func(ctx context.Context, a *admin, args []string) error { return run(ctx, a, &it, args) })
}

// open loads the key, which it never makes: another one than the server's would
// seal what the server cannot open.
func (it *issuerTools) open(d *database) error {
	fetch, err := it.cfg.fetcher()
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	d.trust.AllowHTTPLoopback = it.cfg.issuerLoopback
	var opener auth.Opener
	if path := it.cfg.keyFile; path != "" {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: --key-file: there is no %s: name the key file of the server", errUsage, path)
		}
		if it.sealer, err = it.cfg.sealer(); err != nil {
			return err
		}
		d.trust.Sealer, opener = it.sealer, it.sealer
	}
	it.oauth = auth.NewOAuth(nil, nil, fetch, opener, auth.OAuthConfig{}, slog.New(slog.DiscardHandler)) // for its Test alone
	return nil
}

// roleRules is a repeated --role.
type roleRules []tenants.RoleRule

// String writes the rules for the audit.
func (r *roleRules) String() string {
	if r == nil {
		return ""
	}
	var out []string
	for _, rule := range *r {
		out = append(out, ruleText(rule))
	}
	return strings.Join(out, "; ")
}

// Set reads CLAIM=VALUE:SCOPES or *:SCOPES, and after an @ labels that limit
// the rule to nodes. The value may hold colons: the scopes follow the last one
// that scopes can follow.
func (r *roleRules) Set(v string) error {
	for at := strings.LastIndexByte(v, ':'); at >= 0; at = strings.LastIndexByte(v[:at], ':') {
		list, labels, limited := strings.Cut(v[at+1:], "@")
		var w words
		_ = w.Set(list)
		scopes, err := parseScopeWords(w)
		if err != nil {
			continue
		}
		rule := tenants.RoleRule{Scopes: scopes}
		if limited {
			_ = w.Set(labels)
			if rule.Nodes.Labels, err = parseLabels(w); err != nil || len(rule.Nodes.Labels) == 0 {
				return errors.New("want labels such as @role=db,site=a after the scopes")
			}
		}
		if strings.HasSuffix(v[:at], ":telltale") {
			return errors.New("write scopes without telltale: in front, such as groups=sre:read,diagnose")
		}
		if who := v[:at]; who != "*" {
			claim, value, ok := strings.Cut(who, "=")
			if !ok || claim == "" || value == "" {
				return errors.New("want CLAIM=VALUE:SCOPES, such as groups=sre:read,diagnose, or *:read for everybody at the issuer")
			}
			rule.Claim, rule.Value = claim, value
		}
		*r = append(*r, rule)
		return nil
	}
	return errors.New("want CLAIM=VALUE:SCOPES, such as groups=sre:read,diagnose; scopes are read, payloads, diagnose, act, approve, maintain, admin")
}

func issuerAdd(ctx context.Context, e env, args []string) error {
	var spec access.IssuerSpec
	var claim, mode, secretFile string
	var audiences, types, algorithms words
	var roles roleRules
	var force bool
	return withIssuers(ctx, e, "issuer add", args, func(fs *flag.FlagSet) {
		fs.StringVar(&spec.Name, "name", "", "`WORDS` for people; default: the host of the URL")
		fs.Var(&roles, "role", "`CLAIM=VALUE:SCOPES` lets in whoever's token has the claim, with at most these scopes, such as groups=sre:read,diagnose; *:read is everybody at the issuer; @role=db at the end limits it to nodes with these labels. Repeat it for each rule; without one only members are let in")
		fs.StringVar(&mode, "mode", "", "how tokens name this tenant as their audience: `resource`, by its own URL, or static, by one of --audiences; default: resource, or static with --audiences")
		fs.Var(&audiences, "audiences", "`NAMES` of the audience, comma-separated, for providers that cannot name the URL; needs --tenant-claim")
		fs.StringVar(&claim, "tenant-claim", "", "`CLAIM=VALUE` that only this tenant's tokens have, such as tid=72f988bf")
		fs.Var(&types, "types", "accepted `TYPES` of access tokens: at+jwt, application/at+jwt, jwt; default: at+jwt alone")
		fs.Var(&algorithms, "algorithms", "accepted signature `ALGORITHMS`, asymmetric ones; default: all that are safe")
		fs.StringVar(&spec.ScopeClaim, "scope-claim", "", "`CLAIM` with the scopes; default: scope, then scp")
		fs.BoolVar(&spec.Opaque, "opaque", false, "accept tokens that are no JWT, by introspection; needs --client-id and --client-secret-file")
		fs.StringVar(&spec.ClientID, "client-id", "", "`ID` of the client that the server is at the issuer")
		fs.StringVar(&secretFile, "client-secret-file", "", "`FILE` with that client's secret, or - for standard input; without it a stored one stays")
		fs.StringVar(&spec.DashboardClientID, "dashboard-client-id", "", "`ID` of the client with which people sign in to the dashboard")
		fs.StringVar(&spec.JWKSURL, "jwks-url", "", "`URL` of the keys; default: discovered")
		fs.StringVar(&spec.IntrospectionURL, "introspection-url", "", "`URL` of the introspection; default: discovered")
		fs.BoolVar(&force, "force", false, "store it although a step of the test fails")
	}, []string{"SLUG", "URL"}, func(ctx context.Context, a *admin, it *issuerTools, args []string) error {
		spec.URL, spec.Roles, spec.Audiences, spec.Types, spec.Algorithms = args[1], roles, audiences, types, algorithms
		if spec.Mode = tenants.AudienceMode(mode); mode == "" && len(audiences) > 0 {
			spec.Mode = tenants.AudienceStatic
		}
		if claim != "" {
			var ok bool
			if spec.TenantClaim, spec.TenantValue, ok = strings.Cut(claim, "="); !ok {
				return fmt.Errorf("%w: --tenant-claim: %q is not of the form claim=value", errUsage, claim)
			}
		}
		if secretFile != "" {
			if it.sealer == nil {
				return fmt.Errorf("%w: --client-secret-file needs --key-file, the server's own, to seal the secret with", errUsage)
			}
			secret, err := readSecretFile(secretFile)
			if err != nil {
				return err
			}
			spec.ClientSecret = &secret
		}
		sc, err := a.scope(ctx, args[0])
		if err != nil {
			return err
		}
		draft, err := a.access.DraftIssuer(ctx, sc, spec)
		var f *fault.Error
		if errors.As(err, &f) && f.Field == "url" && !it.cfg.issuerLoopback && auth.HTTPLoopback(spec.URL) {
			return f.Do(allowLoopback)
		}
		if err != nil {
			return err
		}
		known := draft.ID != ""
		if err := showIssuerTest(ctx, e, a, it, draft); err != nil {
			if !force {
				return fmt.Errorf("%w; nothing was stored\n  mend it, or store it all the same with --force", err)
			}
			fmt.Fprintf(e.stderr, "%v; stored all the same\n", err)
		}
		i, err := a.access.PutIssuer(ctx, sc, spec)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "%s issuer %s (%s) of tenant %s; every replica follows within %s\n", pick(known, "changed", "added"), i.URL, i.ID, args[0], tenants.RevocationDelay)
		for _, n := range access.IssuerNotes(i) {
			fmt.Fprintf(e.stdout, "note: %s\n", n)
		}
		return nil
	})
}

// readSecretFile reads a secret of one line.
func readSecretFile(path string) (string, error) {
	var in io.Reader = os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("--client-secret-file: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, access.MaxSecret+3))
	if err != nil {
		return "", fmt.Errorf("--client-secret-file: %w", err)
	}
	secret := strings.TrimRight(string(b), "\r\n")
	if secret == "" {
		return "", fmt.Errorf("--client-secret-file: %s is empty", path)
	}
	return secret, nil
}

func issuerTest(ctx context.Context, e env, args []string) error {
	return withIssuers(ctx, e, "issuer test", args, func(*flag.FlagSet) {}, []string{"SLUG", "ISSUER"}, func(ctx context.Context, a *admin, it *issuerTools, args []string) error {
		_, i, err := a.issuer(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return showIssuerTest(ctx, e, a, it, i)
	})
}

// showIssuerTest prints what a test found; the error names the steps that
// failed.
func showIssuerTest(ctx context.Context, e env, a *admin, it *issuerTools, i tenants.Issuer) error {
	reference := strings.ToLower(rand.Text()[:20])
	if a.acting != nil { // the audit's second entry leads back to this
		a.acting.Reference = reference
	}
	steps := it.oauth.Test(ctx, i)
	var failed, next []string
	err := table(e.stdout, "STEP\tRESULT\tEXPECTED\tRECEIVED", func(row func(...any)) error {
		for _, s := range steps {
			result := pick(s.OK, "ok", "FAILED")
			if s.Skipped {
				result = "skipped"
			}
			row(s.Name, result, dash(s.Expected), dash(s.Received))
			if !s.OK {
				failed = append(failed, s.Name)
				if s.Name == "url" && !it.cfg.issuerLoopback && auth.HTTPLoopback(i.URL) {
					s.Next = allowLoopback
				}
				if s.Next != "" {
					next = append(next, fmt.Sprintf("%s: %s", s.Name, s.Next))
				}
			}
		}
		return nil
	})
	for _, n := range next {
		fmt.Fprintln(e.stdout, n)
	}
	fmt.Fprintf(e.stdout, "reference %s\n", reference)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("the test of %s failed at: %s", i.URL, strings.Join(failed, ", "))
	}
	return err
}

func issuerList(ctx context.Context, e env, args []string) error {
	return withAdmin(ctx, e, "issuer list", args, nil, []string{"SLUG"}, func(ctx context.Context, a *admin, args []string) error {
		sc, err := a.scope(ctx, args[0])
		if err != nil {
			return err
		}
		list, err := a.issuers(ctx, sc)
		if err != nil {
			return err
		}
		var rules []string
		err = table(e.stdout, "ID\tNAME\tURL\tAUDIENCE\tTOKENS\tRULES\tSHARED\tCHANGED", func(row func(...any)) error {
			for _, i := range list {
				audience := string(i.Mode)
				if i.Mode == tenants.AudienceStatic {
					audience = strings.Join(i.Audiences, ",")
				}
				row(i.ID, i.Name, i.URL, audience, pick(i.Opaque, "JWT, opaque", "JWT"), len(i.Roles), pick(i.Shared, "yes", "no"), i.UpdatedAt.UTC().Format(time.RFC3339))
				for _, r := range i.Roles {
					rules = append(rules, i.URL+": "+ruleText(r))
				}
			}
			return nil
		})
		for _, r := range rules {
			fmt.Fprintln(e.stdout, r)
		}
		return err
	})
}

// issuerTenants shows an operator who stands in the way when a tenant may not
// trust an issuer.
func issuerTenants(ctx context.Context, e env, args []string) error {
	return withAdmin(ctx, e, "issuer tenants", args, nil, []string{"URL"}, func(ctx context.Context, a *admin, args []string) error {
		all, err := a.directory.ListTenants(ctx)
		if err != nil {
			return err
		}
		return table(e.stdout, "TENANT\tRULES\tTENANT CLAIM\tADMITS", func(row func(...any)) error {
			for _, t := range all {
				sc, err := a.scope(ctx, t.Slug)
				if err != nil {
					return err
				}
				i, err := a.access.IssuerByURL(ctx, sc, args[0])
				if fault.Is(err, fault.NotFound) {
					continue
				}
				if err != nil {
					return err
				}
				claim := "-"
				if i.TenantClaim != "" {
					claim = i.TenantClaim + "=" + i.TenantValue
				}
				row(t.Slug, len(i.Roles), claim, pick(i.Open(), "everybody: no other tenant may trust it", "whom its rules and members name"))
			}
			return nil
		})
	})
}

// ruleText writes a rule as --role reads it.
func ruleText(r tenants.RoleRule) string {
	who := "*"
	if r.Claim != "" {
		who = r.Claim + "=" + r.Value
	}
	text := who + ":" + shortScopes(r.Scopes)
	if len(r.Nodes.Labels) > 0 {
		text += "@" + labelText(r.Nodes.Labels)
	}
	for _, id := range r.Nodes.IDs {
		text += " node " + id.String()
	}
	return text
}

func shortScopes(s tenants.Scopes) string {
	return strings.ReplaceAll(strings.Join(s.Words(), ","), "telltale:", "")
}

func issuerRemove(ctx context.Context, e env, args []string) error {
	return withAdmin(ctx, e, "issuer remove", args, nil, []string{"SLUG", "ISSUER"}, func(ctx context.Context, a *admin, args []string) error {
		sc, i, err := a.issuer(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		if err := a.access.DeleteIssuer(ctx, sc, i.ID); err != nil {
			return err
		}
		fmt.Fprintf(e.stdout, "tokens of %s are refused on every replica within %s, and its members are removed\n", i.URL, tenants.RevocationDelay)
		return nil
	})
}

// issuers lists all issuers of a tenant.
func (a *admin) issuers(ctx context.Context, sc tenants.Scope) (all []tenants.Issuer, err error) {
	for cursor := ""; ; {
		var page []tenants.Issuer
		if page, cursor, err = a.access.ListIssuers(ctx, sc, cursor, tenants.MaxListRows); err != nil {
			return nil, err
		}
		if all = append(all, page...); cursor == "" {
			return all, nil
		}
	}
}

// issuer finds a tenant's issuer by its id, URL or name.
func (a *admin) issuer(ctx context.Context, slug, ref string) (tenants.Scope, tenants.Issuer, error) {
	sc, err := a.scope(ctx, slug)
	if err != nil {
		return sc, tenants.Issuer{}, err
	}
	if _, notID := uuid.Parse(ref); notID == nil {
		i, err := a.access.GetIssuer(ctx, sc, ref)
		return sc, i, err
	}
	list, err := a.issuers(ctx, sc)
	if err != nil {
		return sc, tenants.Issuer{}, err
	}
	var found []tenants.Issuer
	for _, i := range list {
		if i.URL == ref {
			return sc, i, nil
		}
		if i.Name == ref {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return sc, tenants.Issuer{}, fault.Newf(fault.NotFound, "unknown_issuer", "tenant %s has no issuer %q", slug, ref).Do("'telltaled issuer list " + slug + "' shows them")
	case 1:
		return sc, found[0], nil
	}
	return sc, tenants.Issuer{}, fault.Newf(fault.Invalid, "ambiguous_issuer", "tenant %s has several issuers of the name %q", slug, ref).Do("name it by its id or URL")
}
