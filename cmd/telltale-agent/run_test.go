package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/agent/runner"
	"github.com/telltale-dev/telltale/agent/uplink"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// switchboard is a server that enrols anybody and says what is to be off.
type switchboard struct {
	pb.UnimplementedAgentServer
	pb.UnimplementedEnrolmentServer
	key  *ecdsa.PrivateKey
	cert *x509.Certificate

	mu  sync.Mutex
	off []string
}

func (s *switchboard) Enrol(_ context.Context, r *pb.EnrolRequest) (*pb.EnrolResponse, error) {
	csr, err := x509.ParseCertificateRequest(r.Csr)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, s.cert, csr.PublicKey, s.key)
	return &pb.EnrolResponse{Node: "n", Tenant: "t", Certificate: der, ServerTimeNs: time.Now().UnixNano()}, err
}

func (s *switchboard) Report(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
	if _, err := g.Recv(); err != nil {
		return err
	}
	s.mu.Lock()
	control := &pb.Control{DisabledModules: s.off}
	s.mu.Unlock()
	for _, f := range []*pb.ServerFrame{
		{Kind: &pb.ServerFrame_Welcome{Welcome: &pb.Welcome{Epoch: 1}}}, {Kind: &pb.ServerFrame_Control{Control: control}},
	} {
		if err := g.Send(f); err != nil {
			return err
		}
	}
	for {
		f, err := g.Recv()
		if err != nil {
			return nil
		}
		if r := f.GetReport(); r != nil {
			if err := g.Send(&pb.ServerFrame{Kind: &pb.ServerFrame_Ack{Ack: &pb.Ack{Seq: r.Seq}}}); err != nil {
				return err
			}
		}
	}
}

// grpc makes a server with the switchboard's certificate.
func (s *switchboard) grpc() *grpc.Server {
	return grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{ClientAuth: tls.RequestClientCert,
		Certificates: []tls.Certificate{{Certificate: [][]byte{s.cert.Raw}, PrivateKey: s.key}}})))
}

// serve answers on addr until stop; "127.0.0.1:0" picks a port.
func (s *switchboard) serve(t *testing.T, addr string) (at string, stop func()) {
	t.Helper()
	g := s.grpc()
	pb.RegisterAgentServer(g, s)
	pb.RegisterEnrolmentServer(g, s)
	return listen(t, g, addr)
}

func listen(t *testing.T, g *grpc.Server, addr string) (at string, stop func()) {
	t.Helper()
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = g.Serve(lis); close(done) }()
	stop = sync.OnceFunc(func() { g.Stop(); <-done })
	t.Cleanup(stop)
	return lis.Addr().String(), stop
}

func newSwitchboard(t *testing.T) *switchboard {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &switchboard{key: key, cert: cert}
}

// probe counts how often it was opened, and measures nothing.
type probe struct {
	name   string
	mu     sync.Mutex
	opened int
}

func (p *probe) module() runner.Module {
	return runner.Module{Component: p.name, Signals: []string{"one"}, Open: func() (runner.Collector, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.opened++
		return p, nil
	}}
}

func (p *probe) opens() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened
}

func (p *probe) Component() string { return p.name }
func (p *probe) Close() error      { return nil }
func (p *probe) Capabilities() []inspector.Capability {
	return []inspector.Capability{{Component: p.name, Signal: "one", Level: inspector.Full}}
}
func (p *probe) Collect(context.Context, time.Time) ([]*inspector.Window, error) { return nil, nil }

// boot starts the agent of a directory as run does, with fresh probes.
func boot(t *testing.T, dir string) (a *agent, bad, good *probe, stop func()) {
	t.Helper()
	c := runConfig{interval: time.Second, queue: 16, queueMiB: 1}
	c.dir = dir
	log := slog.New(slog.DiscardHandler)
	id, unlock, err := c.identity(t.Context(), uplink.Facts{}, log)
	if err != nil {
		t.Fatal(err)
	}
	bad, good = &probe{name: "bad"}, &probe{name: "good"}
	a = c.build(id, uplink.Facts{}, nil, func(func(inspector.Occurrence)) []runner.Module { return []runner.Module{bad.module(), good.module()} }, log)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.supervise(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		unlock()
	})
	t.Cleanup(stop)
	return a, bad, good, stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		}
	}
}

func reason(a *agent, component string) string {
	for _, c := range a.collect.Capabilities() {
		if c.Component == component {
			return fmt.Sprintf("%s %s", c.Level, c.Reason)
		}
	}
	return ""
}

// A probe that harms its machine and was switched off from the server is not
// loaded again by a restart, be the server there or not.
func TestSwitchedOffFromTheServerOutlivesARestart(t *testing.T) {
	t.Parallel()
	s := newSwitchboard(t)
	s.off = []string{"bad"}
	addr, down := s.serve(t, "127.0.0.1:0")
	dir := filepath.Join(t.TempDir(), "id")
	if _, err := uplink.Enrol(t.Context(), uplink.Enrolment{Server: addr, Dir: dir, Token: "x",
		CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "modules-off.json")
	const why = "off switched off from the server"

	// It was switched off before this agent ever started.
	a, bad, good, stop := boot(t, dir)
	eventually(t, "the good probe runs", func() bool { return good.opens() == 1 && reason(a, "bad") == why })
	eventually(t, "the list is kept", func() bool { raw, _ := os.ReadFile(file); return bytes.Contains(raw, []byte(`"bad"`)) })
	stop()
	if bad.opens() != 0 {
		t.Error("with the server there: the bad probe was opened before its word came")
	}

	// The server is away.
	down()
	a, bad, good, stop = boot(t, dir)
	eventually(t, "the good probe runs", func() bool { return good.opens() == 1 && reason(a, "bad") == why })
	stop()
	if bad.opens() != 0 {
		t.Error("with the server away: the bad probe was opened")
	}

	// The list is damaged: nothing is opened, until the server's comes.
	if err := os.WriteFile(file, []byte(`{"off":["b`), 0o600); err != nil {
		t.Fatal(err)
	}
	a, bad, good, stop = boot(t, dir)
	eventually(t, "both are held", func() bool {
		return strings.Contains(reason(a, "bad"), "modules-off.json is damaged") && strings.Contains(reason(a, "good"), "modules-off.json is damaged")
	})
	if bad.opens()+good.opens() != 0 {
		t.Error("with a damaged list: a probe was opened")
	}
	s.mu.Lock()
	s.off = nil
	s.mu.Unlock()
	s.serve(t, addr)
	eventually(t, "the server's list lifts it", func() bool { return bad.opens() == 1 && good.opens() == 1 })
	eventually(t, "and replaces the file", func() bool { raw, _ := os.ReadFile(file); return bytes.Contains(raw, []byte(`"off":[]`)) })
	stop()

	_, bad, _, _ = boot(t, dir)
	eventually(t, "a restart opens it", func() bool { return bad.opens() == 1 })
}
