package uplink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/telltale-dev/telltale/agent/inspector"
)

// path remembers how far the last attempt to connect came. gRPC keeps of it
// only a text. Safe for concurrent use.
type path struct {
	mu    sync.Mutex
	err   error // of the last attempt
	ready bool  // the last attempt ended in a TLS connection
}

func (p *path) note(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.ready = err, err == nil
}

func (p *path) state() (ready bool, err error) {
	if p == nil {
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready, p.err
}

// dialing notes what a dialer says.
func (p *path) dialing(dial DialFunc) DialFunc {
	if dial == nil {
		dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	return func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := dial(ctx, addr)
		if err != nil {
			p.note(err)
		}
		return c, err
	}
}

// handshaking notes how TLS handshakes end.
type handshaking struct {
	credentials.TransportCredentials
	path *path
}

func (h handshaking) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := h.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		h.path.note(&handshakeError{err})
	} else {
		h.path.note(nil)
	}
	return c, info, err
}

func (h handshaking) Clone() credentials.TransportCredentials {
	return handshaking{h.TransportCredentials.Clone(), h.path}
}

// handshakeError is a failure after the TCP connection stood.
type handshakeError struct{ error }

func (h *handshakeError) Unwrap() error { return h.error }

// explain fills in what an error means that the server did not make.
func (p place) explain(r *Refusal, st *status.Status) {
	ready, err := p.path.state()
	switch code := st.Code(); {
	case code == codes.Canceled:
		r.Message = "stopped before the server answered"
	case strings.Contains(st.Message(), "unexpected HTTP status code"), strings.Contains(st.Message(), "unexpected content-type"), code == codes.Unimplemented:
		r.say("wrong_service", code != codes.Unavailable, "what answers there is no Telltale gRPC service of this version",
			"check that the server's address names telltaled's gRPC port and not its web port or a proxy, and that agent and server are of one version")
	case code != codes.Unavailable && code != codes.DeadlineExceeded:
		// an odd answer; its own text says the most
	case err != nil:
		p.explainPath(r, err)
	case ready && code == codes.DeadlineExceeded:
		r.say("no_answer", false, "the server took the connection and did not answer in time", "try again; if it stays, look at the server's log and load")
	case ready:
		r.say("connection_lost", false, "the connection to the server broke", "")
	case code == codes.DeadlineExceeded:
		p.timedOut(r)
	}
}

func (r *Refusal) say(reason string, lasting bool, message, next string) {
	r.Reason, r.Lasting, r.Message, r.Next = reason, lasting, message, next
}

func (p place) timedOut(r *Refusal) {
	r.say("timeout", false, "nothing answers at "+p.server, "check the address, and that no firewall drops the connection")
}

// explainPath says what kept a connection from coming about.
func (p place) explainPath(r *Refusal, err error) {
	var shake *handshakeError
	if errors.As(err, &shake) {
		p.explainTLS(r, shake.error)
		return
	}
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		r.say("unknown_host", false, fmt.Sprintf("the name %q is not known", inspector.CleanText(dns.Name)), "check how the server's address is spelt, and this machine's DNS")
	case errors.As(err, &dns):
		r.say("no_name_service", false, fmt.Sprintf("the name %q cannot be looked up: DNS does not answer", inspector.CleanText(dns.Name)), "check this machine's DNS (/etc/resolv.conf)")
	case errors.Is(err, syscall.ECONNREFUSED):
		r.say("connection_refused", false, "nothing listens at "+p.server, "check that telltaled runs there, and that the address names its gRPC port")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		r.say("no_route", false, "this machine has no route to "+p.server, "check the address and this machine's network")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT), errors.As(err, &timeout) && timeout.Timeout():
		p.timedOut(r)
	default:
		r.say("no_connection", false, "cannot connect to "+p.server+": "+inspector.CleanText(err.Error()), "check the address and this machine's network")
	}
}

// explainTLS says what is wrong with the other side's TLS.
func (p place) explainTLS(r *Refusal, err error) {
	const port = "check that the server's address names telltaled's gRPC port"
	var (
		foreign x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
		remote  *net.OpError
		timeout net.Error
	)
	switch {
	case errors.As(err, &foreign):
		r.say("unknown_authority", true, "the server's certificate is not signed by the CA that this machine trusts",
			"check --ca: it must be the CA that signed the server's gRPC certificate (the one in use is kept as "+p.dir+"/"+caFile+")")
	case errors.As(err, &name):
		host, _, _ := net.SplitHostPort(p.server)
		r.say("wrong_name", true, fmt.Sprintf("the server's certificate is not for %q", host), "use one of its own names in the server's address"+namesOf(name.Certificate)+", or give the server a certificate for this one")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		r.say("server_certificate_expired", true, "the server's certificate is not valid at this time: "+inspector.CleanText(invalid.Detail),
			"this machine's clock reads "+time.Now().UTC().Format(time.RFC3339)+": set it right, or renew the server's certificate")
	case errors.As(err, &record), strings.Contains(err.Error(), "ALPN"):
		r.say("wrong_protocol", true, "what listens at "+p.server+" does not speak gRPC over TLS", port+", not its web or metrics port")
	case errors.As(err, &remote) && remote.Op == "remote error": // an alert
		r.say("tls_refused", true, "the server refused the TLS connection: "+inspector.CleanText(strings.TrimPrefix(remote.Err.Error(), "tls: ")), port+", and that it allows TLS 1.3")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		r.say("timeout", false, "the other side took the connection but not the TLS handshake", port)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		r.say("handshake_cut", false, "the other side closed the connection during the TLS handshake", port+"; it may also just be starting or stopping")
	default:
		r.say("tls_failed", false, "no TLS connection: "+inspector.CleanText(err.Error()), "check --ca and the server's certificate")
	}
}

// namesOf lists what a certificate is for, in brackets.
func namesOf(c *x509.Certificate) string {
	if c == nil {
		return ""
	}
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	if len(names) == 0 {
		return ""
	}
	if len(names) > 5 {
		names = append(names[:5], "…")
	}
	return " (" + inspector.CleanText(strings.Join(names, ", ")) + ")"
}
