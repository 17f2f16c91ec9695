// Package migrations owns the database schema: numbered SQL files, embedded,
// forward-only, and Apply, which brings a database up to them.
//
// Each file opens with a header that says why it exists, which locks it takes
// and how much it touches. Files run as telltale_owner, each in a transaction
// of its own, and never change once released. A file that must read or write
// tenant rows says `set local role telltale_jobs` around it: the owner is
// subject to the row policies and would silently see nothing.
//
// The package knows no slice and no Go type of a table. Start at Apply.
package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
)

//go:embed *.sql
var files embed.FS

type migration struct {
	version  int
	name     string // file name
	sql      string
	checksum string // hex sha256 of sql
}

var fileName = regexp.MustCompile(`^(\d{4})_[a-z0-9_]+\.sql$`)

// load reads the migrations of fsys in order. Versions start at 1 and are
// unique; a number may be missing, because parts grow at different speeds.
func load(fsys fs.FS) ([]migration, error) {
	names, err := fs.Glob(fsys, "*.sql") // sorted
	if err != nil {
		return nil, err
	}
	var out []migration
	for _, n := range names {
		m := fileName.FindStringSubmatch(n)
		if m == nil {
			return nil, fmt.Errorf("migration %s is not named NNNN_words.sql", n)
		}
		v, err := strconv.Atoi(m[1])
		if err != nil {
			return nil, err
		}
		if v == 0 || len(out) > 0 && out[len(out)-1].version == v {
			return nil, fmt.Errorf("migration %s: number %d is zero or used twice", n, v)
		}
		body, err := fs.ReadFile(fsys, n)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(body)
		out = append(out, migration{version: v, name: n, sql: string(body), checksum: hex.EncodeToString(sum[:])})
	}
	return out, nil
}

// Fingerprint is a hex digest of all migrations, for caches of migrated
// databases.
func Fingerprint() (string, error) {
	ms, err := load(files)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, m := range ms {
		fmt.Fprintf(h, "%s %s\n", m.name, m.checksum)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
