package mcp

import (
	"context"
	"fmt"
	"runtime/debug"
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
	listenMethod  = "subscriptions/listen"
	ackMethod     = "notifications/subscriptions/acknowledged"
	maxListenURIs = 50
	maxListens    = 1024 // streams of this process
	maxOwnListens = 8    // of one principal
	listenPace    = time.Second
	maxChanges    = 64 // events remembered between two looks
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
	if l.open >= maxListens || !l.take(keyOf(s), maxOwnListens) {
		return nil, nil, fault.Newf(fault.Exhausted, "too_many_streams", "no more streams of updates: %d a principal, %d in all", maxOwnListens, maxListens).
			Do("close one, or subscribe to several resources in one stream")
	}
	l.open++
	return l.ended, func() {
		l.give(keyOf(s))
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
// when its subscriptions are in force.
func (h *Handler) listenServer(scope tenants.Scope, v view) (*sdk.Server, <-chan struct{}) {
	allowed, _ := h.allowed(scope, v)
	s := h.build(allowed, scope.Granted.Has(tenants.Read), v.schemas, h.servers.schemas)
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
		if len(want.ResourceSubscriptions) == 0 || c.acked == nil {
			return next(ctx, method, &own)
		}
		stop, leave, err := h.listens.enter(c.scope)
		if err != nil {
			return nil, h.resourceError(ctx, fault.Of(err), listenMethod, c)
		}
		defer leave()
		ctx, cancel := context.WithTimeout(ctx, h.cfg.ListenFor)
		var fed sync.WaitGroup
		fed.Go(func() {
			defer cancel() // a stream that nobody feeds would be silent for ever
			h.feed(ctx, c, want.ResourceSubscriptions, stop)
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

// news is what happened since the stream was last told.
type news struct {
	changes map[events.ID]tenants.NodeID // bounded: what goes beyond is told by a later change
	tickets map[string]tasks.ID          // by URI
}

// feed tells the stream of changes until ctx or stop ends it, once a second at
// most. A panic ends the stream and nothing else.
func (h *Handler) feed(ctx context.Context, c caller, uris []string, stop <-chan struct{}) {
	defer func() {
		if p := recover(); p != nil {
			h.log.ErrorContext(ctx, "panic in a stream of updates", "panic", fmt.Sprint(p), "reference", c.reference, "stack", string(debug.Stack()))
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	var forwarders sync.WaitGroup
	defer forwarders.Wait()
	defer cancel()
	var changes <-chan events.Change
	moved := make(chan string, len(uris))
	tickets := map[string]tasks.ID{}
	for _, uri := range uris {
		kind, _, ticket := splitURI(uri)
		switch {
		case kind == taskResult:
			tickets[uri] = ticket
			hints, end := h.cfg.Services.Tasks.Subscribe(c.scope.Tenant, ticket)
			forwarders.Go(func() { defer end(); forward(ctx, hints, uri, moved) })
		case changes == nil:
			got, end := h.cfg.Services.Events.Subscribe(c.scope.Tenant)
			defer end()
			changes = got
		}
	}
	select { // nothing is told before the subscriptions are in force
	case <-c.acked:
	case <-ctx.Done():
		return
	}
	pending := news{map[events.ID]tenants.NodeID{}, map[string]tasks.ID{}}
	pace := time.NewTicker(h.cfg.ListenPace)
	defer pace.Stop()
	idle := true // nothing was told since the last tick: the next change is told at once
	tell := func() {
		if len(pending.changes)+len(pending.tickets) > 0 {
			h.tell(ctx, c, uris, pending)
			clear(pending.changes)
			clear(pending.tickets)
			idle = false
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-stop:
			return
		case ch, ok := <-changes:
			if !ok {
				changes = nil
				continue
			}
			if ch.Tenant == c.scope.Tenant && len(pending.changes) < maxChanges {
				pending.changes[ch.Event] = ch.Node
			}
		case uri := <-moved:
			pending.tickets[uri] = tickets[uri]
		case <-pace.C:
			idle = true
		}
		if idle {
			tell()
		}
	}
}

// forward passes the hints of one task on.
func forward(ctx context.Context, hints <-chan struct{}, uri string, to chan<- string) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-hints:
			if !ok {
				return
			}
		}
		select {
		case to <- uri:
		case <-ctx.Done():
			return
		}
	}
}

// tell sends one message for each resource that changed for this caller. A
// change on a node outside its selector is none.
func (h *Handler) tell(ctx context.Context, c caller, uris []string, n news) {
	work, cancel := context.WithTimeout(ctx, shortTask)
	defer cancel()
	visible := func(id events.ID, node tenants.NodeID) bool {
		sel := c.scope.Nodes
		switch {
		case sel.All():
			return true
		case len(sel.IDs) > 0 && !slices.Contains(sel.IDs, node):
			return false
		}
		return h.seesEvent(work, c.scope, id)
	}
	for _, uri := range uris {
		kind, event, ticket := splitURI(uri)
		changed := false
		switch kind {
		case recentEvents:
			for id, node := range n.changes {
				if changed = visible(id, node); changed {
					break
				}
			}
		case eventContext:
			if node, ok := n.changes[event]; ok {
				changed = visible(event, node)
			}
		case taskResult:
			if _, ok := n.tickets[uri]; ok {
				changed = h.seesTask(work, c.scope, ticket)
			}
		}
		if !changed {
			continue
		}
		if err := c.server.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
			h.log.DebugContext(ctx, "an update was not told", "error", err, "reference", c.reference)
		}
	}
}
