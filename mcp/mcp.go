// Package mcp offers the services to language models over the Model Context
// Protocol: one stateless HTTP endpoint a tenant, in both protocol eras.
//
// It owns the protocol's edge: what is refused before the SDK, which tools,
// resources and prompts a caller sees, the guard around every tool, and how an
// answer reads as text and as structured content. It must not know SQL, the
// REST adapter, or how a credential is verified: package auth puts a Scope into
// the request.
//
// Start reading at Handler.ServeHTTP, then toolTable (the one list of tools),
// then guard. A tool set is one file or two; deleting them and their line in
// toolTable deletes the feature. The tools of diagnose.go are made from the
// words of the registry; evidence.go merges what nodes found and
// evidence_text.go writes it; handles.go is the protocol's extension for tasks;
// listen.go and feed.go are the streams of updates; prompts are the files of
// prompts/.
package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/auth"
	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// Challenger answers 403 with a challenge to a caller that could obtain the
// scope it lacks; auth.Challenger satisfies it.
type Challenger interface {
	InsufficientScope(w http.ResponseWriter, r *http.Request, s tenants.Scope, need tenants.Scopes)
}

// Tenants tells a tenant's switches.
type Tenants interface {
	TenantBySlug(ctx context.Context, slug string) (tenants.Tenant, error)
}

// Config holds what the handler is made of. Every field but those with a
// stated zero value is required.
type Config struct {
	Challenger Challenger
	Tenants    Tenants
	Services   Services
	Log        *slog.Logger
	Version    string // of the server, shown to clients; empty means "dev"

	// What the server offers at most; a caller's URL narrows further and nothing
	// widens. Check finds typing errors in the names.
	ToolSets []string // empty: observe, diagnose, jobs and apps
	ReadOnly bool     // no tool that changes anything, whatever else is set
	Exclude  []string // tools and whole sets

	Limits    Limits                   // calls a minute; nil: no limit
	Dashboard func(slug string) string // URL of a tenant's dashboard without a slash at its end, for links; nil: the path alone

	// Again verifies the credential of a request once more: a stream of updates
	// ends as soon as its caller is not what it was. nil: at ListenFor.
	Again func(*http.Request) (tenants.Scope, bool)

	Auditor    Auditor                        // nil: calls are logged and nothing else
	ClientAddr func(*http.Request) netip.Addr // for the audit; nil: not recorded
	Recorder   auth.Recorder                  // of requests that were refused as such, for the connector self-test; nil: their reference ids lead to nothing

	Disabled    bool          // the server offers MCP to nobody
	StrictEras  bool          // refuse the requests that mixed-era clients send (mcp.tolerate_mixed_era off)
	Pulse       time.Duration // silence before a comment on an event stream; zero means 20 s
	ServerCache int           // servers kept; zero means 512
	ListenFor   time.Duration // longest life of a stream of updates; zero means 15 min
	ListenPace  time.Duration // least time between two updates of a stream; zero means 1 s
	ListenLook  time.Duration // time between two looks whether a stream's list of tools changed; zero means 3 s
	ListenAgain time.Duration // time between two checks whether a stream's caller may still have it; zero means 1 s
	BodyWithin  time.Duration // a request's body has arrived by then; zero means 15 s
	Now         func() time.Time

	// Extra, if set, adds registrations to each server that is made for a
	// caller. It is for the conformance build alone, which needs the tools,
	// prompts and resources that the official suites ask for: they stand behind
	// the same authentication, body checks and middleware as everything else,
	// but behind no guard, and every caller of every tenant sees them.
	Extra func(*sdk.Server)
}

// Handler serves `/t/{tenant}/mcp`, with and without a slash at the end (route
// both to it: a redirect would lose the Authorization header). auth.Gate's
// Bearer stands in front of it. It is safe for concurrent use and starts
// nothing.
type Handler struct {
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	tools   []Tool   // what the server's settings leave
	names   []string // what a URL may exclude
	methods []string // that a refusal is recorded under
	prompts []prompt
	servers *serverCache
	stream  *sdk.StreamableHTTPHandler
	mixed   atomic.Uint64
	tally   tally
	encoder encoder
	gate    gate
	listens listens

	self    json.RawMessage // this server, as its answers of the new era name it
	answers answers         // buffers of answers that are written here
	sdkOnly bool            // of tests: nothing is answered beside the SDK
	beside  atomic.Uint64   // what was
}

