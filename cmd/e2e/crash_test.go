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
	"github.com/telltale-dev/telltale/tenants/tenantdb/dbtest"
)

// server is a `telltaled serve` on a database of its own, to be killed and
// started again on the same addresses.
type server struct {
	t                *testing.T
	dsn, ca          string
	http, grpc, mgmt string
	args             []string
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
}{next: 23_000}

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

func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(filepath.Join(bin, "telltaled"), s.args...)
	s.cmd.Env = append(os.Environ(), "TELLTALE_DATABASE="+s.dsn)
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

// TestExactlyOnceOverKilledServer kills the real server between a commit and
// its acknowledgement while real streams of two tenants are in full flow. The
// database is made to hold back the answer to a commit that it has carried out
// (it waits for a standby that does not exist), so that each kill hits exactly
// there; the agents learn on their return that what they hold is stored.
// Nothing may be stored twice and nothing may be missing.
func TestExactlyOnceOverKilledServer(t *testing.T) {
	const perTenant, interval, kills = 15, 100 * time.Millisecond, 3
	pg := dbtest.NewServer(t, map[string]string{"synchronous_commit": "on", "wal_level": "replica", "max_wal_senders": "2"})
	dsn := pg.Database()
	s := newServer(t, dsn)
	conn := dbtest.Connect(t, dsn)
	s.start()
	var fleets []*exec.Cmd
	outputs := map[string]*lockedBuffer{}
	for _, slug := range []string{"acme", "globex"} {
		s.admin("tenant", "create", slug)
		token := s.admin("enrol-token", "create", "--tenant", slug, "--uses", strconv.Itoa(perTenant))
		out := &lockedBuffer{}
		outputs[slug] = out
		cmd := exec.Command(filepath.Join(bin, "telltale-agent"), "simulate", "--n", strconv.Itoa(perTenant), "--interval", interval.String(),
			"--server", s.grpc, "--ca", s.ca, "--token", token, "--dir", t.TempDir())
		cmd.Stdout, cmd.Stderr = out, out
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		fleets = append(fleets, cmd)
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		s.within(30*time.Second, "all of "+slug+" connected", func() bool {
			return strings.Contains(out.String(), fmt.Sprintf("%d agents connected", perTenant))
		})
	}

	flow := func(what string) {
		t.Helper()
		start := s.metric("telltale_windows_written_total")
		s.within(60*time.Second, what, func() bool { return s.metric("telltale_windows_written_total") > start+400 })
	}
	hold := func(standby string) {
		t.Helper()
		for _, sql := range []string{"alter system set synchronous_standby_names = '" + standby + "'", "select pg_reload_conf()"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range kills {
		flow("full flow")
		hold("nobody")
		written, same := 0.0, 0
		s.within(20*time.Second, "a commit that is done and not answered", func() bool {
			// Both writers hang: what they commit is not answered any more.
			if now := s.metric("telltale_windows_written_total"); now != written {
				written, same = now, 0
				return false
			}
			if same++; same < 25 {
				return false
			}
			var n int
			err := conn.QueryRow(t.Context(), `select count(*) from pg_stat_activity where usename = 'telltale_ingest' and wait_event = 'SyncRep'`).Scan(&n)
			if err != nil {
				t.Fatal(err)
			}
			return n > 0
		})
		s.kill()
		hold("")
		s.start()
		flow("flow after the kill")
		unacknowledged := s.metric(`telltale_ingest_total{kind="report_settled_late"}`)
		if unacknowledged == 0 {
			t.Error("the kill left no report committed and not acknowledged")
		}
		t.Logf("%.0f reports were committed and not acknowledged", unacknowledged)
	}

	s.within(60*time.Second, "all streams back", func() bool { return s.metric("telltale_ingest_streams") == 2*perTenant })
	for range 3 { // time for everyone to send what piled up
		flow("flow of all streams")
	}

	// The agents take leave; what they still hold at that moment is not sent.
	for _, cmd := range fleets {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("simulate: %v", err)
		}
	}
	var rows, distinct int
	if err := conn.QueryRow(t.Context(), `select count(*), count(distinct (tenant_id, node_id, ts, component)) from win`).Scan(&rows, &distinct); err != nil {
		t.Fatal(err)
	}
	if rows != distinct {
		t.Errorf("%d windows are stored twice", rows-distinct)
	}
	pushed := 0
	final := regexp.MustCompile(`stopped; \d+ connected, (\d+) windows pushed, \d+ reports acknowledged, (\d+) dropped, (\d+) kept out`)
	for slug, out := range outputs {
		m := final.FindStringSubmatch(out.String())
		if m == nil {
			t.Fatalf("%s: no closing line:\n%s", slug, out)
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		pushed += n
		if m[2] != "0" || m[3] != "0" {
			t.Errorf("%s: %s dropped and %s kept out, want none", slug, m[2], m[3])
		}
	}
	// At the end each agent may hold a few windows of its four components.
	if tail := pushed - rows; tail < 0 || tail > 2*perTenant*4*3 {
		t.Errorf("%d windows pushed, %d stored", pushed, rows)
	}
	// No hole: the windows of one component of one node follow one another.
	var holes int
	if err := conn.QueryRow(t.Context(), `
		select count(*) from (
			select seq, lag(seq) over w as before, ts, lag(ts) over w as earlier
			from win window w as (partition by tenant_id, node_id, component order by ts)) x
		where seq <= before or ts - earlier < interval '0.09 s'`).Scan(&holes); err != nil {
		t.Fatal(err)
	}
	if holes > 0 {
		t.Errorf("%d windows are out of order", holes)
	}
	for _, slug := range []string{"acme", "globex"} {
		token := s.admin("token", "create", "--tenant", slug, "--name", "check", "--scopes", "read")
		x := tenant{Slug: slug, RESTURL: "http://" + s.http + "/t/" + slug + "/api/v1", Tokens: map[string]string{"read": token}}
		for _, n := range nodes(t, x) {
			a := call(t, "GET", x.RESTURL+"/nodes/"+n.Node, token, "")
			if !strings.Contains(a.body, `"missing_seq":0`) {
				t.Errorf("node %s of %s: %s", n.Name, slug, a.body)
			}
		}
	}
}
