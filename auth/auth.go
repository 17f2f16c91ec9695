// Package auth turns credentials into a tenants.Scope, and nothing else does:
// bearer tokens and dashboard sessions over HTTP, client certificates of nodes
// over gRPC. It writes the challenges and the metadata that lead a client to
// the right credential, and guards the HTTP surface by host and origin.
//
// It must not know the slices that store credentials (it declares small
// interfaces which they satisfy), any route, any tool, or any table. It never
// issues access tokens to other parties and never logs or echoes one.
//
// Start reading at Verifier for bearers, Gate for the HTTP middleware, and
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
	Unknown:     {http.StatusUnauthorized, "unknown: the credential is not known here", "ask an administrator of this tenant for a token"},
	Expired:     {http.StatusUnauthorized, "expired: the credential's time is over", "ask an administrator of this tenant for a new token, or sign in again"},
	Revoked:     {http.StatusUnauthorized, "revoked: the credential was withdrawn", "ask an administrator of this tenant for a new token"},
	WrongTenant: {http.StatusUnauthorized, "unknown: the credential is not known here", "ask an administrator of this tenant for a token"},
	Network:     {http.StatusUnauthorized, "network: the credential is not accepted from this address", "call from a network that the token is made for"},
	Suspended:   {http.StatusForbidden, "the tenant is suspended", "ask the operator of this server"},
	CSRF:        {http.StatusForbidden, "csrf: a write with a session needs the session's CSRF token", "send the CSRF token of the session in the header " + CSRFHeader},
}

// Failure is a refused credential. Its text never holds the credential.
type Failure struct {
	Class Class
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

// Description is a safe sentence that starts with the class of the failed check.
func (f *Failure) Description() string { return classes[f.Class].msg }

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
