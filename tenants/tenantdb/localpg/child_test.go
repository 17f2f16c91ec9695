package localpg_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// child runs this binary as another process, under cred if not nil.
type child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
	pg    int
}

func spawn(t *testing.T, dir string, cred *syscall.Credential) *child {
	t.Helper()
	c := &child{cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), childDir+"="+dir)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	c.cmd.Stderr = os.Stderr
	c.cmd.Dir = "/"
	var err error
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.stdin.Close(); c.cmd.Wait() })
	c.lines = bufio.NewScanner(out)
	pid, ok := strings.CutPrefix(c.line(t), "ready ")
	if !ok {
		t.Fatalf("the child says %q", c.lines.Text())
	}
	c.pg = number(t, pid)
	return c
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (c *child) line(t *testing.T) string {
	t.Helper()
	if !c.lines.Scan() {
		t.Fatal("the child says nothing")
	}
	return c.lines.Text()
}

func TestKilledParentLeavesACleanCluster(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	c := spawn(t, dir, nil)
	c.cmd.Process.Kill()
	// At once, while the orphan may still be shutting down.
	srv := start(t, dir)
	waitGone(t, c.pg)
	if srv.PID() == c.pg {
		t.Error("adopted the orphan")
	}
	stop(t, srv)
	log, err := os.ReadFile(filepath.Join(dir, "postgres.log"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(log), "automatic recovery") || strings.Contains(string(log), "interrupted") {
		t.Errorf("the next start had to recover:\n%s", log)
	}
}

func TestKilledParentShutsDown(t *testing.T) {
	t.Parallel()
	dir := cluster(t)
	c := spawn(t, dir, nil)
	c.cmd.Process.Kill()
	waitGone(t, c.pg)
	if got := state(t, dir); got != "shut down" {
		t.Errorf("state %q", got)
	}
	for _, f := range []string{"data/postmaster.pid", "run/.s.PGSQL.5432"} {
		if _, err := os.Lstat(filepath.Join(dir, f)); err == nil {
			t.Errorf("%s is left", f)
		}
	}
}

func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("this whole run is as an ordinary user")
	}
	dir := home(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// Any account would do; initdb wants one that has a name.
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	uid, gid := number(t, u.Uid), number(t, u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	c := spawn(t, dir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)})
	st, err := os.Stat(fmt.Sprintf("/proc/%d", c.pg))
	if err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != uid {
		t.Errorf("the server does not run as the user: %v", err)
	}
	c.stdin.Close()
	if got := c.line(t); got != "stopped" {
		t.Errorf("the child says %q", got)
	}
	if got := state(t, dir); got != "shut down" {
		t.Errorf("state %q", got)
	}
}
