package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

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

// statusError is an answer that is no success, as a person should read it.
type statusError struct {
	status    int
	reference string
	message   string
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
func refusalOf(url string, res *http.Response) *statusError {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	if err != nil {
		body = nil
	}
	_ = res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(body))
	s := &statusError{status: res.StatusCode, reference: res.Header.Get("Telltale-Reference")}
	detail, next := problemOf(body)
	switch res.StatusCode {
	case http.StatusUnauthorized:
		s.message = "401: the server does not accept this token"
		if detail != "" {
			s.message += " (" + detail + ")"
		}
		if next == "" {
			next = "check TELLTALE_TOKEN, and that it belongs to the tenant in the URL"
		}
	case http.StatusForbidden:
		s.message = "403: " + orElse(detail, "the token lacks a scope that this needs")
	case http.StatusNotFound:
		s.message = fmt.Sprintf("404: %s", orElse(detail, "there is no MCP endpoint at "+url))
		if next == "" {
			next = "check TELLTALE_URL; it looks like https://HOST/t/acme/mcp"
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
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+t.ep.token)
	r.Header.Set("User-Agent", "telltale/"+version)
	res, err := t.base.RoundTrip(r)
	var failure error
	switch {
	case err != nil && !errors.Is(r.Context().Err(), context.Canceled):
		failure = &offlineError{t.ep.url, err}
	case err == nil && res.StatusCode >= 300:
		failure = refusalOf(t.ep.url, res)
	}
	if failure != nil {
		t.mu.Lock()
		t.last = failure
		t.mu.Unlock()
	}
	return res, err
}

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

func dialer() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	t.TLSHandshakeTimeout = 10 * time.Second
	return t
}

// session is one connection of the command line.
type session struct {
	*sdk.ClientSession
	t *transport
}

// open connects. Close the session afterwards.
func open(ctx context.Context, e env, f *flags) (*session, error) {
	ep, err := endpointOf(e, f)
	if err != nil {
		return nil, err
	}
	t := &transport{ep: ep, base: dialer()}
	client := sdk.NewClient(&sdk.Implementation{Name: "telltale-cli", Version: version}, &sdk.ClientOptions{Capabilities: &sdk.ClientCapabilities{}})
	cs, err := client.Connect(ctx, &sdk.StreamableClientTransport{Endpoint: ep.url, HTTPClient: httpClient(t), MaxRetries: -1, DisableStandaloneSSE: true}, nil)
	if err != nil {
		return nil, t.failure(err)
	}
	return &session{cs, t}, nil
}

// callTool calls a tool; the error is one for people.
func (s *session) callTool(ctx context.Context, name string, args any) (*sdk.CallToolResult, error) {
	s.t.mu.Lock()
	s.t.last = nil
	s.t.mu.Unlock()
	res, err := s.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args})
	return res, s.t.failure(err)
}
