package uplink

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
)

func refused(code codes.Code, reason string) error {
	st, _ := status.New(code, "no").WithDetails(&pb.Fault{Reason: reason, Next: "the server's own advice", RetryAfterMs: 10})
	return st.Err()
}

func TestEachRefusalHasItsOwnNextStep(t *testing.T) {
	at := place{server: "fleet.example:9443", dir: "/var/lib/node"}
	seen := map[string]string{}
	for _, tc := range []struct {
		code    codes.Code
		reason  string
		lasting bool
		want    string
	}{
		{codes.Unauthenticated, "node_revoked", true, "withdrew this node: remove /var/lib/node and enrol anew with a fresh token"},
		{codes.Unauthenticated, "unknown_node", true, "fleet.example:9443 is the server at which"},
		{codes.Unauthenticated, "foreign_certificate", true, "another server or tenant"},
		{codes.Unauthenticated, "certificate_expired", true, "compare the two clocks"},
		{codes.Unauthenticated, "certificate_not_yet_valid", true, "the server's clock went back"},
		{codes.FailedPrecondition, "duplicate_identity", false, "another machine"},
		{codes.PermissionDenied, "tenant_suspended", true, "goes on by itself"},
		{codes.Unauthenticated, "token_spent", true, "the server's own advice"},
		{codes.Unauthenticated, "bad_checksum", true, "copy the whole enrolment token"},
		{codes.InvalidArgument, "protocol", true, "of the server's version"},
		{codes.Unavailable, "server_stopping", false, "the server's own advice"},
		{codes.Aborted, "replaced", false, "the server's own advice"},
		{codes.ResourceExhausted, "too_many_streams", false, "the server's own advice"},
	} {
		r, ok := errors.AsType[*Refusal](at.refusal(refused(tc.code, tc.reason)))
		if !ok || r.Reason != tc.reason || r.Lasting != tc.lasting || !r.Answered || !strings.Contains(r.Next, tc.want) {
			t.Errorf("%s: %+v", tc.reason, r)
			continue
		}
		if other, twice := seen[r.Next]; twice && !strings.Contains(r.Next, "server's own") {
			t.Errorf("%s and %s give the same advice", tc.reason, other)
		}
		seen[r.Next] = tc.reason
	}
}

// lines is a log that counts.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A refusal that only people can end is asked about seldom, one that passes
// soon; either is logged once until it changes.
func TestTroublesAreToldOnce(t *testing.T) {
	var out lines
	u := New(Config{Server: "s:1"}, identity(t), slog.New(slog.NewTextHandler(&out, nil)))
	at := place{server: "s:1", dir: "/d"}
	var back backoff
	for range 50 {
		err := at.refusal(refused(codes.Unauthenticated, "node_revoked"))
		wait := u.wait(&back, err)
		if wait < time.Minute || wait > 2*time.Minute {
			t.Fatalf("a revoked node asks again in %v", wait)
		}
		u.tell(err, wait)
	}
	back.reset()
	if wait := u.wait(&back, at.refusal(refused(codes.Unavailable, "server_stopping"))); wait > 2*time.Second {
		t.Errorf("a stopping server is asked again in %v", wait)
	}
	for range 3 {
		u.tell(at.refusal(refused(codes.Unavailable, "server_stopping")), time.Second)
		u.tell(errStalled, time.Second)
	}
	if got := strings.Count(out.String(), "\n"); got != 3 || strings.Count(out.String(), "node_revoked") != 1 || !strings.Contains(out.String(), "the server refuses this node") {
		t.Errorf("%d lines:\n%s", got, &out)
	}
	u.troubles.end()
	u.tell(errStalled, time.Second)
	if got := strings.Count(out.String(), "\n"); got != 4 {
		t.Errorf("a trouble that came back is not told:\n%s", &out)
	}
	for i := range 1000 {
		u.troubles.begins("x", errors.New(strings.Repeat("x", i)))
	}
	if n := len(u.troubles.known); n > maxTroubles {
		t.Errorf("%d troubles are remembered", n)
	}
}

// A node that is revoked stays alive, asks within minutes and comes back when
// the server changes its mind.
func TestRevokedNodeComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back backoff
		began := time.Now()
		for range 3 {
			if !sleep(t.Context(), back.seldom(10*time.Millisecond)) {
				t.Fatal("stopped")
			}
		}
		if d := time.Since(began); d < 3*time.Minute || d > 6*time.Minute {
			t.Errorf("three attempts took %v", d)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if sleep(ctx, back.seldom(0)) {
			t.Error("a stop does not end the wait")
		}
	})
}

