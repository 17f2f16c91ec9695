package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/telltale-dev/telltale/agent/bpfload"
	"github.com/telltale-dev/telltale/agent/collectors"
	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/runner"
)

// openDeadline bounds the opening of one module in the preflight check.
const openDeadline = 30 * time.Second

// checkReport is the form of `check --json`.
type checkReport struct {
	Kernel       string            `json:"kernel"`
	Capabilities []checkCapability `json:"capabilities"`
	Tasks        []checkTask       `json:"tasks"`
	Protection   checkProtection   `json:"protection"`
	// Lacking and Grant are there when privileges are missing: what is, and
	// the one command that gives it; no Grant where no command on the binary
	// can.
	Lacking []string `json:"lacking,omitempty"`
	Grant   string   `json:"grant,omitempty"`
}

type checkCapability struct {
	Component string `json:"component"`
	Signal    string `json:"signal"`
	Level     string `json:"level"`
	Source    string `json:"source"`
	Reason    string `json:"reason,omitempty"`
}

const checkHelp = `usage: telltale-agent check [flags]

Print what every module and task can do on this machine, and why not, and how
the agent protects itself and the machine.
Exit codes: 0 every module opened, 1 one did not, 2 wrong command line.
It takes the flags, variables and file of telltale-agent run, so that it sees
the same machine with the same limits, and

  --json
        print the report as one JSON object
  -v
        log what happens while programs load
`

// check is the command `telltale-agent check`: it opens every module, prints
// what each signal and task can do here and why not, and closes them again.
// The exit code is 0 when every module opened, whatever its level; 1 when one
// did not; 2 for a wrong command line.
func check(e env, args []string) int {
	var asJSON, verbose bool
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool {
		switch a {
		case "--json", "-json":
			asJSON = true
		case "-v", "--v":
			verbose = true
		default:
			return false
		}
		return true
	})
	var c runConfig
	quiet := e
	quiet.stdout = io.Discard
	_, err := load(quiet, "telltale-agent check", args, c.settings(e))
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(e.stdout, checkHelp)
		return exitOK
	}
	var disable map[string][]string
	if err == nil {
		disable, err = c.check()
	}
	if err != nil {
		fmt.Fprintf(e.stderr, "telltale-agent check: %v\nSee telltale-agent check --help.\n", err)
		return exitUsage
	}
	log := slog.New(slog.DiscardHandler)
	if verbose {
		log = slog.New(slog.NewTextHandler(e.stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	modules := collectors.List(collectors.Config{Proc: c.proc, Sys: c.sys, Disable: disable}, log)
	report, err := preflight(modules)
	code := 0
	if err != nil {
		fmt.Fprintf(e.stderr, "telltale-agent check: %v\n", err)
		code = 1
	}
	report.Protection = c.protection()
	report.Tasks = c.offered(modules, report)
	if asJSON {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		if err := enc.Encode(report); err != nil {
			fmt.Fprintf(e.stderr, "telltale-agent check: %v\n", err)
			return 1
		}
		return code
	}
	printReport(e.stdout, report, isTerminal(e.stdout))
	return code
}

// preflight opens and closes the modules one after the other.
func preflight(modules []runner.Module) (checkReport, error) {
	report := checkReport{Kernel: kernelRelease(), Capabilities: []checkCapability{}}
	var errs []error
	short := false
	for _, m := range modules {
		caps, err := openOnce(m)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.Component, err))
			caps = nil
			for _, s := range m.Signals {
				caps = append(caps, inspector.Capability{Component: m.Component, Signal: s, Level: inspector.Off, Reason: err.Error()})
			}
		}
		for _, c := range caps {
			short = short || c.Level != inspector.Full
			report.Capabilities = append(report.Capabilities, checkCapability{c.Component, c.Signal, string(c.Level), string(c.Source), c.Reason})
		}
	}
	if lacking := bpfload.Lacking(); short && len(lacking) > 0 {
		report.Lacking, report.Grant = lacking, bpfload.Grant()
	}
	return report, errors.Join(errs...)
}

func openOnce(m runner.Module) ([]inspector.Capability, error) {
	type opened struct {
		caps []inspector.Capability
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		c, err := m.Open()
		if err != nil {
			done <- opened{err: err}
			return
		}
		caps := c.Capabilities()
		done <- opened{caps: caps, err: c.Close()}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), openDeadline)
	defer cancel()
	select {
	case o := <-done:
		return o.caps, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("does not open within %v", openDeadline)
	}
}

var levelColour = map[string]string{
	string(inspector.Full):     "\x1b[32m",
	string(inspector.Degraded): "\x1b[33m",
	string(inspector.Off):      "\x1b[31m",
}

// short leaves out of a reason the command that stands below the tables.
func (r checkReport) short(reason string) string {
	if r.Grant == "" {
		return reason
	}
	return strings.Replace(reason, " (mend: `"+r.Grant+"`)", "", 1)
}

// printReport writes the table, one signal a line.
func printReport(out io.Writer, report checkReport, colour bool) {
	rows := [][5]string{{"COMPONENT", "SIGNAL", "LEVEL", "SOURCE", "REASON"}}
	for _, c := range report.Capabilities {
		source := c.Source
		if source == "" {
			source = "-"
		}
		rows = append(rows, [5]string{c.Component, c.Signal, c.Level, source, report.short(c.Reason)})
	}
	printTable(out, rows, colour)
	printTasks(out, report, colour)
	printProtection(out, report.Protection)
	switch {
	case report.Grant != "":
		fmt.Fprintf(out, "\nThe agent lacks %s. This gives its programs what they need:\n  %s\n", strings.Join(report.Lacking, " and "), report.Grant)
	case len(report.Lacking) > 0:
		fmt.Fprintf(out, "\nThe agent lacks %s, and what started it (a service, a container) withholds them: allow them there.\n", strings.Join(report.Lacking, " and "))
	}
}

// printTable writes rows in columns; the third one is a level.
func printTable(out io.Writer, rows [][5]string, colour bool) {
	var width [4]int
	for _, r := range rows {
		for i := range width {
			width[i] = max(width[i], len(r[i]))
		}
	}
	for _, r := range rows {
		before, after := "", ""
		if code := levelColour[r[2]]; colour && code != "" {
			before, after = code, "\x1b[0m"
		}
		line := fmt.Sprintf("%-*s  %-*s  %s%-*s%s  %-*s  %s", width[0], r[0], width[1], r[1], before, width[2], r[2], after, width[3], r[3], r[4])
		fmt.Fprintln(out, strings.TrimRight(line, " "))
	}
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
