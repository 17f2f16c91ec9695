package mcp

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/telltale-dev/telltale/tenants"
)

// What a caller sees is narrowed four times, and nothing widens it again: by
// the server's settings, by its scopes, by the URL, and by what the nodes of
// its tenant run.

// adminSet is the set of tools about the tenant itself.
const adminSet = "admin"

// ToolSets names every set of tools, offered or not. Those after the first
// four are off unless the server's settings name them.
func ToolSets() []string {
	return []string{observeSet, diagnoseSet, "jobs", "apps", "act", "maintain", adminSet}
}

// defaultSets is what a server offers whose settings name no set.
func defaultSets() []string { return ToolSets()[:4] }

// Check reports the mistakes in the settings that name tools: call it when the
// server starts, for a name that does not exist narrows nothing.
func (c Config) Check() error {
	for _, s := range c.ToolSets {
		if !slices.Contains(ToolSets(), s) {
			return fmt.Errorf("tool sets: there is no set %q; known sets: %s", s, strings.Join(ToolSets(), ", "))
		}
	}
	known := namesOf(toolTable(c.Services))
	for _, name := range c.Exclude {
		if !slices.Contains(known, name) {
			return fmt.Errorf("excluded tools: there is no tool or set %q; known names: %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// namesOf lists the words that exclude may name: all tools and all sets.
func namesOf(tools []Tool) []string {
	out := ToolSets()
	for _, t := range tools {
		out = append(out, t.Name)
	}
	return out
}

// offered is what the server's settings leave of the table.
func (c Config) offered(all []Tool) []Tool {
	v := view{sets: c.ToolSets, exclude: c.Exclude, readonly: c.ReadOnly}
	if len(v.sets) == 0 {
		v.sets = defaultSets()
	}
	out := []Tool{}
	for i := range all {
		if v.shows(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}

// Running tells which components the nodes of a tenant run; fleet.Running
// satisfies it. known is false while no node has said what it runs.
type Running interface {
	Components(ctx context.Context, t tenants.TenantID) (list []string, known bool, err error)
}

// runs is what the fleet of one tenant runs, as far as the list of tools
// depends on it. A tenant whose nodes have said nothing yet, like one without
// nodes, is shown everything that its nodes could do: an empty list would look
// broken, and each tool says itself that there is no node.
type runs struct {
	known bool
	list  []string
}

// runs asks for a tenant's components. When that fails everything is listed:
// the list is no guard, and a tool that no node can serve says so.
func (h *Handler) runs(ctx context.Context, t tenants.TenantID) runs {
	if h.cfg.Services.Running == nil {
		return runs{}
	}
	list, known, err := h.cfg.Services.Running.Components(ctx, t)
	if err != nil {
		h.log.WarnContext(ctx, "cannot read what the nodes of a tenant run", "tenant", t, "error", err)
		return runs{}
	}
	return runs{known, list}
}

// have reports whether a tool has a node that could serve it.
func (r *runs) have(t *Tool) bool {
	return !r.known || t.Component == "" || slices.Contains(r.list, t.Component)
}

// exists reports whether the tool is there for this tenant and URL, whoever
// calls.
func (v *view) exists(t *Tool, r *runs) bool { return v.shows(t) && r.have(t) }

// missingScope reports the scope for which the caller should step up: only
// when what it asks for exists, and nothing but a scope that it can obtain
// keeps it from it. What the server, the URL or the fleet hides, and what the
// caller can never hold, stays unknown, or clients would step up for ever.
func (h *Handler) missingScope(scope tenants.Scope, v view, r runs, m message) (tenants.Scopes, bool) {
	need := h.needs(v, r, m)
	return need, need != 0 && !scope.Granted.Has(need) && scope.CanObtain(need)
}

// needs is the scope of what a message asks for; none when that does not exist
// or needs none.
func (h *Handler) needs(v view, r runs, m message) tenants.Scopes {
	name := m.Name
	switch m.Method {
	case "resources/read":
		if h.resourceExists(m.Name) {
			return tenants.Read
		}
		return 0
	case "prompts/get":
		if slices.ContainsFunc(h.prompts, func(p prompt) bool { return p.name == m.Name }) {
			return tenants.Read
		}
		return 0
	case tasksGet, tasksUpdate:
		name = checkTask
	case tasksCancel:
		name = cancelTask
	case "tools/call":
	default:
		return 0
	}
	if t := find(h.tools, name); t != nil && v.exists(t, &r) {
		return t.Scope
	}
	return 0
}
