package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const (
	caLifetime  = 5 * 365 * 24 * time.Hour
	caRenewLeft = 365 * 24 * time.Hour // a new authority is made when less than this is left
	backdate    = time.Minute          // for agents whose clock is a little behind
	minLifetime = time.Second
	maxCSR      = 16 << 10 // bytes
)

// CAStore keeps the certificate authorities of tenants.
type CAStore interface {
	// LoadCAs reads a tenant's authorities, the oldest first; none is no error.
	LoadCAs(ctx context.Context, t tenants.TenantID) ([]tenants.CARecord, error)
	// StoreCA adds one if the newest is still the one with the id after (empty:
	// none) and reports whether it did.
	StoreCA(ctx context.Context, t tenants.TenantID, r tenants.CARecord, after string) (stored bool, err error)
}

// NodeStore tells what a node's certificate is checked against; NotFound when
// the tenant has no such node.
type NodeStore interface {
	NodeIdentity(ctx context.Context, t tenants.TenantID, n tenants.NodeID) (tenants.NodeIdentity, error)
}

// NodeCAConfig tunes a NodeCA.
type NodeCAConfig struct {
	// TrustDomain is the authority of the SPIFFE ids, for example
	// "telltale.example.org". It must never change once nodes are enrolled.
	TrustDomain string
	// TTL bounds how late a node's revocation bites. Zero means 3 s; it is cut
	// so that tenants.RevocationDelay holds.
	TTL time.Duration
	// MaxCached bounds the nodes and tenants remembered. Zero means 20,000.
	MaxCached int
}

// NodeCA makes the client certificates of nodes and verifies them: one
// certificate authority a tenant, made when it is first needed, its key sealed
// for that tenant alone. Safe for concurrent use.
type NodeCA struct {
	domain string
	cas    CAStore
	nodes  NodeStore
	sealer *Sealer
	log    *slog.Logger
	sets   *cache[caSet]
	idents *cache[tenants.NodeIdentity]
}

// caSet is the parsed authorities of one tenant, the oldest first.
type caSet struct {
	records []tenants.CARecord
	certs   []*x509.Certificate
}

// NewNodeCA makes a NodeCA.
func NewNodeCA(cas CAStore, nodes NodeStore, sealer *Sealer, log *slog.Logger, cfg NodeCAConfig) (*NodeCA, error) {
	if u, err := url.Parse("spiffe://" + cfg.TrustDomain); err != nil || cfg.TrustDomain == "" || u.Host != cfg.TrustDomain || u.Port() != "" || len(cfg.TrustDomain) > 255 {
		return nil, fmt.Errorf("trust domain %q: want a plain host name", cfg.TrustDomain)
	}
	if cfg.MaxCached <= 0 {
		cfg.MaxCached = 20_000
	}
	ttl := boundTTL(cfg.TTL)
	return &NodeCA{
		domain: cfg.TrustDomain, cas: cas, nodes: nodes, sealer: sealer, log: log,
		sets: newCache[caSet](ttl, cfg.MaxCached), idents: newCache[tenants.NodeIdentity](ttl, cfg.MaxCached),
	}, nil
}

// Stats returns the counters of the caches of authorities and of nodes.
func (n *NodeCA) Stats() (authorities, nodes CacheStats) { return n.sets.stats(), n.idents.stats() }

// Issued is a fresh client certificate.
type Issued struct {
	Cert     []byte   // DER
	CAs      [][]byte // DER, every authority of the tenant that is not over, the newest last
	NotAfter time.Time
}

// CheckCSR parses a PKCS #10 request and checks what can be checked without a
// tenant: its own signature, which proves that the sender holds the key, and
// the kind of key (ECDSA P-256 or better, Ed25519, RSA of 2048 bits or more).
// Call it before a use of an enrolment token is spent.
func CheckCSR(der []byte) (*x509.CertificateRequest, error) {
	if len(der) == 0 || len(der) > maxCSR {
		return nil, fault.Bad("csr", "want a request of 1 to %d bytes in DER", maxCSR)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fault.Bad("csr", "want a PKCS #10 request in DER").Because(err)
	}
	switch key := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return nil, fault.Bad("csr", "want a key on curve P-256, P-384 or P-521")
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < 2048 || bits > 8192 {
			return nil, fault.Bad("csr", "want an RSA key of 2048 to 8192 bits, not %d", bits)
		}
	default:
		return nil, fault.Bad("csr", "want an ECDSA, Ed25519 or RSA key")
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fault.Bad("csr", "the request is not signed by its own key").Because(err)
	}
	return csr, nil
}

