package rest

import (
	"context"
	"log/slog"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/access"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/directory"
)

// CredentialCounts counts what a tenant has of tokens, issuers and members.
type CredentialCounts interface {
	Counts(ctx context.Context, scope tenants.Scope) (access.Counts, error)
}

// EnrolmentCounts counts what a tenant has of nodes and enrolment tokens.
type EnrolmentCounts interface {
	Counts(ctx context.Context, scope tenants.Scope) (directory.Counts, error)
}

// Counter counts one thing of a tenant.
type Counter interface {
	Count(ctx context.Context, scope tenants.Scope) (int64, error)
}

// CounterFunc is a Counter made of a function.
type CounterFunc func(ctx context.Context, scope tenants.Scope) (int64, error)

// Count calls f.
func (f CounterFunc) Count(ctx context.Context, scope tenants.Scope) (int64, error) {
	return f(ctx, scope)
}

// DayCounts counts what a tenant's callers did within 24 hours.
type DayCounts interface {
	LastDay(ctx context.Context, scope tenants.Scope) (audit.Day, error)
}

// UsageSources are where the numbers of a tenant's usage come from. What is nil
// is left out of the answer.
type UsageSources struct {
	Credentials CredentialCounts
	Enrolment   EnrolmentCounts
	ActiveTasks Counter // not over yet
	Day         DayCounts
}

// used is a number and what bounds it; without a bound nothing does.
type used struct {
	Used int64  `json:"used"`
	Max  *int64 `json:"max,omitempty"`
}

type usageView struct {
	Nodes       *used    `json:"nodes,omitempty"`
	EnrolTokens *used    `json:"enrol_tokens,omitempty"`
	Tokens      *used    `json:"tokens,omitempty"`
	Issuers     *used    `json:"issuers,omitempty"`
	Members     *used    `json:"members,omitempty"`
	ActiveTasks *used    `json:"active_tasks,omitempty"`
	Calls       *used    `json:"day_calls,omitempty"`
	Refusals    *used    `json:"day_refusals,omitempty"`
	Notes       []string `json:"notes,omitempty"`
}

// usage answers numbers of the whole tenant. A number that is not known now is
// absent, and a note says so.
func (s *Server) usage(c *call) (any, error) {
	if err := c.query.done(); err != nil {
		return nil, err
	}
	if !c.scope.Nodes.All() {
		return nil, access.TooWide("the numbers count all nodes of the tenant")
	}
	ctx, src := c.r.Context(), s.cfg.Usage
	p, err := s.cfg.Policies.Policy(ctx, c.scope)
	if err != nil {
		return nil, err
	}
	most, out := p.Effective(), usageView{}
	failed := func(what string, err error) {
		out.Notes = append(out.Notes, what+": not known at this moment")
		s.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "usage not counted", slog.String("what", what), slog.Any("err", err))
	}
	if src.Enrolment != nil {
		if n, err := src.Enrolment.Counts(ctx, c.scope); err != nil {
			failed("nodes and enrol_tokens", err)
		} else {
			out.Nodes, out.EnrolTokens = bounded(n.Nodes, most.MaxNodes), bounded(n.EnrolTokens, most.MaxEnrolTokens)
		}
	}
	if src.Credentials != nil {
		if n, err := src.Credentials.Counts(ctx, c.scope); err != nil {
			failed("tokens, issuers and members", err)
		} else {
			out.Tokens, out.Issuers, out.Members = bounded(n.Tokens, most.MaxTokens), bounded(n.Issuers, most.MaxIssuers), bounded(n.Members, most.MaxMembers)
		}
	}
	if src.ActiveTasks != nil {
		if n, err := src.ActiveTasks.Count(ctx, c.scope); err != nil {
			failed("active_tasks", err)
		} else {
			out.ActiveTasks = &used{Used: n}
		}
	}
	if src.Day != nil {
		if d, err := src.Day.LastDay(ctx, c.scope); err != nil {
			failed("day_calls and day_refusals", err)
		} else {
			out.Calls, out.Refusals = &used{Used: d.Calls}, &used{Used: d.Refused}
		}
	}
	return out, nil
}

func bounded(n, most int) *used {
	m := int64(most)
	return &used{Used: int64(n), Max: &m}
}
