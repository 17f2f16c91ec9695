package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
)

// auditVerify walks the chains and prints a line a tenant. It fails when one is
// broken.
func auditVerify(ctx context.Context, e env, args []string) error {
	var tenant string
	return withAdminFor(ctx, e, exportTimeout, "audit verify", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "only the tenant with this `SLUG`; default: all")
	}, []string{"[SLUG]"}, func(ctx context.Context, a *admin, args []string) error {
		tenant, err := oneSlug(tenant, args)
		if err != nil {
			return err
		}
		var list []tenants.Tenant
		if tenant == "" {
			if list, err = a.directory.ListTenants(ctx); err != nil {
				return err
			}
		} else {
			sc, err := a.scope(ctx, tenant)
			if err != nil {
				return err
			}
			list = []tenants.Tenant{{ID: sc.Tenant, Slug: sc.Slug}}
		}
		record := audit.New(a.db, audit.Config{}, slog.New(slog.DiscardHandler))
		var failed []error
		var notes []string
		err = table(e.stdout, "TENANT\tSEALS\tROWS\tFIRST\tLAST\tUNSEALED\tRESULT", func(row func(...any)) error {
			for _, t := range list {
				v, err := record.Verify(ctx, t.ID)
				if err != nil {
					return fmt.Errorf("verify the audit of %s: %w", t.Slug, err)
				}
				result := "OK"
				if v.Broken != nil {
					result = "BROKEN"
					failed = append(failed, fmt.Errorf("the audit of %s is not as it was sealed: %w", t.Slug, v.Broken))
				}
				row(t.Slug, v.Seals, v.Rows, moment(v.First), moment(v.Last), v.Unsealed, result)
				notes = append(notes, verdictNotes(t.Slug, v, time.Now())...)
			}
			return nil
		})
		for _, n := range notes {
			fmt.Fprintln(e.stdout, n)
		}
		return errors.Join(append(failed, err)...)
	})
}

// unsealedAfter is the age at which an unsealed row says that nobody seals.
const unsealedAfter = 5 * time.Minute

