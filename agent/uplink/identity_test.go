package uplink

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// identity makes a directory as Enrol would.
func identity(t *testing.T) *Identity {
	t.Helper()
	dir := t.TempDir()
	key, err := makeKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	der := certify(t, key.(*ecdsa.PrivateKey))
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := writeFile(dir, caFile, ca, 0o644); err != nil {
		t.Fatal(err)
	}
	id := &Identity{dir: dir, Server: "127.0.0.1:1", Tenant: "t", Node: "n", key: key}
	if err := id.store(der, time.Now()); err != nil {
		t.Fatal(err)
	}
	id, err = OpenIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func certify(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	now := time.Now()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Minute), NotAfter: now.Add(30 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestIdentityDirectory(t *testing.T) {
	id := identity(t)
	// Two thirds of what was left when it was issued, whatever it is backdated.
	if left := time.Until(id.RenewAt()); left < 19*time.Hour || left > 21*time.Hour {
		t.Errorf("renewal is due in %v, want about 20 h", left)
	}
	if info, _ := os.Stat(filepath.Join(id.Dir(), keyFile)); info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v", info.Mode())
	}
	if _, err := OpenIdentity(t.TempDir()); !errors.Is(err, ErrNotEnrolled) {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := Enrol(t.Context(), Enrolment{Dir: id.Dir()}); err == nil || !strings.Contains(err.Error(), "already holds") {
		t.Errorf("a second enrolment: %v", err)
	}
	if err := id.UseCA([]byte("nonsense")); err == nil {
		t.Error("nonsense is taken for a CA")
	}
}

func TestDamagedIdentityIsNamed(t *testing.T) {
	for _, name := range []string{keyFile, certFile, caFile, identityFile} {
		id := identity(t)
		path := filepath.Join(id.Dir(), name)
		if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenIdentity(id.Dir()); err == nil || errors.Is(err, ErrNotEnrolled) || !strings.Contains(err.Error(), name) {
			t.Errorf("damaged %s: %v", name, err)
		}
	}
	// A certificate of another key must not be used, on disk or from a server.
	id, other := identity(t), identity(t)
	if err := id.store(other.Certificate().Raw, time.Now()); err == nil {
		t.Error("a certificate of another key is taken")
	}
	if id.Certificate().Equal(other.Certificate()) {
		t.Error("and used")
	}
}

func TestLockIsExclusive(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second lock: %v", err)
	}
	unlock()
	again, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestPositionIsNeverReused(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	p := openPosition(dir, log)
	if e, next := p.at(true); e != 0 || next != 1 {
		t.Fatalf("fresh: epoch %d, next %d", e, next)
	}
	p.begin(7, 1)
	last := uint64(0)
	for range 3*positionBlock + 5 {
		last = p.take()
	}
	crashed := openPosition(dir, log) // no close
	if e, next := crashed.at(true); e != 7 || next <= last || next > last+positionBlock+1 {
		t.Errorf("after a crash: epoch %d, next %d, last used %d", e, next, last)
	}
	n := crashed.take()
	crashed.close()
	if _, next := openPosition(dir, log).at(true); next != n+1 {
		t.Errorf("after a clean stop: next %d, want %d", next, n+1)
	}
	crashed.skip(1_000_000)
	if n := crashed.take(); n != 1_000_001 {
		t.Errorf("after a skip: %d", n)
	}
	if err := os.WriteFile(filepath.Join(dir, positionFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if e, next := openPosition(dir, log).at(true); e != 0 || next != 1 {
		t.Errorf("damaged: epoch %d, next %d", e, next)
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backoff
		var sum time.Duration
		for i := range 1000 {
			d := b.next(0)
			bound := backoffMax
			if i < 6 {
				bound = backoffBase << i
			}
			if d < backoffFloor || d > bound+backoffFloor {
				t.Fatalf("attempt %d waits %v, bound %v", i, d, bound)
			}
			sum += d
		}
		if mean := sum / 1000; mean < 20*time.Second || mean > 40*time.Second {
			t.Errorf("mean wait %v: no full jitter", mean)
		}
		for range 100 {
			if d := b.next(90 * time.Second); d < 90*time.Second || d > 135*time.Second {
				t.Errorf("a hint of 90 s gives %v", d)
			}
		}
		b.reset()
		if d := b.next(0); d > backoffBase+backoffFloor {
			t.Errorf("after a reset: %v", d)
		}
	})
}
