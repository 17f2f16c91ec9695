package dbtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/telltale-dev/telltale/migrations"
	"github.com/telltale-dev/telltale/tenants/tenantdb/localpg"
)

// settings trade safety against a power cut for speed; a test server's data is
// worth nothing.
var settings = map[string]string{
	"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
	"max_connections": "200", "shared_buffers": "64MB", "wal_level": "minimal", "max_wal_senders": "0",
	"autovacuum": "off", "max_wal_size": "256MB", "jit": "off",
}

// layoutVersion changes when the way the template is built changes.
const layoutVersion = "1"

// Server is a server that one test has for itself, to stop and to break. Its
// connection strings stay the same over Halt and Resume.
type Server struct {
	*localpg.Server
	t   testing.TB
	cfg localpg.Config
}

// NewServer starts a server of the test's own, on a copy of the migrated
// cluster, with the given settings over the usual ones. It stops with the test.
func NewServer(t testing.TB, set map[string]string) *Server {
	t.Helper()
	srv, cfg, err := startCopy(set)
	if err != nil {
		t.Fatalf("start PostgreSQL for the test: %v", err)
	}
	s := &Server{Server: srv, t: t, cfg: cfg}
	t.Cleanup(s.Halt)
	return s
}

// Halt stops the server cleanly; connections end.
func (s *Server) Halt() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		s.t.Errorf("stop the test's PostgreSQL: %v", err)
	}
}

// Resume starts the halted server again on its data.
func (s *Server) Resume() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	srv, err := localpg.Start(ctx, s.cfg)
	if err != nil {
		s.t.Fatalf("start the test's PostgreSQL again: %v", err)
	}
	s.Server = srv
}

// Database answers the superuser's connection string of a fresh migrated
// database on this server.
func (s *Server) Database() string {
	s.t.Helper()
	return clone(s.t, s.Server)
}

// Kill ends the postmaster with SIGKILL; the supervisor starts it again.
func (s *Server) Kill() {
	s.t.Helper()
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil {
		s.t.Fatalf("kill the postmaster: %v", err)
	}
}

// startCopy copies the prepared cluster and starts a server on the copy.
func startCopy(set map[string]string) (*localpg.Server, localpg.Config, error) {
	cfg := localpg.Config{Set: over(set), Log: quiet()}
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	root, err := cacheDir()
	if err != nil {
		return nil, cfg, err
	}
	prepared, err := prepare(ctx, root)
	if err != nil {
		return nil, cfg, fmt.Errorf("prepare a migrated cluster: %w", err)
	}
	if cfg.Dir, err = fleeting(root); err != nil {
		return nil, cfg, err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", "--reflink=auto", filepath.Join(prepared, "data"), cfg.Dir).CombinedOutput(); err != nil {
		return nil, cfg, fmt.Errorf("copy the migrated cluster: %w: %s", err, out)
	}
	srv, err := localpg.Start(ctx, cfg)
	return srv, cfg, err
}

func over(set map[string]string) map[string]string {
	all := maps.Clone(settings)
	maps.Copy(all, set)
	return all
}

// cacheDir is one directory for each user, so that files of root are in
// nobody's way.
func cacheDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "telltale-dbtest-"+strconv.Itoa(os.Geteuid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || !st.IsDir() || int(sys.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s belongs to somebody else", dir)
	}
	return dir, nil
}

// prepare answers the directory of a stopped cluster that holds the migrated
// template, and builds it when this set of migrations is new. Other test
// binaries wait meanwhile.
func prepare(ctx context.Context, root string) (string, error) {
	sum, err := migrations.Fingerprint()
	if err != nil {
		return "", err
	}
	version, err := localpg.Installed(ctx, "")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "cluster-"+layoutVersion+"-"+version+"-"+sum[:16])
	release, err := lock(ctx, filepath.Join(root, "lock"))
	if err != nil {
		return "", err
	}
	defer release()
	if _, err := os.Stat(dir); err == nil {
		now := time.Now()
		return dir, os.Chtimes(dir, now, now) // marks it as in use, see sweep
	}
	if err := sweep(root); err != nil {
		return "", err
	}
	building, err := fleeting(root)
	if err != nil {
		return "", err
	}
	srv, err := localpg.Start(ctx, localpg.Config{Dir: building, Set: over(nil), Log: quiet()})
	if err != nil {
		return "", err
	}
	err = migrate(ctx, srv)
	if stop := srv.Stop(ctx); err == nil {
		err = stop
	}
	if err != nil {
		return "", err
	}
	return dir, os.Rename(building, dir)
}

// fleeting makes a directory that is removed when this process has ended,
// unless it was renamed by then.
func fleeting(root string) (string, error) {
	dir, err := os.MkdirTemp(root, "run-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	if err := reaper(dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// sweep removes what no test has used for two days: clusters of former
// migrations, and what a machine that lost its power has left.
func sweep(root string) error {
	for _, pattern := range []string{"cluster-*", "run-*"} {
		old, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, dir := range old {
			if st, err := os.Stat(dir); err == nil && time.Since(st.ModTime()) > 48*time.Hour {
				if err := os.RemoveAll(dir); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// lock takes the file lock that test binaries share.
func lock(ctx context.Context, path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for another test run to prepare its cluster: %w", ctx.Err())
		}
	}
}

// reaper starts a small shell that waits, on a pipe, for the end of this
// process, however it comes, then for the end of the server, and removes dir.
// Nothing in Go runs at the end of a test binary, let alone after kill -9.
func reaper(dir string) error {
	r, w, err := os.Pipe() // w stays open as long as this process lives
	if err != nil {
		return err
	}
	defer r.Close()
	const script = `cat >/dev/null
flock -w 30 "$1/lock" true
exec rm -rf "$1"`
	cmd := exec.Command("/bin/sh", "-c", script, "reaper", dir)
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the shell that cleans up: %w", err)
	}
	held.Lock()
	defer held.Unlock()
	held.pipes = append(held.pipes, w)
	return cmd.Process.Release()
}

// held keeps the write ends of the reapers' pipes from being collected and
// closed.
var held struct {
	sync.Mutex
	pipes []*os.File
}

func withUser(t testing.TB, dsn, user string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("connection string: %v", err)
	}
	q := u.Query()
	q.Set("user", user)
	u.RawQuery = q.Encode()
	return u.String()
}
