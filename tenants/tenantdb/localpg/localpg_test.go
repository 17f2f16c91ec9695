package localpg_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/telltale-dev/telltale/tenants/tenantdb/localpg"
)

// childDir makes this test binary a program that starts a server there, says
// so and waits for the end of its input.
const childDir = "LOCALPG_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	dir := os.Getenv(childDir)
	if dir == "" {
		code := m.Run()
		if prepared.dir != "" {
			_ = os.RemoveAll(prepared.dir)
		}
		os.Exit(code)
	}
	srv, err := localpg.Start(context.Background(), config(dir))
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println("ready", srv.PID())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := srv.Stop(context.Background()); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println("stopped")
}

// config spares the disk: what happens here to processes, and not to the
// machine's power, needs no fsync.
func config(dir string) localpg.Config {
	return localpg.Config{Dir: dir, Log: slog.New(slog.DiscardHandler), Set: map[string]string{"fsync": "off", "shared_buffers": "16MB"}}
}

// home is a directory that the database user can reach. The testing package
// closes its own to others.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; filepath.Dir(d) != d && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "pg")
}

// prepared is a stopped cluster that the tests copy, because initdb is slow.
var prepared struct {
	once sync.Once
	dir  string
	err  error
}

// cluster answers a home that holds a cluster.
func cluster(t *testing.T) string {
	t.Helper()
	prepared.once.Do(func() {
		if prepared.dir, prepared.err = os.MkdirTemp("", "localpg-test-"); prepared.err != nil {
			return
		}
		if prepared.err = os.Chmod(prepared.dir, 0o755); prepared.err != nil {
			return
		}
		srv, err := localpg.Start(deadline(t), config(prepared.dir))
		if err == nil {
			err = srv.Stop(deadline(t))
		}
		prepared.err = err
	})
	if prepared.err != nil {
		t.Fatal(prepared.err)
	}
	dir := home(t)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(prepared.dir, "data"), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, dir string) *localpg.Server {
	t.Helper()
	return startWith(t, config(dir))
}

func startWith(t *testing.T, cfg localpg.Config) *localpg.Server {
	t.Helper()
	srv, err := localpg.Start(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return srv
}

func stop(t *testing.T, srv *localpg.Server) {
	t.Helper()
	if err := srv.Stop(deadline(t)); err != nil {
		t.Fatal(err)
	}
}

func one[T any](t *testing.T, srv *localpg.Server, sql string) (v T) {
	t.Helper()
	conn, err := pgx.Connect(deadline(t), srv.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(deadline(t))
	if err := conn.QueryRow(deadline(t), sql).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func do(t *testing.T, srv *localpg.Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(deadline(t), srv.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(deadline(t))
	if _, err := conn.Exec(deadline(t), sql); err != nil {
		t.Fatal(err)
	}
}

// state is the cluster's own word on how it ended.
func state(t *testing.T, dir string) string {
	t.Helper()
	tools, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pg_controldata")
	if len(tools) == 0 {
		t.Fatal("no pg_controldata")
	}
	cmd := exec.Command(tools[len(tools)-1], "-D", filepath.Join(dir, "data"))
	cmd.Env = []string{"LC_ALL=C"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "Database cluster state:"); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatalf("no state in %s", out)
	return ""
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	ctx := deadline(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for syscall.Kill(pid, 0) == nil {
		// An orphan whose parent does not wait stays a zombie: ended all the same.
		if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(raw), ") Z ") {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("process %d does not end", pid)
		case <-tick.C:
		}
	}
}

func TestLifeOfACluster(t *testing.T) {
	t.Parallel()
	dir := home(t)
	srv := startWith(t, localpg.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if got := one[string](t, srv, `select datcollate || ' ' || pg_encoding_to_char(encoding) from pg_database where datname = 'template1'`); got != "C.UTF-8 UTF8" {
		t.Errorf("collation and encoding %q", got)
	}
	if got := one[string](t, srv, `select current_setting('listen_addresses') || current_setting('fsync')`); got != "on" {
		t.Errorf("listen_addresses and fsync %q, want none and on", got)
	}
	do(t, srv, `create table kept (v int); insert into kept values (42)`)
	if err := srv.CreateDatabase(deadline(t), "twice"); err != nil {
		t.Error(err)
	}
	if err := srv.CreateDatabase(deadline(t), "twice"); err != nil {
		t.Error(err)
	}
	for path, mode := range map[string]os.FileMode{"data": 0o700, "run": 0o700, "postgres.log": 0o600} {
		st, err := os.Stat(filepath.Join(dir, path))
		if err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: mode %v, %v", path, st.Mode(), err)
		}
	}
	stop(t, srv)
	stop(t, srv)
	if srv.Err() != nil || srv.PID() != 0 {
		t.Errorf("after Stop: %v, pid %d", srv.Err(), srv.PID())
	}
	if got := state(t, dir); got != "shut down" {
		t.Errorf("state %q", got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "run", "*")); len(left) > 0 {
		t.Errorf("sockets left: %v", left)
	}

	again := start(t, dir)
	if got := one[int](t, again, `select v from kept`); got != 42 {
		t.Errorf("kept %d", got)
	}
}

func TestStopEndsOpenTransactions(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	srv := start(t, dir)
	conn, err := pgx.Connect(deadline(t), srv.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(deadline(t))
	if _, err := conn.Exec(deadline(t), `begin; create table unfinished ()`); err != nil {
		t.Fatal(err)
	}
	stop(t, srv)
	if got := state(t, dir); got != "shut down" {
		t.Errorf("state %q", got)
	}
}

func TestStopInAHurryRecovers(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	srv := start(t, dir)
	do(t, srv, `create table kept (v int); insert into kept values (7)`)
	syscall.Kill(srv.PID(), syscall.SIGSTOP) // deaf to a polite request
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := srv.Stop(over); err == nil || !strings.Contains(err.Error(), "recovers") {
		t.Errorf("Stop = %v", err)
	}
	if got := one[int](t, start(t, dir), `select v from kept`); got != 7 {
		t.Errorf("kept %d", got)
	}
}

func TestKilledPostmasterComesBack(t *testing.T) {
	t.Parallel()
	srv := start(t, cluster(t))
	do(t, srv, `create table kept (v int); insert into kept values (1)`)
	old := srv.PID()
	syscall.Kill(old, syscall.SIGKILL)
	ctx := deadline(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn, err := pgx.Connect(ctx, srv.DSN("postgres")); err == nil && srv.PID() != old {
			conn.Close(ctx)
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("did not come back")
		case <-tick.C:
		}
	}
	if got := one[int](t, srv, `select v from kept`); got != 1 {
		t.Errorf("kept %d", got)
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	if err := os.WriteFile(filepath.Join(dir, "postgres.log"), make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	stop(t, start(t, dir))
	st, err := os.Stat(filepath.Join(dir, "postgres.log"))
	if err != nil || st.Size() == 0 || st.Size() > 1<<20 {
		t.Errorf("the log was not turned over: %v, %v", st, err)
	}
}

func waitFor(t *testing.T, path string) {
	t.Helper()
	ctx := deadline(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(path); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s does not appear", path)
		case <-tick.C:
		}
	}
}
