package login

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// ErrNone says that nobody is signed in at a resource.
var ErrNone = errors.New("nobody is signed in")

// How a stored login is renewed.
const (
	ahead    = time.Minute      // before its end an access token is replaced
	lockTime = 40 * time.Second // for another process that renews: two requests' time and some
	lockPoll = 20 * time.Millisecond
	maxLogin = 256 << 10
)

// Store keeps one file a resource in Dir. Any number of processes may use it.
type Store struct {
	Dir  string
	Ends Endpoints
	Now  func() time.Time // nil: time.Now
}

// Path is the file of a resource: readable in its name, and unique.
func (s *Store) Path(resource string) string {
	sum := sha256.Sum256([]byte(resource))
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, strings.TrimPrefix(strings.TrimPrefix(resource, "https://"), "http://"))
	return filepath.Join(s.Dir, fmt.Sprintf("%.80s-%s.json", name, hex.EncodeToString(sum[:6])))
}

// Get reads the login of a resource. ErrNone when there is none.
func (s *Store) Get(resource string) (Login, error) {
	var in Login
	path := s.Path(resource)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return in, ErrNone
	}
	if err != nil {
		return in, fmt.Errorf("read the stored login: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return in, fmt.Errorf("read the stored login: %w", err)
	}
	for _, c := range []struct {
		path string
		mode fs.FileMode
		make string
	}{{path, st.Mode(), "600"}, {s.Dir, modeOf(s.Dir), "700"}} {
		if runtime.GOOS != "windows" && c.mode.Perm()&0o077 != 0 {
			return in, wrong(fmt.Sprintf("chmod %s %s, and sign in again if somebody may have read it", c.make, c.path), "%s is open to others (mode %04o), so its credential is not used", c.path, c.mode.Perm())
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxLogin))
	if err != nil {
		return in, fmt.Errorf("read the stored login: %w", err)
	}
	if json.Unmarshal(raw, &in) != nil || in.Resource != resource || in.AccessToken == "" {
		return Login{}, wrong("sign in again with telltale login", "the stored login %s cannot be used", path)
	}
	return in, nil
}

func modeOf(dir string) fs.FileMode {
	st, err := os.Stat(dir)
	if err != nil {
		return 0
	}
	return st.Mode()
}

// Put stores a login; a reader sees the old one or the new one.
func (s *Store) Put(ctx context.Context, in Login) error {
	unlock, err := s.lock(ctx, in.Resource)
	if err != nil {
		return err
	}
	defer unlock()
	return s.put(in)
}

func (s *Store) put(in Login) error {
	if err := s.mkdir(); err != nil {
		return err
	}
	if err := os.Chmod(s.Dir, 0o700); err != nil { // it may be an older one
		return fmt.Errorf("store the login: %w", err)
	}
	raw, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.Dir, ".login-*") // 0600
	if err != nil {
		return fmt.Errorf("store the login: %w", err)
	}
	_, err = f.Write(append(raw, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), s.Path(in.Resource))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("store the login: %w", err)
	}
	return nil
}

func (s *Store) mkdir() error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("store the login: %w", err)
	}
	return nil
}

// Remove forgets the login of a resource and returns it, so that it can be
// revoked; ErrNone when there is none. A file that cannot be used is removed
// all the same.
func (s *Store) Remove(ctx context.Context, resource string) (Login, error) {
	unlock, err := s.lock(ctx, resource)
	if err != nil {
		return Login{}, err
	}
	defer unlock()
	in, err := s.Get(resource)
	if errors.Is(err, ErrNone) {
		return in, err
	}
	if gone := os.Remove(s.Path(resource)); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		return in, fmt.Errorf("remove the stored login: %w", gone)
	}
	return in, err
}

// Fresh returns the login of a resource with an access token that holds for a
// while: one that is about to end is renewed first. While the provider is away
// the old token serves to its end.
func (s *Store) Fresh(ctx context.Context, resource string) (Login, error) {
	in, err := s.Get(resource)
	if err != nil || !s.ending(in) {
		return in, err
	}
	next, err := s.renew(ctx, resource, in.AccessToken)
	if _, away := errors.AsType[*Unreachable](err); away && s.now().Before(in.Expires) {
		return in, nil
	}
	return next, err
}

// Renew returns the login with another access token than the one that the
// server refused.
func (s *Store) Renew(ctx context.Context, resource, refused string) (Login, error) {
	return s.renew(ctx, resource, refused)
}

// renew holds the lock while it asks, and looks again once it has it: a
// refresh token is good for one use, and a second one would end the login.
func (s *Store) renew(ctx context.Context, resource, used string) (Login, error) {
	unlock, err := s.lock(ctx, resource)
	if err != nil {
		return Login{}, err
	}
	defer unlock()
	in, err := s.Get(resource)
	if err != nil || in.AccessToken != used && !s.ending(in) {
		return in, err // another process was here
	}
	again := "sign in again: telltale login --url " + resource
	if in.RefreshToken == "" {
		return in, &Error{Msg: "the login at " + in.Issuer + " is over, and it cannot be renewed", Next: again}
	}
	// Once the provider has the request, its answer must be kept, or the login
	// is lost: an interrupted command finishes this first.
	err = s.Ends.renew(context.WithoutCancel(ctx), &in)
	if errors.Is(err, ErrEnded) {
		return in, &Error{Msg: "the login at " + in.Issuer + " has ended: it ran out or was revoked", Next: again}
	}
	if err != nil {
		return in, err
	}
	return in, s.put(in)
}

func (s *Store) ending(in Login) bool {
	if in.Expires.IsZero() {
		return false
	}
	margin := min(ahead, in.Expires.Sub(in.Obtained)/4) // a token of seconds is not always about to end
	return !s.now().Add(max(margin, 0)).Before(in.Expires)
}

func (s *Store) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// lock keeps other processes, and other goroutines, from the resource's file.
func (s *Store) lock(ctx context.Context, resource string) (unlock func(), err error) {
	if err := s.mkdir(); err != nil {
		return nil, err
	}
	path := s.Path(resource) + ".lock"
	ctx, cancel := context.WithTimeout(ctx, lockTime)
	defer cancel()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		unlock, err := tryLock(path)
		if err != nil {
			return nil, fmt.Errorf("lock the stored login: %w", err)
		}
		if unlock != nil {
			return unlock, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, ctx.Err()
			}
			return nil, wrong("end it, or try again", "another telltale holds %s for more than %s", path, lockTime)
		}
	}
}
