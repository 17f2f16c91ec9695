package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// errUsage marks a wrong command line or configuration.
var errUsage = errors.New("wrong usage")

// secret is a setting that is never shown.
type secret string

func (s *secret) Set(v string) error { *s = secret(v); return nil }
func (s *secret) String() string {
	if s == nil || *s == "" {
		return ""
	}
	return "(redacted)"
}

// words is a comma-separated setting.
type words []string

func (w *words) Set(v string) error {
	*w = nil
	for _, s := range strings.Split(v, ",") {
		if s = strings.TrimSpace(s); s != "" {
			*w = append(*w, s)
		}
	}
	return nil
}
func (w *words) String() string {
	if w == nil {
		return ""
	}
	return strings.Join(*w, ",")
}

// load fills a flag set: flag > environment > file (--config, which every
// command has) > default. operands names the words that must follow the flags;
// one in brackets may be left out.
// Every mistake of every source is reported together.
func load(fs *flag.FlagSet, e env, args []string, operands ...string) error {
	config := fs.String("config", "", "YAML `FILE` of settings; those of serve may stand in it for every command")
	fs.SetOutput(io.Discard) // mistakes are reported together, below
	fs.Usage = func() {}
	var bad []error
	var given []string
	for rest := args; len(rest) > 0; {
		err := fs.Parse(rest)
		rest = fs.Args()
		switch {
		case errors.Is(err, flag.ErrHelp):
			printFlags(e.stdout, fs, operands)
			return err
		case err != nil:
			bad = append(bad, err)
		case len(rest) > 0: // flags may follow operands
			given, rest = append(given, rest[0]), rest[1:]
		}
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	take := func(name, value, source string) {
		set[name] = true
		if err := fs.Set(name, value); err != nil {
			bad = append(bad, fmt.Errorf("%s: %q is not valid: %w", source, value, err))
		}
	}
	fs.VisitAll(func(f *flag.Flag) {
		name := envName(f.Name)
		if v, ok := e.getenv(name); ok && !set[f.Name] {
			take(f.Name, v, name)
		}
	})
	if path := *config; path != "" {
		file, err := readFile(path)
		if err != nil {
			bad = append(bad, err)
		}
		for _, k := range slices.Sorted(maps.Keys(file)) {
			switch {
			case fs.Lookup(k) != nil && k != "config":
				if !set[k] {
					take(k, file[k], path+": "+k)
				}
			case !ofServe(k):
				bad = append(bad, fmt.Errorf("%s: there is no setting %q", path, k))
			}
		}
	}
	for i := len(given); i < len(operands) && operands[i][0] != '['; i++ {
		bad = append(bad, fmt.Errorf("%s is missing", operands[i]))
	}
	for i := len(operands); i < len(given); i++ {
		bad = append(bad, fmt.Errorf("%q is one word too many", given[i]))
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: %w", errUsage, errors.Join(bad...))
	}
	return fs.Parse(append([]string{"--"}, given...))
}

// ofServe reports whether serve has a setting: one file serves all commands,
// each of which takes what concerns it.
func ofServe(name string) bool {
	var cfg config
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	cfg.flags(fs)
	return fs.Lookup(name) != nil
}

func envName(flagName string) string {
	return "TELLTALE_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// readFile reads a YAML file of plain settings; a list is joined with commas.
func readFile(path string) (map[string]string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var raw map[string]any
	if err := yaml.Unmarshal(b, &raw); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	out := map[string]string{}
	for k, v := range raw {
		if list, ok := v.([]any); ok {
			parts := make([]string, len(list))
			for i, p := range list {
				parts[i] = fmt.Sprint(p)
			}
			out[k] = strings.Join(parts, ",")
			continue
		}
		out[k] = fmt.Sprint(v)
	}
	return out, nil
}

func printFlags(w io.Writer, fs *flag.FlagSet, operands []string) {
	fmt.Fprintf(w, "usage: telltaled %s\n\n", strings.Join(append([]string{fs.Name(), "[flags]"}, operands...), " "))
	fs.VisitAll(func(f *flag.Flag) {
		arg, help := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "  --%s\n        %s", strings.TrimSpace(f.Name+" "+arg), help)
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(w, " (default %s)", f.DefValue)
		}
		fmt.Fprintln(w)
	})
}

// logEffective logs the settings in force; secrets print as "(redacted)".
func logEffective(log *slog.Logger, fs *flag.FlagSet) {
	var attrs []any
	fs.VisitAll(func(f *flag.Flag) { attrs = append(attrs, slog.String(f.Name, f.Value.String())) })
	log.Info("settings in force", attrs...)
}
