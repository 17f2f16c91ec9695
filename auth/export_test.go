package auth

import (
	"context"
	"time"

	"github.com/telltale-dev/telltale/tenants"
)

// RotateCA makes a new authority for a tenant. The former ones go on verifying
// what they signed until their own end, so no node notices.
func (n *NodeCA) RotateCA(ctx context.Context, t tenants.TenantID) error {
	set, err := n.load(ctx, t, time.Nanosecond)
	if err != nil {
		return err
	}
	after := ""
	if k := len(set.records); k > 0 {
		after = set.records[k-1].ID
	}
	return n.makeCA(ctx, t, after, time.Now())
}
