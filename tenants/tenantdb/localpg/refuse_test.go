package localpg_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/telltale-dev/telltale/tenants/tenantdb/localpg"
)

// refused starts a server that must not start, and looks for words in why.
func refused(t *testing.T, cfg localpg.Config, words ...string) {
	t.Helper()
	srv, err := localpg.Start(deadline(t), cfg)
	if err == nil {
		_ = srv.Stop(context.Background())
		t.Fatal("it started")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the refusal does not say %q: %v", w, err)
		}
	}
}

func TestRefusesSecondStarter(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	srv := start(t, dir)
	refused(t, config(dir), "in use by process", fmt.Sprint(os.Getpid()))
	if got := one[int](t, srv, `select 1`); got != 1 {
		t.Error("the first server suffered")
	}
}

func TestRefusesOtherMajorVersion(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	stop(t, start(t, dir))
	version := filepath.Join(dir, "data", "PG_VERSION")
	was, err := os.ReadFile(version)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(version, []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, config(dir), "written by PostgreSQL 9", "pg_upgrade", "nothing was touched")
	if got, err := os.ReadFile(version); err != nil || string(got) != "9\n" {
		t.Errorf("the data was touched: %q, %v", got, err)
	}
	if err := os.WriteFile(version, was, 0o600); err != nil {
		t.Fatal(err)
	}
	stop(t, start(t, dir))
}

func TestRefusesForeignDirectory(t *testing.T) {
	t.Parallel()
	dir := home(t)
	precious := filepath.Join(dir, "data", "thesis.txt")
	if err := os.MkdirAll(filepath.Dir(precious), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, config(dir), "not empty")
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

// Not parallel: it sets the umask.
func TestRefusesUnreachableDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root starts the server as somebody else")
	}
	closed := filepath.Join(filepath.Dir(home(t)), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := config(filepath.Join(closed, "deep", "pg"))
	defer syscall.Umask(syscall.Umask(0o077)) // must not close what the server makes itself
	refused(t, cfg, "may not enter "+closed+" ", "chmod o+x "+closed)
	if err := os.Chmod(closed, 0o711); err != nil {
		t.Fatal(err)
	}
	stop(t, start(t, cfg.Dir)) // the remedy helps
}

func TestRefusesMissingBinaries(t *testing.T) {
	t.Parallel()
	cfg := config(home(t))
	cfg.BinDir = t.TempDir()
	refused(t, cfg, cfg.BinDir, "has no postgres")
}

func TestReportsWhyTheServerEnds(t *testing.T) {
	t.Parallel()
	cfg := config(cluster(t))
	cfg.Set = map[string]string{"shared_buffers": "nonsense"}
	refused(t, cfg, "ended while starting", "shared_buffers")
}

func TestLongPathGetsAShortSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(home(t), strings.Repeat("long-name/", 12), "pg")
	srv := start(t, dir)
	one[int](t, srv, `select 1`)
	socket := one[string](t, srv, `select current_setting('unix_socket_directories')`)
	if strings.HasPrefix(socket, dir) || len(socket) > 90 {
		t.Errorf("socket in %s", socket)
	}
	if st, err := os.Stat(socket); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the socket's directory is open: %v, %v", st, err)
	}
	stop(t, srv)
	if _, err := os.Lstat(socket); err == nil {
		t.Errorf("%s is left", socket)
	}
}

func TestStalePidFile(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	stop(t, start(t, dir))
	data, err := os.Stat(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	// The id in the file now belongs to another process of the same user, at
	// which PostgreSQL alone would refuse to start.
	sys := data.Sys().(*syscall.Stat_t)
	other := exec.Command("/bin/cat")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	other.Dir = "/"
	if os.Geteuid() == 0 {
		other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: sys.Uid, Gid: sys.Gid}}
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); other.Wait() }()
	text := fmt.Sprintf("%d\n%s/data\n1700000000\n5432\n%s/run\n\n  1 1\nready\n", other.Process.Pid, dir, dir)
	pidFile := filepath.Join(dir, "data", "postmaster.pid")
	if err := os.WriteFile(pidFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(pidFile, int(sys.Uid), int(sys.Gid)); err != nil {
		t.Fatal(err)
	}
	stop(t, start(t, dir))
}

func TestRefusesServerStartedByHand(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	srv := start(t, dir)
	binary, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", srv.PID()))
	if err != nil {
		t.Fatal(err)
	}
	stop(t, srv)
	data := filepath.Join(dir, "data")
	st, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	byHand := exec.Command(binary, "-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+filepath.Join(dir, "run"))
	byHand.Dir = "/"
	byHand.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGINT}
	if os.Geteuid() == 0 {
		sys := st.Sys().(*syscall.Stat_t)
		byHand.SysProcAttr.Credential = &syscall.Credential{Uid: sys.Uid, Gid: sys.Gid}
	}
	if err := byHand.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { byHand.Process.Signal(syscall.SIGINT); byHand.Wait() }()
	waitFor(t, filepath.Join(dir, "run", ".s.PGSQL.5432"))
	refused(t, config(dir), "already runs", "pg_ctl")
}
