package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// adminTimeout bounds one administrative command, exportTimeout one that reads
// or ends a whole tenant.
const (
	adminTimeout  = 30 * time.Second
	exportTimeout = 11 * time.Minute
)

// withAdmin parses the flags of an administrative command and runs it
// connected. define adds the command's own flags.
func withAdmin(ctx context.Context, e env, name string, args []string, define func(*flag.FlagSet), operands []string, run func(context.Context, *admin, []string) error) error {
	return withAdminFor(ctx, e, adminTimeout, name, args, define, operands, run)
}

// withAdminFor is withAdmin for a command that may take longer.
func withAdminFor(ctx context.Context, e env, limit time.Duration, name string, args []string, define func(*flag.FlagSet), operands []string, run func(context.Context, *admin, []string) error) error {
	return withAdminOn(ctx, e, &database{}, nil, limit, name, args, define, operands, run)
}

// withAdminOn is withAdminFor for a command that settles something about the
// database before it is opened, when the flags are known.
func withAdminOn(ctx context.Context, e env, d *database, before func() error, limit time.Duration, name string, args []string, define func(*flag.FlagSet), operands []string, run func(context.Context, *admin, []string) error) error {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	d.flags(fs)
	if define != nil {
		define(fs)
	}
	if err := load(fs, e, args, operands...); err != nil {
		return err
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a, err := d.open(ctx, newLogger(e.stderr, "warn", "text"))
	if err != nil {
		return err
	}
	defer a.db.Close()
	if err := a.schemaCurrent(ctx); err != nil {
		return err
	}
	a.person, a.command, a.arguments = osUser(e.getenv), name, told(fs)
	return spelled(fs, operands, a.ended(ctx, run(ctx, a, fs.Args())))
}

// misspelt is a mistake in what a person wrote, with its name on the command
// line.
type misspelt struct {
	error
	as string // "--flag", "OPERAND" or, where there is neither, the field
}

func (m misspelt) Unwrap() error { return m.error }

// spelled names the argument that an error is about as the command line does.
func spelled(fs *flag.FlagSet, operands []string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Field == "" {
		return err
	}
	field, _, _ := strings.Cut(f.Field, "[")
	field, _, _ = strings.Cut(field, ".")
	name := strings.ReplaceAll(field, "_", "-")
	for _, as := range []string{name, strings.TrimSuffix(name, "s"), name + "-file", strings.TrimSuffix(name, "-value")} {
		if fs.Lookup(as) != nil {
			return misspelt{err, "--" + as}
		}
	}
	for _, o := range operands {
		if o = strings.Trim(o, "[]"); strings.EqualFold(o, name) {
			return misspelt{err, o}
		}
	}
	return misspelt{err, f.Field}
}

// told writes what a command was told, for the audit: its operands and the
// flags that were set, but for where the database is and for names of files.
func told(fs *flag.FlagSet) string {
	out := slices.Clone(fs.Args())
	fs.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "database") && f.Name != "config" && !strings.HasSuffix(f.Name, "-file") {
			out = append(out, f.Name+"="+f.Value.String())
		}
	})
	return audit.Scrub(inspector.CleanText(strings.Join(out, " ")))
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

// labelText writes labels as key=value, sorted; "-" when there are none.
func labelText(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return pick(out == nil, "-", strings.Join(out, ","))
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

func pick[T any](cond bool, yes, no T) T {
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
	s := f.Msg
	if s == "" || f.Kind == fault.Internal || f.Kind == fault.Unavailable { // people at the shell may see the cause
		s = err.Error()
	}
	var m misspelt
	switch {
	case errors.As(err, &m) && !strings.Contains(s, m.as):
		s = m.as + ": " + s
	case m.as == "" && f.Field != "" && !strings.Contains(s, f.Field):
		s = "--" + strings.ReplaceAll(f.Field, "_", "-") + ": " + s
	}
	if f.Next != "" {
		s += "\n  " + f.Next
	}
	return s
}
