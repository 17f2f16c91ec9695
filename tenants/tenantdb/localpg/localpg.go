// Package localpg supervises a private PostgreSQL server made of the installed
// binaries: it finds them, makes the data directory, starts `postgres` on a
// Unix socket only, restarts it when it dies and stops it cleanly, even when
// this process is killed.
//
// It is for `telltaled dev` and the tests. It knows nothing of tenants or of
// the schema, never starts on the data of another major version and never
// deletes data. Start reading at Start.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Config says where the server lives. Only Dir and Log are mandatory.
//
// Dir is made when missing and holds data/ (the cluster), run/ (the socket,
// where its path is short enough), postgres.log (at most two files of 8 MiB)
// and lock.
type Config struct {
	Dir    string
	BinDir string            // directory of the binaries; "" picks the newest installed, or the one that fits the data
	User   string            // whom the server runs as when this process is root; "" is postgres
	Set    map[string]string // server settings over the defaults, for example {"fsync": "off"}
	Log    *slog.Logger

	ReadyWithin time.Duration // deadline of one start, recovery included; 0 is 60 s
}

// Server is a running PostgreSQL. Its methods may be called by many goroutines.
type Server struct {
	cfg    Config
	bin    binaries
	acct   account
	socket string // directory of the socket
	lock   *os.File
	out    *logFile

	mu       sync.Mutex
	proc     *os.Process // nil between two runs
	stopping bool
	wake     chan struct{} // closed when stopping starts

	done chan struct{} // closed when the server is down for good
	err  error         // set before done is closed
}

// Start makes the data directory if there is none, starts the server and
// returns once it answers. It refuses, and leaves all as it is, when another
// supervisor or server uses the directory, when the data belongs to another
// major version, and when the database user cannot reach the directory; the
// error says what to do. ctx bounds the start alone, not the server's life.
//
// The server is ended by Stop. If this process dies without it, the kernel
// sends the server SIGINT, which makes it shut down cleanly.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.ReadyWithin <= 0 {
		cfg.ReadyWithin = 60 * time.Second
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil || cfg.Dir == "" {
		return nil, fmt.Errorf("database directory %q: need a path", cfg.Dir)
	}
	cfg.Dir = dir
	s := &Server{cfg: cfg, wake: make(chan struct{}), done: make(chan struct{})}
	if err := s.start(ctx); err != nil {
		s.release()
		return nil, err
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) (err error) {
	if s.acct, err = findAccount(s.cfg.User); err != nil {
		return err
	}
	if s.bin, err = findBinaries(ctx, s.cfg.BinDir, s.data(), s.cfg.Log); err != nil {
		return err
	}
	if err := makeDirs(s.cfg.Dir); err != nil {
		return fmt.Errorf("make the database directory: %w", err)
	}
	if err := s.acct.reaches(s.cfg.Dir); err != nil {
		return err
	}
	if s.lock, err = takeLock(ctx, filepath.Join(s.cfg.Dir, "lock")); err != nil {
		return err
	}
	if s.out, err = openLog(filepath.Join(s.cfg.Dir, "postgres.log")); err != nil {
		return err
	}
	if err := s.initialise(ctx); err != nil {
		return err
	}
	if s.socket, err = makeSocketDir(s.cfg.Dir, s.acct); err != nil {
		return err
	}
	if err := clearStalePID(s.data()); err != nil {
		return err
	}
	p, err := s.launch()
	if err != nil {
		return err
	}
	if err := s.ready(ctx, p); err != nil {
		p.end(5 * time.Second)
		return err
	}
	go s.supervise(p)
	return nil
}

func (s *Server) data() string { return filepath.Join(s.cfg.Dir, "data") }

// DSN is the connection string of a database for the cluster's superuser. The
// socket's directory is closed to everybody but root and the database user.
func (s *Server) DSN(db string) string { return dsn(s.socket, db) }

// PID is the process id of the running postmaster, 0 between two of them.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.Pid
}

// Done is closed when the server is down and will not be restarted.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err says why the server is down; nil while it runs and after Stop.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// CreateDatabase makes a database unless it exists.
func (s *Server) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect to create database %s: %w", name, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize())
	var pe *pgconn.PgError
	if errors.As(err, &pe) && pe.Code == "42P04" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// Stop ends the server: first politely (open transactions are rolled back, all
// is written), and when ctx ends or 20 s have passed, at once (the next start
// recovers). It returns when the server is gone; further calls wait for that.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	if !s.stopping {
		s.stopping = true
		close(s.wake)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
	}
	s.signal(sigImmediate)
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
		s.signal(sigKill)
		<-s.done
	}
	return fmt.Errorf("the database did not shut down in time and was stopped at once; it recovers at the next start: %w", context.Cause(ctx))
}

// release gives back what start took besides the process.
func (s *Server) release() {
	if s.socket != "" && filepath.Dir(s.socket) != s.cfg.Dir {
		_ = os.Remove(s.socket) // empty by now; if not, somebody needs it
	}
	if s.out != nil {
		s.out.Close()
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}
