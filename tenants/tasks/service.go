package tasks

import (
	"context"
	"log/slog"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/tenantdb"
)

// Nodes finds the nodes that a request is meant for. The fleet slice
// satisfies it.
type Nodes interface {
	Targets(ctx context.Context, scope tenants.Scope, q tenants.TargetQuery) ([]tenants.Target, error)
}

// Bus carries hints between replicas. *tenantdb.Bus satisfies it.
type Bus interface {
	Send(to string, h tenantdb.Hint) // to one replica, or to all when empty; never blocks
	Subscribe(topic string) (<-chan tenantdb.Hint, func())
}

// Config tunes a Service.
type Config struct {
	Replica string           // name of this server process, as in the fleet's sessions
	Now     func() time.Time // nil: time.Now
}

// DoOptions tune one call of Do.
type DoOptions struct {
	CancelWhenAbandoned bool       // cancel the task when ctx ends before Do has answered
	Progress            func(Task) // called now and then while Do waits; nil: not wanted
}

// Service starts tasks and answers about them. It is safe for concurrent use.
type Service struct{}

// New builds a Service. It starts nothing: run Run. A nil bus sends no hints;
// what other replicas do is then seen within a second.
func New(db *tenantdb.DB, reg *inspector.Registry, nodes Nodes, bus Bus, cfg Config, log *slog.Logger) *Service {
	return &Service{}
}

// Run claims, renews, sweeps and wakes until ctx ends.
func (s *Service) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Do starts a task and waits for it.
func (s *Service) Do(ctx context.Context, scope tenants.Scope, req Request, opts DoOptions) (Task, error) {
	return Task{}, nil
}

// Get answers a task with what its nodes found so far.
func (s *Service) Get(ctx context.Context, scope tenants.Scope, id ID) (Task, error) {
	return Task{}, nil
}

// Cancel ends a task.
func (s *Service) Cancel(ctx context.Context, scope tenants.Scope, id ID) (Task, error) {
	return Task{}, nil
}

// List answers one page of tasks, the youngest first.
func (s *Service) List(ctx context.Context, scope tenants.Scope, q ListQuery) (Page, error) {
	return Page{}, nil
}

// Subscribe answers a hint each time the task may have moved, on any replica.
func (s *Service) Subscribe(tenant tenants.TenantID, id ID) (moved <-chan struct{}, cancel func()) {
	return make(chan struct{}), func() {}
}

// Channel is one node's open task channel.
type Channel struct{}

// ChannelOpened takes a node's task channel in. cancel lists the tasks of
// hello.Running that the node shall stop.
func (s *Service) ChannelOpened(ctx context.Context, scope tenants.Scope, hello Hello, out Outbox) (ch *Channel, cancel []ID, err error) {
	return &Channel{}, nil, nil
}

// Accepted says that the node has begun a task.
func (c *Channel) Accepted(ctx context.Context, id ID) error { return nil }

// Rejected says that the node refused a task.
func (c *Channel) Rejected(ctx context.Context, id ID, r inspector.Refusal) error { return nil }

// Progress takes a node's word on a running task.
func (c *Channel) Progress(ctx context.Context, id ID, p Progress) error { return nil }

// Finished takes the end of a run. After nil the node may forget it.
func (c *Channel) Finished(ctx context.Context, id ID, o Outcome) error { return nil }

// Closed says that the channel is gone; planned: the node was asked to go.
func (c *Channel) Closed(ctx context.Context, planned bool) {}
