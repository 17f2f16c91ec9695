package localpg

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxSocketPath is sun_path of unix(7) less its closing zero.
const maxSocketPath = 107

const socketName = ".s.PGSQL.5432"

// makeSocketDir answers a directory, closed to others, in which the path of
// the socket is short enough: run/ beside the data, else one of /run or the
// temporary directory with a name made from the data's path, so that it is
// found again after a crash.
func makeSocketDir(home string, a account) (string, error) {
	dir := filepath.Join(home, "run")
	if len(filepath.Join(dir, socketName)) <= maxSocketPath {
		return dir, a.own(dir)
	}
	sum := sha256.Sum256([]byte(home))
	base := os.TempDir()
	if os.Geteuid() == 0 {
		base = "/run"
	}
	dir = filepath.Join(base, "telltale-"+hex.EncodeToString(sum[:6]))
	if n := len(filepath.Join(dir, socketName)); n > maxSocketPath {
		return "", fmt.Errorf("the database socket would have a path of %d bytes, more than %d: choose a shorter data or temporary directory", n, maxSocketPath)
	}
	if err := a.own(dir); err != nil {
		return "", fmt.Errorf("directory for the database socket: %w", err)
	}
	return dir, nil
}

func dsn(socketDir, db string) string {
	q := url.Values{"host": {socketDir}, "port": {"5432"}, "user": {"postgres"}}
	return "postgres:///" + url.PathEscape(db) + "?" + q.Encode()
}

// takeLock makes this process the only supervisor of the directory. The lock
// is shared with the server's processes, so that it is held until the last of
// them is gone, also after the supervisor was killed: a new supervisor waits
// for the end of an orphaned server, and refuses when the former one lives.
func takeLock(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	const dying = 500 * time.Millisecond // what a killed process may take to vanish
	for began := time.Now(); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		holder := readPID(path)
		switch {
		case !errors.Is(err, syscall.EWOULDBLOCK):
			err = fmt.Errorf("lock %s: %w", path, err)
		case holder != 0 && alive(holder) && time.Since(began) > dying:
			err = fmt.Errorf("the database in %s is in use by process %d: stop that first, or choose another directory", filepath.Dir(path), holder)
		default:
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = fmt.Errorf("the server of a killed process still runs in %s (see data/postmaster.pid): end it with kill -INT", filepath.Dir(path))
			}
		}
		_ = f.Close()
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err == nil {
			return f, nil
		}
	}
	_ = f.Close()
	return nil, fmt.Errorf("write %s: %w", path, err)
}

// readPID reads the process id on the first line of a file, 0 if there is none.
func readPID(path string) int {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// alive reports whether the process runs; one that has ended and only waits
// for its parent to take notice does not.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH)
	}
	return !bytes.Contains(stat, []byte(") Z ")) // proc(5): pid (comm) state
}

// clearStalePID removes a postmaster.pid whose process is provably no server
// of this directory: PostgreSQL itself refuses to start when the id was given
// to another process of the same user meanwhile. The lock is held, so no
// supervisor of ours runs; a server started by hand is refused.
func clearStalePID(data string) error {
	path := filepath.Join(data, "postmaster.pid")
	pid := readPID(path)
	if pid == 0 || !alive(pid) {
		return nil // PostgreSQL handles these itself
	}
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err == nil {
		if here, err2 := filepath.EvalSymlinks(data); err2 == nil && cwd == here {
			return fmt.Errorf("a PostgreSQL server (process %d) already runs on %s: stop it with pg_ctl -D %s stop", pid, data, data)
		}
	}
	if err != nil && alive(pid) {
		return nil // cannot be told; let PostgreSQL decide
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the stale %s: %w", path, err)
	}
	return nil
}
