package ingest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/uplink"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/fleet"
)

// forge makes a certificate for a node: by the issuer given, or by itself.
func forge(t *testing.T, tn tenants.TenantID, node tenants.NodeID, issuer *tls.Certificate, notAfter time.Time) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: node.String()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "telltale.test", Path: "/tenant/" + tn.String() + "/node/" + node.String()}},
	}
	parent, signer := tmpl, any(key)
	if issuer != nil {
		parent, signer = issuer.Leaf, issuer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, key.Public(), signer)
	must(t, err)
	leaf, err := x509.ParseCertificate(der)
	must(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func TestCertificatesThatAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	_, foreign := r.enrol(r.globex, "web-2")
	// A short one, made by the real authority and expired when it is used.
	csr, key := request(t)
	short, err := r.ca.Issue(t.Context(), r.acme.ID, node, csr, time.Second)
	must(t, err)
	leaf, err := x509.ParseCertificate(short.Cert)
	must(t, err)
	expired := &tls.Certificate{Certificate: [][]byte{short.Cert}, PrivateKey: key, Leaf: leaf}
	// A node of acme that signs itself a certificate of globex.
	acmeNode := *id.TLS()
	within(t, 5*time.Second, "the short certificate is over", func() bool { return time.Now().After(leaf.NotAfter) })

	before := r.srv.Stats().AuthFailed
	cases := map[string]struct {
		cert   *tls.Certificate
		reason string
	}{
		"none":                         {nil, "no_certificate"},
		"self-signed":                  {forge(t, r.acme.ID, node, nil, time.Now().Add(time.Hour)), "foreign_certificate"},
		"signed by a node":             {forge(t, r.globex.ID, foreign, &acmeNode, time.Now().Add(time.Hour)), "foreign_certificate"},
		"another tenant in the name":   {forge(t, r.globex.ID, node, nil, time.Now().Add(time.Hour)), "foreign_certificate"},
		"unknown tenant":               {forge(t, tenants.NewTenantID(), node, nil, time.Now().Add(time.Hour)), "foreign_certificate"},
		"expired":                      {expired, "certificate_expired"},
		"node of one, tenant of other": {reissue(t, r, r.globex.ID, node), "unknown_node"},
	}
	for name, tc := range cases {
		conn := r.dial(tc.cert)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := pb.NewAgentClient(conn).Renew(ctx, &pb.RenewRequest{Csr: csr})
		if got := faultOf(err).GetReason(); got != tc.reason || status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: Renew answers %q, %v, want %s", name, got, err, tc.reason)
		}
		stream, err := pb.NewAgentClient(conn).Report(ctx)
		must(t, err)
		_, err = stream.Recv()
		f := faultOf(err)
		if f.GetReason() != tc.reason || f.GetNext() == "" || time.Since(time.Unix(0, f.GetServerTimeNs())).Abs() > time.Minute {
			t.Errorf("%s: Report answers %v (%v), want %s, a next step and the server's time", name, f, err, tc.reason)
		}
		cancel()
	}
	if got := r.srv.Stats().AuthFailed - before; got != uint64(2*len(cases)) {
		t.Errorf("counted %d refusals, want %d", got, 2*len(cases))
	}
	other.fine()
}

// reissue lets the real authority name a node that its tenant does not have.
func reissue(t *testing.T, r *rig, tn tenants.TenantID, node tenants.NodeID) *tls.Certificate {
	t.Helper()
	csr, key := request(t)
	issued, err := r.ca.Issue(t.Context(), tn, node, csr, time.Hour)
	must(t, err)
	return &tls.Certificate{Certificate: [][]byte{issued.Cert}, PrivateKey: key}
}

func request(t *testing.T) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	must(t, err)
	return csr, key
}

func TestEnrolRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	good := r.token(r.acme, 1)
	client := pb.NewEnrolmentClient(r.dial(nil))
	csr, _ := request(t)
	spoilt := append([]byte(nil), csr...)
	spoilt[len(spoilt)-1] ^= 1
	for name, tc := range map[string]struct {
		token string
		csr   []byte
		code  codes.Code
	}{
		"no token":      {"", csr, codes.Unauthenticated},
		"no such token": {strings.Replace(good, good[4:8], "0000", 1), csr, codes.Unauthenticated},
		"bytes":         {"\xff\xfe", csr, codes.Unauthenticated},
		"no request":    {good, nil, codes.InvalidArgument},
		"bad signature": {good, spoilt, codes.InvalidArgument},
		"long request":  {good, make([]byte, 1<<20), codes.InvalidArgument},
	} {
		_, err := client.Enrol(t.Context(), &pb.EnrolRequest{Token: []byte(tc.token), Csr: tc.csr})
		if status.Code(err) != tc.code || faultOf(err).GetReason() == "" {
			t.Errorf("%s: %v, want %v with a reason", name, err, tc.code)
		}
		if strings.Contains(status.Convert(err).Message(), good) {
			t.Errorf("%s: the answer holds the token", name)
		}
	}
	// None of these cost the one use; asking again with the same key is one node.
	var node string
	for range 2 {
		resp, err := client.Enrol(t.Context(), &pb.EnrolRequest{Token: []byte(good), Csr: csr, Name: []byte("\xff" + long(1000))})
		must(t, err)
		if node != "" && resp.Node != node {
			t.Errorf("the same key became %s and %s", node, resp.Node)
		}
		node = resp.Node
	}
	second, _ := request(t)
	if _, err := client.Enrol(t.Context(), &pb.EnrolRequest{Token: []byte(good), Csr: second}); faultOf(err).GetReason() != "token_spent" {
		t.Errorf("a second node for one use: %v", err)
	}
	other.fine()
}

// A ten-second certificate is renewed again and again under a live stream:
// every window arrives once, and no attempt fails.
func TestRenewalOnALiveStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{CertLifetime: 10 * time.Second})
	id, node := r.enrol(r.acme, "web-1")
	renewed := make(chan struct{}, 8)
	u := uplink.New(uplink.Config{Facts: facts("web-1"), Renewed: func() { renewed <- struct{}{} }}, id, testLog(t))
	r.run(u)
	first := id.Certificate()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	n, renewals := 0, 0
	for deadline := time.After(40 * time.Second); renewals < 3; {
		select {
		case <-tick.C:
			u.Push(window(n))
			n++
		case <-renewed:
			renewals++
		case <-deadline:
			t.Fatalf("only %d renewals", renewals)
		}
	}
	if !time.Now().After(first.NotAfter) {
		t.Error("the first certificate is still good: nothing was proved")
	}
	r.eventually("all is acknowledged", func() bool { return u.Stats().QueueItems == 0 })
	r.wantRows(node, n)
	st := u.Stats()
	if st.Failures != 0 || st.Connects < 3 || !st.CertExpiresAt.After(first.NotAfter.Add(10*time.Second)) {
		t.Errorf("uplink: %+v", st)
	}
	again, err := uplink.OpenIdentity(id.Dir())
	must(t, err)
	if !again.Certificate().Equal(id.Certificate()) {
		t.Error("the directory holds another certificate than the one in use")
	}
	if info, err := os.Stat(filepath.Join(id.Dir(), "key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key.pem: %v, %v", info.Mode(), err)
	}
}

// A node whose certificate ran out keeps its identity and is told what to do;
// its live stream is ended at that moment.
func TestExpiryEndsTheStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{CertLifetime: 6 * time.Second})
	r.witnessWithin(2)
	c, _ := r.connect(r.acme, "web-1", 0)
	if reason, st := c.fails(); reason != "certificate_expired" || st.Code() != codes.Unauthenticated {
		t.Errorf("ended with %q, %v", reason, st)
	}
}

// witnessWithin is a witness whose certificate lives shortly: it only has to
// be served before.
func (r *rig) witnessWithin(n int) {
	r.t.Helper()
	u, _ := r.agent(r.globex, "witness")
	for i := range n {
		u.Push(window(i))
	}
	r.eventually("the other tenant's node is served", func() bool { return u.Stats().Acked == uint64(n) })
}

func TestRevocationCutsTheStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	u := uplink.New(uplink.Config{Facts: facts("web-1")}, id, testLog(t))
	stop := r.run(u)
	peer, _ := r.agent(r.acme, "web-2")
	u.Push(window(0))
	peer.Push(window(0))
	r.eventually("both are served", func() bool { return u.Stats().Acked == 1 && peer.Stats().Acked == 1 })
	must(t, r.dir.RevokeNode(t.Context(), admin(r.acme), node))
	within(t, tenants.RevocationDelay, "the stream is cut", func() bool { return r.srv.hub.get(r.acme.ID, node) == nil })
	r.eventually("it is told", func() bool { return u.Stats().Failures == 1 })
	stop()
	within(t, tenants.RevocationDelay, "its certificate is refused", func() bool {
		_, err := r.ca.VerifyPeer(t.Context(), id.Certificate(), time.Now())
		return fault.Is(err, fault.Unauthorized)
	})
	again := uplink.New(uplink.Config{Facts: facts("web-1")}, id, testLog(t))
	stop = r.run(again)
	again.Push(window(1))
	r.eventually("it is refused", func() bool { return again.Stats().Failures == 1 && again.Stats().Connects == 0 })
	stop()
	r.wantRows(node, 1)
	if _, err := uplink.OpenIdentity(id.Dir()); err != nil {
		t.Errorf("the identity is gone: %v", err)
	}
	if !peer.Stats().Connected {
		t.Error("another node of the tenant was cut")
	}
	other.fine()
	// A suspended tenant as a whole.
	must(t, r.dir.SetSuspended(t.Context(), "acme", true))
	within(t, tenants.RevocationDelay, "the tenant's streams are cut", func() bool { return r.srv.Live() == 1 })
	other.fine()
}

// What an administrator's machine with a clock far off stamps is heard of all
// the same: the state counts, and not when it came about.
func TestClocksOfAdministrators(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"behind": -time.Hour, "ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{Recheck: 100 * time.Millisecond})
			other := r.witness()
			clock := func() time.Time { return time.Now().Add(off) }
			dir := directory.New(r.db, testLog(t), directory.Config{Now: clock})
			fl := fleet.New(r.db, testRegistry(), fleet.Config{Now: clock}, testLog(t))
			told := make(chan []string, 16)
			id, node := r.enrol(r.acme, "web-1")
			u := uplink.New(uplink.Config{Facts: facts("web-1"), Control: func(off []string) { told <- off }}, id, testLog(t))
			r.run(u)
			if got := <-told; len(got) != 0 {
				t.Errorf("at first %v", got)
			}
			_, err := fl.SetModules(t.Context(), admin(r.acme), node.String(), []string{"network"})
			must(t, err)
			if got := <-told; !slices.Equal(got, []string{"network"}) {
				t.Errorf("switched off: %v", got)
			}
			_, err = fl.SetModules(t.Context(), admin(r.acme), node.String(), nil)
			must(t, err)
			if got := <-told; len(got) != 0 {
				t.Errorf("lifted: %v", got)
			}
			must(t, dir.RevokeNode(t.Context(), admin(r.acme), node))
			within(t, tenants.RevocationDelay, "the stream is cut", func() bool { return r.srv.hub.get(r.acme.ID, node) == nil })
			other.fine()
		})
	}
}

// The same identity on a second machine is held back while the first is live;
// when it is gone, the other one gets in and loses nothing.
func TestDuplicateIdentity(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	other := r.witness()
	id, node := r.enrol(r.acme, "web-1")
	first := uplink.New(uplink.Config{Facts: facts("web-1")}, id, testLog(t))
	stop := r.run(first)
	first.Push(window(0))
	r.eventually("the first is served", func() bool { return first.Stats().Acked == 1 })
	c := r.open(id.TLS())
	f := facts("web-1")
	f.MachineID = "m-clone"
	c.send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{Facts: f.Proto(), Epoch: 1, NextSeq: 2}}})
	r.eventually("the clone is parked", func() bool { return r.srv.Stats().Parked == 1 })
	first.Push(window(1))
	r.eventually("the first is still served", func() bool { return first.Stats().Acked == 2 })
	must(t, r.fleet.Flush(t.Context()))
	d, err := r.fleet.Get(t.Context(), limited(r.acme, node), node.String())
	must(t, err)
	if d.Status != "duplicate" || len(d.Sessions) < 2 || !d.Sessions[0].Live || !d.Sessions[1].Live {
		t.Errorf("status %s, sessions %+v", d.Status, d.Sessions)
	}
	if reason, st := c.fails(); reason != "duplicate_identity" || st.Code() != codes.FailedPrecondition {
		t.Errorf("the clone ends with %q, %v", reason, st)
	}
	stop()
	r.eventually("the first is gone", func() bool { return r.srv.hub.get(r.acme.ID, node) == nil })
	clone := uplink.New(uplink.Config{Facts: f}, id, testLog(t))
	r.run(clone)
	clone.Push(window(2))
	r.eventually("the other machine is served", func() bool { return clone.Stats().Acked == 1 })
	r.wantRows(node, 3)
	other.fine()
}

func TestModuleSwitchReachesTheNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Recheck: 100 * time.Millisecond})
	id, node := r.enrol(r.acme, "web-1")
	var mu sync.Mutex
	var told [][]string
	u := uplink.New(uplink.Config{Facts: facts("web-1"), Control: func(off []string) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, off)
	}}, id, testLog(t))
	r.run(u)
	last := func() (string, int) {
		mu.Lock()
		defer mu.Unlock()
		if len(told) == 0 {
			return "nothing", 0
		}
		return strings.Join(told[len(told)-1], ","), len(told)
	}
	r.eventually("the node is told at the start", func() bool { s, _ := last(); return s == "" })
	_, err := r.fleet.SetModules(t.Context(), admin(r.acme), node.String(), []string{"network"})
	must(t, err)
	r.eventually("the switch arrives", func() bool { s, _ := last(); return s == "network" })
	_, err = r.fleet.SetModules(t.Context(), admin(r.acme), node.String(), nil)
	must(t, err)
	r.eventually("its end arrives", func() bool { s, n := last(); return s == "" && n == 3 })
}

func TestAdmissionIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{StreamsPerSec: 1})
	id, _ := r.enrol(r.acme, "web-1")
	var denied *pb.Fault
	var streams []*raw
	for range 5 {
		streams = append(streams, r.open(id.TLS()))
	}
	for _, c := range streams {
		_ = c.stream.Send(&pb.AgentFrame{Kind: &pb.AgentFrame_Hello{Hello: &pb.Hello{NextSeq: 1, Facts: facts("web-1").Proto()}}})
		if _, err := c.stream.Recv(); status.Code(err) == codes.ResourceExhausted {
			denied = faultOf(err)
		}
	}
	if denied.GetReason() != "too_many_streams" || denied.GetRetryAfterMs() < 1000 {
		t.Errorf("the surplus is answered with %v", denied)
	}
	if r.srv.Stats().AdmitDenied == 0 {
		t.Error("nothing was counted")
	}
}

// Peers without a certificate, or with one that is not good, use up nothing
// that nodes are due.
func TestStrangersStarveNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{StreamsPerSec: 4})
	id, node := r.enrol(r.acme, "web-1")
	_, foreign := r.enrol(r.globex, "web-2")
	forged := r.dial(forge(t, r.globex.ID, foreign, nil, time.Now().Add(time.Hour)))
	none := r.dial(nil)
	reasons := map[string]int{}
	for range 40 {
		for _, conn := range []*grpc.ClientConn{none, forged} {
			stream, err := pb.NewAgentClient(conn).Report(t.Context())
			must(t, err)
			_, err = stream.Recv()
			reasons[faultOf(err).GetReason()]++
		}
	}
	if reasons["no_certificate"] != 40 || reasons["foreign_certificate"] < strangersPerSec || reasons["foreign_certificate"]+reasons["too_many_strangers"] != 40 {
		t.Errorf("answers %v", reasons)
	}
	for i := range 4 {
		c := r.hello(id, facts("web-1"), 1, 0, 1)
		if w := c.recv().GetWelcome(); w == nil {
			t.Fatalf("connection %d of the node is refused", i)
		}
	}
	if r.srv.hub.get(r.acme.ID, node) == nil {
		t.Error("the node is not connected")
	}
}
