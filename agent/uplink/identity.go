package uplink

import (
	"bytes"
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
	keyFile      = "key.pem"          // 0600, made on the node, never leaves it
	certFile     = "cert.pem"         // the client certificate
	caFile       = "ca.pem"           // who signs the server's certificate
	identityFile = "identity.json"    // server, tenant, node, when to renew
	positionFile = "position.json"    // epoch and the sequence numbers in use
	switchFile   = "modules-off.json" // what the server keeps off
)

// ErrNotEnrolled means that a directory holds no identity.
var ErrNotEnrolled = errors.New("this directory holds no node identity; run `telltale-agent enrol` first")

// ErrNotSaved means that something is in use but could not be written down:
// the disk is full or read-only.
var ErrNotSaved = errors.New("not saved")

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
	unsaved int       // attempts to write the certificate in use that failed in a row
	saveAt  time.Time // when to try that again, by the server's clock
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
	leaf, err := id.own(der)
	if err != nil {
		return err
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

// own parses a certificate and makes sure that it is for the identity's key.
func (id *Identity) own(der []byte) (*x509.Certificate, error) {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse certificate: %w", err)
	}
	pub, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if !ok || !pub.Equal(id.key.Public()) {
		return nil, errors.New("the certificate does not belong to this node's key")
	}
	return leaf, nil
}

// How long to wait before a certificate is written again that could not be.
const (
	saveAgainMin = 15 * time.Second
	saveAgainMax = 5 * time.Minute
)

// store writes a fresh certificate down and takes it into use. serverTime is
// when the server issued it, by its own clock; renewal is due after two thirds
// of what was left then. When it cannot be written it is used all the same,
// for the old one ends; the error then wraps ErrNotSaved and RenewAt tells when
// to call save.
func (id *Identity) store(der []byte, serverTime time.Time) error {
	leaf, err := id.own(der)
	if err != nil {
		return err
	}
	renewAt := serverTime.Add(leaf.NotAfter.Sub(serverTime) * 2 / 3)
	err = id.write(der, renewAt)
	if uerr := id.use(der, renewAt); uerr != nil {
		return uerr
	}
	return id.saved(err, serverTime)
}

// save writes the certificate in use once more after store could not.
func (id *Identity) save(serverTime time.Time) error {
	id.mu.Lock()
	der, renewAt := id.cert.Certificate[0], id.renewAt
	id.mu.Unlock()
	return id.saved(id.write(der, renewAt), serverTime)
}

// write puts the certificate before the file that says when to renew it: a
// crash between the two only makes the renewal come early.
func (id *Identity) write(der []byte, renewAt time.Time) error {
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := writeFile(id.dir, certFile, block, 0o644); err != nil {
		return err
	}
	raw, _ := json.MarshalIndent(identityJSON{id.Server, id.Tenant, id.Node, id.Name, renewAt}, "", "  ")
	return writeFile(id.dir, identityFile, append(raw, '\n'), 0o644)
}

// saved keeps account of how the certificate's last write went.
func (id *Identity) saved(err error, serverTime time.Time) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if err == nil {
		id.unsaved = 0
		return nil
	}
	id.saveAt = serverTime.Add(min(saveAgainMin<<min(id.unsaved, 8), saveAgainMax))
	id.unsaved++
	return fmt.Errorf("%w: %w", ErrNotSaved, err)
}

// onlySave reports whether what is due is to write the certificate in use,
// and not yet to get another one.
func (id *Identity) onlySave(serverTime time.Time) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.unsaved > 0 && serverTime.Before(id.renewAt)
}

// Dir is the directory that holds the identity.
func (id *Identity) Dir() string { return id.dir }

// UseCA replaces who may sign the server's certificate, and writes it down
// when it differs from what the directory holds. With an error that wraps
// ErrNotSaved it is in use all the same. Call it before the identity is used.
func (id *Identity) UseCA(ca []byte) error {
	roots, err := parseRoots(ca)
	if err != nil {
		return fmt.Errorf("CA of the server: %w", err)
	}
	id.roots = roots
	if have, err := os.ReadFile(filepath.Join(id.dir, caFile)); err == nil && bytes.Equal(have, ca) {
		return nil
	}
	if err := writeFile(id.dir, caFile, ca, 0o644); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSaved, err)
	}
	return nil
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

// RenewAt says when the certificate is to be renewed, or written down if that
// failed, by the server's clock.
func (id *Identity) RenewAt() time.Time {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.unsaved > 0 && id.saveAt.Before(id.renewAt) {
		return id.saveAt
	}
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
// function lets go of it. It does not wait. A directory that is read-only is
// locked all the same. What a crash left half written is swept away.
func Lock(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, fs.ErrPermission) {
		if f, err = os.Open(path); errors.Is(err, fs.ErrNotExist) {
			f, err = os.Open(dir)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lock identity: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another telltale-agent uses %s: stop it, or give this one its own directory", dir)
	}
	for _, name := range []string{keyFile, certFile, caFile, identityFile, positionFile, switchFile} {
		left, _ := filepath.Glob(filepath.Join(dir, "."+name+"-*"))
		for _, path := range left {
			_ = os.Remove(path) // only room is lost by one that stays
		}
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

// writeFile replaces a file as one step that survives a crash: the old
// content stays until the new one is on the disk.
func writeFile(dir, name string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return writeError(dir, name, err)
	}
	defer os.Remove(f.Name()) // a no-op once renamed
	if _, err = f.Write(data); err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return writeError(dir, name, err)
	}
	syncDir(dir)
	return nil
}

// writeError names the file meant and not the temporary one, so that the same
// trouble reads the same each time.
func writeError(dir, name string, err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	} else if l, ok := errors.AsType[*os.LinkError](err); ok {
		err = l.Err
	}
	return fmt.Errorf("write %s: %w", filepath.Join(dir, name), err)
}

func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync() // best effort: some file systems refuse to sync a directory
		d.Close()
	}
}
