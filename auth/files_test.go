package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	keys := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range keys { // servers that start at the same time agree
		wg.Go(func() {
			var err error
			if keys[i], err = LoadOrCreateKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, k := range keys {
		if !bytes.Equal(k, keys[0]) || len(k) != KeySize || bytes.Equal(k, make([]byte, KeySize)) {
			t.Fatalf("keys differ: %x", keys)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOrCreateKey(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a readable key: %v", err)
	}
	for what, text := range map[string]string{"empty": "", "short": "abcd", "long": strings.Repeat("a", 66), "not hex": strings.Repeat("x", 64)} {
		bad := filepath.Join(dir, what)
		if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadOrCreateKey(bad); err == nil {
			t.Errorf("%s: accepted", what)
		}
		if got, _ := os.ReadFile(bad); string(got) != text {
			t.Errorf("%s: a bad key file was replaced", what)
		}
	}
	if _, err := LoadOrCreateKey(filepath.Join(dir, "no", "key")); err == nil {
		t.Error("made a directory for a key")
	}
}

func TestSealer(t *testing.T) {
	if _, err := NewSealer(make([]byte, 16)); err == nil {
		t.Error("a short key")
	}
	s, _ := NewSealer(make([]byte, KeySize))
	a, b := s.Seal([]byte("plain"), "use"), s.Seal([]byte("plain"), "use")
	if bytes.Equal(a, b) || bytes.Contains(a, []byte("plain")) {
		t.Error("sealing shows its content")
	}
	if got, err := s.Open(a, "use"); err != nil || string(got) != "plain" {
		t.Error(got, err)
	}
	if _, err := s.Open(a, "other"); err == nil {
		t.Error("opens for another use")
	}
	for i := range a {
		c := append([]byte(nil), a...)
		c[i] ^= 1
		if _, err := s.Open(c, "use"); err == nil {
			t.Errorf("opens with byte %d changed", i)
		}
	}
	for n := range a {
		if _, err := s.Open(a[:n], "use"); err == nil {
			t.Errorf("opens cut to %d", n)
		}
	}
}

func TestLocalTLS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	read := func(hosts ...string) (LocalTLS, *x509.Certificate, []byte) {
		t.Helper()
		files, err := EnsureLocalTLS(dir, hosts)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		ca, err := os.ReadFile(files.CAFile)
		if err != nil {
			t.Fatal(err)
		}
		return files, pair.Leaf, ca
	}
	files, first, ca := read("127.0.0.1", "localhost")
	for _, f := range []string{files.KeyFile, filepath.Join(dir, "ca-key.pem")} {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info, err)
		}
	}
	if _, again, same := read("localhost", "127.0.0.1"); !again.Equal(first) || !bytes.Equal(same, ca) {
		t.Error("a good certificate was replaced")
	}
	_, wider, same := read("127.0.0.1", "localhost", "::1", "node.example")
	if wider.Equal(first) || !bytes.Equal(same, ca) || wider.VerifyHostname("node.example") != nil || wider.VerifyHostname("::1") != nil {
		t.Error("a new host needs a new certificate from the same authority")
	}

	// A client that pins the authority talks to a server that uses the pair.
	cert, err := NewServerCert(files.CertFile, files.KeyFile, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		t.Fatal("no authority in the file")
	}
	c, s := net.Pipe()
	defer c.Close()
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	server := make(chan error, 1)
	go func() {
		server <- tls.Server(s, &tls.Config{GetCertificate: cert.GetCertificate}).HandshakeContext(ctx)
	}()
	if err := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: "localhost"}).HandshakeContext(ctx); err != nil {
		t.Error(err)
	}
	if err := <-server; err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(files.CAFile, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsureLocalTLS(dir, []string{"localhost"}); err == nil {
		t.Error("a damaged authority was replaced: agents that pin it would be lost")
	}
}

// A changed pair is followed, a broken one is not, and nothing is read more
// than once a second.
func TestServerCertReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		files, err := EnsureLocalTLS(dir, []string{"one.example"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := NewServerCert(files.CertFile, files.KeyFile, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		want := func(host string) {
			t.Helper()
			cert, err := s.GetCertificate(nil)
			if err != nil || cert.Leaf.VerifyHostname(host) != nil || !s.Leaf().Equal(cert.Leaf) {
				t.Fatalf("serves %v, %v; want %s", cert.Leaf.DNSNames, err, host)
			}
		}
		want("one.example")
		if _, err := EnsureLocalTLS(dir, []string{"two.example"}); err != nil {
			t.Fatal(err)
		}
		want("one.example")
		time.Sleep(lookEvery)
		want("two.example")
		good, err := os.ReadFile(files.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		for _, broken := range [][]byte{nil, []byte("x")} {
			if err := os.WriteFile(files.KeyFile, broken, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lookEvery)
			want("two.example")
		}
		if err := os.Remove(files.KeyFile); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		want("two.example")
		if err := os.WriteFile(files.KeyFile, good, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := EnsureLocalTLS(dir, []string{"three.example"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookEvery)
		want("three.example")
		if _, err := NewServerCert(files.CertFile, filepath.Join(dir, "no"), slog.New(slog.DiscardHandler)); err == nil {
			t.Error("started without a key")
		}
	})
}
