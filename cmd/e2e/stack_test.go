// Package e2e_test drives the built binaries from outside, as a person or a
// script would. Start reading at startDev.
package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bin holds the binaries under test, built once for the run.
var bin string

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		dir, err := os.MkdirTemp("", "telltale-bin-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // another user runs them too
			return 1, err
		}
		bin = dir
		build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "../telltaled", "../telltale-agent", "../telltale")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return 1, fmt.Errorf("build: %w", err)
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

type ready struct {
	BaseURL      string   `json:"base_url"`
	MgmtURL      string   `json:"mgmt_url"`
	GRPCAddr     string   `json:"grpc_addr"`
	CAFile       string   `json:"ca_file"`
	Issuer       *string  `json:"issuer"`
	DashboardURL string   `json:"dashboard_url"`
	Tenants      []tenant `json:"tenants"`
	AgentPIDs    []int    `json:"agent_pids"`
	PostgresDSN  string   `json:"postgres_dsn"`
}

type tenant struct {
	Slug       string            `json:"slug"`
	MCPURL     string            `json:"mcp_url"`
	RESTURL    string            `json:"rest_url"`
	Tokens     map[string]string `json:"operator_tokens"`
	EnrolToken string            `json:"enrol_token"`
}

func (r ready) tenant(t *testing.T, slug string) tenant {
	t.Helper()
	for _, x := range r.Tenants {
		if x.Slug == slug {
			return x
		}
	}
	t.Fatalf("the ready file has no tenant %s", slug)
	return tenant{}
}

// stack is a running `telltaled dev`.
type stack struct {
	ready
	t      *testing.T
	dir    string // data directory
	cmd    *exec.Cmd
	output *bytes.Buffer
	ended  chan struct{}
}

// newDataDir is a directory that the database's user can reach.
func newDataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tte2e")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

// startDev starts the stack on free ports and waits for its ready file. adjust
// may change the command before it starts.
func startDev(t *testing.T, dataDir string, adjust func(*exec.Cmd), flags ...string) *stack {
	t.Helper()
	file := filepath.Join(filepath.Dir(dataDir), "ready.json")
	args := append([]string{"dev", "--data-dir", dataDir, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--ready-file", file}, flags...)
	s := &stack{t: t, dir: dataDir, cmd: exec.Command(filepath.Join(bin, "telltaled"), args...), output: &bytes.Buffer{}, ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if adjust != nil {
		adjust(s.cmd)
	}
	os.Remove(file)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.cmd.Wait(); close(s.ended) }()
	t.Cleanup(func() { s.interrupt() })
	s.await(2*time.Minute, "the ready file", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &s.ready) == nil
	})
	return s
}

// await polls until ok or the deadline; the stack's end fails at once.
func (s *stack) await(limit time.Duration, what string, ok func() bool) {
	s.t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-s.ended:
			s.t.Fatalf("the stack ended while waiting for %s:\n%s\n%s", what, s.output, s.logs())
		case <-deadline:
			s.t.Fatalf("no %s within %s:\n%s", what, limit, s.logs())
		case <-tick.C:
		}
	}
}

func (s *stack) logs() string {
	var b strings.Builder
	for _, f := range []string{"telltaled.log", "agents.log"} {
		text, _ := os.ReadFile(filepath.Join(s.dir, f))
		fmt.Fprintf(&b, "--- %s\n%s\n", f, text[max(0, len(text)-3000):])
	}
	return b.String()
}

// warnings are what the agents found worth a warning, and the logs' ends.
func (s *stack) warnings() string {
	var b strings.Builder
	text, _ := os.ReadFile(filepath.Join(s.dir, "agents.log"))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			b.WriteString(line)
		}
	}
	return b.String() + s.logs()
}

// interrupt stops the stack as Ctrl-C does and waits for its end.
func (s *stack) interrupt() {
	s.t.Helper()
	select {
	case <-s.ended:
		return
	default:
	}
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-s.ended:
	case <-time.After(30 * time.Second):
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		s.t.Errorf("the stack did not stop within 30 s of SIGINT:\n%s", s.logs())
	}
}

// kill ends the server at once and waits until it is gone.
func (s *stack) kill() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	<-s.ended
}

// leftovers lists processes whose command line names the data directory.
func (s *stack) leftovers() []string {
	out, err := exec.Command("pgrep", "-a", "-f", s.dir).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// answer is one HTTP response, read whole.
type answer struct {
	status int
	header http.Header
	body   string
}

func call(t *testing.T, method, url, token string, body string, header ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, r)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

type node struct {
	Node   string `json:"node"`
	Name   string `json:"name"`
	Status string `json:"status"`
}

func nodes(t *testing.T, x tenant) []node {
	t.Helper()
	a := call(t, "GET", x.RESTURL+"/nodes?limit=200", x.Tokens["read"], "")
	if a.status != http.StatusOK {
		t.Fatalf("GET nodes: %d %s", a.status, a.body)
	}
	var page struct{ Nodes []node }
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		t.Fatal(err)
	}
	return page.Nodes
}

// telltale runs the operator's command line against a tenant.
func telltale(t *testing.T, x tenant, kind string, args ...string) (stdout string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "telltale"), args...)
	cmd.Env = append(os.Environ(), "TELLTALE_URL="+x.MCPURL, "TELLTALE_TOKEN="+x.Tokens[kind])
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return string(out) + errs.String(), exit.ExitCode()
	case err != nil:
		t.Fatal(err)
	}
	return string(out), 0
}
