package tenantdb

import (
	"context"
	"log/slog"

	"github.com/telltale-dev/telltale/tenants"
)

// Hint says that rows may have moved: look at them again. It is no data and
// may be lost, repeated or late; consumers also look by themselves every
// second or so.
type Hint struct {
	Topic  string
	Tenant tenants.TenantID
	Key    string // which rows; empty: any of the topic, after a gap
}

// Bus carries hints between the replicas over NOTIFY.
type Bus struct{}

// NewBus builds a Bus. It starts nothing: run Run.
func NewBus(cfg Config, replica string, log *slog.Logger) *Bus { return &Bus{} }

// Run listens and sends until ctx ends.
func (b *Bus) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Send gives a hint to one replica, or to all of them when to is empty, this
// one included. It never blocks.
func (b *Bus) Send(to string, h Hint) {}

// Subscribe answers the hints of a topic until cancel is called.
func (b *Bus) Subscribe(topic string) (hints <-chan Hint, cancel func()) {
	return make(chan Hint), func() {}
}
