package auth

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// foreignFloor is the least age of remembered authorities at which a
// certificate that none of them signed makes us look again: another replica
// may have made one since. It bounds the look-ups that strangers can cause.
const foreignFloor = time.Second

// VerifyPeer turns a client certificate, whose key the TLS handshake has
// proved, into the scope of its node: principal and selector are the node, and
// no scope is granted. The certificate is checked against the authorities of
// the tenant that its SPIFFE id names and against no other.
//
// Refusals are Unauthorized with a reason: no_certificate,
// malformed_certificate, foreign_certificate, certificate_expired and
// certificate_not_yet_valid (both tell the server's time), unknown_node,
// node_revoked; or Denied with tenant_suspended. A revocation bites within
// tenants.RevocationDelay; call it again on a live stream to notice.
func (n *NodeCA) VerifyPeer(ctx context.Context, cert *x509.Certificate, now time.Time) (tenants.Scope, error) {
	if cert == nil {
		return tenants.Scope{}, fault.New(fault.Unauthorized, "no_certificate", "the connection has no client certificate").Do("enrol the node, then connect with its certificate")
	}
	t, node, ok := n.subject(cert)
	if !ok {
		return tenants.Scope{}, badCert("malformed_certificate", "the client certificate names no node of this server")
	}
	ca, err := n.signedBy(ctx, t, cert)
	if err != nil {
		return tenants.Scope{}, err
	}
	if ca == nil {
		return tenants.Scope{}, badCert("foreign_certificate", "the client certificate is not from the authority of the tenant it names")
	}
	if err := inTime(cert, ca, now); err != nil {
		return tenants.Scope{}, err
	}
	// What is left: usages, constraints and extensions that must be understood.
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return tenants.Scope{}, badCert("foreign_certificate", "the client certificate is not made for a node").Because(err)
	}
	return n.scope(ctx, t, node)
}

// scope checks that the node is still wanted.
func (n *NodeCA) scope(ctx context.Context, t tenants.TenantID, node tenants.NodeID) (tenants.Scope, error) {
	id, found, err := n.idents.load(ctx, nodeKey(t, node), 0, func(ctx context.Context) (tenants.NodeIdentity, bool, error) {
		id, err := n.nodes.NodeIdentity(ctx, t, node)
		if fault.Is(err, fault.NotFound) {
			return id, false, nil
		}
		return id, err == nil, err
	})
	switch {
	case err != nil:
		return tenants.Scope{}, fmt.Errorf("look up node %s: %w", node, err)
	case !found || id.Tenant != t || id.Node != node:
		return tenants.Scope{}, badCert("unknown_node", "the node is not known here")
	case id.Suspended:
		return tenants.Scope{}, fault.New(fault.Denied, "tenant_suspended", "the tenant is suspended").Do("ask the operator of this server; keep the node's identity")
	case id.Revoked:
		return tenants.Scope{}, badCert("node_revoked", "the node's identity was withdrawn")
	}
	return tenants.Scope{
		Tenant: t, Slug: id.Slug,
		Principal: tenants.Principal{Kind: tenants.NodePrincipal, ID: node.String(), Name: id.Name},
		Nodes:     tenants.Selector{IDs: []tenants.NodeID{node}},
	}, nil
}

// subject reads the SPIFFE id, strictly: one URI, no other name, our trust
// domain, canonical ids.
func (n *NodeCA) subject(cert *x509.Certificate) (t tenants.TenantID, node tenants.NodeID, ok bool) {
	if len(cert.URIs) != 1 || len(cert.DNSNames)+len(cert.EmailAddresses)+len(cert.IPAddresses) > 0 || cert.IsCA {
		return t, node, false
	}
	rest, ok := strings.CutPrefix(cert.URIs[0].String(), "spiffe://"+n.domain+"/tenant/")
	if !ok {
		return t, node, false
	}
	tenantText, nodeText, ok := strings.Cut(rest, "/node/")
	if !ok {
		return t, node, false
	}
	t, tErr := tenants.ParseTenantID(tenantText)
	node, nErr := tenants.ParseNodeID(nodeText)
	canonical := tErr == nil && nErr == nil && cert.URIs[0].String() == n.spiffe(t, node).String()
	return t, node, canonical && !t.IsZero() && !node.IsZero()
}

// signedBy is the tenant's authority that signed a certificate, or nil.
func (n *NodeCA) signedBy(ctx context.Context, t tenants.TenantID, cert *x509.Certificate) (*x509.Certificate, error) {
	for _, maxAge := range []time.Duration{0, foreignFloor} {
		set, err := n.load(ctx, t, maxAge)
		if err != nil {
			return nil, fmt.Errorf("look up the authorities of tenant %s: %w", t, err)
		}
		for _, ca := range slices.Backward(set.certs) {
			if cert.CheckSignatureFrom(ca) == nil {
				return ca, nil
			}
		}
	}
	return nil, nil
}

func inTime(cert, ca *x509.Certificate, now time.Time) error {
	clock := now.UTC().Format(time.RFC3339)
	switch {
	case now.After(cert.NotAfter):
		return badCert("certificate_expired", fmt.Sprintf("the client certificate expired at %s; the server's clock reads %s", cert.NotAfter.UTC().Format(time.RFC3339), clock))
	case now.Before(cert.NotBefore):
		return fault.Newf(fault.Unauthorized, "certificate_not_yet_valid", "the client certificate is valid from %s; the server's clock reads %s", cert.NotBefore.UTC().Format(time.RFC3339), clock).
			Do("set the clocks right; keep the node's identity")
	case now.After(ca.NotAfter):
		return badCert("certificate_expired", fmt.Sprintf("the authority of the client certificate expired at %s; the server's clock reads %s", ca.NotAfter.UTC().Format(time.RFC3339), clock))
	}
	return nil
}

func badCert(reason, msg string) *fault.Error {
	return fault.New(fault.Unauthorized, reason, msg).Do("keep the node's identity; check the clock and the server's address; enrol again only if an administrator says so")
}