// verdictNotes says what of a verdict a person should know beside its line.
func verdictNotes(slug string, v audit.Verdict, now time.Time) (out []string) {
	note := func(format string, args ...any) { out = append(out, slug+": "+fmt.Sprintf(format, args...)) }
	if v.Broken == nil && v.LastSeal > 0 {
		note("head: seal %d %s", v.LastSeal, v.Head)
	}
	if v.FirstSeal > 1 || v.Expired > 0 {
		note("the chain begins with seal %d; rows are kept from %s on, those of %d kept seals are past retention", v.FirstSeal, moment(v.KeptFrom), v.Expired)
	}
	if v.Unsealed > 0 && now.Sub(v.Oldest) > unsealedAfter {
		note("unsealed since %s: does a server run?", moment(v.Oldest))
	}
	if v.Gaps > 0 || v.Lost > 0 {
		note("%d numbers are missing: %d are recorded as lost, the others were waiting to be written, or were lost with a process", v.Gaps, v.Lost)
	}
	return out
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// auditList prints the youngest entries of a tenant.
func auditList(ctx context.Context, e env, args []string) error {
	var tenant, outcome string
	var q audit.Query
	var since ago
	return withAdmin(ctx, e, "audit list", args, func(fs *flag.FlagSet) {
		fs.StringVar(&tenant, "tenant", "", "the tenant's `SLUG`, as an alternative to the word after the flags")
		fs.StringVar(&q.Principal, "principal", "", "only of the caller with this `ID`")
		fs.StringVar(&q.Action, "action", "", "only this `ACTION`: a tool, or a method and route such as 'POST tokens'")
		fs.StringVar(&outcome, "outcome", "", "only this `OUTCOME`: ok, refused, failed or started")
		fs.StringVar(&q.Reference, "reference", "", "only with this reference `ID`")
		fs.Var(&since, "since", "only from this `TIME` on: RFC 3339, or a duration before now such as 1h")
		fs.IntVar(&q.Limit, "limit", tenants.DefaultListRows, "this `NUMBER` of entries at most, up to 200")
	}, []string{"[SLUG]"}, func(ctx context.Context, a *admin, args []string) error {
		tenant, err := oneSlug(tenant, args)
		if err != nil {
			return err
		}
		sc, err := a.scope(ctx, tenant)
		if err != nil {
			return err
		}
		q.Outcome = audit.Outcome(outcome)
		q.Since = since.at
		page, err := audit.New(a.db, audit.Config{}, slog.New(slog.DiscardHandler)).List(ctx, sc, q)
		if err != nil {
			return err
		}
		err = table(e.stdout, "AT\tPRINCIPAL\tSURFACE\tACTION\tARGUMENTS\tOUTCOME\tREASON\tCOUNT\tREFERENCE\tSEAL", func(row func(...any)) error {
			for _, r := range page.Entries {
				who := string(r.Principal.Kind) + " " + pick(r.Principal.Name != "", r.Principal.Name, r.Principal.ID)
				row(moment(r.At), who, r.Surface, r.Action, r.Arguments, r.Outcome, dash(r.Reason), r.Count, dash(r.Reference), r.Seal)
			}
			return nil
		})
		if page.Truncated != nil {
			fmt.Fprintf(e.stderr, "there are more: narrow them, or raise --limit\n")
		}
		return err
	})
}

// oneSlug is the tenant that --tenant or an operand names.
func oneSlug(tenant string, args []string) (string, error) {
	if len(args) == 0 {
		return tenant, nil
	}
	if tenant != "" && tenant != args[0] {
		return "", fmt.Errorf("%w: --tenant names %q and the command %q: give one of them", errUsage, tenant, args[0])
	}
	return args[0], nil
}

// ago is a time given as such or as a duration before now.
type ago struct{ at time.Time }

// String implements flag.Value.
func (a *ago) String() string {
	if a == nil || a.at.IsZero() {
		return ""
	}
	return moment(a.at)
}

// Set implements flag.Value.
func (a *ago) Set(v string) (err error) {
	if d, bad := time.ParseDuration(v); bad == nil && d >= 0 {
		a.at = time.Now().Add(-d)
		return nil
	}
	if a.at, err = time.Parse(time.RFC3339, v); err != nil {
		return errors.New("want an RFC 3339 time such as 2026-01-02T15:04:05Z, or a duration before now such as 1h")
	}
	return nil
}

func dash(s string) string { return pick(s == "", "-", s) }

// lookers are the last words of commands that change nothing.
var lookers = []string{"list", "verify", "test", "doctor", "tenants"}

// begun records that a command is about to act on a tenant, and keeps it from
// acting when that cannot be recorded.
func (a *admin) begun(ctx context.Context, sc tenants.Scope) error {
	words := strings.Fields(a.command)
	if len(words) == 0 || a.acting != nil || slices.Contains(lookers, words[len(words)-1]) {
		return nil
	}
	e := audit.Entry{Tenant: sc.Tenant, Principal: sc.Principal, Surface: "command", Action: a.command, Arguments: a.arguments, Outcome: audit.Started}
	if err := audit.New(a.db, audit.Config{Replica: replicaName()}, slog.New(slog.DiscardHandler)).Write(ctx, e); err != nil {
		return err
	}
	a.acting = &e
	return nil
}

// ended records how the command ended.
func (a *admin) ended(ctx context.Context, failed error) error {
	if a.acting == nil {
		return failed
	}
	e := *a.acting
	if e.Outcome = audit.OK; failed != nil {
		e.Outcome, e.Reason = audit.Failed, "command_failed"
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return errors.Join(failed, audit.New(a.db, audit.Config{Replica: replicaName()}, slog.New(slog.DiscardHandler)).Write(ctx, e))
}

// registerAudit exposes the audit's own counts.
func registerAudit(own prometheus.Registerer, record *audit.Service) {
	own.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "telltale_audit_waiting", Help: "Audit entries that wait for their write."},
		func() float64 { return float64(record.Stats().Waiting) }))
	for _, c := range []struct {
		name, help string
		read       func(audit.Stats) uint64
	}{
		{"written", "Audit rows stored.", func(s audit.Stats) uint64 { return s.Written }},
		{"dropped", "Audit entries lost: no room to wait, or not to be stored. Each is counted in the audit itself.", func(s audit.Stats) uint64 { return s.Dropped }},
		{"write_failed", "Acts that were refused because they could not be recorded.", func(s audit.Stats) uint64 { return s.WriteFailed }},
		{"sealed", "Audit rows that this server sealed.", func(s audit.Stats) uint64 { return s.Sealed }},
		{"homeless", "Entries and attempts that named no tenant.", func(s audit.Stats) uint64 { return s.Homeless }},
		{"refusals_dropped", "Refusals of strangers that found no room to be counted.", func(s audit.Stats) uint64 { return s.RefusalsDropped }},
		{"attempts_dropped", "Attempts to connect that found no room to wait for their write.", func(s audit.Stats) uint64 { return s.AttemptsDropped }},
	} {
		own.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "telltale_audit_" + c.name + "_total", Help: c.help}, func() float64 { return float64(c.read(record.Stats())) }))
	}
}
