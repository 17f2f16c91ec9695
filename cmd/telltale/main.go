// Command telltale is the operator's command line and the stdio bridge for
// clients that cannot speak HTTP. It is a client like any other: it links the
// protocol SDK and the standard library, and no package of the server or the
// agent.
//
// Start reading at run; each subcommand is one file. How a person signs in, and
// where that is kept, is the package login.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/telltale-dev/telltale/cmd/telltale/login"
)

// version is set when the program is built.
var version = "dev"

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // the tool or the server refused
	exitUsage   = 2 // the command line or its settings are wrong
	exitOffline = 3 // no server answered
)

// patience is how long a command may take in all.
const patience = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, env{args: os.Args[1:], in: os.Stdin, out: os.Stdout, err: os.Stderr, get: os.Getenv, colour: colourful(os.Stdout, os.Getenv)})
	stop()
	os.Exit(code)
}

// env is all that a command has of its surroundings.
type env struct {
	args   []string
	in     io.Reader
	out    io.Writer
	err    io.Writer
	get    func(string) string
	colour bool // out is a terminal that wants colour
}

// command is one subcommand.
type command struct {
	name, args, words string
	help              string // what follows the usage line in --help
	run               func(context.Context, env, *flags) error
}

func commands() []command {
	return []command{
		{"login", "[--scopes S] [--client-id ID] [--issuer URL] [--port N] [--no-browser] [--assume-pkce] [--no-resource]", "sign in at the tenant's identity provider, in the browser", loginHelp, signIn},
		{"logout", "", "revoke the stored login and remove it", logoutHelp, signOut},
		{"nodes", "[--status S] [--label K=V] [--search PREFIX] [--json]", "list the tenant's nodes", nodesHelp, nodes},
		{"events", "[--node NODE] [--kind KIND] [--severity S] [--since AGE] [--origin O] [--json]", "list what went wrong, the youngest first", eventsHelp, events},
		{"tools", "[--list] [--json]", "list the tools; --list adds instructions, descriptions and arguments", toolsHelp, tools},
		{"call", "TOOL ['{json}'] [--json]", "call one tool and print its text", callHelp, call},
		{"mcp", "[--validate]", "bridge an MCP client on stdin and stdout to the server", bridgeHelp, bridge},
		{"version", "", "print the version", "", printVersion},
	}
}

func printVersion(_ context.Context, e env, f *flags) error {
	if len(f.rest) > 0 {
		return usageError{"version takes no argument"}
	}
	_, err := fmt.Fprintln(e.out, "telltale", version)
	return err
}

// usageError is a mistake in the command line or the settings.
type usageError struct{ msg string }

func (u usageError) Error() string { return u.msg }

// run executes one command line and returns the exit code.
func run(ctx context.Context, e env) int {
	if len(e.args) == 0 {
		_, _ = io.WriteString(e.err, overview())
		return exitUsage
	}
	name, args, err := splitCommand(e.args)
	if err != nil {
		fmt.Fprintf(e.err, "telltale: %v\n", err)
		return exitUsage
	}
	if name == "help" {
		if name, err = topic(args); err != nil {
			fmt.Fprintf(e.err, "telltale: %v\n", err)
			return exitUsage
		}
		args = []string{"--help"}
	}
	if isHelp(name) {
		_, _ = io.WriteString(e.out, overview())
		return exitOK
	}
	if name == "--version" {
		name = "version"
	}
	for _, c := range commands() {
		if c.name != name {
			continue
		}
		f, err := parseFlags(c, args)
		if err != nil {
			return fail(e, c.name, err)
		}
		if f.help {
			_, _ = io.WriteString(e.out, c.usage())
			return exitOK
		}
		if c.name != "mcp" && c.name != "login" { // which wait for a client, and for a person
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, patience)
			defer cancel()
		}
		if err := c.run(ctx, e, f); err != nil {
			return fail(e, c.name, err)
		}
		return exitOK
	}
	fmt.Fprintf(e.err, "telltale: no command %q; telltale --help lists them\n", name)
	return exitUsage
}

// splitCommand finds the command, before which the settings may stand too.
func splitCommand(args []string) (name string, rest []string, err error) {
	at := 0
	for ; at < len(args) && strings.HasPrefix(args[at], "-") && args[at] != "--version" && !isHelp(args[at]); at++ {
		flag, _, given := strings.Cut(strings.TrimLeft(args[at], "-"), "=")
		switch {
		case flag != "url" && flag != "token-file" && flag != "token-env":
			return "", nil, fmt.Errorf("the flag %s stands before the command; write it behind: telltale COMMAND %s", args[at], args[at])
		case !given:
			at++
		}
	}
	if at >= len(args) {
		return "", nil, errors.New("no command follows the flags; telltale --help lists them")
	}
	return args[at], append(args[:at:at], args[at+1:]...), nil
}

// topic is the command that help is asked for; without one it is help itself.
func topic(args []string) (string, error) {
	f, err := parseFlags(command{name: "help"}, args)
	switch {
	case err != nil:
		return "", err
	case len(f.rest) > 1:
		return "", errors.New("help takes one command")
	case len(f.rest) == 0 || f.rest[0] == "help":
		return "--help", nil
	}
	return f.rest[0], nil
}

func isHelp(s string) bool { return s == "--help" || s == "-h" || s == "-help" }

// errReported ends a command with exit 1 after it has said why.
var errReported = errors.New("reported")

func fail(e env, name string, err error) int {
	var usage usageError
	var away *offlineError
	var provider *login.Unreachable
	switch {
	case errors.Is(err, errReported):
		return exitFailed
	case errors.Is(err, context.Canceled):
		fmt.Fprintf(e.err, "telltale %s: interrupted\n", name)
		return 130
	case errors.As(err, &usage):
		fmt.Fprintf(e.err, "telltale %s: %s\ntelltale %s --help shows how to call it\n", name, usage.msg, name)
		return exitUsage
	case errors.As(err, &away):
		fmt.Fprintf(e.err, "telltale %s: %s\n", name, away)
		return exitOffline
	case errors.As(err, &provider):
		fmt.Fprintf(e.err, "telltale %s: %s; check that it runs, and that nothing stands in between\n", name, provider)
		return exitOffline
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Fprintf(e.err, "telltale %s: no answer within %s; check the server, or ask for less\n", name, patience)
		return exitOffline
	}
	fmt.Fprintf(e.err, "telltale %s: %v\n", name, err)
	return exitFailed
}

func overview() string {
	var b strings.Builder
	b.WriteString("telltale looks at the nodes of one tenant through its Telltale server.\n\nusage: telltale COMMAND [arguments]\n\nCommands\n")
	rows := [][]string{}
	for _, c := range commands() {
		rows = append(rows, []string{"  " + c.name, c.words})
	}
	writeTable(&b, nil, rows)
	b.WriteString("\n" + settingsHelp + "\nExit codes: 0 done, 1 the tool or the server refused, 2 wrong usage, 3 no server answered.\ntelltale COMMAND --help says more about one command.\n")
	return b.String()
}

func (c command) usage() string {
	s := strings.TrimRight("usage: telltale "+c.name+" "+c.args, " ") + "\n\n" + strings.ToUpper(c.words[:1]) + c.words[1:] + ".\n"
	if c.help != "" {
		s += "\n" + c.help
	}
	if c.name != "version" {
		s += "\n" + settingsHelp
	}
	return s
}
