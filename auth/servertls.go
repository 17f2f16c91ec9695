package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

const (
	localCALifetime   = 10 * 365 * 24 * time.Hour
	localCertLifetime = 90 * 24 * time.Hour
	localRenewLeft    = 30 * 24 * time.Hour
	lookEvery         = time.Second // how often a certificate's files are looked at
)

// LocalTLS names the files of a server certificate and of the authority that
// signed it.
type LocalTLS struct {
	CAFile, CertFile, KeyFile string
}

// EnsureLocalTLS makes sure that dir holds a server certificate for the names
// and addresses, signed by an authority of its own that agents can pin. It is
// for development and first steps; a real server brings its own certificate.
// The authority stays the same over calls, the certificate is made anew when
// it is missing, nearly over, or lacks a host. Keys have mode 0600.
func EnsureLocalTLS(dir string, hosts []string) (LocalTLS, error) {
	files := LocalTLS{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem")}
	caKeyFile := filepath.Join(dir, "ca-key.pem")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return files, err
	}
	now := time.Now()
	ca, err := tls.LoadX509KeyPair(files.CAFile, caKeyFile)
	switch {
	case errors.Is(err, os.ErrNotExist) || err == nil && ca.Leaf.NotAfter.Sub(now) < localCertLifetime:
		if ca, err = makeLocalCA(files.CAFile, caKeyFile, now); err != nil {
			return files, fmt.Errorf("make the local certificate authority: %w", err)
		}
	case err != nil:
		return files, fmt.Errorf("read the local certificate authority: %w", err)
	}
	if have, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile); err == nil && fits(have.Leaf, ca.Leaf, hosts, now) {
		return files, nil
	}
	if err := makeLocalCert(files, ca, hosts, now); err != nil {
		return files, fmt.Errorf("make the local server certificate: %w", err)
	}
	return files, nil
}

func fits(cert, ca *x509.Certificate, hosts []string, now time.Time) bool {
	if cert.CheckSignatureFrom(ca) != nil || cert.NotAfter.Sub(now) < localRenewLeft {
		return false
	}
	for _, h := range hosts {
		if cert.VerifyHostname(h) != nil {
			return false
		}
	}
	return true
}

func makeLocalCA(certFile, keyFile string, now time.Time) (tls.Certificate, error) {
	key, serial, err := newKey()
	if err != nil {
		return tls.Certificate{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Telltale local authority"},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(localCALifetime),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	if err := writePair(certFile, keyFile, [][]byte{der}, key); err != nil {
		return tls.Certificate{}, err
	}
	return tls.LoadX509KeyPair(certFile, keyFile)
}

func makeLocalCert(files LocalTLS, ca tls.Certificate, hosts []string, now time.Time) error {
	key, serial, err := newKey()
	if err != nil {
		return err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Telltale local server"},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(localCertLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.Leaf, key.Public(), ca.PrivateKey)
	if err != nil {
		return err
	}
	return writePair(files.CertFile, files.KeyFile, [][]byte{der, ca.Leaf.Raw}, key)
}

func newKey() (*ecdsa.PrivateKey, *big.Int, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	serial, err := newSerial()
	return key, serial, err
}

func writePair(certFile, keyFile string, chain [][]byte, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	var certs []byte
	for _, c := range chain {
		certs = append(certs, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c})...)
	}
	if err := replaceFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	return replaceFile(certFile, certs, 0o644)
}

// replaceFile writes a file by rename, so that a reader never sees half of it.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// ServerCert serves a certificate from two files and follows their changes
// without a restart. A pair that cannot be read, for example while it is being
// replaced, is logged once and the last good one stays. Safe for concurrent use.
type ServerCert struct {
	certFile, keyFile string
	log               *slog.Logger

	mu     sync.Mutex
	cert   *tls.Certificate
	looked time.Time
	stamp  string // of the files that were read last, good or not
}

// NewServerCert reads the pair, which must be good at the start.
func NewServerCert(certFile, keyFile string, log *slog.Logger) (*ServerCert, error) {
	s := &ServerCert{certFile: certFile, keyFile: keyFile, log: log}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("read the server certificate: %w", err)
	}
	s.cert, s.stamp, s.looked = &cert, s.stat(), time.Now()
	return s, nil
}

// GetCertificate is for tls.Config. It looks at the files once a second at most.
func (s *ServerCert) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.looked) >= lookEvery {
		s.looked = now
		s.reload()
	}
	return s.cert, nil
}

// Leaf is the certificate in use, to be read only.
func (s *ServerCert) Leaf() *x509.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cert.Leaf
}

func (s *ServerCert) reload() {
	stamp := s.stat()
	if stamp == s.stamp {
		return
	}
	s.stamp = stamp
	cert, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
	if err != nil {
		s.log.Error("changed server certificate cannot be read; the former one stays", "cert", s.certFile, "err", err)
		return
	}
	s.cert = &cert
	s.log.Info("server certificate reloaded", "cert", s.certFile, "not_after", cert.Leaf.NotAfter)
}

// stat is what changes when either file is replaced or rewritten.
func (s *ServerCert) stat() string {
	var out string
	for _, f := range []string{s.certFile, s.keyFile} {
		if info, err := os.Stat(f); err == nil {
			out += fmt.Sprintf("%d %d;", info.ModTime().UnixNano(), info.Size())
		} else {
			out += "gone;"
		}
	}
	return out
}
