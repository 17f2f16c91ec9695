package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/telltale-dev/telltale/agent/inspector"
	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/audit"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Auditor keeps the record of who called what; tenants/audit satisfies it.
type Auditor interface {
	// Note never blocks.
	Note(e audit.Entry)
	// Write returns when the entry is stored for good. Who acts waits for it, and
	// does not act when it fails.
	Write(ctx context.Context, e audit.Entry) error
}

// actScopes are those whose tools wait for their entry before they change
// anything.
const actScopes = tenants.Act | tenants.Approve | tenants.Maintain | tenants.Admin

// started records that a tool is about to act. Other tools need no leave.
func (h *Handler) started(ctx context.Context, t Tool, c caller, raw json.RawMessage) error {
	if h.cfg.Auditor == nil || !t.Writes || t.Scope&actScopes == 0 {
		return nil
	}
	e := c.entry(t.Name)
	e.Arguments, e.Outcome = redact(t, raw), audit.Started
	return h.cfg.Auditor.Write(ctx, e)
}

// ended records how a call ended. arguments are fit for a log; outcome is ok,
// panic or a kind of fault.
func (h *Handler) ended(t Tool, c caller, arguments, outcome, reason string, size int, took time.Duration) {
	if h.cfg.Auditor == nil {
		return
	}
	e := c.entry(t.Name)
	e.Arguments, e.Outcome, e.Reason, e.Bytes, e.Duration = arguments, audit.Failed, reason, size, took
	switch outcome {
	case "ok":
		e.Outcome = audit.OK
	case fault.Denied.String(), fault.Exhausted.String(), fault.Precondition.String(), fault.Unauthorized.String():
		e.Outcome = audit.Refused
	}
	if e.Outcome != audit.OK && reason == "" {
		e.Reason = outcome
	}
	h.cfg.Auditor.Note(e)
}

// otherMethod stands for whatever is no method. Refusals fold by their action,
// so that it must be no text of the caller's: each would be a row.
const otherMethod = "other method"

// knownMethods are those of both eras that a refusal is recorded under.
func knownMethods() []string {
	return append([]string{"initialize", "server/discover", "ping", "tools/list", "tools/call", "resources/list", "resources/templates/list", "resources/read",
		"prompts/list", "prompts/get", "completion/complete", listenMethod}, handleMethods...)
}

// turnedAway records a request of a verified caller that reached no tool.
func (h *Handler) turnedAway(r *http.Request, scope tenants.Scope, reference string, m message, reason string) {
	if h.cfg.Auditor == nil {
		return
	}
	e := caller{scope: scope, reference: reference, from: h.from(r)}.entry(m.Method)
	e.Outcome, e.Reason = audit.Refused, reason
	name := inspector.CleanText(clip(m.Name, 80))
	switch {
	case m.Method == "tools/call" && find(h.tools, m.Name) != nil:
		e.Action = m.Name
	case !slices.Contains(h.methods, m.Method):
		e.Action, e.Arguments = otherMethod, "{method="+inspector.CleanText(clip(m.Method, 60))+"}"
	case name != "":
		e.Arguments = "{name=" + name + "}"
	}
	h.cfg.Auditor.Note(e)
}

// turnAway answers a verified caller's request that is refused before anything
// reads it as a call, and tells the connector self-test why.
func (h *Handler) turnAway(w http.ResponseWriter, r *http.Request, scope tenants.Scope, id json.RawMessage, e *wireError) {
	if h.cfg.Recorder != nil {
		h.cfg.Recorder.Attempt(tenants.Attempt{Tenant: scope.Tenant, Reference: auth.Reference(w), At: h.now(), Step: tenants.StepCall, Class: e.reason(), Surface: "mcp",
			Received: e.Message, Principal: scope.Principal.ID, Client: scope.Principal.Client, From: h.from(r)})
	}
	h.refuse(w, id, e)
}

// reason is the word that says why, as explain takes it.
func (e *wireError) reason() string {
	if data, ok := e.Data.(map[string]string); ok && data["reason"] != "" {
		return data["reason"]
	}
	switch e.Status {
	case http.StatusRequestEntityTooLarge:
		return "body_too_large"
	case http.StatusRequestTimeout:
		return "body_timeout"
	case http.StatusMethodNotAllowed:
		return "method_not_allowed"
	case http.StatusServiceUnavailable:
		return fault.Unavailable.String()
	}
	return "invalid_message"
}

// from is the address that a request came from.
func (h *Handler) from(r *http.Request) netip.Addr {
	if h.cfg.ClientAddr == nil {
		return netip.Addr{}
	}
	return h.cfg.ClientAddr(r)
}

func (c caller) entry(action string) audit.Entry {
	return audit.Entry{Tenant: c.scope.Tenant, Principal: c.scope.Principal, Surface: "mcp", Action: action, Reference: c.reference, From: c.from}
}
