package tenants

import (
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// Scopes is a set of what a principal may do. The zero value is nothing.
type Scopes uint8

// The scopes. Diagnose, Act, Approve, Maintain and Admin each imply Read
// (see Effective); none implies another; Payloads alone grants nothing.
const (
	Read     Scopes = 1 << iota // observe, redacted
	Payloads                    // unredacted bodies, where the node allows it too
	Diagnose                    // start and cancel tasks
	Act                         // run, cancel and pause jobs, dispatch messages
	Approve                     // decide gates
	Maintain                    // the maintenance group
	Admin                       // tenant administration
)

const scopePrefix = "telltale:"

var scopeNames = []string{"read", "payloads", "diagnose", "act", "approve", "maintain", "admin"}

// AllScopes lists every single scope in its fixed order.
func AllScopes() []Scopes {
	out := make([]Scopes, len(scopeNames))
	for i := range out {
		out[i] = 1 << i
	}
	return out
}

// EveryScope is the set of all scopes.
const EveryScope = Read | Payloads | Diagnose | Act | Approve | Maintain | Admin

// ParseScopes reads words such as "telltale:read". Words of other systems are
// returned in unknown and grant nothing.
func ParseScopes(words []string) (s Scopes, unknown []string) {
	for _, w := range words {
		i := -1
		if short, ok := strings.CutPrefix(w, scopePrefix); ok {
			i = slices.Index(scopeNames, short)
		}
		if i < 0 {
			unknown = append(unknown, w)
			continue
		}
		s |= 1 << i
	}
	return s, unknown
}

// Effective adds what the set implies.
func (s Scopes) Effective() Scopes {
	if s&(Diagnose|Act|Approve|Maintain|Admin) != 0 {
		s |= Read
	}
	return s
}

// Has reports whether the effective set holds all of want. An empty want is
// never held, so that a forgotten requirement fails closed.
func (s Scopes) Has(want Scopes) bool { return want != 0 && s.Effective()&want == want }

// Words lists the set's scopes, for example ["telltale:read"], in fixed order.
func (s Scopes) Words() []string {
	out := []string{}
	for i, n := range scopeNames {
		if s&(1<<i) != 0 {
			out = append(out, scopePrefix+n)
		}
	}
	return out
}

// String joins the words with spaces, as OAuth's scope parameter does.
func (s Scopes) String() string { return strings.Join(s.Words(), " ") }

// PrincipalKind says what sort of caller a principal is.
type PrincipalKind string

// The kinds of principal.
const (
	TokenPrincipal   PrincipalKind = "token"    // an operator token
	NodePrincipal    PrincipalKind = "node"     // an agent with a client certificate
	SessionPrincipal PrincipalKind = "session"  // a dashboard session
	LocalPrincipal   PrincipalKind = "operator" // a command of telltaled on the server's own machine
	OAuthPrincipal   PrincipalKind = "oauth"    // a person or client with an access token of one of the tenant's issuers
)

// Principal is who calls. ID is unique within its kind and stable over calls
// (of an OAuth caller: issuer|subject|client); Name is for people and audit
// lines and may be empty; Client is the OAuth client id, else empty.
type Principal struct {
	Kind   PrincipalKind
	ID     string
	Name   string
	Client string
}

// Selector limits a principal to some nodes. The zero value selects all.
// A node is selected when it carries every one of Labels and, if IDs is not
// empty, is one of IDs. What lies outside does not exist for the principal.
type Selector struct {
	Labels map[string]string
	IDs    []NodeID
}

// All reports whether the selector limits nothing.
func (s Selector) All() bool { return len(s.Labels) == 0 && len(s.IDs) == 0 }

// Matches reports whether a node with this id and these labels is selected.
func (s Selector) Matches(id NodeID, labels map[string]string) bool {
	if len(s.IDs) > 0 && !slices.Contains(s.IDs, id) {
		return false
	}
	for k, v := range s.Labels {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Scope is one verified caller in one tenant. It is a value: copy it freely,
// change none of its maps. The zero value may do nothing anywhere.
type Scope struct {
	Tenant    TenantID
	Slug      string // the tenant's slug, for links in answers
	Principal Principal
	Granted   Scopes
	// Obtainable is what this principal could hold with another token: only for
	// a missing scope within it is a client told to step up. Zero is nothing.
	Obtainable Scopes
	Nodes      Selector
}

// CanObtain reports whether the principal holds want or could step up to it.
func (s Scope) CanObtain(want Scopes) bool { return (s.Granted | s.Obtainable).Has(want) }

// Require returns a Denied fault unless the scope holds want.
func (s Scope) Require(want Scopes) error {
	if s.Tenant.IsZero() {
		return fault.New(fault.Unauthorized, "no_credential", "no verified credential").Do("send a bearer token of this tenant")
	}
	if !s.Granted.Has(want) {
		return fault.Newf(fault.Denied, "insufficient_scope", "this needs %s", want).Do("ask a tenant administrator for a token with that scope")
	}
	return nil
}
