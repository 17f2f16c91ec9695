package mcp

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Tokens lists a tenant's operator tokens; tenants/access satisfies it.
type Tokens interface {
	ListTokens(ctx context.Context, scope tenants.Scope, cursor string, limit int) (list []tenants.OperatorToken, next string, err error)
}

// Audit lists who did what; tenants/audit satisfies it.
type Audit interface {
	List(context.Context, tenants.Scope, audit.Query) (audit.Page, error)
}

// Usage tells what a tenant uses of what it may.
type Usage interface {
	Usage(context.Context, tenants.Scope) (Used, error)
}

// UsageFunc is a Usage made of a function.
type UsageFunc func(context.Context, tenants.Scope) (Used, error)

// Usage calls f.
func (f UsageFunc) Usage(ctx context.Context, s tenants.Scope) (Used, error) { return f(ctx, s) }

// Used is what a tenant uses. What is not known now is absent, and a note says
// so.
type Used struct {
	Usage []Quota  `json:"usage"`
	Notes []string `json:"notes,omitempty"`
}

// Quota is one thing that a tenant uses, under the name that REST gives it.
type Quota struct {
	What string `json:"what"` // for example "nodes"
	Used int64  `json:"used"`
	Max  int64  `json:"max,omitempty"` // 0: nothing bounds it
}

// adminTools are the tools about the tenant itself. They only look: people
// change tokens and quotas in the dashboard or over REST, and no tool makes or
// shows a credential.
func adminTools(s Services) []Tool {
	out := []Tool{}
	page := []Arg{limitArg, cursorArg, maxBytes}
	if s.Tokens != nil {
		out = append(out, Tool{
			Name: "list_tokens", Title: "List tokens", Set: adminSet, Scope: tenants.Admin,
			Description: "Operator tokens of the tenant, youngest first: name, scopes, nodes, networks, last use, end. Never a secret. Use it to see who may do what, or which token is unused.",
			Args:        page, Output: tokensAnswer{},
			Run: func(ctx context.Context, c Call) (Answer, error) { return listTokens(ctx, s.Tokens, c) },
		})
	}
	if s.Audit != nil {
		out = append(out, Tool{
			Name: "audit_recent", Title: "Recent audit", Set: adminSet, Scope: tenants.Admin,
			Description: "Who did what: calls, writes and refusals with principal, outcome and reason, youngest first. Use it to see what a caller did, or by the reference_id of an error.",
			Args: append([]Arg{
				{Name: "principal", Kind: argString, Words: "id"}, {Name: "action", Kind: argString, Words: "a tool, or method and route"},
				{Name: "outcome", Kind: argString, Enum: []string{string(audit.OK), string(audit.Refused), string(audit.Failed), string(audit.Started)}},
				{Name: "reference_id", Kind: argString}, {Name: fromArg.Name, Kind: argString, Words: "default 24h"}, {Name: toArg.Name, Kind: argString},
			}, page...),
			Output: auditAnswer{},
			Run:    func(ctx context.Context, c Call) (Answer, error) { return auditRecent(ctx, s.Audit, c) },
		})
	}
	if s.Usage != nil {
		out = append(out, Tool{
			Name: "tenant_usage", Title: "Tenant usage", Set: adminSet, Scope: tenants.Admin,
			Description: "What the tenant uses of what it may: nodes, tokens, issuers, members, active tasks, calls. Use it when something is refused because a quota is full.",
			Output:      usageAnswer{},
			Run:         func(ctx context.Context, c Call) (Answer, error) { return tenantUsage(ctx, s.Usage, c) },
		})
	}
	return out
}