// New makes a Handler.
func New(cfg Config) *Handler {
	if cfg.Pulse <= 0 {
		cfg.Pulse = 20 * time.Second
	}
	if cfg.ServerCache <= 0 {
		cfg.ServerCache = 512
	}
	if cfg.ListenFor <= 0 {
		cfg.ListenFor = 15 * time.Minute
	}
	if cfg.ListenPace <= 0 {
		cfg.ListenPace = listenPace
	}
	if cfg.ListenLook <= 0 {
		cfg.ListenLook = 3 * time.Second
	}
	if cfg.ListenAgain <= 0 {
		cfg.ListenAgain = time.Second
	}
	if cfg.BodyWithin <= 0 {
		cfg.BodyWithin = 15 * time.Second
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Dashboard == nil {
		cfg.Dashboard = func(slug string) string { return "/t/" + slug + "/ui" }
	}
	if cfg.Version == "" {
		cfg.Version = "dev"
	}
	cfg.Services.dashboard = cfg.Dashboard
	all := toolTable(cfg.Services)
	h := &Handler{cfg: cfg, log: cfg.Log, now: cfg.Now, tools: cfg.offered(all), names: namesOf(all), methods: knownMethods(), servers: newServerCache(cfg.ServerCache)}
	h.self = selfOf(cfg)
	if cfg.Services.Events != nil && cfg.Services.Tasks != nil {
		h.prompts = prompts() // they speak of both
	}
	h.stream = sdk.NewStreamableHTTPHandler(
		func(r *http.Request) *sdk.Server { c, _ := callerOf(r.Context()); return c.server },
		&sdk.StreamableHTTPOptions{
			Stateless:                    true,
			DisableLocalhostProtection:   true, // Host and Origin are checked by auth, which knows the public URL
			MaxRequestBodyBytes:          tenants.MaxRequestBytes,
			PropagateRequestCancellation: true,
		})
	return h
}

// MixedEra counts the requests that the mixed-era tolerance changed.
func (h *Handler) MixedEra() uint64 { return h.mixed.Load() }

// Evicted counts the cached servers that made room for others.
func (h *Handler) Evicted() uint64 {
	h.servers.mu.Lock()
	defer h.servers.mu.Unlock()
	return h.servers.evicted
}

// caller is what one request carries down to its tool.
type caller struct {
	scope     tenants.Scope
	reference string
	from      netip.Addr
	server    *sdk.Server
	modern    bool            // 2026-07-28: the request's end reaches the tool
	handles   bool            // the client declared that it understands task handles
	view      view            // what the URL leaves
	runs      runs            // what the fleet leaves
	limit     *limited        // nil: its requests are not counted
	acked     <-chan struct{} // of a stream of updates: closed when its subscriptions are in force
	request   *http.Request   // of a stream of updates: what its credential came with
}

type callerKey struct{}

func callerOf(ctx context.Context) (caller, bool) {
	c, ok := ctx.Value(callerKey{}).(caller)
	return c, ok
}

// ServeHTTP answers one request of an authenticated caller.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	privateHeaders(w.Header())
	reference := auth.Reference(w)
	scope, ok := auth.ScopeFrom(r.Context())
	if !ok { // the authentication was not put in front: fail closed
		h.refuse(w, nil, &wireError{Status: http.StatusUnauthorized, Code: jsonrpc.CodeInvalidRequest, Message: "no verified credential"})
		return
	}
	if e := h.switchedOff(r.Context(), scope); e != nil {
		h.turnAway(w, r, scope, nil, e)
		return
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		h.turnAway(w, r, scope, nil, &wireError{Status: http.StatusMethodNotAllowed, Code: jsonrpc.CodeInvalidRequest,
			Message: "this endpoint keeps no session: send each message with POST"})
		return
	}
	limit := h.take(r.Context(), w.Header(), scope)
	v, err := readView(r.URL.RawQuery, h.names)
	if err != nil {
		f := fault.Of(err)
		h.turnAway(w, r, scope, nil, refuse(jsonrpc.CodeInvalidRequest, f.Msg+"; "+f.Next))
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(h.cfg.BodyWithin)) // not every writer has deadlines; the listener has its own
	body, e := readBody(w, r)
	if e != nil {
		h.turnAway(w, r, scope, nil, e)
		return
	}
	msg, e := readMessage(body)
	if limit.refused() && msg.Method != "tools/call" { // a call gets a result that its model can read
		h.turnedAway(r, scope, reference, msg, limit.fault().Reason)
		h.refuse(w, msg.ID, limit.wire())
		return
	}
	if e != nil {
		// A client of the initialize era reads a JSON-RPC error only from 200.
		if e.Code == jsonrpc.CodeInvalidParams && msg.ID != nil && r.Header.Get(versionHeader) != modernVersion {
			e.Status = http.StatusOK
		}
		h.turnAway(w, r, scope, msg.ID, e)
		return
	}
	if e := refuseVersion(r.Header, msg); e != nil {
		h.turnAway(w, r, scope, msg.ID, e)
		return
	}
	version := r.Header.Get(versionHeader)
	mixed := !h.cfg.StrictEras && mixesEras(r.Header, msg)
	if mixed {
		h.mixed.Add(1)
		version = lastLegacy
	}
	modern := version == modernVersion
	if e := refuseLegacy(modern, msg); e != nil {
		h.turnAway(w, r, scope, msg.ID, e)
		return
	}
	if e := refuseUndeclared(modern, msg); e != nil {
		h.turnAway(w, r, scope, msg.ID, e)
		return
	}
	running := h.runs(r.Context(), scope.Tenant)
	if need, missing := h.missingScope(scope, v, running, msg); missing {
		h.tally.add(&h.tally.refused, "insufficient_scope")
		h.turnedAway(r, scope, reference, msg, "insufficient_scope")
		h.cfg.Challenger.InsufficientScope(w, r, scope, need)
		return
	}
	c := caller{scope: scope, reference: reference, from: h.from(r), modern: modern, handles: modern && msg.Handles, limit: limit, view: v, runs: running}
	var tool *Tool
	if msg.Method == "tools/call" {
		if tool = find(h.tools, msg.Name); tool != nil && !c.sees(tool) {
			tool = nil
		}
		if tool == nil && h.cfg.Extra == nil {
			h.turnedAway(r, scope, reference, msg, "unknown_tool") // it may be one that the caller may not know
		}
	}
	// A stream may last longer than any time-out of the listener.
	_ = errors.Join(rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Time{})) // not every writer has deadlines
	plain := h.plain(r, msg, tool, version)
	if plain && tool != nil {
		h.answerCall(w, r, &c, tool, msg)
		return
	}
	if modern && msg.Method == listenMethod {
		c.server, c.acked = h.listenServer(c)
		c.request = r
		h.carry(w, r, c, msg, body, version, nil)
		return
	}
	own := h.server(&c)
	c.server = own.server
	if !plain {
		h.carry(w, r, c, msg, body, version, nil)
	} else if result, ok := own.list(version); ok {
		h.answerList(w, msg, result)
	} else { // what the SDK answers now is the next one's answer
		h.carry(w, r, c, msg, body, version, func(event []byte) { own.keep(version, event) })
	}
}

