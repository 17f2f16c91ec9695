package mcp

import (
	"context"
	"slices"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// Fleet answers about nodes; tenants/fleet satisfies it.
type Fleet interface {
	Overview(context.Context, tenants.Scope) (fleet.Overview, error)
	List(context.Context, tenants.Scope, fleet.ListQuery) (fleet.Page, error)
	Get(ctx context.Context, scope tenants.Scope, ref string) (fleet.NodeDetail, error)
}

// Metrics answers about measured values; tenants/metrics satisfies it.
type Metrics interface {
	Summary(context.Context, tenants.Scope, metrics.SummaryQuery) (metrics.Summary, error)
	Query(context.Context, tenants.Scope, metrics.Query) (metrics.Result, error)
}

// Tasks starts, answers and ends bounded work on nodes; tenants/tasks satisfies
// it.
type Tasks interface {
	Do(context.Context, tenants.Scope, tasks.Request, tasks.DoOptions) (tasks.Task, error)
	Get(context.Context, tenants.Scope, tasks.ID) (tasks.Task, error)
	Cancel(context.Context, tenants.Scope, tasks.ID) (tasks.Task, error)
	Subscribe(tenants.TenantID, tasks.ID) (<-chan struct{}, func())
}

// Events answers about anomalies; tenants/events satisfies it.
type Events interface {
	List(context.Context, tenants.Scope, events.ListQuery) (events.Page, error)
	Get(context.Context, tenants.Scope, events.ID) (events.Detail, error)
	Promote(context.Context, tenants.Scope, events.Finding) (events.Promoted, error)
	Subscribe(tenants.TenantID) (<-chan events.Change, func())
}

// Services is what the tools and resources ask. All but Fleet, Metrics and
// Registry may be nil; then what stands on them does not exist.
type Services struct {
	Fleet    Fleet
	Metrics  Metrics
	Tasks    Tasks
	Events   Events
	Explain  Explain
	Tokens   Tokens
	Audit    Audit
	Usage    Usage
	Running  Running             // nil: every tool is listed, whatever the nodes run
	Registry *inspector.Registry // complete; names the modules, tasks and events

	dashboard func(slug string) string
}

// modules lists the components that have metrics, in the registry's order.
func (s Services) modules() []string {
	out := []string{}
	for _, c := range s.Registry.Components() {
		if len(c.Metrics) > 0 {
			out = append(out, c.Name)
		}
	}
	return out
}

// toolTable is the one list of all tools. A tool set adds its line here.
func toolTable(s Services) []Tool {
	return slices.Concat(
		observeNodes(s),
		observeMetrics(s),
		observeEvents(s),
		observeExplain(s),
		observeTasks(s),
		observeSearch(s),
		diagnoseTasks(s),
		diagnoseEnd(s),
		diagnosePromote(s),
		adminTools(s),
	)
}
