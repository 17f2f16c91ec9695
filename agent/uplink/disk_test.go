package uplink

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// blocked makes one file of a directory impossible to replace, whoever asks,
// and returns what ends that.
func blocked(t *testing.T, dir, name string) (unblock func()) {
	t.Helper()
	path, aside := filepath.Join(dir, name), filepath.Join(dir, "aside-"+name)
	had := os.Rename(path, aside) == nil
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if had {
			if err := os.Rename(aside, path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// smallDisk mounts a tiny file system; fill uses it up, and free makes room.
func smallDisk(t *testing.T) (dir string, fill, free func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	ballast := filepath.Join(dir, "ballast")
	fill = func() {
		if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
	}
	free = func() {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
	return dir, fill, free
}

func readOnly(t *testing.T, dir string, on bool) {
	t.Helper()
	flags := uintptr(syscall.MS_REMOUNT)
	if on {
		flags |= syscall.MS_RDONLY
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, "size=64k"); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, dir string) *Identity {
	t.Helper()
	id, err := OpenIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// A renewed certificate that cannot be written is used, and written as soon
// as that is possible: else a restart would find one that has ended.
func TestRenewalThatCannotBeWritten(t *testing.T) {
	for _, name := range []string{certFile, identityFile} {
		id := identity(t)
		old, now := id.Certificate(), time.Now()
		der := certify(t, id.key.(*ecdsa.PrivateKey))
		unblock := blocked(t, id.dir, name)
		err := id.store(der, now)
		if !errors.Is(err, ErrNotSaved) || !strings.Contains(err.Error(), name) {
			t.Fatalf("%s: %v", name, err)
		}
		if id.Certificate().Equal(old) {
			t.Errorf("%s: the old certificate is in use still, and ends", name)
		}
		said := err.Error()
		for i, most := range []time.Duration{1, 2, 4, 8, 16, 20, 20, 20} {
			wait := id.RenewAt().Sub(now)
			if want := most * saveAgainMin; wait != want {
				t.Errorf("%s: after %d failures it is tried again in %v, want %v", name, i+1, wait, want)
			}
			if !id.onlySave(now) {
				t.Errorf("%s: another certificate would be asked for", name)
			}
			if err := id.save(now); err == nil || err.Error() != said {
				t.Errorf("%s: the same trouble reads %v, then %v", name, said, err)
			}
		}
		unblock()
		if err := id.save(now); err != nil {
			t.Fatal(err)
		}
		if left := id.RenewAt().Sub(now); left < 19*time.Hour || id.onlySave(now) {
			t.Errorf("%s: once written it is renewed in %v", name, left)
		}
		if again := mustOpen(t, id.dir); !again.Certificate().Equal(id.Certificate()) || !again.RenewAt().Equal(id.RenewAt()) {
			t.Errorf("%s: a restart finds another certificate", name)
		}
	}
}

// On a full and on a read-only disk the agent runs on, and a restart finds
// whole files with the right modes.
func TestFullAndReadOnlyDisk(t *testing.T) {
	dir, fill, free := smallDisk(t)
	from := identity(t)
	if err := os.CopyFS(dir, os.DirFS(from.dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, keyFile), 0o600); err != nil {
		t.Fatal(err)
	}
	id, log := mustOpen(t, dir), slog.New(slog.DiscardHandler)
	ca, err := os.ReadFile(filepath.Join(dir, caFile))
	if err != nil {
		t.Fatal(err)
	}
	before := id.Certificate()
	trouble := func(what string) {
		t.Helper()
		if err := id.store(certify(t, id.key.(*ecdsa.PrivateKey)), time.Now()); !errors.Is(err, ErrNotSaved) {
			t.Errorf("%s: a renewal: %v", what, err)
		}
		if got := mustOpen(t, dir); !got.Certificate().Equal(before) {
			t.Errorf("%s: the certificate on disk changed", what)
		}
		if err := id.UseCA(ca); err != nil {
			t.Errorf("%s: the same CA again: %v", what, err)
		}
		if err := id.UseCA(append([]byte("# another\n"), ca...)); !errors.Is(err, ErrNotSaved) {
			t.Errorf("%s: another CA: %v", what, err)
		}
		unlock, err := Lock(dir)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := Lock(dir); err == nil {
			t.Errorf("%s: two processes hold the lock", what)
		}
		unlock()
		if left, _ := filepath.Glob(filepath.Join(dir, ".*-*")); len(left) > 0 {
			t.Errorf("%s: left over: %v", what, left)
		}
	}
	fill()
	trouble("full")
	p := openPosition(dir, log)
	p.begin(1, 1)
	p.take()
	free()
	readOnly(t, dir, true)
	trouble("read-only")
	readOnly(t, dir, false)
	if err := id.save(time.Now()); err != nil {
		t.Fatal(err)
	}
	p.close()
	for name, want := range map[string]os.FileMode{keyFile: 0o600, positionFile: 0o600, certFile: 0o644, identityFile: 0o644, caFile: 0o644} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %v", name, info.Mode(), err, want)
		}
	}
}

// reuse reports whether a restart now would use a number of epoch again.
func reuse(dir string, epoch, last uint64) bool {
	e, next := openPosition(dir, slog.New(slog.DiscardHandler)).at(true)
	return e == epoch && next <= last
}

// Numbers that could not be reserved are never used again by a restart,
// however the disk fails and when it recovers.
func TestPositionOnABadDisk(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	t.Run("full", func(t *testing.T) {
		dir, fill, free := smallDisk(t)
		p := openPosition(dir, log)
		p.begin(7, 1)
		fill()
		last := uint64(0)
		for range 2*positionBlock + 5 {
			last = p.take()
		}
		if last != 2*positionBlock+5 || p.spent() {
			t.Errorf("it stopped at %d, spent %v", last, p.spent())
		}
		free()
		if reuse(dir, 7, last) {
			t.Error("a restart uses numbers again")
		}
	})
	t.Run("read-only", func(t *testing.T) {
		dir, _, _ := smallDisk(t)
		p := openPosition(dir, log)
		p.begin(7, 1)
		readOnly(t, dir, true)
		for range positionBlock {
			p.take()
		}
		if e, _ := p.at(false); !p.spent() || e != 7 {
			t.Errorf("spent %v; epoch %d while something is unacknowledged, want 7", p.spent(), e)
		}
		if e, _ := p.at(true); e != 0 {
			t.Errorf("idle: epoch %d, want a new one", e)
		}
		p.begin(8, 1)
		if n := p.take(); n != 1 || p.spent() {
			t.Errorf("the new epoch begins at %d, spent %v", n, p.spent())
		}
		// A start on the read-only disk takes up no saved epoch.
		if e, _ := openPosition(dir, log).at(true); e != 0 {
			t.Errorf("a restart on the read-only disk uses epoch %d", e)
		}
		readOnly(t, dir, false)
		if reuse(dir, 7, positionBlock) {
			t.Error("a restart uses numbers again")
		}
	})
	t.Run("recovers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			dir := t.TempDir()
			p := openPosition(dir, log)
			unblock := blocked(t, dir, positionFile)
			p.begin(7, 1)
			p.take()
			unblock()
			time.Sleep(positionAgain) // the bubble's clock
			last := p.take()
			if e, next := openPosition(dir, log).at(true); e != 7 || next <= last {
				t.Errorf("after it recovered: epoch %d, next %d, last used %d", e, next, last)
			}
		})
	})
}

