package ingest

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// unaryTimeout bounds one Enrol or Renew.
const unaryTimeout = 10 * time.Second

// caller is who holds the other end: a node, proved by its certificate.
type caller struct {
	scope  tenants.Scope
	node   tenants.NodeID
	cert   *x509.Certificate
	remote string
}

type callerKey struct{}

func callerOf(ctx context.Context) (caller, bool) {
	c, ok := ctx.Value(callerKey{}).(caller)
	return c, ok
}

// identify verifies the peer's certificate. The handshake proved that the
// peer holds its key; whose it is, only the authority says.
func (s *Server) identify(ctx context.Context) (context.Context, error) {
	p, _ := peer.FromContext(ctx)
	var c caller
	if p != nil {
		c.remote = p.Addr.String()
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.PeerCertificates) > 0 {
			c.cert = info.State.PeerCertificates[0]
		}
	}
	if c.cert == nil {
		s.count.authFailed.Add(1)
		return nil, fault.New(fault.Unauthorized, "no_certificate", "this call needs the client certificate of a node").
			Do("enrol this machine with `telltale-agent enrol`")
	}
	vctx, cancel := context.WithTimeout(ctx, unaryTimeout)
	defer cancel()
	scope, err := s.deps.Authority.VerifyPeer(vctx, c.cert, s.cfg.Now())
	if err == nil {
		c.scope = scope
		c.node, err = tenants.ParseNodeID(scope.Principal.ID)
	}
	if err != nil {
		s.count.authFailed.Add(1)
		if fault.Of(err).Kind == fault.Unauthorized && !s.admit.strangers.Allow() {
			s.count.admitDenied.Add(1)
			return nil, errBusy("strangers")
		}
		s.log.Info("certificate refused", "remote", c.remote, "serial", c.cert.SerialNumber, "error", err)
		return nil, err
	}
	return context.WithValue(ctx, callerKey{}, c), nil
}

// open reports whether a method needs no certificate.
func open(method string) bool {
	return strings.HasPrefix(method, "/"+pb.Enrolment_ServiceDesc.ServiceName+"/")
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer s.rescue(info.FullMethod, &err)
	ctx, cancel := context.WithTimeout(ctx, unaryTimeout)
	defer cancel()
	if !open(info.FullMethod) {
		if ctx, err = s.identify(ctx); err != nil {
			return nil, s.answer(err, 0)
		}
	}
	resp, err = next(ctx, req)
	return resp, s.answered(info.FullMethod, err)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer s.rescue(info.FullMethod, &err)
	ctx, err := s.identify(ss.Context())
	if err != nil {
		return s.answer(err, 0)
	}
	// After the certificate: strangers must not use up what nodes are due.
	limit, what := s.admit.streams, "streams"
	if info.FullMethod == pb.Agent_Tasks_FullMethodName {
		limit, what = s.admit.channels, "task_channels"
	}
	if !limit.Allow() {
		s.count.admitDenied.Add(1)
		return s.answer(errBusy(what), retryAfter())
	}
	return s.answered(info.FullMethod, next(srv, &identified{ss, ctx}))
}

// identified is a stream whose context knows the caller.
type identified struct {
	grpc.ServerStream
	ctx context.Context
}

func (i *identified) Context() context.Context { return i.ctx }

// retryable lets a handler name the time after which to try again.
type retryable struct {
	error
	after time.Duration
}

func (r retryable) Unwrap() error { return r.error }

// answered logs what is our own fault and turns any error into a status.
func (s *Server) answered(method string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err // gRPC's own: the peer is gone
	}
	if errors.Is(err, context.Canceled) {
		return status.FromContextError(err).Err()
	}
	if fault.Of(err).Kind == fault.Internal {
		s.log.Error("call failed", "method", method, "error", err)
	}
	var after time.Duration
	if r, ok := errors.AsType[retryable](err); ok {
		after = r.after
	}
	return s.answer(err, after)
}

func (s *Server) rescue(method string, err *error) {
	if r := recover(); r != nil {
		s.count.panics.Add(1)
		s.log.Error("panic", "method", method, "panic", r, "stack", string(debug.Stack()))
		*err = s.answer(fault.New(fault.Internal, "internal", "the server failed to answer"), 0)
	}
}

// hostOf cuts the port off a remote address.
func hostOf(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return remote
}