// tokenRow is one token as a model may see it: what it is, never what proves it.
type tokenRow struct {
	ID         string            `json:"token_id"`
	Name       string            `json:"name"`
	State      string            `json:"state"` // active, expired, revoked
	Scopes     []string          `json:"scopes"`
	NodeLabels map[string]string `json:"node_labels,omitempty"`
	Nodes      []string          `json:"nodes,omitempty"`
	Networks   []string          `json:"networks,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
	CreatedBy  string            `json:"created_by,omitempty"`
	ExpiresAt  *time.Time        `json:"expires_at,omitempty"`
	RevokedAt  *time.Time        `json:"revoked_at,omitempty"`
	LastUsedAt *time.Time        `json:"last_used_at,omitempty"`
}

type tokensAnswer struct {
	Tokens     []tokenRow         `json:"tokens"`
	NextCursor string             `json:"next_cursor,omitempty"`
	Truncated  *tenants.Truncated `json:"truncated,omitempty"`
	Notes      []string           `json:"notes,omitempty"`
}

func listTokens(ctx context.Context, s Tokens, c Call) (Answer, error) {
	rows, note := c.limit(tenants.DefaultListRows)
	list, next, err := s.ListTokens(ctx, c.Scope, c.Args.str(cursorArg.Name), rows)
	if err != nil {
		return Answer{}, err
	}
	body := tokensAnswer{Tokens: []tokenRow{}, NextCursor: next, Notes: withNote(nil, note)}
	if next != "" {
		body.Truncated = &tenants.Truncated{Returned: len(list), NextCursor: next, Hint: "ask again with the cursor"}
	}
	for _, t := range list {
		body.Tokens = append(body.Tokens, rowOf(t, c.Now))
	}
	var p page
	p.line("%s", counted(len(list), "token"))
	cells := []string{}
	for _, t := range body.Tokens {
		used := "never used"
		if t.LastUsedAt != nil {
			used = stamp(*t.LastUsedAt)
		}
		nodes := strings.TrimSpace(labelText(t.NodeLabels) + " " + strings.Join(t.Nodes, " "))
		if nodes == "" {
			nodes = "all"
		}
		cells = append(cells, t.Name, t.State, strings.ReplaceAll(strings.Join(t.Scopes, " "), "telltale:", ""), nodes, used, t.ID)
	}
	p.table([]string{"NAME", "STATE", "SCOPES", "NODES", "LAST USE", "TOKEN"}, cells)
	p.truncated(body.Truncated)
	p.notes(body.Notes)
	return Answer{Body: body, Text: p.String(), Rows: len(list)}, nil
}

func rowOf(t tenants.OperatorToken, now time.Time) tokenRow {
	r := tokenRow{ID: t.ID, Name: t.Name, State: "active", Scopes: t.Scopes.Words(), NodeLabels: t.Nodes.Labels, CreatedAt: t.CreatedAt, CreatedBy: t.CreatedBy,
		ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt, LastUsedAt: t.LastUsedAt}
	switch {
	case t.RevokedAt != nil:
		r.State = "revoked"
	case t.ExpiresAt != nil && !t.ExpiresAt.After(now):
		r.State = "expired"
	}
	for _, id := range t.Nodes.IDs {
		r.Nodes = append(r.Nodes, id.String())
	}
	for _, n := range t.CIDRs {
		r.Networks = append(r.Networks, n.String())
	}
	return r
}

type auditAnswer struct{ audit.Page }

// auditSpan is how far back a look into the audit goes by itself.
const auditSpan = 24 * time.Hour

func auditRecent(ctx context.Context, s Audit, c Call) (Answer, error) {
	from, err := c.Args.when(fromArg.Name, c.Now)
	if err != nil {
		return Answer{}, err
	}
	to, err := c.Args.when(toArg.Name, c.Now)
	if err != nil {
		return Answer{}, err
	}
	if from.IsZero() && c.Args.str("reference_id") == "" {
		from = c.Now.Add(-auditSpan)
	}
	rows, note := c.limit(tenants.DefaultListRows)
	got, err := s.List(ctx, c.Scope, audit.Query{Principal: c.Args.str("principal"), Action: c.Args.str("action"), Outcome: audit.Outcome(c.Args.str("outcome")),
		Reference: c.Args.str("reference_id"), Since: from, Until: to, Cursor: c.Args.str(cursorArg.Name), Limit: rows})
	if err != nil {
		return Answer{}, err
	}
	got.Notes = withNote(got.Notes, note)
	var p page
	p.line("%s, youngest first", counted(len(got.Entries), "record"))
	cells := []string{}
	for _, e := range got.Entries {
		who := e.Principal.Name
		if who == "" {
			who = e.Principal.ID
		}
		how := string(e.Outcome)
		if e.Reason != "" {
			how += " " + e.Reason
		}
		if e.Count > 1 {
			how += " ×" + strconv.Itoa(e.Count)
		}
		cells = append(cells, stamp(e.At), who, e.Surface, e.Action, clip(e.Arguments, 120), how, e.Reference)
	}
	p.table([]string{"AT", "WHO", "SURFACE", "ACTION", "ARGUMENTS", "OUTCOME", "REFERENCE"}, cells)
	p.truncated(got.Truncated)
	p.notes(got.Notes)
	return Answer{Body: auditAnswer{got}, Text: p.String(), Rows: len(got.Entries)}, nil
}

type usageAnswer struct {
	At time.Time `json:"at"`
	Used
}

func tenantUsage(ctx context.Context, s Usage, c Call) (Answer, error) {
	if !c.Scope.Nodes.All() {
		return Answer{}, fault.New(fault.Denied, "outside_selector", "the numbers count all nodes of the tenant").Do("ask an administrator whose credential is not limited to some nodes")
	}
	got, err := s.Usage(ctx, c.Scope)
	if err != nil {
		return Answer{}, err
	}
	var p page
	p.line("at %s", stamp(c.Now))
	cells := []string{}
	for _, q := range got.Usage {
		most, share := "unbounded", ""
		if q.Max > 0 {
			most, share = number(float64(q.Max)), fmt.Sprintf("%.0f %%", 100*float64(q.Used)/float64(q.Max))
		}
		cells = append(cells, q.What, number(float64(q.Used)), most, share)
	}
	p.table([]string{"WHAT", "USED", "AT MOST", "SHARE"}, cells)
	p.notes(got.Notes)
	return Answer{Body: usageAnswer{c.Now.UTC(), got}, Text: p.String()}, nil
}
