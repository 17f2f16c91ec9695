package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// setting is one value that comes from a flag, else the environment, else the
// configuration file, else its default, which is what set was first given.
type setting struct {
	name   string // of the flag and of the key in the file
	kind   string // of the value, for the help: FILE, DURATION, LIST, …
	env    string // variable; empty: TELLTALE_ and the name
	def    string // default, as one would write it; empty: none
	help   string
	secret bool // not logged
	set    func(string) error
}

// hiddenValue stands for a secret in what is logged.
const hiddenValue = "(set)"

func (s setting) variable() string {
	if s.env != "" {
		return s.env
	}
	return "TELLTALE_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// load fills the settings of a command. All mistakes are reported together.
// The effective values come back for the log, without secrets.
func load(e env, name string, args []string, settings []setting) ([]slog.Attr, error) {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	flags := map[string]string{}
	for _, s := range settings {
		fs.Func(s.name, s.help, func(v string) error { flags[s.name] = v; return nil })
	}
	config := fs.String("config", "", "")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			printUsage(e, name, settings)
			return nil, err
		}
		return nil, &usageError{err}
	}
	var wrong []error
	for _, a := range fs.Args() {
		wrong = append(wrong, fmt.Errorf("unexpected argument %q", a))
	}
	if *config == "" {
		*config, _ = e.getenv("TELLTALE_CONFIG")
	}
	file, errs := readFile(*config, settings)
	wrong = append(wrong, errs...)
	var effective []slog.Attr
	for _, s := range settings {
		value, source := s.def, "default"
		if f, ok := file[s.name]; ok {
			value, source = f.value, f.where
		}
		if v, ok := e.getenv(s.variable()); ok {
			value, source = v, s.variable()
		}
		if v, ok := flags[s.name]; ok {
			value, source = v, "--"+s.name
		}
		if source == "default" && value == "" {
			continue
		}
		if err := s.set(value); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", source, err))
		}
		if s.secret {
			value = hiddenValue
		}
		effective = append(effective, slog.String(s.name, value))
	}
	if len(wrong) > 0 {
		return nil, &usageError{errors.Join(wrong...)}
	}
	return effective, nil
}

type fileValue struct{ value, where string }

// readFile reads a YAML file of plain keys. A list becomes its items joined by
// commas.
func readFile(path string, settings []setting) (map[string]fileValue, []error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, []error{fmt.Errorf("configuration: %w", err)}
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, []error{fmt.Errorf("%s: %w", path, err)}
	}
	if len(doc.Content) == 0 {
		return nil, nil // empty
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return nil, []error{fmt.Errorf("%s: want lines of the form key: value", path)}
	}
	known := map[string]bool{}
	for _, s := range settings {
		known[s.name] = true
	}
	out := map[string]fileValue{}
	var wrong []error
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, val := top.Content[i], top.Content[i+1]
		where := fmt.Sprintf("%s line %d: %s", path, key.Line, key.Value)
		name := strings.ReplaceAll(key.Value, "_", "-")
		if !known[name] {
			wrong = append(wrong, fmt.Errorf("%s line %d: no setting %q", path, key.Line, key.Value))
			continue
		}
		switch val.Kind {
		case yaml.ScalarNode:
			out[name] = fileValue{val.Value, where}
		case yaml.SequenceNode:
			var items []string
			for _, it := range val.Content {
				items = append(items, it.Value)
			}
			out[name] = fileValue{strings.Join(items, ","), where}
		default:
			wrong = append(wrong, fmt.Errorf("%s: want a value or a list", where))
		}
	}
	return out, wrong
}

func printUsage(e env, name string, settings []setting) {
	w := e.stdout
	fmt.Fprintf(w, "usage: %s [flags]\n\n%s.\nA flag wins over the environment, that over the file of --config, that over the default.\n\n", name, about(name))
	fmt.Fprintf(w, "  --config FILE\n        YAML file of the settings below, by the names of their flags\n        TELLTALE_CONFIG\n")
	for _, s := range settings {
		fmt.Fprintf(w, "  --%s %s\n        %s", s.name, s.kind, s.help)
		if s.def != "" {
			fmt.Fprintf(w, " (default %s)", s.def)
		}
		fmt.Fprintf(w, "\n        %s\n", s.variable())
	}
}

// Setters.

func text(p *string) func(string) error {
	return func(v string) error { *p = v; return nil }
}

// address reads HOST:PORT.
func address(p *string) func(string) error {
	return func(v string) error {
		host, port, err := net.SplitHostPort(v)
		if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
			return fmt.Errorf("want HOST:PORT without a scheme, such as telltale.example.org:8401, not %q", v)
		}
		*p = v
		return nil
	}
}

func span(p *time.Duration, low, high time.Duration) func(string) error {
	return func(v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < low || d > high {
			return fmt.Errorf("want a duration from %v to %v, not %q", low, high, v)
		}
		*p = d
		return nil
	}
}

func number(p *int, low, high int) func(string) error {
	return func(v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < low || n > high {
			return fmt.Errorf("want a number from %d to %d, not %q", low, high, v)
		}
		*p = n
		return nil
	}
}

// words reads a list with commas.
func words(p *[]string) func(string) error {
	return func(v string) error {
		*p = nil
		for w := range strings.SplitSeq(v, ",") {
			if w = strings.TrimSpace(w); w != "" {
				*p = append(*p, w)
			}
		}
		return nil
	}
}

// logger makes the log of a command: text lines on stderr.
func logger(e env, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, &usageError{fmt.Errorf("log-level: want debug, info, warn or error, not %q", level)}
	}
	return slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: l})), nil
}
