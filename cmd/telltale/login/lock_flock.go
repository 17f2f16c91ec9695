//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package login

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock, or returns nil when somebody holds it. The kernel
// frees it when the holder dies. The file stays: to remove it would let two
// processes lock two files of one name.
func tryLock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
