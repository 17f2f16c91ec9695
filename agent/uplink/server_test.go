package uplink

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

// server is one that does what a test says: it must not be able to harm the
// agent.
type server struct {
	pb.UnimplementedAgentServer
	pb.UnimplementedEnrolmentServer
	report func(grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error
	enrol  func(*pb.EnrolRequest) (*pb.EnrolResponse, error)
	renew  func(context.Context, *pb.RenewRequest) (*pb.RenewResponse, error)
	tasks  func(grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error // nil: an older server
}

func (s server) Tasks(g grpc.BidiStreamingServer[pb.TaskFrame, pb.TaskOrder]) error {
	if s.tasks == nil {
		return s.UnimplementedAgentServer.Tasks(g)
	}
	return s.tasks(g)
}

func (s server) Renew(ctx context.Context, r *pb.RenewRequest) (*pb.RenewResponse, error) {
	return s.renew(ctx, r)
}

func (s server) Report(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
	return s.report(g)
}

func (s server) Enrol(_ context.Context, r *pb.EnrolRequest) (*pb.EnrolResponse, error) {
	return s.enrol(r)
}

// serve starts it and returns its address and CA.
func serve(t *testing.T, s server) (addr string, ca []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{ClientAuth: tls.RequestClientCert,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})))
	pb.RegisterAgentServer(g, s)
	pb.RegisterEnrolmentServer(g, s)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = g.Serve(lis); close(done) }()
	t.Cleanup(func() { g.Stop(); <-done })
	return lis.Addr().String(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// connected runs an uplink against a server until the test ends.
func connected(t *testing.T, s server) *Uplink { t.Helper(); return connectedWith(t, s, Config{}) }

func connectedWith(t *testing.T, s server, cfg Config) *Uplink {
	t.Helper()
	addr, ca := serve(t, s)
	id := identity(t)
	if err := id.UseCA(ca); err != nil {
		t.Fatal(err)
	}
	cfg.Server = addr
	u := New(cfg, id, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Error("Run does not end")
		}
	})
	return u
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(15 * time.Second)
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

func pushed(u *Uplink, i int) {
	end := time.Unix(1_800_000_000+int64(10*i), 0)
	u.Push(&inspector.Window{Layout: layout, Start: end.Add(-10 * time.Second), End: end, Values: []inspector.Value{{OK: true}}})
}

func welcome(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame], w *pb.Welcome) error {
	if _, err := g.Recv(); err != nil {
		return err
	}
	return g.Send(&pb.ServerFrame{Kind: &pb.ServerFrame_Welcome{Welcome: w}})
}

func TestNonsenseFromTheServer(t *testing.T) {
	t.Parallel()
	u := connected(t, server{report: func(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
		if err := welcome(g, &pb.Welcome{Epoch: 1, NeedLayouts: [][]byte{nil, []byte("x"), make([]byte, 32)}}); err != nil {
			return err
		}
		for _, f := range []*pb.ServerFrame{
			{}, {Kind: &pb.ServerFrame_Ack{Ack: &pb.Ack{Seq: 0}}},
			{Kind: &pb.ServerFrame_Rewind{Rewind: &pb.Rewind{FromSeq: 1 << 60, NeedLayouts: [][]byte{make([]byte, 32)}}}},
			{Clock: &pb.Clock{WallNs: -1 << 63, EchoNs: 1 << 62, HeldNs: -1 << 63}, Kind: &pb.ServerFrame_Pong{Pong: &pb.Pong{}}},
			{Kind: &pb.ServerFrame_Control{Control: &pb.Control{DisabledModules: []string{"nope", "\u202e"}}}},
			{Kind: &pb.ServerFrame_Quarantined{Quarantined: &pb.Quarantined{Reason: "x\x00y"}}},
		} {
			if err := g.Send(f); err != nil {
				return err
			}
		}
		for {
			f, err := g.Recv()
			if err != nil {
				return err
			}
			if r := f.GetReport(); r != nil {
				if err := g.Send(&pb.ServerFrame{Kind: &pb.ServerFrame_Ack{Ack: &pb.Ack{Seq: r.Seq}}}); err != nil {
					return err
				}
			}
		}
	}})
	pushed(u, 0)
	until(t, "the window is acknowledged all the same", func() bool { return u.Stats().Acked == 1 })
	if st := u.Stats(); st.Quarantined != 1 || st.Connects != 1 {
		t.Errorf("uplink: %+v", st)
	}
}

