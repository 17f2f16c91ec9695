package mcp

import (
	"context"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
	"github.com/telltale-dev/telltale/tenants/events"
	"github.com/telltale-dev/telltale/tenants/fault"
)

// news is what happened since the stream was last told.
type news struct {
	changes map[events.ID]tenants.NodeID // bounded; what goes beyond is a gap
	gap     bool                         // changes were lost: everything may have changed
	list    bool                         // the list of events changed by what was lost
	tickets map[string]bool              // URIs
}

func (n *news) empty() bool { return len(n.changes)+len(n.tickets) == 0 && !n.gap }

func (n *news) clear() {
	clear(n.changes)
	clear(n.tickets)
	n.gap, n.list = false, false
}

// feed is one stream's subscriptions to what changes.
type feed struct {
	h       *Handler
	c       caller
	tools   bool // the list of tools is watched, too
	marked  bool // listMark is there
	uris    []string
	changes <-chan events.Change
	hints   map[string]<-chan struct{} // by the URI of a task
	ends    []func()
}

func (h *Handler) subscribe(c caller, uris []string) *feed {
	f := &feed{h: h, c: c, uris: uris, hints: map[string]<-chan struct{}{}}
	for _, uri := range uris {
		switch kind, _, ticket := splitURI(uri); {
		case kind == taskResult:
			hints, end := h.cfg.Services.Tasks.Subscribe(c.scope.Tenant, ticket)
			f.hints[uri], f.ends = hints, append(f.ends, end)
		case f.changes == nil:
			changes, end := h.cfg.Services.Events.Subscribe(c.scope.Tenant)
			f.changes, f.ends = changes, append(f.ends, end)
		}
	}
	return f
}

// run tells the stream of changes until ctx or stop ends it, once a pace at
// most. A panic ends the stream and nothing else.
func (f *feed) run(ctx context.Context, stop <-chan struct{}) {
	h, c, changes := f.h, f.c, f.changes
	defer func() {
		if p := recover(); p != nil {
			h.log.ErrorContext(ctx, "panic in a stream of updates", "panic", fmt.Sprint(p), "reference", c.reference, "stack", string(debug.Stack()))
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	var forwarders sync.WaitGroup
	defer func() {
		cancel()
		forwarders.Wait()
		for _, end := range f.ends {
			end()
		}
	}()
	moved := make(chan string, len(f.uris))
	for uri, hints := range f.hints {
		forwarders.Go(func() { forward(ctx, hints, uri, moved) })
	}
	select { // nothing is told before the subscriptions are in force
	case <-c.acked:
	case <-ctx.Done():
		return
	}
	pending := news{changes: map[events.ID]tenants.NodeID{}, tickets: map[string]bool{}}
	newest := f.newest(ctx)
	pace := time.NewTicker(h.cfg.ListenPace)
	defer pace.Stop()
	look := time.NewTicker(h.cfg.ListenLook)
	defer look.Stop()
	again := time.NewTicker(h.cfg.ListenAgain)
	defer again.Stop()
	list := h.allowedNames(c)
	idle := true // nothing was told since the last tick: the next change is told at once
	tell := func() {
		if pending.empty() {
			return
		}
		if pending.gap {
			now := f.newest(ctx)
			pending.list, newest = now != newest || c.scope.Nodes.All(), now
		}
		f.tell(ctx, &pending)
		pending.clear()
		idle = false
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
			switch {
			case ch.Tenant != c.scope.Tenant:
			case ch.Event == events.ID{} || len(pending.changes) >= maxChanges:
				pending.gap = true
			default:
				pending.changes[ch.Event] = ch.Node
			}
		case uri := <-moved:
			pending.tickets[uri] = true
		case <-again.C:
			if !f.same(ctx) {
				return
			}
		case <-look.C:
			list = f.tellList(ctx, list)
		case <-pace.C:
			idle = true
		}
		if idle {
			tell()
		}
	}
}

// same reports whether the caller may still have the stream: its credential is
// good and gives what it gave, and MCP is on. Its client opens another one if
// it may.
func (f *feed) same(ctx context.Context) bool {
	if f.h.cfg.Again == nil || f.c.request == nil {
		return true
	}
	work, cancel := context.WithTimeout(ctx, shortTask)
	defer cancel()
	now, ok := f.h.cfg.Again(f.c.request.WithContext(work))
	return ok && now.Tenant == f.c.scope.Tenant && now.Granted == f.c.scope.Granted && reflect.DeepEqual(now.Nodes, f.c.scope.Nodes) &&
		f.h.switchedOff(work, now) == nil
}

// tellList tells the stream when the caller's list of tools is another one
// than it was, and returns what it is now.
func (f *feed) tellList(ctx context.Context, was string) string {
	if !f.tools {
		return was
	}
	work, cancel := context.WithTimeout(ctx, shortTask)
	defer cancel()
	c := f.c
	c.runs = f.h.runs(work, c.scope.Tenant)
	now := f.h.allowedNames(c)
	if now == was || work.Err() != nil {
		return was
	}
	if f.marked = !f.marked; f.marked {
		c.server.AddTool(listMark, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return nil, fault.New(fault.NotFound, "unknown_tool", "no such tool")
		})
	} else {
		c.server.RemoveTools(listMark.Name)
	}
	return now
}

// newest sums up the youngest events that a limited caller sees, so that a gap
// in the hints tells it nothing of the nodes that it does not see.
func (f *feed) newest(ctx context.Context) string {
	if f.c.scope.Nodes.All() || !slices.Contains(f.uris, recentURI) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, shortTask)
	defer cancel()
	page, err := f.h.cfg.Services.Events.List(ctx, f.c.scope, events.ListQuery{Limit: recentRows})
	if err != nil {
		return ""
	}
	var sum strings.Builder
	for _, e := range page.Events {
		fmt.Fprintf(&sum, "%s %d %d %s %s\n", e.ID, e.Last.UnixNano(), e.Cumulative, e.State, e.Severity)
	}
	return sum.String()
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
func (f *feed) tell(ctx context.Context, n *news) {
	h, c := f.h, f.c
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
	for _, uri := range f.uris {
		kind, event, ticket := splitURI(uri)
		changed := false
		switch kind {
		case recentEvents:
			changed = n.list
			for id, node := range n.changes {
				if changed = changed || visible(id, node); changed {
					break
				}
			}
		case eventContext:
			if node, ok := n.changes[event]; ok {
				changed = visible(event, node)
			} else if n.gap {
				changed = h.seesEvent(work, c.scope, event)
			}
		case taskResult:
			changed = n.tickets[uri] && h.seesTask(work, c.scope, ticket)
		}
		if !changed {
			continue
		}
		if err := c.server.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
			h.log.DebugContext(ctx, "an update was not told", "error", err, "reference", c.reference)
		}
	}
}
