package auth

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

func wantReason(t *testing.T, ca *NodeCA, cert *x509.Certificate, now time.Time, kind fault.Kind, reason string) {
	t.Helper()
	sc, err := ca.VerifyPeer(t.Context(), cert, now)
	if f := fault.Of(err); f == nil || f.Kind != kind || f.Reason != reason || f.Msg == "" || !sc.Tenant.IsZero() {
		t.Fatalf("got %+v, %v; want %s", sc, err, reason)
	}
}

// Certificates that acme's authority or a stranger signed, with every name
// that might be taken for another.
func TestForeignCertificates(t *testing.T) {
	m := newMemory()
	ca := newCA(t, m)
	node, theirs := m.addNode(acme, "a"), m.addNode(globex, "g")
	issue(t, ca, acme, node, 0)
	issue(t, ca, globex, theirs, 0)
	set, acmeCA, acmeKey, err := ca.signer(t.Context(), acme.ID, time.Now())
	if err != nil || len(set.certs) != 1 {
		t.Fatal(err)
	}
	strangerKey := newP256(t)
	strangerCA := *acmeCA
	strangerCA.PublicKey = strangerKey.Public()
	good := "spiffe://" + domain + "/tenant/" + acme.ID.String() + "/node/" + node.String()
	make := func(by *x509.Certificate, key crypto.Signer, change func(*x509.Certificate), uris ...string) *x509.Certificate {
		t.Helper()
		tmpl := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		}
		for _, u := range uris {
			p, err := url.Parse(u)
			if err != nil {
				t.Fatal(err)
			}
			tmpl.URIs = append(tmpl.URIs, p)
		}
		if change != nil {
			change(tmpl)
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, by, newP256(t).Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	wantReason(t, ca, make(&strangerCA, strangerKey, nil, good), time.Now(), fault.Unauthorized, "foreign_certificate")
	toGlobex := "spiffe://" + domain + "/tenant/" + globex.ID.String() + "/node/" + theirs.String()
	wantReason(t, ca, make(acmeCA, acmeKey, nil, toGlobex), time.Now(), fault.Unauthorized, "foreign_certificate")
	nowhere := "spiffe://" + domain + "/tenant/" + tenants.NewTenantID().String() + "/node/" + node.String()
	wantReason(t, ca, make(acmeCA, acmeKey, nil, nowhere), time.Now(), fault.Unauthorized, "foreign_certificate")
	server := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }
	wantReason(t, ca, make(acmeCA, acmeKey, server, good), time.Now(), fault.Unauthorized, "foreign_certificate")
	for what, uris := range map[string][]string{
		"no name":       nil,
		"two names":     {good, good},
		"other domain":  {strings.Replace(good, domain, "evil.example", 1)},
		"port":          {strings.Replace(good, domain, domain+":1", 1)},
		"other scheme":  {strings.Replace(good, "spiffe", "https", 1)},
		"query":         {good + "?x"},
		"fragment":      {good + "#x"},
		"longer":        {good + "/x"},
		"upper case id": {strings.Replace(good, acme.ID.String(), strings.ToUpper(acme.ID.String()), 1)},
		"escaped":       {strings.Replace(good, "/node/", "/%6eode/", 1)},
		"short":         {"spiffe://" + domain + "/tenant/" + acme.ID.String()},
		"zero ids":      {"spiffe://" + domain + "/tenant/" + tenants.TenantID{}.String() + "/node/" + tenants.NodeID{}.String()},
	} {
		t.Run(what, func(t *testing.T) {
			wantReason(t, ca, make(acmeCA, acmeKey, nil, uris...), time.Now(), fault.Unauthorized, "malformed_certificate")
		})
	}
	for what, change := range map[string]func(*x509.Certificate){
		"dns name too": func(c *x509.Certificate) { c.DNSNames = []string{"x"} },
		"address too":  func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(1, 2, 3, 4)} },
		"mail too":     func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b"} },
		"an authority": func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = true, true },
	} {
		t.Run(what, func(t *testing.T) {
			wantReason(t, ca, make(acmeCA, acmeKey, change, good), time.Now(), fault.Unauthorized, "malformed_certificate")
		})
	}
	wantReason(t, ca, acmeCA, time.Now(), fault.Unauthorized, "malformed_certificate")
}

func TestCertificateTimes(t *testing.T) {
	m := newMemory()
	ca := newCA(t, m)
	node := m.addNode(acme, "n")
	cert := issue(t, ca, acme, node, 10*time.Second)
	if life := time.Until(cert.NotAfter); life > 10*time.Second || life < 8*time.Second {
		t.Errorf("lives %v more", life)
	}
	for _, c := range []struct {
		at     time.Time
		reason string
	}{
		{cert.NotAfter.Add(time.Second), "certificate_expired"},
		{cert.NotAfter.Add(20 * 365 * 24 * time.Hour), "certificate_expired"},
		{cert.NotBefore.Add(-time.Second), "certificate_not_yet_valid"},
	} {
		wantReason(t, ca, cert, c.at, fault.Unauthorized, c.reason)
		_, err := ca.VerifyPeer(t.Context(), cert, c.at)
		if !strings.Contains(fault.Of(err).Msg, c.at.UTC().Format(time.RFC3339)) {
			t.Errorf("%s does not tell the server's time: %v", c.reason, err)
		}
	}
	if _, err := ca.VerifyPeer(t.Context(), cert, cert.NotAfter); err != nil {
		t.Errorf("in its last second: %v", err)
	}
	for asked, want := range map[time.Duration]time.Duration{-time.Hour: minLifetime, time.Millisecond: minLifetime, 1000 * time.Hour: tenants.NodeCertLifetime} {
		if got := time.Until(issue(t, ca, acme, node, asked).NotAfter).Round(2 * time.Second); (got - want).Abs() > 2*time.Second {
			t.Errorf("asked for %v: lives %v", asked, got)
		}
	}
}

func TestNodeRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		ca := newCA(t, m)
		node, other := m.addNode(acme, "n"), m.addNode(acme, "o")
		cert, kept := issue(t, ca, acme, node, 0), issue(t, ca, acme, other, 0)
		verify := func(c *x509.Certificate) error {
			_, err := ca.VerifyPeer(t.Context(), c, time.Now())
			return err
		}
		if err := verify(cert); err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		set(m, m.nodes, node, func(n *tenants.NodeIdentity) { n.Revoked = true })
		for verify(cert) == nil {
			if time.Since(at) > tenants.RevocationDelay {
				t.Fatal("a revoked node is still accepted")
			}
			time.Sleep(100 * time.Millisecond)
		}
		wantReason(t, ca, cert, time.Now(), fault.Unauthorized, "node_revoked")
		if err := verify(kept); err != nil {
			t.Error(err)
		}
		set(m, m.nodes, other, func(n *tenants.NodeIdentity) { n.Suspended = true })
		time.Sleep(tenants.RevocationDelay)
		wantReason(t, ca, kept, time.Now(), fault.Denied, "tenant_suspended")
		set(m, m.nodes, other, func(n *tenants.NodeIdentity) { n.Suspended = false })
		ca.idents.drop(nodeKey(acme.ID, other))
		if err := verify(kept); err != nil {
			t.Error(err)
		}
		m.setDown(true)
		ca.idents.drop(nodeKey(acme.ID, other))
		if err := verify(kept); !fault.Is(err, fault.Unavailable) { // an outage is no refusal
			t.Error(err)
		}
	})
}
