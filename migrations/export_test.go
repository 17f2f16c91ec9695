package migrations

import (
	"context"
	"io/fs"
	"log/slog"
	"time"
)

// ApplyFS is Apply with other files and waits.
func ApplyFS(ctx context.Context, dsn string, log *slog.Logger, fsys fs.FS, lockTimeout, backoff, deadline time.Duration) error {
	return apply(ctx, dsn, log, fsys, options{lockTimeout: lockTimeout, backoff: backoff, deadline: deadline})
}

// CheckNames loads fsys and drops the result.
func CheckNames(fsys fs.FS) error {
	_, err := load(fsys)
	return err
}