// refuse counts a refusal and answers with it.
func (h *Handler) refuse(w http.ResponseWriter, id json.RawMessage, e *wireError) {
	h.tally.refusal(e.Code)
	e.write(w, id)
}

// switchedOff says why this server or this tenant offers no MCP.
func (h *Handler) switchedOff(ctx context.Context, scope tenants.Scope) *wireError {
	if h.cfg.Disabled {
		return &wireError{Status: http.StatusNotFound, Code: jsonrpc.CodeInvalidRequest,
			Message: "MCP is switched off on this server", Data: map[string]string{"reason": "mcp_disabled_server"}}
	}
	t, err := h.cfg.Tenants.TenantBySlug(ctx, scope.Slug)
	switch {
	case err != nil:
		h.log.ErrorContext(ctx, "cannot read the tenant's switches", "tenant", scope.Tenant, "error", err)
		return &wireError{Status: http.StatusServiceUnavailable, Code: jsonrpc.CodeInternalError, Message: "the server cannot read the tenant's settings; try again"}
	case t.MCPDisabled:
		return &wireError{Status: http.StatusForbidden, Code: jsonrpc.CodeInvalidRequest,
			Message: "MCP is switched off for this tenant; an administrator of the tenant can switch it on", Data: map[string]string{"reason": "mcp_disabled_tenant"}}
	}
	return nil
}