// What keeps a connection from coming about is told without gRPC's words, and
// with what to do.
func TestWayToTheServer(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	web := httptest.NewUnstartedServer(http.NotFoundHandler())
	web.EnableHTTP2 = true
	web.StartTLS()
	defer web.Close()
	tlsOnly := httptest.NewUnstartedServer(http.NotFoundHandler())
	tlsOnly.Config.ErrorLog = log.New(io.Discard, "", 0)
	tlsOnly.StartTLS()
	defer tlsOnly.Close()
	cut, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for {
			c, err := cut.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	defer func() { _ = cut.Close(); <-closed }()
	addr, ca := serve(t, server{enrol: func(*pb.EnrolRequest) (*pb.EnrolResponse, error) { return nil, status.Error(codes.Unimplemented, "x") }})
	_, foreign := serve(t, server{})
	_, port, _ := net.SplitHostPort(addr)
	fails := func(err error) DialFunc {
		return func(context.Context, string) (net.Conn, error) { return nil, &net.OpError{Op: "dial", Err: err} }
	}
	webCA := pemOf(web.Certificate().Raw)
	for name, tc := range map[string]struct {
		server  string
		ca      []byte
		dial    DialFunc
		reason  string
		lasting bool
		next    string
	}{
		"refused":      {"127.0.0.1:1", ca, nil, "connection_refused", false, "telltaled runs there"},
		"no name":      {"nope.invalid:1", ca, fails(&net.DNSError{Name: "nope.invalid", IsNotFound: true}), "unknown_host", false, "spelt"},
		"no DNS":       {"nope.invalid:1", ca, fails(&net.DNSError{Name: "nope.invalid", IsTimeout: true}), "no_name_service", false, "resolv.conf"},
		"silence":      {"192.0.2.1:1", ca, fails(context.DeadlineExceeded), "timeout", false, "firewall"},
		"no route":     {"192.0.2.1:1", ca, fails(syscall.EHOSTUNREACH), "no_route", false, "network"},
		"odd":          {"192.0.2.1:1", ca, fails(errors.New("odd")), "no_connection", false, "address"},
		"foreign CA":   {addr, foreign, nil, "unknown_authority", true, "check --ca: it must be the CA that signed the server's gRPC certificate"},
		"other name":   {"localhost:" + port, ca, nil, "wrong_name", true, "127.0.0.1"},
		"plain HTTP":   {plain.Listener.Addr().String(), ca, nil, "wrong_protocol", true, "gRPC port"},
		"web port":     {web.Listener.Addr().String(), webCA, nil, "wrong_service", true, "gRPC port"},
		"HTTP/1.1 TLS": {tlsOnly.Listener.Addr().String(), pemOf(tlsOnly.Certificate().Raw), nil, "tls_refused", true, "gRPC port"},
		"cut":          {cut.Addr().String(), ca, nil, "handshake_cut", false, "gRPC port"},
		"other gRPC":   {addr, ca, nil, "wrong_service", true, "gRPC port"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Enrol(t.Context(), Enrolment{Server: tc.server, CA: tc.ca, Token: "x", Dir: t.TempDir(), Dial: tc.dial})
			r, ok := errors.AsType[*Refusal](err)
			if !ok || r.Reason != tc.reason || r.Lasting != tc.lasting || !strings.Contains(r.Next, tc.next) {
				t.Fatalf("%v", err)
			}
			for _, raw := range []string{"rpc error", "desc =", "transport:", "x509:"} {
				if strings.Contains(err.Error(), raw) {
					t.Errorf("%q shows %q", err, raw)
				}
			}
		})
	}
}

// A server whose certificate is over is told from one that is foreign.
func TestServerCertificateOutOfDate(t *testing.T) {
	addr, ca := serve(t, server{})
	roots, err := parseRoots(ca)
	if err != nil {
		t.Fatal(err)
	}
	way := &path{}
	conn, err := dial(addr, &tls.Config{RootCAs: roots, Time: func() time.Time { return time.Now().Add(48 * time.Hour) }}, nil, way)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = pb.NewEnrolmentClient(conn).Enrol(t.Context(), &pb.EnrolRequest{})
	r, _ := errors.AsType[*Refusal](place{addr, "/d", way}.refusal(err))
	if r == nil || r.Reason != "server_certificate_expired" || !strings.Contains(r.Next, "clock") {
		t.Errorf("%v", r)
	}
}

// A connection that stood and broke is no missing server.
func TestConnectionLost(t *testing.T) {
	way := &path{}
	way.note(nil)
	at := place{"s:1", "/d", way}
	for err, want := range map[error]string{
		status.Error(codes.Unavailable, "error reading from server: EOF"): "connection_lost",
		context.DeadlineExceeded:                    "no_answer",
		status.Error(codes.Canceled, "x"):           "canceled",
		status.Error(codes.Internal, "odd welcome"): "internal",
	} {
		if r, _ := errors.AsType[*Refusal](at.refusal(err)); r == nil || r.Reason != want {
			t.Errorf("%v: %v", err, r)
		}
	}
	if r, _ := errors.AsType[*Refusal](place{server: "s:1", path: &path{}}.refusal(context.DeadlineExceeded)); r.Reason != "timeout" {
		t.Errorf("%v", r)
	}
}

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