func TestNoWelcomeIsAFailure(t *testing.T) {
	t.Parallel()
	for _, w := range []*pb.Welcome{{}, nil} {
		u := connected(t, server{report: func(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
			if w == nil {
				return g.Send(&pb.ServerFrame{Kind: &pb.ServerFrame_Ack{Ack: &pb.Ack{Seq: 5}}})
			}
			return welcome(g, w)
		}})
		until(t, "the attempt fails", func() bool { return u.Stats().Failures > 0 })
		if u.Stats().Connected {
			t.Error("it counts as connected")
		}
	}
}

// Whatever a server answers, the identity stays and the agent tries again.
func TestRefusalKeepsTheIdentity(t *testing.T) {
	t.Parallel()
	tried := make(chan struct{}, 100)
	u := connected(t, server{report: func(grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
		tried <- struct{}{}
		st, _ := status.New(codes.Aborted, "no\x1bthanks").WithDetails(&pb.Fault{Reason: "replaced", Next: "go", ServerTimeNs: time.Now().Add(49 * time.Second).UnixNano(), RetryAfterMs: 10})
		return st.Err()
	}})
	<-tried
	<-tried
	if _, err := OpenIdentity(u.id.Dir()); err != nil {
		t.Errorf("the identity is gone: %v", err)
	}
}

// A server that sends its agents away again and again does not get them all
// the time.
func TestEndlessDrainIsDamped(t *testing.T) {
	t.Parallel()
	u := connected(t, server{report: func(g grpc.BidiStreamingServer[pb.AgentFrame, pb.ServerFrame]) error {
		if err := welcome(g, &pb.Welcome{Epoch: 1}); err != nil {
			return err
		}
		if err := g.Send(&pb.ServerFrame{Kind: &pb.ServerFrame_Drain{Drain: &pb.Drain{}}}); err != nil {
			return err
		}
		for {
			if _, err := g.Recv(); err != nil {
				return nil
			}
		}
	}})
	began := time.Now()
	until(t, "it came back three times", func() bool { return u.Stats().Connects >= 3 })
	if d := time.Since(began); d < 2*backoffFloor {
		t.Errorf("three connections within %v", d)
	}
	if u.Stats().Failures != 0 {
		t.Error("a planned reconnect counts as a failure")
	}
}

func TestRefusalReadsWell(t *testing.T) {
	st, _ := status.New(codes.Unauthenticated, "expired\x1b").WithDetails(&pb.Fault{Reason: "certificate_expired", Next: "look at the clock", ServerTimeNs: time.Now().Add(49 * time.Second).UnixNano(), RetryAfterMs: 1 << 60})
	err := place{server: "s:1", dir: "/d"}.refusal(st.Err())
	r, ok := errors.AsType[*Refusal](err)
	if !ok || r.Reason != "certificate_expired" || r.RetryAfter != 10*time.Minute {
		t.Fatalf("refusal: %+v", r)
	}
	for _, want := range []string{"certificate_expired", "compare the two clocks", "/d", "49s away", `\u001b`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

func TestEnrolRefusesABadAnswer(t *testing.T) {
	t.Parallel()
	other := identity(t)
	for name, resp := range map[string]*pb.EnrolResponse{
		"empty": {}, "no certificate": {Node: "n", Tenant: "t"}, "another key": {Node: "n", Tenant: "t", Certificate: other.Certificate().Raw},
	} {
		addr, ca := serve(t, server{enrol: func(*pb.EnrolRequest) (*pb.EnrolResponse, error) { return resp, nil }})
		dir := filepath.Join(t.TempDir(), "id")
		if _, err := Enrol(t.Context(), Enrolment{Server: addr, CA: ca, Dir: dir}); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := OpenIdentity(dir); !errors.Is(err, ErrNotEnrolled) {
			t.Errorf("%s: the directory is %v", name, err)
		}
	}
}

// A server with another CA than the one trusted is not spoken to.
func TestForeignServerIsRefused(t *testing.T) {
	t.Parallel()
	asked := false
	addr, _ := serve(t, server{enrol: func(*pb.EnrolRequest) (*pb.EnrolResponse, error) { asked = true; return &pb.EnrolResponse{}, nil }})
	_, ca := serve(t, server{})
	if _, err := Enrol(t.Context(), Enrolment{Server: addr, CA: ca, Token: "secret", Dir: t.TempDir()}); err == nil || asked {
		t.Errorf("enrolled at a foreign server: %v", err)
	}
}