// Issue signs a client certificate for a node with the key of a request. The
// request's subject and names are ignored: the certificate says what the
// server knows, the tenant and the node. lifetime is 1 s at least and
// tenants.NodeCertLifetime at most; zero means the latter.
func (n *NodeCA) Issue(ctx context.Context, t tenants.TenantID, node tenants.NodeID, csrDER []byte, lifetime time.Duration) (Issued, error) {
	csr, err := CheckCSR(csrDER)
	if err != nil {
		return Issued{}, err
	}
	if t.IsZero() || node.IsZero() {
		return Issued{}, fault.New(fault.Internal, "no_node", "a certificate needs a tenant and a node")
	}
	if lifetime == 0 {
		lifetime = tenants.NodeCertLifetime
	}
	lifetime = min(max(lifetime, minLifetime), tenants.NodeCertLifetime)
	now := time.Now()
	set, ca, key, err := n.signer(ctx, t, now)
	if err != nil {
		return Issued{}, fmt.Errorf("prepare the certificate authority of tenant %s: %w", t, err)
	}
	serial, err := newSerial()
	if err != nil {
		return Issued{}, err
	}
	notAfter := now.Add(lifetime)
	if ca.NotAfter.Before(notAfter) {
		notAfter = ca.NotAfter
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: node.String()},
		NotBefore:    now.Add(-backdate), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{n.spiffe(t, node)},
	}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, ca, csr.PublicKey, key)
	if err != nil {
		return Issued{}, fmt.Errorf("sign the certificate of node %s: %w", node, err)
	}
	out := Issued{Cert: cert, NotAfter: notAfter.UTC().Truncate(time.Second)}
	for _, c := range set.certs {
		if now.Before(c.NotAfter) {
			out.CAs = append(out.CAs, c.Raw)
		}
	}
	return out, nil
}

// signer is the tenant's newest authority and its key, made now if there is
// none or its time runs out.
func (n *NodeCA) signer(ctx context.Context, t tenants.TenantID, now time.Time) (caSet, *x509.Certificate, crypto.Signer, error) {
	set, err := n.load(ctx, t, 0)
	if err != nil {
		return set, nil, nil, err
	}
	if k := len(set.certs); k == 0 || set.certs[k-1].NotAfter.Sub(now) < caRenewLeft {
		after := ""
		if k > 0 {
			after = set.records[k-1].ID
		}
		if err := n.makeCA(ctx, t, after, now); err != nil {
			return set, nil, nil, err
		}
		if set, err = n.load(ctx, t, time.Nanosecond); err != nil {
			return set, nil, nil, err
		}
	}
	if len(set.certs) == 0 {
		return set, nil, nil, fault.New(fault.Internal, "no_authority", "the tenant's certificate authority is gone")
	}
	last := len(set.certs) - 1
	der, err := n.sealer.Open(set.records[last].SealedKey, sealUse(t, set.records[last].ID))
	if err != nil {
		return set, nil, nil, fmt.Errorf("open the key of authority %s: %w", set.records[last].ID, err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return set, nil, nil, fmt.Errorf("read the key of authority %s: %w", set.records[last].ID, err)
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return set, nil, nil, fmt.Errorf("the key of authority %s cannot sign", set.records[last].ID)
	}
	return set, set.certs[last], key, nil
}

// makeCA makes one authority after another. Losing to another replica that
// does the same is fine: its authority serves as well.
func (n *NodeCA) makeCA(ctx context.Context, t tenants.TenantID, after string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	id := uuid.Must(uuid.NewV7()).String()
	tmpl := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"Telltale tenant " + t.String()}, CommonName: "nodes " + id},
		NotBefore:    now.Add(-backdate), NotAfter: now.Add(caLifetime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	rec := tenants.CARecord{ID: id, Cert: cert, SealedKey: n.sealer.Seal(der, sealUse(t, id)), NotBefore: tmpl.NotBefore.UTC(), NotAfter: tmpl.NotAfter.UTC()}
	stored, err := n.cas.StoreCA(ctx, t, rec, after)
	n.sets.drop(t.String())
	if err == nil && stored {
		n.log.Info("certificate authority made", "tenant", t, "authority", id, "not_after", rec.NotAfter)
	}
	return err
}

// load reads a tenant's authorities, at most maxAge old (zero: the usual time
// to live).
func (n *NodeCA) load(ctx context.Context, t tenants.TenantID, maxAge time.Duration) (caSet, error) {
	set, _, err := n.sets.load(ctx, t.String(), maxAge, func(ctx context.Context) (caSet, bool, error) {
		var set caSet
		var err error
		if set.records, err = n.cas.LoadCAs(ctx, t); err != nil {
			return set, false, err
		}
		for _, r := range set.records {
			cert, err := x509.ParseCertificate(r.Cert)
			if err != nil {
				return set, false, fmt.Errorf("read authority %s: %w", r.ID, err)
			}
			set.certs = append(set.certs, cert)
		}
		return set, len(set.records) > 0, nil
	})
	return set, err
}

func (n *NodeCA) spiffe(t tenants.TenantID, node tenants.NodeID) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: n.domain, Path: "/tenant/" + t.String() + "/node/" + node.String()}
}

func sealUse(t tenants.TenantID, ca string) string { return "node ca key/" + t.String() + "/" + ca }

func nodeKey(t tenants.TenantID, node tenants.NodeID) string { return t.String() + "/" + node.String() }

func newSerial() (*big.Int, error) {
	// 127 random bits: positive, and unguessable as RFC 5280 wants it.
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}
