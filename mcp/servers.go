package mcp

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"unique"

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

	mu    sync.Mutex
	lists map[string]unique.Handle[string] // what the SDK answered to tools/list, by the protocol's version
}

// list is the result of a plain tools/list, if the SDK has written it once.
func (s *cachedServer) list(version string) (result string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, ok := s.lists[version]
	if !ok {
		return "", false
	}
	return kept.Value(), true
}

// keep takes the event with which the SDK answered a plain tools/list. What a
// server lists never changes: a change in the fleet makes another server. The
// servers of many tenants list the same, and then share it.
func (s *cachedServer) keep(version string, event []byte) {
	event, begins := bytes.CutPrefix(event, []byte(eventOpen))
	event, ends := bytes.CutSuffix(event, []byte(eventEnd))
	var answer struct {
		Result json.RawMessage `json:"result"`
	}
	if !begins || !ends || json.Unmarshal(event, &answer) != nil || len(answer.Result) == 0 {
		return // an error is none to keep
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lists == nil {
		s.lists = map[string]unique.Handle[string]{}
	}
	s.lists[version] = unique.Make(string(answer.Result))
}

func newServerCache(limit int) *serverCache {
	return &serverCache{max: limit, entries: map[string]*cachedServer{}, schemas: sdk.NewSchemaCache()}
}

// get returns the server of a key and makes it when there is none. The least
// recently used one leaves a full cache; requests that hold it end normally.
func (c *serverCache) get(key []byte, build func(*sdk.SchemaCache) *sdk.Server) *cachedServer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	if e, ok := c.entries[string(key)]; ok {
		e.used = c.clock
		return e
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
	s := &cachedServer{server: build(c.schemas), used: c.clock}
	c.entries[string(key)] = s
	return s
}

// sees reports whether a caller may call a tool: what its scopes, the URL and
// the fleet leave over of what the server offers.
func (c *caller) sees(t *Tool) bool { return c.scope.Granted.Has(t.Scope) && c.view.exists(t, &c.runs) }

// allowed lists the tools of a caller.
func (h *Handler) allowed(c *caller) []Tool {
	list := []Tool{}
	for i := range h.tools {
		if c.sees(&h.tools[i]) {
			list = append(list, h.tools[i])
		}
	}
	return list
}

// allowedNames writes the names of a caller's tools, always in the order of the
// table.
func (h *Handler) allowedNames(c caller) string { return string(h.appendNames(nil, &c)) }

func (h *Handler) appendNames(to []byte, c *caller) []byte {
	for i := range h.tools {
		if c.sees(&h.tools[i]) {
			to = append(append(to, h.tools[i].Name...), ',')
		}
	}
	return to
}

// server picks the caller's server by its tenant, its scopes and the names of
// its tools. A change in the fleet makes another key, and the old server goes
// when nobody asks for it.
func (h *Handler) server(c *caller) *cachedServer {
	key := make([]byte, 0, 1024)
	key = append(key, c.scope.Tenant[:]...)
	key = append(strconv.AppendUint(key, uint64(c.scope.Granted.Effective()), 10), ',')
	key = h.appendNames(strconv.AppendBool(key, c.view.schemas), c)
	return h.servers.get(key, func(schemas *sdk.SchemaCache) *sdk.Server {
		return h.build(h.allowed(c), c.scope.Granted.Has(tenants.Read), c.view.schemas, schemas)
	})
}

// build makes one server. It advertises what is registered and nothing else:
// no logging, and list-changed messages only where the fleet changes a list.
func (h *Handler) build(allowed []Tool, read, withSchemas bool, schemas *sdk.SchemaCache) *sdk.Server {
	caps := &sdk.ServerCapabilities{}
	opts := &sdk.ServerOptions{
		Instructions: strings.TrimSpace(instructions),
		Capabilities: caps,
		SchemaCache:  schemas,
		SetCacheable: func(_ context.Context, _ sdk.Request, c *sdk.Cacheable) { c.CacheScope, c.TTLMs = "private", 0 },
	}
	if len(allowed) > 0 {
		caps.Tools = &sdk.ToolCapabilities{ListChanged: h.listChanges()}
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
	s := sdk.NewServer(h.cfg.implementation(), opts)
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
