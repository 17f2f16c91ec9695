// Command telltaled is the Telltale server: it collects what agents report and
// answers for it over REST and MCP, per tenant. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
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

// command is one subcommand. run gets the arguments after the command's words.
type command struct {
	words string // "serve", "tenant create", …
	args  string // what follows the flags, for the usage line
	help  string
	run   func(ctx context.Context, e env, args []string) error
}

// env is what a subcommand may touch of the process.
type env struct {
	stdout, stderr io.Writer
	getenv         func(string) (string, bool)
}

func commands() []command {
	return []command{
		{"serve", "", "run the server on an existing PostgreSQL", serve},
		{"dev", "", "run everything on this machine: database, server, two tenants, an agent", dev},
		{"migrate", "", "bring the database's schema up to date", migrate},
		{"tenant create", "SLUG", "create a tenant", tenantCreate},
		{"tenant list", "", "list the tenants", tenantList},
		{"tenant suspend", "SLUG", "suspend a tenant, or resume it with --resume", tenantSuspend},
		{"tenant export", "SLUG", "write all rows of a tenant, without its secrets", tenantExport},
		{"tenant delete", "SLUG", "delete a tenant for good", tenantDelete},
		{"tenant quotas", "SLUG", "show what a tenant is held to, and set it", tenantQuotas},
		{"tenant mcp", "SLUG on|off", "switch a tenant's MCP endpoint on or off", tenantMCP},
		{"token create", "", "create an operator token and print it once", tokenCreate},
		{"token list", "", "list a tenant's operator tokens", tokenList},
		{"token revoke", "ID", "revoke an operator token", tokenRevoke},
		{"enrol-token create", "", "create an enrolment token and print it once", enrolTokenCreate},
		{"enrol-token list", "", "list a tenant's enrolment tokens", enrolTokenList},
		{"enrol-token revoke", "ID", "end an enrolment token; the nodes it enrolled stay", enrolTokenRevoke},
		{"issuer add", "SLUG URL", "have a tenant trust an identity provider, after a test of it", issuerAdd},
		{"issuer test", "SLUG ISSUER", "test an identity provider step by step", issuerTest},
		{"issuer list", "SLUG", "list the identity providers that a tenant trusts", issuerList},
		{"issuer tenants", "URL", "list the tenants that trust an identity provider, and which of them admit everybody there", issuerTenants},
		{"issuer remove", "SLUG ISSUER", "trust an identity provider no longer; its members go with it", issuerRemove},
		{"member add", "SLUG ISSUER SUBJECT", "admit a person or client of an issuer by name", memberAdd},
		{"member list", "SLUG", "list a tenant's members", memberList},
		{"member remove", "SLUG MEMBER", "admit a member no longer", memberRemove},
		{"node revoke", "NODE", "revoke a node's identity; its streams are cut within 5 seconds", nodeRevoke},
		{"audit list", "SLUG", "list the newest entries of a tenant's audit", auditList},
		{"audit verify", "[SLUG]", "walk the chain of every tenant's audit, or of one, and fail if it is broken", auditVerify},
		{"doctor", "", "check configuration, database, TLS and clock, and say how to mend what is wrong", doctor},
		{"version", "", "print the version", func(_ context.Context, e env, _ []string) error {
			fmt.Fprintln(e.stdout, version)
			return nil
		}},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(realMain(ctx, env{os.Stdout, os.Stderr, os.LookupEnv}, os.Args[1:]))
}

func realMain(ctx context.Context, e env, args []string) int {
	all := commands()
	if len(args) == 0 {
		usage(e.stderr, all)
		return exitUsage
	}
	if isHelp(args[0]) {
		usage(e.stdout, all)
		return exitOK
	}
	c, rest, ok := find(all, args)
	if !ok {
		group := slices.DeleteFunc(slices.Clone(all), func(c command) bool { return !strings.HasPrefix(c.words, args[0]+" ") })
		if len(group) > 0 && (len(args) == 1 || isHelp(args[1])) {
			usage(e.stdout, group)
			return pick(len(args) == 1, exitUsage, exitOK)
		}
		fmt.Fprintf(e.stderr, "telltaled: no such command: %s\n\n", strings.Join(args, " "))
		usage(e.stderr, pick(len(group) > 0, group, all))
		return exitUsage
	}
	err := c.run(ctx, e, rest)
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintf(e.stderr, "telltaled %s: %v\nrun 'telltaled %s --help' for its flags\n", c.words, err, c.words)
		return exitUsage
	default:
		fmt.Fprintf(e.stderr, "telltaled %s: %s\n", c.words, explain(err))
		return exitFailed
	}
}

func isHelp(word string) bool { return word == "help" || word == "-h" || word == "--help" }

// find matches the command at the head of args.
func find(all []command, args []string) (c command, rest []string, ok bool) {
	for _, c := range all {
		words := strings.Fields(c.words)
		if len(args) >= len(words) && strings.Join(args[:len(words)], " ") == c.words {
			return c, args[len(words):], true
		}
	}
	return command{}, nil, false
}

// usage lists commands: all of them, or one group such as "token".
func usage(w io.Writer, list []command) {
	fmt.Fprint(w, "telltaled is the Telltale server.\n\nusage: telltaled COMMAND [flags]\n\n")
	width := 0
	for _, c := range list {
		width = max(width, len(strings.TrimSpace(c.words+" "+c.args)))
	}
	for _, c := range list {
		fmt.Fprintf(w, "  %-*s  %s\n", width, strings.TrimSpace(c.words+" "+c.args), c.help)
	}
	fmt.Fprint(w, "\nEvery flag can also be set in the environment (--public-url is TELLTALE_PUBLIC_URL)\nor in the YAML file named by --config; a flag wins over the environment, and the\nenvironment over the file. 'telltaled COMMAND --help' lists a command's flags.\n\nGOGC and GOMEMLIMIT work as for every Go program. Unless GOGC is set, a small\nserver lets up to 96 MiB of garbage gather; GOMEMLIMIT bounds that too.\n")
}
