package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

const domain = "telltale.example.org"

func newCA(t testing.TB, m *memory) *NodeCA {
	t.Helper()
	sealer, err := NewSealer(make([]byte, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := NewNodeCA(m, m, sealer, slog.New(slog.DiscardHandler), NodeCAConfig{TrustDomain: domain})
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func (m *memory) addNode(tn tenants.Tenant, name string) tenants.NodeID {
	id := tenants.NewNodeID()
	set(m, m.nodes, id, func(n *tenants.NodeIdentity) {
		*n = tenants.NodeIdentity{Tenant: tn.ID, Slug: tn.Slug, Node: id, Name: name}
	})
	return id
}

func newP256(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func request(t testing.TB, key crypto.Signer) []byte {
	t.Helper()
	evil, _ := url.Parse("spiffe://" + domain + "/tenant/" + globex.ID.String() + "/node/" + tenants.NewNodeID().String())
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "admin"}, DNSNames: []string{"evil.example"}, URIs: []*url.URL{evil}, // all to be ignored
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func issue(t testing.TB, ca *NodeCA, tn tenants.Tenant, node tenants.NodeID, lifetime time.Duration) *x509.Certificate {
	t.Helper()
	out, err := ca.Issue(t.Context(), tn.ID, node, request(t, newP256(t)), lifetime)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(out.Cert)
	if err != nil {
		t.Fatal(err)
	}
	if !cert.NotAfter.Equal(out.NotAfter) {
		t.Errorf("says %v, is %v", out.NotAfter, cert.NotAfter)
	}
	return cert
}

func TestIssueAndVerify(t *testing.T) {
	m := newMemory()
	ca := newCA(t, m)
	node, theirs := m.addNode(acme, "n1"), m.addNode(globex, "n1")
	cert := issue(t, ca, acme, node, 0)
	if len(cert.URIs) != 1 || cert.URIs[0].String() != "spiffe://"+domain+"/tenant/"+acme.ID.String()+"/node/"+node.String() || len(cert.DNSNames) > 0 || cert.Subject.CommonName != node.String() || cert.IsCA {
		t.Errorf("certificate says %v %v %v", cert.URIs, cert.DNSNames, cert.Subject)
	}
	if !cmp.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || cert.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("usages %v %v", cert.ExtKeyUsage, cert.KeyUsage)
	}
	if life := cert.NotAfter.Sub(cert.NotBefore); life != tenants.NodeCertLifetime+backdate {
		t.Errorf("lives %v", life)
	}
	sc, err := ca.VerifyPeer(t.Context(), cert, time.Now())
	want := tenants.Scope{
		Tenant: acme.ID, Slug: "acme", Nodes: tenants.Selector{IDs: []tenants.NodeID{node}},
		Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: node.String(), Name: "n1"},
	}
	if diff := cmp.Diff(want, sc); err != nil || diff != "" {
		t.Fatalf("%v\n%s", err, diff)
	}
	if sc.Granted.Has(tenants.Read) {
		t.Error("a node may read the fleet")
	}
	// A tenant's authority names nodes of no other tenant.
	stolen := issue(t, ca, acme, theirs, 0)
	wantReason(t, ca, stolen, time.Now(), fault.Unauthorized, "unknown_node")
	wantReason(t, ca, nil, time.Now(), fault.Unauthorized, "no_certificate")
	sc, err = ca.VerifyPeer(t.Context(), issue(t, ca, globex, theirs, 0), time.Now())
	if err != nil || sc.Tenant != globex.ID {
		t.Errorf("globex: %+v, %v", sc, err)
	}
	if len(m.cas[acme.ID]) != 1 || len(m.cas[globex.ID]) != 1 || cmp.Equal(m.cas[acme.ID][0].Cert, m.cas[globex.ID][0].Cert) {
		t.Error("want one authority a tenant")
	}
}

// Old and new authorities overlap, on the replica that rotates and on others.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		here, there := newCA(t, m), newCA(t, m)
		node := m.addNode(acme, "n")
		old := issue(t, here, acme, node, 0)
		check := func(what string, ca *NodeCA, cert *x509.Certificate) {
			t.Helper()
			if _, err := ca.VerifyPeer(t.Context(), cert, time.Now()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		check("old, there", there, old) // remembered there
		if err := here.RotateCA(t.Context(), acme.ID); err != nil {
			t.Fatal(err)
		}
		fresh := issue(t, here, acme, node, 0)
		if cmp.Equal(old.AuthorityKeyId, fresh.AuthorityKeyId) {
			t.Fatal("the new authority does not sign")
		}
		check("old, here", here, old)
		check("new, here", here, fresh)
		time.Sleep(foreignFloor)
		check("new, there, before its memory is over", there, fresh)
		check("old, there", there, old)

		out, err := there.Issue(t.Context(), acme.ID, node, request(t, newP256(t)), 0)
		if err != nil || len(out.CAs) != 2 {
			t.Errorf("agents are told of %d authorities, %v", len(out.CAs), err)
		}
		time.Sleep(caLifetime - caRenewLeft + time.Hour) // running out: a third is made
		fresh = issue(t, here, acme, node, 0)
		if len(m.cas[acme.ID]) != 3 {
			t.Errorf("%d authorities", len(m.cas[acme.ID]))
		}
		check("newest", here, fresh)
		time.Sleep(caRenewLeft)
		out, err = here.Issue(t.Context(), acme.ID, node, request(t, newP256(t)), 0)
		if err != nil || len(out.CAs) != 1 {
			t.Errorf("over ones are still told: %d, %v", len(out.CAs), err)
		}
	})
}

// Many replicas and first nodes at once make one authority.
func TestFirstAuthorityRace(t *testing.T) {
	m := newMemory()
	node := m.addNode(acme, "n")
	var wg sync.WaitGroup
	for range 4 {
		ca := newCA(t, m)
		for range 4 {
			wg.Go(func() {
				out, err := ca.Issue(t.Context(), acme.ID, node, request(t, newP256(t)), 0)
				if err != nil {
					t.Error(err)
					return
				}
				cert, err := x509.ParseCertificate(out.Cert)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := ca.VerifyPeer(t.Context(), cert, time.Now()); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if n := len(m.cas[acme.ID]); n != 1 {
		t.Errorf("%d authorities", n)
	}
}

// A sealed key is of use to its own tenant and with its own key alone.
func TestSealedKeys(t *testing.T) {
	m := newMemory()
	ca := newCA(t, m)
	node := m.addNode(acme, "n")
	issue(t, ca, acme, node, 0)
	rec := m.cas[acme.ID][0]
	if _, err := x509.ParsePKCS8PrivateKey(rec.SealedKey); err == nil || strings.Contains(string(rec.SealedKey), "PRIVATE") {
		t.Fatal("the key is in the clear")
	}
	m.cas[globex.ID] = []tenants.CARecord{rec} // moved to another tenant
	if _, err := ca.Issue(t.Context(), globex.ID, node, request(t, newP256(t)), 0); err == nil || !strings.Contains(err.Error(), "another use") {
		t.Errorf("a moved key signs: %v", err)
	}
	sealer, _ := NewSealer([]byte(strings.Repeat("k", KeySize)))
	other, err := NewNodeCA(m, m, sealer, slog.New(slog.DiscardHandler), NodeCAConfig{TrustDomain: domain})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Issue(t.Context(), acme.ID, node, request(t, newP256(t)), 0); fault.Of(err).Kind != fault.Internal {
		t.Errorf("with another key: %v", err)
	}
	if n := len(m.cas[acme.ID]); n != 1 {
		t.Errorf("a wrong key file made another authority (%d)", n)
	}
}

func TestCheckCSR(t *testing.T) {
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	p224, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	rsa2048, _ := rsa.GenerateKey(rand.Reader, 2048)
	for what, key := range map[string]crypto.Signer{"P-256": newP256(t), "P-384": p384, "Ed25519": ed, "RSA 2048": rsa2048} {
		if _, err := CheckCSR(request(t, key)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	good := request(t, newP256(t))
	broken := append([]byte(nil), good...)
	broken[len(broken)-1] ^= 1
	bad := map[string][]byte{
		"empty": nil, "nonsense": []byte("x"), "trailing": append(append([]byte(nil), good...), 0), "huge": make([]byte, 1<<20),
		"not its signature": broken, "P-224": request(t, p224),
	}
	for what, der := range bad {
		if _, err := CheckCSR(der); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	m := newMemory()
	if _, err := newCA(t, m).Issue(t.Context(), acme.ID, m.addNode(acme, "n"), broken, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("issued for a broken request: %v", err)
	}
	if len(m.cas) != 0 {
		t.Error("a bad request made an authority")
	}
}

func FuzzCheckCSR(f *testing.F) {
	f.Add(request(f, newP256(f)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, der []byte) {
		if csr, err := CheckCSR(der); err == nil && csr.CheckSignature() != nil {
			t.Fatal("accepted a request that does not hold")
		}
	})
}

func TestTrustDomains(t *testing.T) {
	m := newMemory()
	sealer, _ := NewSealer(make([]byte, KeySize))
	for _, d := range []string{"", "a b", "a:1", "a/b", "u@h"} {
		if _, err := NewNodeCA(m, m, sealer, slog.New(slog.DiscardHandler), NodeCAConfig{TrustDomain: d}); err == nil {
			t.Errorf("trust domain %q was accepted", d)
		}
	}
}
