package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	sigFast      = syscall.SIGINT  // roll back, write all, end
	sigImmediate = syscall.SIGQUIT // end at once, recover at the next start
	sigKill      = syscall.SIGKILL
)

// settings are the server's defaults here; Config.Set goes over them.
var settings = map[string]string{
	"listen_addresses":        "",
	"unix_socket_permissions": "0700",
	"max_connections":         "100",
	"shared_buffers":          "128MB",
	"max_wal_size":            "1GB",
	"autovacuum_naptime":      "10s", // a first start fills empty tables fast; plans made without their statistics are slow
	"logging_collector":       "off",
	"log_destination":         "stderr",
	"log_line_prefix":         "%m [%p] %q%u@%d ",
	"log_timezone":            "UTC",
	"timezone":                "UTC",
}

// initialise makes the cluster unless there is one. It is made aside and then
// renamed, so that data/ is whole or absent; a leftover of an interrupted
// attempt never held data.
func (s *Server) initialise(ctx context.Context) error {
	if wrote, err := dataMajor(s.data()); err != nil || wrote != 0 {
		if err == nil {
			err = s.acct.own(s.data())
		}
		return err
	}
	aside := s.data() + ".initdb"
	if err := os.RemoveAll(aside); err != nil {
		return fmt.Errorf("clear an interrupted initdb: %w", err)
	}
	if err := s.acct.own(aside); err != nil {
		return fmt.Errorf("make the data directory: %w", err)
	}
	args := []string{"-D", aside, "-U", "postgres", "--encoding=UTF8", "--locale=C.UTF-8", "--lc-messages=C",
		"--auth-local=trust", "--auth-host=reject"}
	if s.cfg.Set["fsync"] == "off" {
		args = append(args, "--no-sync", "--wal-segsize=1")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.bin.path("initdb"), args...)
	cmd.Env = environment()
	cmd.Dir = aside
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.acct.cred}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(out.Bytes()))
	}
	// An empty data/ may be there already; rename replaces it.
	if err := os.Rename(aside, s.data()); err != nil {
		return fmt.Errorf("put the new cluster in its place: %w", err)
	}
	return nil
}

// environment is all the server gets to see of ours.
func environment() []string { return []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"} }

// process is one run of the server.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it is gone
	err    error         // set before exited is closed
}

// launch starts the server. The kernel sends it SIGINT when the thread that
// started it ends; therefore one goroutine keeps that thread until the server
// is gone. A group of its own keeps the terminal's Ctrl-C from it: the parts
// that use the database stop first.
func (s *Server) launch() (*process, error) {
	all := maps.Clone(settings)
	maps.Copy(all, s.cfg.Set)
	all["unix_socket_directories"] = s.socket
	cmd := exec.Command(s.bin.path("postgres"), arguments(s.data(), all)...)
	cmd.Dir = s.data()
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = s.out, s.out
	cmd.WaitDelay = 5 * time.Second // for children that outlive a killed postmaster
	cmd.ExtraFiles = []*os.File{s.lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.acct.cred, Pdeathsig: sigFast, Setpgid: true}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.bin.path("postgres"), err)
	}
	s.setProcess(cmd.Process)
	return p, nil
}

func arguments(data string, set map[string]string) []string {
	args := []string{"-D", data}
	for _, k := range slices.Sorted(maps.Keys(set)) {
		args = append(args, "-c", k+"="+set[k])
	}
	return args
}

// end stops a process that never became ready.
func (p *process) end(within time.Duration) {
	_ = p.cmd.Process.Signal(sigFast)
	t := time.NewTimer(within)
	defer t.Stop()
	select {
	case <-p.exited:
	case <-t.C:
		_ = p.cmd.Process.Signal(sigKill)
		<-p.exited
	}
}

// ready waits until the server accepts a connection.
func (s *Server) ready(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ReadyWithin)
	defer cancel()
	pause := 5 * time.Millisecond
	for {
		conn, err := pgconn.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		t := time.NewTimer(pause)
		select {
		case <-p.exited:
			t.Stop()
			return fmt.Errorf("the database ended while starting (%w):\n%s", exitError(p.err), s.out.Tail())
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("the database was not ready within %v: %w; last attempt: %w\n%s", s.cfg.ReadyWithin, ctx.Err(), err, s.out.Tail())
		case <-t.C:
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

func exitError(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// supervise restarts the server when it ends unasked, at most five times in a
// minute, and stops it when told to.
func (s *Server) supervise(p *process) {
	var deaths []time.Time
	for {
		select {
		case <-p.exited:
		case <-s.wake:
			s.signal(sigFast)
			<-p.exited
			s.finish(nil)
			return
		}
		now := time.Now()
		deaths = append(slices.DeleteFunc(deaths, func(t time.Time) bool { return now.Sub(t) > time.Minute }), now)
		s.setProcess(nil)
		s.cfg.Log.Error("the database ended unasked; starting it again", "err", exitError(p.err), "log", s.out.Tail())
		next, err := s.revive(len(deaths))
		if err != nil {
			s.finish(err)
			return
		}
		if next == nil {
			s.finish(nil)
			return
		}
		p = next
	}
}

// revive starts the server again. The processes of a killed postmaster leave
// by themselves but may take a moment, until then a start fails: hence the
// attempts. It answers nil when told to stop meanwhile.
func (s *Server) revive(deaths int) (*process, error) {
	if deaths > 5 {
		return nil, fmt.Errorf("the database ended %d times within a minute, see %s", deaths, filepath.Join(s.cfg.Dir, "postgres.log"))
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-s.wake:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(); <-watching }()
	var last error
	for pause, began := 20*time.Millisecond, time.Now(); last == nil || time.Since(began) < s.cfg.ReadyWithin; pause = min(2*pause, 500*time.Millisecond) {
		p, err := s.launch()
		if err == nil {
			if err = s.ready(ctx, p); err == nil {
				return p, nil
			}
			p.end(5 * time.Second)
			s.setProcess(nil)
		}
		last = err
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, nil
		}
	}
	return nil, fmt.Errorf("the database ended and cannot be started again: %w", last)
}

func (s *Server) setProcess(p *os.Process) {
	s.mu.Lock()
	s.proc = p
	s.mu.Unlock()
}

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		_ = s.proc.Signal(sig) // it may be gone already
	}
}

// finish marks the server as down for good.
func (s *Server) finish(err error) {
	s.setProcess(nil)
	s.release()
	if err != nil {
		s.cfg.Log.Error("the database is down", "err", err)
	}
	s.err = err
	close(s.done)
}
