// Command telltale-agent makes a machine a node: it enrols, measures and
// reports to the server. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // the work failed
	exitUsage  = 2 // the command line or configuration is wrong
)

// env is what a subcommand may touch of the process.
type env struct {
	stdout, stderr io.Writer
	getenv         func(string) (string, bool)
}

// command is one subcommand.
type command struct {
	name, help string
	run        func(ctx context.Context, e env, args []string) error
}

func commands() []command {
	return []command{
		{"run", "measure this machine and report, until stopped", run},
		{"enrol", "make this machine a node of a tenant, once", enrol},
		{"simulate", "run many synthetic agents in one process, over real streams", simulate},
		{"check", "print what every module and task can do on this machine, and why not", nil},
		{"version", "print the version", printVersion},
	}
}

func printVersion(_ context.Context, e env, args []string) error {
	if len(args) > 0 && isHelp(args[0]) {
		_, err := fmt.Fprint(e.stdout, "usage: telltale-agent version\n\nPrint the version.\n")
		return err
	}
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	_, err := fmt.Fprintln(e.stdout, version)
	return err
}

func isHelp(s string) bool { return s == "-h" || s == "-help" || s == "--help" }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := dispatch(ctx, env{os.Stdout, os.Stderr, os.LookupEnv}, os.Args[1:])
	stop()
	os.Exit(code)
}

func dispatch(ctx context.Context, e env, args []string) int {
	if len(args) == 0 {
		usage(e.stderr)
		return exitUsage
	}
	switch args[0] {
	case "-h", "-help", "--help":
		usage(e.stdout)
		return exitOK
	case "help":
		if len(args) == 1 {
			usage(e.stdout)
			return exitOK
		}
		args = []string{args[1], "--help"}
	}
	switch args[0] {
	case "--version":
		args[0] = "version"
	case "check":
		return check(e, args[1:])
	}
	for _, c := range commands() {
		if c.name != args[0] {
			continue
		}
		err := c.run(ctx, e, args[1:])
		var wrong *usageError
		switch {
		case err == nil || errors.Is(err, flag.ErrHelp):
			return exitOK
		case errors.As(err, &wrong):
			fmt.Fprintf(e.stderr, "telltale-agent %s: %v\nSee telltale-agent %s --help.\n", c.name, err, c.name)
			return exitUsage
		}
		fmt.Fprintf(e.stderr, "telltale-agent %s: %v\n", c.name, err)
		return exitFailed
	}
	fmt.Fprintf(e.stderr, "telltale-agent: no command %q\n\n", args[0])
	usage(e.stderr)
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprint(w, "telltale-agent makes this machine a node of a Telltale fleet.\n\nusage: telltale-agent COMMAND [flags]\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-10s %s\n", c.name, c.help)
	}
	fmt.Fprint(w, "\ntelltale-agent COMMAND --help lists a command's flags with their environment variables.\nExit codes: 0 done, 1 failed, 2 wrong command line or configuration.\n")
}

// about is a command's help as a sentence's beginning, by its full name.
func about(name string) string {
	for _, c := range commands() {
		if "telltale-agent "+c.name == name {
			return strings.ToUpper(c.help[:1]) + c.help[1:]
		}
	}
	return name
}

// usageError is a mistake in the command line or the configuration.
type usageError struct{ error }

func (u *usageError) Unwrap() error { return u.error }
