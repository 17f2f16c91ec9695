package mcp

import (
	"context"
	"slices"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
	"github.com/telltale-dev/telltale/tenants/tasks"
)

// A stream of updates (subscriptions/listen of 2026-07-28) has an SDK server of
// its own. The SDK tells every subscriber of a server of each update; with one
// subscriber a server, no principal can ever be told what another may see, and
// one goroutine, which ends with the request, feeds it. What is told is only
// that a resource changed: reading it takes a call with its own check.

const (
	listenMethod     = "subscriptions/listen"
	ackMethod        = "notifications/subscriptions/acknowledged"
	maxListenURIs    = 50
	maxListens       = 1024 // streams of this process
	maxTenantListens = 256  // of one tenant
	maxOwnListens    = 8    // of one principal
	listenPace       = time.Second
	maxChanges       = 64 // events remembered between two looks
)

// listens bounds the streams of updates. The zero value is ready.
type listens struct {
	gate
	mu    sync.Mutex
	open  int
	ended chan struct{} // closed by Close
}

func (l *listens) enter(s tenants.Scope) (stop <-chan struct{}, leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.ended = make(chan struct{})
	}
	own, whole := keyOf(s), principalKey{tenant: s.Tenant}
	enough := l.open >= maxListens || !l.take(own, maxOwnListens)
	if !enough && !l.take(whole, maxTenantListens) {
		l.give(own)
		enough = true
	}
	if enough {
		return nil, nil, fault.Newf(fault.Exhausted, "too_many_streams", "no more streams of updates: %d a principal, %d a tenant, %d in all", maxOwnListens, maxTenantListens, maxListens).
			Do("close one, or subscribe to several resources in one stream")
	}
	l.open++
	return l.ended, func() {
		l.give(own)
		l.give(whole)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open--
	}, nil
}

// Close ends the open streams of updates, so that the listener can shut down.
// Clients open them again elsewhere.
func (h *Handler) Close() {
	h.listens.mu.Lock()
	defer h.listens.mu.Unlock()
	if h.listens.ended == nil {
		h.listens.ended = make(chan struct{})
	}
	select {
	case <-h.listens.ended:
	default:
		close(h.listens.ended)
	}
}

// listenServer makes the server of one stream, and the channel that is closed
// when its subscriptions are in force. It holds nothing but what a stream
// needs: no tools, no resources, no prompts, or a thousand of them would weigh.
func (h *Handler) listenServer(c caller) (*sdk.Server, <-chan struct{}) {
	read := c.scope.Granted.Has(tenants.Read)
	caps := &sdk.ServerCapabilities{}
	if read && h.listChanges() {
		caps.Tools = &sdk.ToolCapabilities{ListChanged: true}
	}
	opts := &sdk.ServerOptions{Capabilities: caps}
	if read && h.watchable() {
		caps.Resources = &sdk.ResourceCapabilities{Subscribe: true}
		subscribable(opts)
	}
	s := sdk.NewServer(h.cfg.implementation(), opts)
	s.AddReceivingMiddleware(h.recoverer, h.listen)
	acked := make(chan struct{})
	var once sync.Once
	s.AddSendingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, req)
			if method == ackMethod {
				once.Do(func() { close(acked) })
			}
			return res, err
		}
	})
	return s, acked
}

// listChanges reports whether a caller's list of tools can change: it follows
// what the fleet runs.
func (h *Handler) listChanges() bool { return h.cfg.Services.Running != nil }

// listMark is the one entry of a stream's own server. The SDK tells of a
// changed list when an entry comes or goes; nobody can list or call it.
var listMark = &sdk.Tool{Name: "list", InputSchema: map[string]any{"type": "object"}}

// watchable reports whether there are resources that tell of changes.
func (h *Handler) watchable() bool {
	return h.cfg.Services.Events != nil || h.cfg.Services.Tasks != nil
}

// subscribable makes the SDK offer subscriptions; listen decides to what.
func subscribable(opts *sdk.ServerOptions) {
	opts.SubscribeHandler = func(context.Context, *sdk.SubscribeRequest) error { return nil }
	opts.UnsubscribeHandler = func(context.Context, *sdk.UnsubscribeRequest) error { return nil }
}

// listen stands around subscriptions/listen: it agrees only to resources that
// this caller may see and that do change, and feeds the stream until it ends.
func (h *Handler) listen(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		c, ok := callerOf(ctx)
		in, isListen := req.(*sdk.ServerRequest[*sdk.SubscriptionsListenParams])
		if method != listenMethod || !ok || !isListen || in.Params == nil || in.Params.Notifications == nil {
			return next(ctx, method, req)
		}
		want := *in.Params.Notifications
		want.ResourceSubscriptions = nil
		if c.scope.Granted.Has(tenants.Read) {
			want.ResourceSubscriptions = h.changing(ctx, c.scope, in.Params.Notifications.ResourceSubscriptions)
		}
		params, own := *in.Params, *in
		params.Notifications = &want
		own.Params = &params
		want.ToolsListChanged = want.ToolsListChanged && h.listChanges() && c.scope.Granted.Has(tenants.Read)
		if len(want.ResourceSubscriptions) == 0 && !want.ToolsListChanged || c.acked == nil {
			return next(ctx, method, &own)
		}
		stop, leave, err := h.listens.enter(c.scope)
		if err != nil {
			return nil, h.resourceError(ctx, fault.Of(err), listenMethod, c)
		}
		defer leave()
		ctx, cancel := context.WithTimeout(ctx, h.cfg.ListenFor)
		f := h.subscribe(c, want.ResourceSubscriptions) // before the acknowledgement: what changes after it is told
		f.tools = want.ToolsListChanged
		var fed sync.WaitGroup
		fed.Go(func() {
			defer cancel() // a stream that nobody feeds would be silent for ever
			f.run(ctx, stop)
		})
		defer fed.Wait()
		defer cancel()
		return next(ctx, method, &own)
	}
}

// changing keeps the resources that exist for the caller and tell of changes.
func (h *Handler) changing(ctx context.Context, scope tenants.Scope, uris []string) []string {
	ctx, cancel := context.WithTimeout(ctx, shortTask)
	defer cancel()
	out := []string{}
	for _, uri := range uris[:min(len(uris), maxListenURIs)] {
		if slices.Contains(out, uri) {
			continue
		}
		switch kind, event, ticket := splitURI(uri); {
		case kind == recentEvents && h.cfg.Services.Events != nil:
		case kind == eventContext && h.cfg.Services.Events != nil && h.seesEvent(ctx, scope, event):
		case kind == taskResult && h.cfg.Services.Tasks != nil && h.seesTask(ctx, scope, ticket):
		default:
			continue
		}
		out = append(out, uri)
	}
	return out
}

func (h *Handler) seesEvent(ctx context.Context, scope tenants.Scope, id events.ID) bool {
	_, err := h.cfg.Services.Events.Get(ctx, scope, id)
	return err == nil
}

func (h *Handler) seesTask(ctx context.Context, scope tenants.Scope, id tasks.ID) bool {
	_, err := h.cfg.Services.Tasks.Get(ctx, scope, id)
	return err == nil
}
