package ingest

import (
	"context"
	"crypto/sha256"
	"time"

	pb "github.com/telltale-dev/telltale/api/telltalev1"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants/directory"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// enrolment is the service that needs no certificate.
type enrolment struct {
	pb.UnimplementedEnrolmentServer
	s *Server
}

// Enrol spends one use of a token and signs the node's key. The request is
// looked at in full before the token is, so that a malformed one costs no use.
func (e enrolment) Enrol(ctx context.Context, req *pb.EnrolRequest) (*pb.EnrolResponse, error) {
	s := e.s
	if !s.admit.enrols.Allow() {
		s.count.admitDenied.Add(1)
		return nil, retryable{errBusy("enrolments"), retryAfter()}
	}
	select {
	case s.admit.enrolling <- struct{}{}:
		defer func() { <-s.admit.enrolling }()
	case <-ctx.Done():
		s.count.admitDenied.Add(1)
		return nil, retryable{errBusy("enrolments"), retryAfter()}
	}
	csr, err := auth.CheckCSR(req.Csr)
	if err != nil {
		s.count.enrolFailed.Add(1)
		return nil, err
	}
	facts := factsOf(req.Facts)
	key := sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	facts.KeyHash = key[:]
	if len(req.Name) > 0 {
		facts.Name = string(req.Name)
	}
	tenant, node, err := s.deps.Enroller.RedeemEnrolToken(ctx, string(req.Token), facts)
	if err != nil {
		s.count.enrolFailed.Add(1)
		return nil, err
	}
	issued, err := s.deps.Authority.Issue(ctx, tenant, node, req.Csr, s.cfg.CertLifetime)
	if err != nil {
		s.count.enrolFailed.Add(1)
		return nil, err
	}
	s.count.enrolled.Add(1)
	s.log.Info("node enrolled", "tenant", tenant, "node", node)
	return &pb.EnrolResponse{
		Node: node.String(), Tenant: tenant.String(), Certificate: issued.Cert, ServerTimeNs: s.cfg.Now().UnixNano(),
	}, nil
}

// factsOf reads what a node claims; the directory and the fleet clean it.
func factsOf(f *pb.NodeFacts) directory.NodeFacts {
	text := func(b []byte) string { return string(b[:min(len(b), 256)]) }
	if f == nil {
		return directory.NodeFacts{}
	}
	return directory.NodeFacts{
		Name: text(f.Hostname), MachineID: text(f.MachineId), BootID: text(f.BootId), OS: text(f.Os),
		Arch: text(f.Arch), Kernel: text(f.Kernel), AgentVersion: text(f.AgentVersion),
	}
}

// agent is the service for nodes.
type agent struct {
	pb.UnimplementedAgentServer
	s *Server
}

// Renew signs a node's key anew. The interceptor has already refused an
// expired certificate: such a node enrols again.
func (a agent) Renew(ctx context.Context, req *pb.RenewRequest) (*pb.RenewResponse, error) {
	c, ok := callerOf(ctx)
	if !ok {
		return nil, fault.New(fault.Unauthorized, "no_certificate", "this call needs the client certificate of a node")
	}
	issued, err := a.s.deps.Authority.Issue(ctx, c.scope.Tenant, c.node, req.Csr, a.s.cfg.CertLifetime)
	if err != nil {
		return nil, err
	}
	a.s.count.renewed.Add(1)
	a.s.log.Info("certificate renewed", "tenant", c.scope.Tenant, "node", c.node, "replaces_until", c.cert.NotAfter.Format(time.RFC3339))
	return &pb.RenewResponse{Certificate: issued.Cert, ServerTimeNs: a.s.cfg.Now().UnixNano()}, nil
}
