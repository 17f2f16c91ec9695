package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// readyDoc is the ready file: what a script needs to use a running dev stack.
type readyDoc struct {
	BaseURL      string        `json:"base_url"`
	MgmtURL      string        `json:"mgmt_url"`
	GRPCAddr     string        `json:"grpc_addr"`
	CAFile       string        `json:"ca_file"` // of the gRPC server
	Issuer       *string       `json:"issuer"`  // null: no identity provider runs
	DashboardURL string        `json:"dashboard_url"`
	Tenants      []readyTenant `json:"tenants"`
	AgentPIDs    []int         `json:"agent_pids"`
	PostgresDSN  string        `json:"postgres_dsn"`
}

type readyTenant struct {
	Slug           string            `json:"slug"`
	MCPURL         string            `json:"mcp_url"`
	RESTURL        string            `json:"rest_url"`
	OperatorTokens map[string]string `json:"operator_tokens"`
	EnrolToken     string            `json:"enrol_token"`

	agentToken string // enrols the stack's own agents
}

// writeJSON writes a private file by rename, so that no reader sees half.
func writeJSON(path string, v any) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".telltale-*") // mode 0600
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	enc.SetEscapeHTML(false) // a DSN is copied by hand, too
	enc.SetIndent("", "  ")
	err = errors.Join(enc.Encode(v), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// shown is a path as it is shortest to type here.
func shown(path string) string {
	if wd, err := os.Getwd(); err == nil {
		if rel, err := filepath.Rel(wd, path); err == nil && len(rel) < len(path) {
			return rel
		}
	}
	return path
}

func printWelcome(d *devRun, doc readyDoc, privileges string) {
	acme := doc.Tenants[0]
	read, diagnose := acme.OperatorTokens["read"], acme.OperatorTokens["diagnose"]
	fmt.Fprintf(d.out.w, "%5.1fs  ready\n\n", time.Since(d.out.start).Seconds())
	if doc.Issuer != nil {
		fmt.Fprintf(d.out.w, `  Dashboard        %s   (tenant acme: sign in, or with a token below)
  MCP client       claude mcp add --transport http telltale %s
                   then sign in: in Claude Code with /mcp, elsewhere when the client asks
  Sign in as       alice (acme, on call), bob (acme, only looks), carol (globex, on call),
                   dana (administers both), erin (may do nothing); the password is the name
  Issuer           %s   (the demo identity provider of both tenants)
  Shell            bin/telltale login --url %s
`, doc.DashboardURL, acme.MCPURL, *doc.Issuer, acme.MCPURL)
	} else {
		fmt.Fprintf(d.out.w, `  Dashboard        %s   (tenant acme, a token below)
  MCP client       claude mcp add --transport http telltale %s --header "Authorization: Bearer %s"
`, doc.DashboardURL, acme.MCPURL, diagnose)
	}
	fmt.Fprintf(d.out.w, `  Token            %s   (telltale:read and telltale:diagnose: looks, and starts tasks on nodes)
  Token            %s   (telltale:read: only looks)
  Shell%s       export TELLTALE_URL=%s
                   export TELLTALE_TOKEN=%s
                   bin/telltale call metrics_summary '{"module":"network"}'
                   bin/telltale call profile_on_cpu '{"selector":{"environment":"dev"},"cgroup":"/"}'
  Administration   export TELLTALE_DATABASE='%s'
                   bin/telltaled tenant list
  All of this      %s   (addresses, CA file, a token of every kind; new tokens at each start)
  Log              %s
%s
Press Ctrl-C to stop everything.
`, diagnose, read, pick(doc.Issuer != nil, " (or)", "     "), acme.MCPURL, diagnose, d.dsn, shown(d.o.readyFile), shown(d.logFile.Name()), privileges)
}