func saved(t *testing.T, s *Switches) []string {
	t.Helper()
	off, err := s.Saved()
	if err != nil {
		t.Fatal(err)
	}
	return off
}

func TestSwitchesOutliveTheProcess(t *testing.T) {
	id, log := identity(t), slog.New(slog.DiscardHandler)
	s := NewSwitches(id, log)
	if off := saved(t, s); len(off) != 0 {
		t.Errorf("fresh: %v", off)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.Set([]string{"storage", "network", "network", strings.Repeat("x", 1000)})
	until(t, "the list is saved", func() bool { return cmp.Equal(saved(t, s), []string{"network", "storage"}) })
	s.Set(nil)
	until(t, "it is lifted", func() bool { return len(saved(t, s)) == 0 })
	s.Set([]string{"process"})
	cancel() // a list that just came is still written
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if off := saved(t, NewSwitches(id, log)); !cmp.Equal(off, []string{"process"}) {
		t.Errorf("after a restart: %v", off)
	}

	path := filepath.Join(id.dir, switchFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, damage := range []string{"", "{}", "null", string(whole[:len(whole)/2]), strings.Replace(string(whole), "process", "procass", 1), string(make([]byte, len(whole)))} {
		if err := os.WriteFile(path, []byte(damage), 0o600); err != nil {
			t.Fatal(err)
		}
		if off, err := s.Saved(); err == nil || !strings.Contains(err.Error(), switchFile) {
			t.Errorf("%q reads as %v, %v", damage, off, err)
		}
	}
	s.Set(nil)
	if err := s.write(); err != nil || len(saved(t, s)) != 0 {
		t.Errorf("a damaged file is replaced: %v", err)
	}
}

// When a list that keeps more off cannot be written, a restart must not open
// what it names.
func TestSwitchesOnABadDisk(t *testing.T) {
	dir, fill, free := smallDisk(t)
	s := &Switches{dir: dir, log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	safe := func(what string, want ...string) {
		t.Helper()
		if off, err := s.Saved(); err == nil && !cmp.Equal(off, want) {
			t.Errorf("%s: a restart keeps off %v, want %v or all", what, off, want)
		}
	}
	fill()
	s.Set([]string{"network"})
	_ = s.write()
	safe("full, no file before", "network")
	free()
	if err := s.write(); err != nil || !cmp.Equal(saved(t, s), []string{"network"}) {
		t.Fatalf("once there is room: %v, %v", saved(t, s), err)
	}
	fill()
	s.Set([]string{"network", "process"})
	if err := s.write(); err != nil || !cmp.Equal(saved(t, s), []string{"network", "process"}) {
		t.Errorf("in place of the old list: %v", err)
	}
	s.Set(nil)
	if err := s.write(); err == nil || !cmp.Equal(saved(t, s), []string{"network", "process"}) {
		t.Errorf("a lift that cannot be written: %v", err)
	}
	free()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	until(t, "the lift is written once there is room", func() bool { return len(saved(t, s)) == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	readOnly(t, dir, true)
	s.Set([]string{"network"})
	if err := s.write(); err == nil || !strings.Contains(err.Error(), switchFile) {
		t.Errorf("read-only: %v", err)
	}
}
