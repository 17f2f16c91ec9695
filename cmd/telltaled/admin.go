package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

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
