// Package tenants holds who asks and for whom: typed ids, scopes, the node
// selector and the bounds that are part of the product's contract.
//
// A Scope is made by package auth from a verified credential and by nothing
// else; every service method takes one as its second argument. This package
// knows no transport and no database.
package tenants

import (
	"strings"

	"github.com/google/uuid"

	"github.com/telltale-dev/telltale/tenants/fault"
)

// TenantID identifies a tenant inside the product. The zero value is no tenant.
type TenantID uuid.UUID

// NodeID identifies one enrolled machine identity. The zero value is no node.
type NodeID uuid.UUID

// NewTenantID returns a fresh, time-ordered id (UUIDv7).
func NewTenantID() TenantID { return TenantID(uuid.Must(uuid.NewV7())) }

// NewNodeID returns a fresh, time-ordered id (UUIDv7).
func NewNodeID() NodeID { return NodeID(uuid.Must(uuid.NewV7())) }

func (t TenantID) String() string { return uuid.UUID(t).String() }
func (n NodeID) String() string   { return uuid.UUID(n).String() }

// IsZero reports whether t is no tenant.
func (t TenantID) IsZero() bool { return t == TenantID{} }

// IsZero reports whether n is no node.
func (n NodeID) IsZero() bool { return n == NodeID{} }

// ParseTenantID reads the canonical 36 character form.
func ParseTenantID(s string) (TenantID, error) {
	u, err := parse(s)
	return TenantID(u), err
}

// ParseNodeID reads the canonical 36 character form.
func ParseNodeID(s string) (NodeID, error) {
	u, err := parse(s)
	return NodeID(u), err
}

func parse(s string) (uuid.UUID, error) {
	if len(s) != 36 {
		return uuid.UUID{}, fault.Bad("id", "an id has 36 characters, this has %d", len(s))
	}
	u, err := uuid.Parse(s)
	if err != nil {
		return uuid.UUID{}, fault.Bad("id", "not an id: want xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")
	}
	return u, nil
}

const slugMost = 40

// CheckSlug refuses anything that is not a tenant slug.
func CheckSlug(s string) error {
	foreign := func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }
	if len(s) < 1 || len(s) > slugMost || strings.IndexFunc(s, foreign) >= 0 {
		return fault.Bad("slug", "a tenant's slug is 1 to 40 of a-z, 0-9 and -")
	}
	return nil
}
