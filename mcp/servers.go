package mcp

import (
	"context"
	_ "embed"
	"fmt"
	"sort"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
)

//go:embed instructions.md
var instructions string

// serverCache keeps one SDK server for every (tenant, scopes, tools) in use.
// Making one costs far more than a call, and what a server announces reaches
// only the streams of that same server.
type serverCache struct {
	mu      sync.Mutex
	max     int
	clock   uint64
	entries map[string]*cachedServer
	schemas *sdk.SchemaCache
	evicted uint64
}

type cachedServer struct {
	server *sdk.Server
	used   uint64
}

func newServerCache(limit int) *serverCache {
	return &serverCache{max: limit, entries: map[string]*cachedServer{}, schemas: sdk.NewSchemaCache()}
}

// get returns the server of a key and makes it when there is none. The least
// recently used one leaves a full cache; requests that hold it end normally.
func (c *serverCache) get(key string, build func(*sdk.SchemaCache) *sdk.Server) *sdk.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	if e, ok := c.entries[key]; ok {
		e.used = c.clock
		return e.server
	}
	if len(c.entries) >= c.max {
		oldest := ""
		for k, e := range c.entries {
			if oldest == "" || e.used < c.entries[oldest].used {
				oldest = k
			}
		}
		delete(c.entries, oldest)
		c.evicted++
	}
	s := build(c.schemas)
	c.entries[key] = &cachedServer{server: s, used: c.clock}
	return s
}

// allowed lists the tools of a caller: what its scopes and the URL leave over.
func (h *Handler) allowed(scope tenants.Scope, v view) (list []Tool, names []string) {
	names = []string{}
	for _, t := range h.tools {
		if v.shows(t) && scope.Granted.Has(t.Scope) {
			list = append(list, t)
			names = append(names, t.Name)
		}
	}
	sort.Strings(names)
	return list, names
}

// server picks the caller's server.
func (h *Handler) server(scope tenants.Scope, v view) *sdk.Server {
	list, names := h.allowed(scope, v)
	key := fmt.Sprintf("%s|%s|%s|%t", scope.Tenant, scope.Granted.Effective(), strings.Join(names, ","), v.schemas)
	return h.servers.get(key, func(schemas *sdk.SchemaCache) *sdk.Server {
		return h.build(list, scope.Granted.Has(tenants.Read), v.schemas, schemas)
	})
}

// build makes one server. It advertises what is registered and nothing else:
// no logging, and no list-changed messages while nothing ever changes a list.
func (h *Handler) build(allowed []Tool, read, withSchemas bool, schemas *sdk.SchemaCache) *sdk.Server {
	caps := &sdk.ServerCapabilities{}
	opts := &sdk.ServerOptions{
		Instructions: strings.TrimSpace(instructions),
		Capabilities: caps,
		SchemaCache:  schemas,
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.CacheScope, c.TTLMs = "private", 0 },
	}
	if len(allowed) > 0 {
		caps.Tools = &sdk.ToolCapabilities{}
	}
	if read {
		caps.Resources = &sdk.ResourceCapabilities{}
		opts.CompletionHandler = h.complete
		if h.watchable() {
			subscribable(opts)
		}
		if len(h.prompts) > 0 {
			caps.Prompts = &sdk.PromptCapabilities{}
		}
	}
	if find(allowed, checkTask) != nil {
		caps.AddExtension(handleExtension, nil)
	}
	s := sdk.NewServer(&sdk.Implementation{Name: "telltale", Title: "Telltale", Version: h.cfg.Version}, opts)
	for _, t := range allowed {
		s.AddTool(t.word(withSchemas), h.guard(t))
	}
	if read {
		h.addResources(s)
		h.addEventResources(s)
		h.addPrompts(s)
	}
	if err := h.addHandles(s, allowed); err != nil {
		panic(err) // the names of the methods are constants
	}
	if h.cfg.Extra != nil {
		h.cfg.Extra(s)
	}
	s.AddReceivingMiddleware(h.recoverer, legacy, h.handles)
	return s
}
