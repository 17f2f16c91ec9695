// Package login signs a person in at the identity provider of a tenant, as an
// OAuth 2.1 client with a browser and a loopback redirect, and keeps the result
// in a file that only that person can read.
//
// Everything is learnt from the tenant's MCP URL: its 401 leads to the
// protected resource metadata (RFC 9728), that to the authorization server
// (RFC 8414), which sends the browser back with a code. Each document must name
// the one it was reached from; whatever does not fit ends the login, because a
// token asked for in the wrong place is a token given away.
//
// Start reading at Flow.Run. The package knows no protocol but OAuth, reads no
// environment and writes to no terminal.
package login

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Login is one stored sign-in. Expires is zero when the provider did not say.
type Login struct {
	Resource           string    `json:"resource"`
	Issuer             string    `json:"issuer"`
	ClientID           string    `json:"client_id"`
	ClientSecret       string    `json:"client_secret,omitempty"` // of a registration whose server insists on one
	ClientAuth         string    `json:"client_auth,omitempty"`   // how it is sent; empty is "none"
	TokenEndpoint      string    `json:"token_endpoint"`
	RevocationEndpoint string    `json:"revocation_endpoint,omitempty"`
	NoResource         bool      `json:"no_resource,omitempty"` // the provider refuses the resource parameter
	AccessToken        string    `json:"access_token"`
	RefreshToken       string    `json:"refresh_token,omitempty"`
	Scope              string    `json:"scope,omitempty"`
	Obtained           time.Time `json:"obtained"` // the access token
	Expires            time.Time `json:"expires,omitzero"`
	Since              time.Time `json:"since"`
}

// Bounds of a login.
const (
	Patience       = 5 * time.Minute // for the person in the browser
	requestTime    = 15 * time.Second
	maxDocument    = 1 << 20
	offline        = "offline_access"
	DefaultClient  = "telltale-cli" // registered by hand where a provider registers nobody
	callbackPath   = "/callback"
	clientName     = "Telltale command line"
	wellKnownOAuth = "/.well-known/oauth-authorization-server"
	wellKnownOIDC  = "/.well-known/openid-configuration"
	wellKnownRes   = "/.well-known/oauth-protected-resource"
)

// Error says what went wrong and what to do next. Neither text ever holds a
// credential.
type Error struct {
	Msg, Next string
}

func (e *Error) Error() string {
	if e.Next == "" {
		return e.Msg
	}
	return e.Msg + "; " + e.Next
}

func wrong(next, format string, args ...any) error {
	return &Error{Msg: fmt.Sprintf(format, args...), Next: next}
}

// Unreachable says that nobody answered at URL.
type Unreachable struct {
	URL   string
	Cause error
}

func (u *Unreachable) Error() string {
	cause := u.Cause.Error()
	if op, ok := errors.AsType[*net.OpError](u.Cause); ok && op.Err != nil {
		cause = op.Err.Error()
	} else if errors.Is(u.Cause, context.DeadlineExceeded) {
		cause = "timed out"
	} else if e, ok := errors.AsType[*url.Error](u.Cause); ok {
		cause = e.Err.Error() // without the URL once more
	}
	return fmt.Sprintf("no answer from %s (%s)", u.URL, cause)
}

func (u *Unreachable) Unwrap() error { return u.Cause }

// Flow is one attempt to sign in. Client must not follow redirects.
type Flow struct {
	URL        string // the tenant's MCP URL as it is called
	Client     *http.Client
	UserAgent  string
	ClientID   string                        // empty: register one, or DefaultClient
	Issuer     string                        // which of several identity providers; empty: the first
	Scopes     []string                      // empty: what the server asks for
	Port       int                           // of the redirect; 0 picks a free one
	AssumePKCE bool                          // for providers that support PKCE and do not say so
	NoResource bool                          // for providers that refuse the resource parameter; the scopes must name the resource then
	Browse     func(authorizationURL string) // opens a browser, returns at once; nil: the person does
	Say        func(format string, args ...any)
}

// Run signs in. It waits for the browser for Patience at most and stores
// nothing.
func (f *Flow) Run(ctx context.Context) (Login, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, wrong("run telltale login again, and finish in the browser", "nobody signed in within %s", minutes(Patience)))
	defer cancel()
	in, err := f.run(ctx)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return Login{}, context.Cause(ctx)
	}
	return in, err
}

func (f *Flow) run(ctx context.Context) (Login, error) {
	resource, err := Resource(f.URL)
	if err != nil {
		return Login{}, err
	}
	f.Say("asking %s who signs people in", resource)
	asked, issuer, err := f.discover(ctx, resource)
	if err != nil {
		return Login{}, err
	}
	p, err := f.provider(ctx, resource, issuer)
	if err != nil {
		return Login{}, err
	}
	back, err := listen(ctx, f.Port)
	if err != nil {
		return Login{}, err
	}
	defer back.close()
	c, err := f.client(ctx, p, back.uri)
	if err != nil {
		return Login{}, err
	}
	scopes := slices.Clone(f.Scopes)
	if len(scopes) == 0 {
		scopes = asked
	}
	if slices.Contains(p.Scopes, offline) && !slices.Contains(scopes, offline) {
		scopes = append(scopes, offline)
	}
	f.Say("identity provider %s, client %s, scopes %s", p.Issuer, c.ID, strings.Join(scopes, " "))
	named := resource
	if f.NoResource {
		named = ""
	}
	q := newRequest(p, c, back.uri, named, scopes)
	code, err := f.authorize(ctx, back, q)
	if err != nil {
		return Login{}, err
	}
	in := Login{
		Resource: resource, Issuer: p.Issuer, ClientID: c.ID, ClientSecret: c.Secret, ClientAuth: c.Auth,
		TokenEndpoint: p.Token, RevocationEndpoint: p.Revocation, NoResource: f.NoResource, Scope: strings.Join(scopes, " "), Since: time.Now().UTC().Truncate(time.Second),
	}
	err = f.ends().exchange(ctx, &in, code, back.uri, q.verifier)
	back.verdict(err)
	if err != nil {
		return Login{}, err
	}
	return in, nil
}

func (f *Flow) ends() Endpoints { return Endpoints{Client: f.Client, UserAgent: f.UserAgent} }

// Resource is the identifier of the tenant's MCP endpoint (RFC 8707): its URL
// without query, fragment and final slash. Stored logins are found by it.
func Resource(mcpURL string) (string, error) {
	u, err := url.Parse(mcpURL)
	if err != nil || u.Host == "" {
		return "", wrong("", "%q is no URL", mcpURL)
	}
	u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	u.RawQuery, u.Fragment, u.ForceQuery = "", "", false
	return strings.TrimRight(u.String(), "/"), nil
}

// checkEndpoint refuses a URL that a token or a code must not be sent to: it
// has to be https, or http on this machine when the resource itself is that.
func checkEndpoint(what, endpoint, resource string) error {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Host == "":
		return wrong("tell the administrator of the identity provider", "the %s %q is no URL", what, endpoint)
	case u.User != nil || u.Fragment != "":
		return wrong("tell the administrator of the identity provider", "the %s holds a user or a fragment", what)
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && Loopback(u.Hostname()) && strings.HasPrefix(resource, "http://"):
		return nil
	}
	return wrong("tell the administrator; nothing was sent there", "the %s %s is not https, so that a credential could be read on its way", what, endpoint)
}

func minutes(d time.Duration) string { return fmt.Sprintf("%.0f minutes", d.Minutes()) }

// Loopback reports whether a host names this machine.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
