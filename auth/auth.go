// Package auth turns credentials into a tenants.Scope, and nothing else does:
// bearer tokens and dashboard sessions over HTTP, client certificates of nodes
// over gRPC. It writes the challenges and the metadata that lead a client to
// the right credential, and guards the HTTP surface by host and origin.
//
// It must not know the slices that store credentials (it declares small
// interfaces which they satisfy), any route, any tool, or any table. It never
// issues access tokens to other parties and never logs or echoes one.
//
// Start reading at Verifier for bearers (OAuth for access tokens of identity
// providers, OperatorTokens for our own), Gate for the HTTP middleware, and
// NodeCA for certificates.
package auth

import (
	"net/http"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Class is the enumerated name of the check that a credential failed.
type Class string

// The classes. WrongTenant is for logs and counters only: to the caller it
// looks like Unknown, so that nobody learns where else a token is good.
const (
	NoToken     Class = "no_token"     // no credential was sent
	Repeated    Class = "repeated"     // more than one Authorization header
	Malformed   Class = "malformed"    // not of any form that is accepted here
	Checksum    Class = "checksum"     // mistyped or cut
	Unknown     Class = "unknown"      // never issued, or the secret does not fit
	Expired     Class = "expired"      // its time is over
	Revoked     Class = "revoked"      // withdrawn by an administrator
	WrongTenant Class = "wrong_tenant" // a good token of another tenant
	Network     Class = "network"      // used from a network outside its list
	Suspended   Class = "suspended"    // the tenant is suspended
	CSRF        Class = "csrf"         // a session's write without its CSRF token

	IssuerUnknown Class = "issuer"    // an access token of an issuer that the tenant does not trust
	Signature     Class = "signature" // no key of the issuer fits
	Algorithm     Class = "algorithm" // signed in a way that is not accepted
	Type          Class = "type"      // no access token of an accepted type, for example an ID token
	Audience      Class = "audience"  // not made for this resource
	TenantClaim   Class = "tenant"    // without the claim that ties it to this tenant
	NotYet        Class = "not_yet"   // its time has not come
	Inactive      Class = "inactive"  // the issuer says that it is not, or no longer, good
	Bound         Class = "cnf"       // bound to a key whose possession is not verified here
	Claims        Class = "claims"    // a needed claim is missing, doubled or of a wrong form
	NoRole        Class = "no_role"   // good, but its holder has no role in this tenant
	NoScope       Class = "no_scope"  // good, but it holds none of the scopes that its holder's role has
	Lacking       Class = "scope"     // good, but it lacks a scope that one call needs
	// Unreachable is no refusal: the issuer is down and nothing is known of the
	// token. It is answered 503, and reported like a failed check.
	Unreachable Class = "issuer_unreachable"

	// Origin is no check of a credential: a web page of another origin called.
	Origin Class = "foreign_origin"

	SignInOver    Class = "sign_in_over"    // an answer to no sign-in that this browser has under way
	SignInRefused Class = "sign_in_refused" // the identity provider gave no tokens
)

var classes = map[Class]struct {
	status int
	msg    string
	next   string
}{
	NoToken:     {http.StatusUnauthorized, "no credential was sent", "send an Authorization header with a bearer token of this tenant"},
	Repeated:    {http.StatusBadRequest, "the request carries more than one Authorization header", "send exactly one Authorization header"},
	Malformed:   {http.StatusUnauthorized, "malformed: the credential has no form that is accepted here", "check that the whole token was copied"},
	Checksum:    {http.StatusUnauthorized, "checksum: the token is mistyped or cut", "copy the whole token again"},
	Unknown:     {http.StatusUnauthorized, "unknown: the credential is not known here", "check the tenant in the URL, or ask an administrator of this tenant for a token"},
	Expired:     {http.StatusUnauthorized, "expired: the credential's time is over", "ask an administrator of this tenant for a new token, or sign in again"},
	Revoked:     {http.StatusUnauthorized, "revoked: the credential was withdrawn", "ask an administrator of this tenant for a new token"},
	WrongTenant: {http.StatusUnauthorized, "unknown: the credential is not known here", "check the tenant in the URL, or ask an administrator of this tenant for a token"},
	Network:     {http.StatusUnauthorized, "network: the credential is not accepted from this address", "call from a network that the token is made for"},
	Suspended:   {http.StatusForbidden, "the tenant is suspended", "an administrator of this tenant can resume it over REST, unless the operator of this server suspended it"},
	CSRF:        {http.StatusForbidden, "csrf: a write with a session needs the session's CSRF token", "send the CSRF token of the session in the header " + CSRFHeader},

	IssuerUnknown: {http.StatusUnauthorized, "issuer: the token's issuer is not trusted by this tenant", "sign in at the identity provider that the resource metadata names"},
	Signature:     {http.StatusUnauthorized, "signature: no key of the issuer fits the token's signature", "get a new token; if it stays, run the issuer's test"},
	Algorithm:     {http.StatusUnauthorized, "algorithm: the token is signed in a way that is not accepted", "let the identity provider sign access tokens with an asymmetric algorithm such as RS256 or ES256"},
	Type:          {http.StatusUnauthorized, "type: this is no access token of an accepted type", "send the access token and not the ID token; if the provider marks access tokens otherwise, set the issuer's accepted types"},
	Audience:      {http.StatusUnauthorized, "audience: the token is not made for this resource", "ask for a token with this tenant's MCP URL as its resource parameter"},
	TenantClaim:   {http.StatusUnauthorized, "tenant: the token lacks the claim that ties it to this tenant", "sign in with an account of this tenant"},
	NotYet:        {http.StatusUnauthorized, "not yet: the token's time has not come", "compare the clocks of the identity provider and of this server"},
	Inactive:      {http.StatusUnauthorized, "inactive: the issuer does not, or no longer, vouch for the token", "sign in again"},
	Bound:         {http.StatusUnauthorized, "cnf: the token is bound to a key, which is not supported here", "let the identity provider issue plain bearer tokens for this resource"},
	Claims:        {http.StatusUnauthorized, "claims: a needed claim is missing, doubled or malformed", "let the identity provider issue tokens with iss, sub, aud and exp"},
	NoRole:        {http.StatusForbidden, "no role: the token is good, but its holder has no role in this tenant", "ask an administrator of this tenant for a role or a membership"},
	SignInOver:    {http.StatusUnauthorized, "sign-in over: this browser has no such sign-in under way", "start the sign-in again, in one window, and finish it within ten minutes"},
	SignInRefused: {http.StatusUnauthorized, "sign-in refused: the identity provider did not let you in", "start the sign-in again; an administrator of this tenant can see what the provider said"},
	Origin:        {http.StatusForbidden, "origin: this web origin may not call this server", "add the origin to the allowed origins of this server, or call from outside of a browser"},
	Unreachable:   {http.StatusServiceUnavailable, "issuer unreachable: the identity provider does not answer, and nothing is known of the token", "try again in 10 seconds; an administrator can run the issuer's test"},
	Lacking:       {http.StatusForbidden, "scope: the credential lacks a scope that this needs", "ask for a token with that scope, if the role allows it"},
	NoScope:       {http.StatusForbidden, "no scope: the token holds none of the scopes that its holder may have", "ask the identity provider for the scopes that the challenge names"},
}

// Failure is a refused credential. Nothing in it holds the credential. All
// but the class may be empty, and is for administrators of the tenant only.
type Failure struct {
	Class    Class
	Issuer   string // as the token named it, cleaned
	Expected string // what the failed check wants
	Received string // what it found, cleaned and cut

	Principal  tenants.Principal // of a token that proved good but may do nothing
	Obtainable tenants.Scopes    // with NoScope: what another token could hold
}

func failed(c Class) *Failure { return &Failure{Class: c} }

// Error names the true class; it is meant for logs.
func (f *Failure) Error() string { return "credential refused: " + string(f.Class) }

// Unwrap returns the fault that a caller may see.
func (f *Failure) Unwrap() error {
	c := classes[f.Class]
	kind := fault.Unauthorized
	switch c.status {
	case http.StatusForbidden:
		kind = fault.Denied
	case http.StatusBadRequest:
		kind = fault.Invalid
	case http.StatusServiceUnavailable:
		kind = fault.Unavailable
	}
	return fault.New(kind, "credential_"+string(f.Public()), c.msg).Do(c.next)
}

// Public is the class that a caller may learn.
func (f *Failure) Public() Class {
	if f.Class == WrongTenant {
		return Unknown
	}
	return f.Class
}

// Status is the HTTP status that answers the failure: 400, 401 or 403.
func (f *Failure) Status() int { return classes[f.Class].status }

// proven says that a credential can fail in this class only after it showed
// who issued it: for the others a stranger needs no more than a made-up text.
func (c Class) proven() bool {
	switch c {
	case Expired, Revoked, Network, Suspended, CSRF, Audience, TenantClaim, NotYet, Bound, NoRole, NoScope, Lacking:
		return true
	}
	return false
}

// Description is a safe sentence that starts with the class of the failed check.
func (f *Failure) Description() string { return classes[f.Class].msg }

// Explain says in safe sentences what a class means and what to do next, for
// whoever looks up a reference id. ok is false for a word that is no class.
func (c Class) Explain() (what, next string, ok bool) {
	d, ok := classes[c]
	return d.msg, d.next, ok
}

// Local is the scope of a command that runs on the server's own machine with
// the server's own access to the database. Only commands may ask for it; name
// says which one, for the audit line.
func Local(t tenants.Tenant, name string, granted tenants.Scopes) tenants.Scope {
	return tenants.Scope{
		Tenant: t.ID, Slug: t.Slug, Granted: granted,
		Principal: tenants.Principal{Kind: tenants.LocalPrincipal, ID: name, Name: name},
	}
}

// defaultTTL bounds how long a verified credential is answered from memory. It
// leaves room below tenants.RevocationDelay for the look-up itself.
const defaultTTL = 3 * time.Second

// boundTTL keeps a configured time to live within the promise on revocation.
func boundTTL(d time.Duration) time.Duration {
	if d <= 0 {
		return defaultTTL
	}
	return min(d, tenants.RevocationDelay-time.Second)
}
