package uplink

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// The files of an identity directory.
const (
	keyFile      = "key.pem"       // 0600, made on the node, never leaves it
	certFile     = "cert.pem"      // the client certificate
	caFile       = "ca.pem"        // who signs the server's certificate
	identityFile = "identity.json" // server, tenant, node, when to renew
	positionFile = "position.json" // epoch and the sequence numbers in use
)

// ErrNotEnrolled means that a directory holds no identity.
var ErrNotEnrolled = errors.New("this directory holds no node identity; run `telltale-agent enrol` first")

// Identity is what makes a machine a node: a key pair, a certificate and
// where it belongs. It lives in a directory and is only ever replaced by the
// node itself: no answer from a server makes it go away. Safe for concurrent
// use.
type Identity struct {
	dir    string
	Server string // host:port
	Tenant string // the tenant's id
	Node   string // the node's id
	Name   string // display name asked for at enrolment
	roots  *x509.CertPool
	key    crypto.Signer

	mu      sync.Mutex
	cert    *tls.Certificate
	renewAt time.Time // by the server's clock
}

type identityJSON struct {
	Server  string    `json:"server"`
	Tenant  string    `json:"tenant"`
	Node    string    `json:"node"`
	Name    string    `json:"name,omitempty"`
	RenewAt time.Time `json:"renew_at"`
}

// OpenIdentity reads an identity directory. It returns ErrNotEnrolled when
// there is none; anything else that is wrong is named with its file.
func OpenIdentity(dir string) (*Identity, error) {
	raw, err := os.ReadFile(filepath.Join(dir, identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotEnrolled
	} else if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	var j identityJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", filepath.Join(dir, identityFile), err)
	}
	id := &Identity{dir: dir, Server: j.Server, Tenant: j.Tenant, Node: j.Node, Name: j.Name}
	if id.key, err = loadKey(dir); err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, caFile))
	if err != nil {
		return nil, fmt.Errorf("read the server's CA: %w", err)
	}
	if id.roots, err = parseRoots(ca); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, caFile), err)
	}
	raw, err = os.ReadFile(filepath.Join(dir, certFile))
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s holds no certificate", filepath.Join(dir, certFile))
	}
	if err := id.use(block.Bytes, j.RenewAt); err != nil {
		return nil, err
	}
	return id, nil
}

// use takes a certificate for the identity's key. A zero renewAt means two
// thirds of the certificate's own span.
func (id *Identity) use(der []byte, renewAt time.Time) error {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("parse certificate: %w", err)
	}
	pub, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok || !pub.Equal(id.key.Public()) {
		return errors.New("the certificate does not belong to this node's key")
	}
	if renewAt.IsZero() {
		renewAt = leaf.NotBefore.Add(leaf.NotAfter.Sub(leaf.NotBefore) * 2 / 3)
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.cert = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: id.key, Leaf: leaf}
	id.renewAt = renewAt
	return nil
}

// store takes a fresh certificate and writes it down. serverTime is when the
// server issued it, by its own clock; renewal is due after two thirds of what
// was left then.
func (id *Identity) store(der []byte, serverTime time.Time) error {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("parse certificate: %w", err)
	}
	renewAt := serverTime.Add(leaf.NotAfter.Sub(serverTime) * 2 / 3)
	if err := id.use(der, renewAt); err != nil {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := writeFile(id.dir, certFile, block, 0o644); err != nil {
		return err
	}
	raw, _ := json.MarshalIndent(identityJSON{id.Server, id.Tenant, id.Node, id.Name, renewAt}, "", "  ")
	return writeFile(id.dir, identityFile, append(raw, '\n'), 0o644)
}

// Dir is the directory that holds the identity.
func (id *Identity) Dir() string { return id.dir }

// UseCA replaces who may sign the server's certificate, and writes it down.
// Call it before the identity is used.
func (id *Identity) UseCA(ca []byte) error {
	roots, err := parseRoots(ca)
	if err != nil {
		return fmt.Errorf("CA of the server: %w", err)
	}
	id.roots = roots
	return writeFile(id.dir, caFile, ca, 0o644)
}

// TLS returns the key pair in use, for a client of one's own.
func (id *Identity) TLS() *tls.Certificate {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.cert
}

// Certificate returns the certificate in use.
func (id *Identity) Certificate() *x509.Certificate {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.cert.Leaf
}

// RenewAt says when the certificate is to be renewed, by the server's clock.
func (id *Identity) RenewAt() time.Time {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.renewAt
}

func (id *Identity) clientCert(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return id.TLS(), nil
}

// csr makes a certificate request for the node's key.
func (id *Identity) csr() ([]byte, error) { return makeCSR(id.key) }

func makeCSR(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make certificate request: %w", err)
	}
	return der, nil
}

// Lock makes sure that only one process uses a directory; the returned
// function lets go of it. It does not wait.
func Lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock identity: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another telltale-agent uses %s: stop it, or give this one its own directory", dir)
	}
	return func() { f.Close() }, nil
}

// loadKey reads the directory's private key.
func loadKey(dir string) (crypto.Signer, error) {
	path := filepath.Join(dir, keyFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read key: %w", err)
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s holds no key", path)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s holds a key that cannot sign", path)
	}
	return s, nil
}

// makeKey reads the directory's key or makes one, so that an enrolment that
// broke off goes on with the same key.
func makeKey(dir string) (crypto.Signer, error) {
	if k, err := loadKey(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return k, writeFile(dir, keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
}

func parseRoots(ca []byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, errors.New("no PEM certificate found")
	}
	return pool, nil
}

// writeFile replaces a file as one step that survives a crash.
func writeFile(dir, name string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer os.Remove(f.Name()) // a no-op once renamed
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // best effort: some file systems refuse to sync a directory
		d.Close()
	}
	return nil
}
