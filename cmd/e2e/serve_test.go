package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/auth"
)

// server is a `telltaled serve` on a database of its own, to be killed and
// started again on the same addresses.
type server struct {
	t                *testing.T
	dsn, ca          string
	http, grpc, mgmt string
	args, env        []string
	cmd              *exec.Cmd
	output           *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// freeAddr is a loopback address below the ephemeral range, so that nobody is
// given its port between two starts.
func freeAddr(t *testing.T) string {
	t.Helper()
	freePort.Lock()
	defer freePort.Unlock()
	for ; freePort.next < 24_000; freePort.next++ {
		addr := fmt.Sprintf("127.0.0.1:%d", freePort.next)
		l, err := net.Listen("tcp", addr)
		if err == nil {
			l.Close()
			freePort.next++
			return addr
		}
	}
	t.Fatal("no free port")
	return ""
}

var freePort = struct {
	sync.Mutex
	next int
}{next: 23_000 + os.Getpid()%900}

func newServer(t *testing.T, dsn string) *server {
	t.Helper()
	dir := t.TempDir()
	files, err := auth.EnsureLocalTLS(dir, []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, dsn: dsn, ca: files.CAFile, http: freeAddr(t), grpc: freeAddr(t), mgmt: freeAddr(t), output: &lockedBuffer{}}
	s.args = []string{"serve", "--http", s.http, "--grpc", s.grpc, "--mgmt", s.mgmt, "--grpc-cert", files.CertFile, "--grpc-key", files.KeyFile,
		"--key-file", filepath.Join(dir, "key"), "--log-level", "warn"}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
	})
	return s
}

// twin is another server on the same database, with the same keys.
func (s *server) twin() *server {
	s.t.Helper()
	w := &server{t: s.t, dsn: s.dsn, ca: s.ca, http: freeAddr(s.t), grpc: freeAddr(s.t), mgmt: freeAddr(s.t), output: &lockedBuffer{}, env: s.env}
	w.args = append([]string{"serve", "--http", w.http, "--grpc", w.grpc, "--mgmt", w.mgmt}, s.args[7:]...)
	s.t.Cleanup(func() {
		if w.cmd != nil {
			w.kill()
		}
	})
	return w
}

// at is a tenant as this server shows it, with the tokens of another view.
func (s *server) at(x tenant) tenant {
	x.RESTURL, x.MCPURL = "http://"+s.http+"/t/"+x.Slug+"/api/v1", "http://"+s.http+"/t/"+x.Slug+"/mcp"
	return x
}

// tenant makes a tenant with a token of each kind and one that enrols nodes.
func (s *server) tenant(slug string, labels string) tenant {
	s.t.Helper()
	s.admin("tenant", "create", slug)
	x := tenant{Slug: slug, Tokens: map[string]string{}}
	for _, kind := range []string{"read", "diagnose"} {
		x.Tokens[kind] = s.admin("token", "create", "--tenant", slug, "--name", kind, "--scopes", "read,"+kind)
	}
	x.EnrolToken = s.admin("enrol-token", "create", "--tenant", slug, "--uses", "200", "--labels", labels)
	return s.at(x)
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(filepath.Join(bin, "telltaled"), s.args...)
	s.cmd.Env = append(append(os.Environ(), "TELLTALE_DATABASE="+s.dsn), s.env...)
	s.cmd.Stdout, s.cmd.Stderr = s.output, s.output
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.within(20*time.Second, "readiness", func() bool {
		resp, err := http.Get("http://" + s.http + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

func (s *server) within(limit time.Duration, what string, ok func() bool) {
	s.t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			s.t.Fatalf("no %s within %s:\n%s", what, limit, s.output)
		case <-tick.C:
		}
	}
}

// admin runs an administrative command and returns its standard output.
func (s *server) admin(args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "telltaled"), args...)
	cmd.Env = append(os.Environ(), "TELLTALE_DATABASE="+s.dsn)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("telltaled %v: %v: %s", args, err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// metric reads one counter of the server's own.
func (s *server) metric(name string) float64 {
	s.t.Helper()
	resp, err := http.Get("http://" + s.mgmt + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		s.t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(b.String())
	if m == nil {
		s.t.Fatalf("the server has no metric %s", name)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}
