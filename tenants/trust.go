package tenants

import (
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// The records below say whom a tenant trusts besides its own operator tokens.
// Like the credentials, they cross the line between package auth, which
// verifies, and the slices, which keep them.

// AudienceMode says how a token must name this server as its audience.
type AudienceMode string

// The audience modes.
const (
	AudienceResource AudienceMode = "resource" // the tenant's canonical resource (RFC 8707)
	AudienceStatic   AudienceMode = "static"   // one of Issuer.Audiences; then TenantClaim is mandatory
)

// Issuer is one identity provider whose access tokens a tenant accepts.
type Issuer struct {
	ID     string // UUIDv7
	Tenant TenantID
	Name   string // for people
	URL    string // the exact `iss` of its tokens, https (http on loopback in dev)

	// Where its keys and endpoints are. Empty ones are discovered
	// (OpenID Connect discovery, then RFC 8414).
	JWKSURL          string
	IntrospectionURL string
	// The client that this server is at the issuer, for introspection.
	ClientID     string
	SealedSecret []byte `json:"-"` // sealed by auth.Sealer for use IssuerSecretUse; nil: none
	// The client that the dashboard signs in with (code + PKCE); empty: no
	// sign-in button for this issuer.
	DashboardClientID string

	Mode        AudienceMode
	Audiences   []string // of AudienceStatic
	TenantClaim string   // a claim that must hold TenantValue; mandatory with AudienceStatic
	TenantValue string
	Types       []string // accepted `typ` header, lower case; empty: "at+jwt" alone
	Algorithms  []string // accepted signature algorithms, asymmetric only; empty: the default set of auth
	ScopeClaim  string   // claim with the scopes, a string or an array; empty: "scope", then "scp"
	Opaque      bool     // accepts tokens that are no JWT, by introspection

	Roles     []RoleRule
	Shared    bool // read only: another tenant trusts the same URL
	CreatedAt time.Time
	UpdatedAt time.Time
}

// ForEverybody tells whether a rule asks for no claim.
func (i Issuer) ForEverybody() bool {
	return slices.ContainsFunc(i.Roles, func(r RoleRule) bool { return r.Claim == "" })
}

// Open tells whether whoever has an account at the issuer is let in: a rule
// asks for no claim, and none ties tokens to the tenant either. An issuer that
// another tenant trusts too must not be.
func (i Issuer) Open() bool { return i.TenantClaim == "" && i.ForEverybody() }

// IssuerSecretUse is the use under which an issuer's client secret is sealed.
const IssuerSecretUse = "issuer client secret"

// RoleRule gives scopes to whoever's token carries a claim. The scopes cap what
// a token may do; they never add to it.
type RoleRule struct {
	Claim  string // for example "groups"; a path into nested objects has dots. Empty: everybody at the issuer, see Issuer.Open
	Value  string // the claim, or one element of it, equals this
	Scopes Scopes
	Nodes  Selector // zero: all nodes
}

// Member is one person or client of an issuer that a tenant admits by name.
type Member struct {
	ID        string // UUIDv7
	Tenant    TenantID
	IssuerID  string
	Subject   string // the exact `sub`
	Name      string // for people
	Scopes    Scopes // caps, as a role's
	Nodes     Selector
	CreatedAt time.Time
	CreatedBy string
}

// Trust is all that a tenant's tokens are judged by, besides its members.
type Trust struct {
	Issuers []Issuer
	Policy  Policy
}

// Policy is what a tenant as a whole is held to. The zero value of a field
// means the server's default.
type Policy struct {
	Scopes      Scopes // cap of every OAuth token; 0: all
	FirstScopes Scopes // what the first challenge asks for; 0: Read. Some hosted clients cannot step up

	PrincipalRate int // calls a minute of one principal; 0: DefaultPrincipalRate
	TenantRate    int // calls a minute of the whole tenant; 0: DefaultTenantRate

	MaxNodes       int // enrolled and not revoked; 0: DefaultMaxNodes
	MaxTokens      int // operator tokens that are not revoked; 0: DefaultMaxTokens
	MaxIssuers     int // 0: DefaultMaxIssuers
	MaxMembers     int // 0: DefaultMaxMembers
	MaxEnrolTokens int // live ones; 0: DefaultMaxEnrolTokens
}

// The server's defaults of a Policy.
const (
	DefaultPrincipalRate  = 600 // calls a minute
	DefaultTenantRate     = 6000
	DefaultMaxNodes       = 20_000
	DefaultMaxTokens      = 500
	DefaultMaxIssuers     = 10
	DefaultMaxMembers     = 5000
	DefaultMaxEnrolTokens = 200
)

// AttemptStep is how far one attempt to connect came.
type AttemptStep string

// The steps of connecting, in order.
const (
	StepMetadata  AttemptStep = "metadata_fetched" // the protected resource metadata was read
	StepChallenge AttemptStep = "challenge_sent"   // a request without a credential was told where to get one
	StepRefused   AttemptStep = "token_refused"    // a credential failed a check
	StepScope     AttemptStep = "scope_missing"    // a good credential lacks a scope
	StepAccepted  AttemptStep = "token_accepted"   // a good credential of an issuer, at most once a minute and principal
	StepCall      AttemptStep = "call_refused"     // no credential was at fault: a call broke a limit or a rule, or failed
)

// Attempt is one thing that happened at a tenant's door, for the connector
// self-test. It never holds a credential. Expected and Received are for
// administrators of the tenant alone.
type Attempt struct {
	Tenant    TenantID
	Reference string
	At        time.Time
	Step      AttemptStep
	Class     string // auth.Class of the failed check, of a call the reason of its fault; empty when none failed
	Surface   string // "mcp", "rest", "metadata", "dashboard"
	Issuer    string // as the token named it, cleaned
	Expected  string
	Received  string
	Principal string // of a verified caller
	Proven    bool   // the credential was once issued for this tenant, whatever failed since: no stranger can cause it
	Client    string // client id of a verified caller, else the User-Agent, cleaned and cut
	From      netip.Addr
}

// RuleCount writes how many rules there are.
func RuleCount(n int) string {
	if n == 1 {
		return "1 rule"
	}
	return strconv.Itoa(n) + " rules"
}

// Step is one line of a test of an issuer or a connection: what was looked at,
// and whether it is as it must be.
type Step struct {
	Name     string `json:"name"` // enumerated, for example "discovery"
	OK       bool   `json:"ok"`
	Skipped  bool   `json:"skipped,omitempty"` // not looked at, because of an earlier step or the settings
	Expected string `json:"expected,omitempty"`
	Received string `json:"received,omitempty"`
	Next     string `json:"next,omitempty"` // what to do; empty when OK
}
