package mcp

import (
	"context"
	"slices"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fleet"
	"github.com/telltale-dev/telltale/tenants/metrics"
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

// Services is what the tools and resources ask.
type Services struct {
	Fleet    Fleet
	Metrics  Metrics
	Registry *inspector.Registry // complete; names the modules
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
	)
}

// Next is a step that a finding suggests.
type Next struct {
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
	Why       string         `json:"why"`
}
