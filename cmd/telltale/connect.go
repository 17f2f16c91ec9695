package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// offlineError says that no server answered, and what to do.
type offlineError struct {
	url   string
	cause error
}

func (o *offlineError) Error() string {
	return fmt.Sprintf("no answer from %s (%s); check that the server runs and that TELLTALE_URL is right", o.url, rootCause(o.cause))
}

func (o *offlineError) Unwrap() error { return o.cause }

func rootCause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		return op.Err.Error()
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "timed out"
	}
	return err.Error()
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// transport adds the token to each request and remembers the last failure, of
// which the protocol SDK keeps the text alone.
type transport struct {
	ep   endpoint
	base http.RoundTripper

	mu   sync.Mutex
	last error
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := t.ep.send(r, t.base)
	var failure error
	switch {
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
	case err != nil:
		failure = err
	case res.StatusCode >= 300, res.StatusCode == http.StatusOK && foreign(res):
		failure = refusalOf(t.ep, res)
	}
	if failure != nil {
		t.mu.Lock()
		t.last = failure
		t.mu.Unlock()
	}
	return res, err
}

// send sends a request with the token of the moment. When the server refuses
// that and there is another, the request is sent once more.
func (ep endpoint) send(r *http.Request, base http.RoundTripper) (*http.Response, error) {
	ctx := r.Context()
	token, err := ep.cred.token(ctx)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	res, err := ep.attempt(r, base, token)
	if err != nil || res.StatusCode != http.StatusUnauthorized || r.Body != nil && r.GetBody == nil {
		return res, err
	}
	token, err = ep.cred.instead(ctx, token)
	if err != nil {
		_ = res.Body.Close()
		return nil, err
	}
	if token == "" {
		return res, nil
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxErrorBody))
	_ = res.Body.Close()
	if r.Body != nil {
		r = r.Clone(ctx)
		if r.Body, err = r.GetBody(); err != nil {
			return nil, err
		}
	}
	return ep.attempt(r, base, token)
}

func (ep endpoint) attempt(r *http.Request, base http.RoundTripper, token string) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("User-Agent", userAgent())
	res, err := base.RoundTrip(r)
	if err != nil {
		return nil, &offlineError{ep.url, err}
	}
	return res, nil
}

func userAgent() string { return "telltale/" + version }

// failure prefers what the transport saw to what the SDK made of it, unless
// the server answered with a protocol error.
func (t *transport) failure(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var s *statusError
	var told *jsonrpc.Error
	if errors.As(t.last, &s) && s.status == http.StatusBadRequest && errors.As(err, &told) && !strings.Contains(s.message, told.Message) {
		return err // of an answer that came after the last refusal
	}
	if t.last != nil {
		return t.last
	}
	return err
}

// httpClient never follows a redirect: the token must not travel to a host
// that nobody named.
func httpClient(rt http.RoundTripper) *http.Client {
	return &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// session is one connection of the command line.
type session struct {
	*sdk.ClientSession
	t *transport
	w *wire
}

// open connects. Close the session afterwards.
func open(ctx context.Context, e env, f *flags) (*session, error) {
	w := newWire()
	ep, err := endpointOf(e, f, w)
	if err != nil {
		return nil, err
	}
	s, err := connect(ctx, ep, w, "")
	if err != nil {
		w.close()
	}
	return s, err
}

// connect opens a session of one protocol version; "" is the newest that both
// sides know.
func connect(ctx context.Context, ep endpoint, w *wire, protocol string) (*session, error) {
	t := &transport{ep: ep, base: w}
	client := sdk.NewClient(&sdk.Implementation{Name: "telltale-cli", Version: version}, &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}})
	var opts *sdk.ClientSessionOptions
	if protocol != "" {
		opts = &sdk.ClientSessionOptions{ProtocolVersion: protocol}
	}
	cs, err := client.Connect(ctx, &sdk.StreamableClientTransport{Endpoint: ep.url, HTTPClient: httpClient(t), MaxRetries: -1, DisableStandaloneSSE: true}, opts)
	if err != nil {
		return nil, t.failure(err)
	}
	return &session{cs, t, w}, nil
}

// Close ends the session and every connection of its command.
func (s *session) Close() {
	_ = s.ClientSession.Close() // the server keeps no session
	s.w.close()
}

// callTool calls a tool; the error is one for people.
func (s *session) callTool(ctx context.Context, name string, args any) (*sdk.CallToolResult, error) {
	s.t.mu.Lock()
	s.t.last = nil
	s.t.mu.Unlock()
	res, err := s.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args})
	return res, s.t.failure(err)
}
