package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
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

// statusError is an answer that is no success, as a person should read it.
type statusError struct {
	status    int
	reference string
	message   string
	scopes    string // what to ask for instead, of an insufficient_scope
	retry     string // seconds to wait, as the server said
}

func (s *statusError) Error() string {
	out := s.message
	if s.reference != "" {
		out += "; reference id " + s.reference
	}
	return out
}

// maxErrorBody bounds what is read of an answer that is no success.
const maxErrorBody = 64 << 10

// refusalOf reads an answer that is no success. The body is put back.
func refusalOf(ep endpoint, res *http.Response) *statusError {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err != nil {
		body = nil
	}
	_ = res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(body))
	s := &statusError{status: res.StatusCode, reference: res.Header.Get("Telltale-Reference")}
	detail, next := problemOf(body)
	switch res.StatusCode {
	case http.StatusOK:
		kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
		s.message = fmt.Sprintf("the answer is %s and no message of the protocol; a proxy or a sign-in page may stand in between", orElse(kind, "of no kind"))
		next = "check TELLTALE_URL; it looks like https://HOST/t/acme/mcp"
	case http.StatusUnauthorized:
		s.message = "401: the server does not accept " + ep.cred.words()
		if detail != "" {
			s.message += " (" + detail + ")"
		}
		if next == "" {
			next = ep.cred.next(ep, "")
		}
	case http.StatusForbidden:
		s.message = "403: " + orElse(detail, "the token lacks a scope that this needs")
		if s.scopes = scopesOf(res.Header.Values("WWW-Authenticate")); s.scopes != "" {
			next = ep.cred.next(ep, s.scopes)
		}
	case http.StatusNotFound:
		s.message = fmt.Sprintf("404: %s", orElse(detail, "there is no MCP endpoint at "+ep.url))
		if next == "" {
			next = "check TELLTALE_URL; it looks like https://HOST/t/acme/mcp"
		}
	case http.StatusRequestEntityTooLarge:
		s.message = "413: " + orElse(detail, "the message is larger than the server takes")
		next = orElse(next, "send less in one call")
	case http.StatusTooManyRequests:
		s.message = "429: " + orElse(detail, "too many requests")
		s.retry = res.Header.Get("Retry-After")
		if next == "" && s.retry != "" {
			next = "wait " + s.retry + " s"
		}
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusSeeOther:
		s.message = fmt.Sprintf("%d: the server redirects to %s; put that into TELLTALE_URL if you trust it (a token is never sent after a redirect)", res.StatusCode, res.Header.Get("Location"))
	default:
		s.message = fmt.Sprintf("%d: %s", res.StatusCode, orElse(detail, http.StatusText(res.StatusCode)))
	}
	if next != "" {
		s.message += "; " + next
	}
	return s
}

// scopesOf is what a challenge for more scopes asks for; "" for any other.
func scopesOf(headers []string) string {
	for _, h := range headers {
		list, err := oauthex.ParseWWWAuthenticate([]string{h})
		if err != nil {
			continue
		}
		for _, c := range list {
			if c.Scheme == "bearer" && c.Params["error"] == "insufficient_scope" {
				return c.Params["scope"]
			}
		}
	}
	return ""
}

// problemOf finds the words in a problem document or a JSON-RPC error.
func problemOf(body []byte) (detail, next string) {
	var doc struct {
		Detail string   `json:"detail"`
		Next   []string `json:"next"`
		Error  struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return "", ""
	}
	return orElse(doc.Detail, doc.Error.Message), strings.Join(doc.Next, "; ")
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
	case res.StatusCode >= 300:
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
	if errors.As(t.last, &s) && s.status == http.StatusBadRequest {
		return err // the SDK gives the JSON-RPC error itself
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
