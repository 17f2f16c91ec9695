// Package rig is what the measurements share: a private dev stack, or a
// database with several servers; a fleet of real uplinks with made-up numbers;
// calls over REST and MCP; processor time and memory of processes, and the
// lines of the final table.
//
// It drives the built programs from outside. Of the server's packages it uses
// only what gives it a database and a certificate, localpg and auth. Start
// reading at Start, then Enrol; or at StartCluster.
package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stack is a running `telltaled dev` with a data directory of its own.
type Stack struct {
	Ready
	Dir string // holds everything, removed by Stop
	PID int    // of the server

	bin   string
	child *Child
}

// Ready is the ready file of a dev stack.
type Ready struct {
	BaseURL     string   `json:"base_url"`
	MgmtURL     string   `json:"mgmt_url"`
	GRPCAddr    string   `json:"grpc_addr"`
	CAFile      string   `json:"ca_file"`
	Tenants     []Tenant `json:"tenants"`
	AgentPIDs   []int    `json:"agent_pids"`
	PostgresDSN string   `json:"postgres_dsn"`
}

// Tenant is one of a stack's tenants with its fresh tokens.
type Tenant struct {
	Slug    string            `json:"slug"`
	MCPURL  string            `json:"mcp_url"`
	RESTURL string            `json:"rest_url"`
	Tokens  map[string]string `json:"operator_tokens"`
}

const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
)

// Start runs bin/telltaled dev on free loopback ports with more flags and
// waits until it is ready. The caller calls Stop.
func Start(ctx context.Context, bin string, flags ...string) (*Stack, error) {
	dir, err := os.MkdirTemp("", "ttbench")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the database's user passes through
		return nil, err
	}
	file := filepath.Join(dir, "ready.json")
	s := &Stack{Dir: dir, bin: bin}
	args := append([]string{"dev", "--data-dir", filepath.Join(dir, "data"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--ready-file", file}, flags...)
	if s.child, err = Spawn(nil, filepath.Join(bin, "telltaled"), args...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.PID = s.child.PID
	err = s.child.Await(ctx, startTimeout, func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &s.Ready) == nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the stack did not become ready: %w", err), s.Stop(), fmt.Errorf("its output: %s", s.child.Output()))
	}
	return s, nil
}

// Await polls until ok, the deadline or the process's end.
func (c *Child) Await(ctx context.Context, limit time.Duration, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.Ended:
			return errors.New("it ended")
		}
	}
	return nil
}

// Stop ends the stack as Ctrl-C does and removes its directory.
func (s *Stack) Stop() error { return errors.Join(s.child.Stop(), os.RemoveAll(s.Dir)) }

// Tenant finds a tenant by its slug; both of dev are always there.
func (s *Stack) Tenant(slug string) Tenant {
	for _, t := range s.Tenants {
		if t.Slug == slug {
			return t
		}
	}
	return Tenant{}
}

// EnrolToken makes an enrolment token that serves for uses nodes.
func (s *Stack) EnrolToken(ctx context.Context, slug string, uses int) (string, error) {
	return admin(ctx, s.bin, s.PostgresDSN, "enrol-token", "create", "--tenant", slug, "--uses", strconv.Itoa(uses))
}

// admin runs an administrative command and returns what it prints.
func admin(ctx context.Context, bin, dsn string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "telltaled"), args...)
	cmd.Env = append(os.Environ(), "TELLTALE_DATABASE="+dsn)
	var told bytes.Buffer
	cmd.Stderr = &told
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("telltaled %s: %w: %s", strings.Join(args, " "), err, told.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// Database connects as the cluster's owner, whom no row-level policy binds:
// for counting what arrived, in all tenants.
func (s *Stack) Database(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, s.PostgresDSN)
}
