package events

import "github.com/telltale-dev/telltale/tenants/tenantdb"

// Bus carries hints between replicas; nil where there is one replica.
type Bus interface {
	Send(to string, h tenantdb.Hint)
	Subscribe(topic string) (<-chan tenantdb.Hint, func())
}
