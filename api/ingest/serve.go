package ingest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
)

// Connection bounds. Buffers are small, and write buffers shared (gRPC's
// default), because a server holds ten thousand mostly idle connections. A dead path is noticed
// after keepaliveTime + keepaliveTimeout, within 45 s, on this side too.
const (
	bufferBytes      = 4 << 10
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 20 * time.Second
	pingMinTime      = 10 * time.Second // agents ping every 20 s
	handshakeTimeout = 10 * time.Second
	stopTimeout      = 2 * time.Second
)

// tlsConfig asks for a client certificate without judging it: an enrolling
// machine has none, and a node's is judged by its own tenant's authority, not
// by a pool. Tickets are off, so that each connection shows its certificate.
func tlsConfig(cert CertificateFunc) *tls.Config {
	return &tls.Config{
		GetCertificate: cert, ClientAuth: tls.RequestClientCert,
		MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true,
	}
}

// CertificateFunc returns the server's certificate for a handshake, as
// tls.Config's GetCertificate does.
type CertificateFunc func(*tls.ClientHelloInfo) (*tls.Certificate, error)

func (s *Server) grpcServer(cert CertificateFunc) *grpc.Server {
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(tlsConfig(cert))),
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(tenants.MaxAgentMessage),
		grpc.MaxConcurrentStreams(8),
		grpc.MaxHeaderListSize(16<<10),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.ReadBufferSize(bufferBytes),
		grpc.WriteBufferSize(bufferBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, MaxConnectionIdle: 5 * time.Minute,
			// The stream's own age limit comes first; this one also ends a
			// stream whose peer takes nothing in.
			MaxConnectionAge: 2 * s.cfg.MaxAge, MaxConnectionAgeGrace: time.Minute,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMinTime, PermitWithoutStream: true}),
	)
	pb.RegisterEnrolmentServer(g, enrolment{s: s})
	pb.RegisterAgentServer(g, agent{s: s})
	return g
}

// Run serves agents on lis until ctx ends: then it asks all streams to leave,
// stops taking connections, and writes what has arrived. It closes lis.
func (s *Server) Run(ctx context.Context, lis net.Listener, cert CertificateFunc) error {
	g := s.grpcServer(cert)
	// What the streams stand on goes on until they are gone.
	work, done := context.WithCancel(context.WithoutCancel(ctx))
	defer done()
	var parts errgroup.Group
	parts.Go(func() error { return s.batch.run(work) })
	parts.Go(func() error { return s.tally.run(work) })
	parts.Go(func() error { return s.hub.run(work) })

	serving := make(chan error, 1)
	go func() { serving <- g.Serve(lis) }()
	var err error
	select {
	case err = <-serving:
		err = fmt.Errorf("serve agents: %w", err)
		s.hub.drain()
		g.Stop()
	case <-ctx.Done():
		s.hub.drain()
		force := time.AfterFunc(stopTimeout, g.Stop)
		g.GracefulStop()
		force.Stop()
		<-serving // nil or ErrServerStopped: we stopped it
	}
	s.readers.Wait()
	done()
	return errors.Join(err, parts.Wait())
}
