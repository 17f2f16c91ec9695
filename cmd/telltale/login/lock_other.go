//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package login

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// staleLock is when a lock file counts as left behind by a process that died.
const staleLock = 2 * lockTime

// tryLock makes the lock file, or returns nil when it is there already.
func tryLock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrPermission) {
		if st, err := os.Stat(path); err == nil && time.Since(st.ModTime()) > staleLock {
			_ = os.Remove(path)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return func() {
		_ = f.Close()
		_ = os.Remove(path)
	}, nil
}
