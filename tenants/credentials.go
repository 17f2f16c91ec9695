package tenants

import (
	"net/netip"
	"time"
)

// The records below cross the line between package auth, which verifies
// credentials, and the slices, which keep them; neither imports the other.

// Tenant is one owner of nodes, people, tokens and data.
type Tenant struct {
	ID          TenantID
	Slug        string // immutable, never reused
	Name        string // for people
	Suspended   bool   // no credential of it is accepted while set
	SuspendedBy string // "operator" of this server, or "admin" of the tenant, who may resume it; empty: not suspended
	MCPDisabled bool   // its MCP endpoint is switched off
	CreatedAt   time.Time
	ExportedAt  *time.Time // end of its last whole export; nil: none
	DeletedAt   *time.Time // nil: not deleted
}

// OperatorToken is one stored operator token; its secret is not part of it.
type OperatorToken struct {
	ID         string // public look-up id, unrelated to the tenant
	Tenant     TenantID
	Name       string
	Hash       SecretHash `json:"-"`
	Scopes     Scopes
	Nodes      Selector
	CIDRs      []netip.Prefix // networks it is accepted from; empty is any
	CreatedAt  time.Time
	CreatedBy  string
	ExpiresAt  *time.Time // nil: never
	RevokedAt  *time.Time // nil: not revoked
	LastUsedAt *time.Time // nil: never used; up to a minute late
}

// BrowserSession is one dashboard session. It holds one principal of one
// tenant: the operator token it was exchanged for, which it never outlives, or
// a person of one of the tenant's issuers.
type BrowserSession struct {
	ID         string // public part of the cookie's value
	Tenant     TenantID
	Hash       SecretHash `json:"-"` // of the cookie's whole value
	TokenID    string     // empty: a person's
	Facts      []byte     // JSON, what package auth keeps of a person; nil: a token's
	CreatedAt  time.Time
	LastSeenAt time.Time // up to a minute late
	ExpiresAt  time.Time // absolute end, whatever the use
}

// NodeIdentity is what a node's certificate is checked against.
type NodeIdentity struct {
	Tenant    TenantID
	Slug      string
	Node      NodeID
	Name      string
	Labels    map[string]string
	Revoked   bool
	Suspended bool // the tenant is suspended
}

// CARecord is one certificate authority of one tenant. The key is sealed by
// package auth; whoever stores it cannot read it.
type CARecord struct {
	ID        string // UUIDv7, newest sorts last
	Cert      []byte // DER
	SealedKey []byte `json:"-"`
	NotBefore time.Time
	NotAfter  time.Time
}
