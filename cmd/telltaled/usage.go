package main

import (
	"context"
	"log/slog"

	"github.com/telltale-dev/telltale/api/rest"
	"github.com/telltale-dev/telltale/mcp"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/audit"
)

// usage is where both surfaces get a tenant's numbers from.
func (a *app) usage(found evidence, record *audit.Service) rest.UsageSources {
	return rest.UsageSources{
		Credentials: a.access, Enrolment: a.directory, ActiveTasks: rest.CounterFunc(found.tasks.Active), Day: record,
	}
}

// toolUsage answers the same for the tool tenant_usage.
func (a *app) toolUsage(src rest.UsageSources, log *slog.Logger) mcp.Usage {
	return mcp.UsageFunc(func(ctx context.Context, s tenants.Scope) (mcp.Used, error) {
		policy, err := a.access.Policy(ctx, s)
		if err != nil {
			return mcp.Used{}, err
		}
		if !s.Nodes.All() {
			return mcp.Used{}, access.TooWide("the numbers count the whole tenant")
		}
		most, out := policy.Effective(), mcp.Used{Usage: []mcp.Quota{}}
		add := func(what string, used int64, max int) {
			out.Usage = append(out.Usage, mcp.Quota{What: what, Used: used, Max: int64(max)})
		}
		failed := func(what string, err error) {
			out.Notes = append(out.Notes, what+": not known at this moment")
			log.WarnContext(ctx, "usage not counted", "what", what, "err", err)
		}
		if n, err := src.Enrolment.Counts(ctx, s); err != nil {
			failed("nodes and enrol_tokens", err)
		} else {
			add("nodes", int64(n.Nodes), most.MaxNodes)
			add("enrol_tokens", int64(n.EnrolTokens), most.MaxEnrolTokens)
		}
		if n, err := src.Credentials.Counts(ctx, s); err != nil {
			failed("tokens, issuers and members", err)
		} else {
			add("tokens", int64(n.Tokens), most.MaxTokens)
			add("issuers", int64(n.Issuers), most.MaxIssuers)
			add("members", int64(n.Members), most.MaxMembers)
		}
		if n, err := src.ActiveTasks.Count(ctx, s); err != nil {
			failed("active_tasks", err)
		} else {
			add("active_tasks", n, 0)
		}
		if d, err := src.Day.LastDay(ctx, s); err != nil {
			failed("day_calls and day_refusals", err)
		} else {
			add("day_calls", d.Calls, 0)
			add("day_refusals", d.Refused, 0)
		}
		return out, nil
	})
}
