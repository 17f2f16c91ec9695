package main

import (
	"bytes"
	"strings"
	"testing"
)

// Whoever asks for help gets it on stdout, wherever he asks, and exit 0.
func TestHelp(t *testing.T) {
	ask := func(args ...string) (code int, out, errs string) {
		var o, e bytes.Buffer
		code = run(t.Context(), env{args: args, in: strings.NewReader(""), out: &o, err: &e, get: func(string) string { return "" }})
		return code, o.String(), e.String()
	}
	whole := overview()
	for _, args := range []string{
		"--help", "-h", "-help", "help", "--url X --help", "--url=X -h", "--url X --token-file F help", "help help", "help --help", "--url X help --url Y",
	} {
		if code, out, errs := ask(strings.Fields(args)...); code != 0 || out != whole || errs != "" {
			t.Errorf("telltale %s: exit %d, %q, %q", args, code, out, errs)
		}
	}
	for _, c := range commands() {
		for _, args := range []string{c.name + " --help", c.name + " -h", "help " + c.name, "--url X help " + c.name, "--url X " + c.name + " --help", "help --url X " + c.name, "help " + c.name + " --help"} {
			if code, out, errs := ask(strings.Fields(args)...); code != 0 || out != c.usage() || errs != "" {
				t.Errorf("telltale %s: exit %d, %q, %q", args, code, out, errs)
			}
		}
	}
	for args, want := range map[string]string{
		"":                  "usage: telltale COMMAND",
		"--url X":           "no command follows the flags",
		"help nothing":      `no command "nothing"`,
		"help nodes events": "one command",
		"help --odd":        "unknown flag --odd",
	} {
		if code, out, errs := ask(strings.Fields(args)...); code != exitUsage || out != "" || !strings.Contains(errs, want) {
			t.Errorf("telltale %s: exit %d, %q, %q", args, code, out, errs)
		}
	}
}
