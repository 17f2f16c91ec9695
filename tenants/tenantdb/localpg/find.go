package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const oldestMajor = 15

// binaries is one installed PostgreSQL.
type binaries struct {
	dir     string
	version string // "15.7"
	major   int
}

func (b binaries) path(name string) string { return filepath.Join(b.dir, name) }

var versionLine = regexp.MustCompile(`\(PostgreSQL\) ((\d+)[^ \n]*)`)

// probe asks the postgres binary in dir for its version.
func probe(ctx context.Context, dir string) (binaries, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, name := range []string{"postgres", "initdb"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return binaries{}, fmt.Errorf("%s has no %s", dir, name)
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return binaries{}, fmt.Errorf("%s/postgres --version: %w", dir, err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		return binaries{}, fmt.Errorf("%s/postgres --version says %q", dir, bytes.TrimSpace(out))
	}
	major, err := strconv.Atoi(string(m[2]))
	if err != nil {
		return binaries{}, err
	}
	return binaries{dir: dir, version: string(m[1]), major: major}, nil
}

// findBinaries picks the binaries: the named directory, else the installed
// major version that wrote the data, else the newest.
func findBinaries(ctx context.Context, named, data string, log *slog.Logger) (binaries, error) {
	wrote, err := dataMajor(data)
	if err != nil {
		return binaries{}, err
	}
	if named != "" {
		b, err := probe(ctx, named)
		if err != nil {
			return b, fmt.Errorf("PostgreSQL binaries: %w", err)
		}
		return b, fits(b, wrote, data)
	}
	var newest, match binaries
	for _, dir := range installed() {
		b, err := probe(ctx, dir)
		if err != nil {
			log.Debug("not a PostgreSQL server", "dir", dir, "err", err)
			continue
		}
		if b.major > newest.major {
			newest = b
		}
		if b.major == wrote && match.dir == "" {
			match = b
		}
	}
	if newest.dir == "" {
		return newest, errors.New("no PostgreSQL server binaries in /usr/lib/postgresql/*/bin or PATH: install the package postgresql (Debian, Ubuntu) or name their directory")
	}
	if match.dir == "" {
		return newest, fits(newest, wrote, data)
	}
	if match.major < newest.major {
		log.Info("staying with the PostgreSQL that wrote the data", "version", match.version, "newest", newest.version)
	}
	return match, fits(match, wrote, data)
}

// installed lists directories that may hold the server binaries.
func installed() []string {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well-formed
	if p, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	return dirs
}

// fits refuses a server that is too old, or of another major version than the
// data (wrote is 0 when there is none).
func fits(b binaries, wrote int, data string) error {
	if wrote != 0 && wrote != b.major {
		return fmt.Errorf(`%s was written by PostgreSQL %d, the binaries in %s are %s; nothing was touched.
Either install PostgreSQL %d again (package postgresql-%d), or upgrade the data as its owner with both versions installed:
  %s -D NEW_DIR --locale=C.UTF-8 --encoding=UTF8 -U postgres
  %s -b /usr/lib/postgresql/%d/bin -B %s -d %s -D NEW_DIR -U postgres
and put NEW_DIR in its place`,
			data, wrote, b.dir, b.version, wrote, wrote, b.path("initdb"), b.path("pg_upgrade"), wrote, b.dir, data)
	}
	if b.major < oldestMajor {
		return fmt.Errorf("PostgreSQL in %s is %s; %d or newer is needed", b.dir, b.version, oldestMajor)
	}
	return nil
}

// dataMajor reads the major version that wrote the data, 0 without data.
func dataMajor(data string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		entries, derr := os.ReadDir(data)
		if derr == nil && len(entries) > 0 {
			return 0, fmt.Errorf("%s is not empty and holds no PostgreSQL cluster: move it away or choose another directory", data)
		}
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the data: %w", err)
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("%s/PG_VERSION says %q, no major version of PostgreSQL 10 or newer", data, strings.TrimSpace(string(raw)))
	}
	return v, nil
}

// Installed answers the version of the binaries that Start would use for a new
// data directory, for example "15.7".
func Installed(ctx context.Context, binDir string) (string, error) {
	b, err := findBinaries(ctx, binDir, "", slog.New(slog.DiscardHandler))
	return b.version, err
}
