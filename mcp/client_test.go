package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/telltale-dev/telltale/tenants"
)

// TestBothEras drives a real client through all that is offered, in every
// version from the first to the newest.
func TestBothEras(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(12)}, nil)
	for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			s := connect(t, w.URL+"/t/acme/mcp/", "read", version)
			init := s.InitializeResult()
			if init.ProtocolVersion != version || init.ServerInfo.Name != "telltale" || init.ServerInfo.Version != "1.2.3" || !strings.Contains(init.Instructions, "fleet_overview") {
				t.Errorf("negotiated %+v", init)
			}
			caps := init.Capabilities
			// What is not registered is not there: no logging, no prompts.
			if raw, err := json.Marshal(caps); err != nil || string(raw) != `{"completions":{},"resources":{},"tools":{}}` {
				t.Errorf("capabilities %s (%v)", raw, err)
			}
			tools, err := s.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) != 7 {
				t.Fatalf("%v, %d tools", err, len(tools.Tools))
			}
			if version == modernVersion && (tools.CacheScope != "private" || tools.TTLMs != 0) {
				t.Errorf("cacheable %+v", tools.Cacheable)
			}
			if res := call(t, s, "list_nodes", `{"limit":2}`); res.IsError || !strings.Contains(textOf(t, res), "node-001") {
				t.Errorf("list_nodes: %s", textOf(t, res))
			}
			if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "no_such_tool"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
				t.Errorf("unknown tool: %v", err)
			}
			resources(t, s, version)
			if err := s.Ping(t.Context(), nil); version != modernVersion && err != nil {
				t.Errorf("ping: %v", err)
			}
		})
	}
}

func resources(t *testing.T, s *sdk.ClientSession, version string) {
	t.Helper()
	list, err := s.ListResources(t.Context(), nil)
	if err != nil || len(list.Resources) != 6 {
		t.Fatalf("resources: %v %d", err, len(list.Resources))
	}
	templates, err := s.ListResourceTemplates(t.Context(), nil)
	if err != nil || len(templates.ResourceTemplates) != 1 {
		t.Fatalf("templates: %v", err)
	}
	uris := []string{nodePrefix + "node-003"}
	for _, r := range list.Resources {
		uris = append(uris, r.URI)
	}
	for _, uri := range uris {
		res, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil || len(res.Contents) != 1 || !json.Valid([]byte(res.Contents[0].Text)) || res.Contents[0].MIMEType != "application/json" || len(res.Contents[0].Text) > tenants.MaxAnswerBytes {
			t.Errorf("%s: %v %+v", uri, err, res)
			continue
		}
		if version == modernVersion && res.CacheScope != "private" {
			t.Errorf("%s: cacheable %+v", uri, res.Cacheable)
		}
	}
	for _, uri := range []string{nodePrefix + "nobody", nodePrefix, "telltale://metrics/gpu", "telltale://elsewhere"} {
		if _, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s can be read", uri)
		}
	}
	c, err := s.Complete(t.Context(), &sdk.CompleteParams{Ref: &sdk.CompleteReference{Type: "ref/resource", URI: nodePrefix + "{node}"}, Argument: sdk.CompleteParamsArgument{Name: "node", Value: "node-"}})
	if err != nil || len(c.Completion.Values) != 12 {
		t.Errorf("completion: %v %+v", err, c)
	}
}

// TestServersAreKept proves that one server answers all calls of the same
// tenant, scopes and URL, that others get their own, and that the cache has a
// bound.
func TestServersAreKept(t *testing.T) {
	w := start(t, stub{}, func(c *Config) { c.ServerCache = 3 })
	for range 5 {
		w.post(t, "read", "", listCall)
		w.post(t, "read", "?toolsets=observe", listCall) // the same tools: the same server
	}
	if n := len(w.h.servers.entries); n != 1 {
		t.Errorf("%d servers for one caller", n)
	}
	for _, query := range []string{"?exclude=get_node", "?schemas=1", "?exclude=list_nodes", "?exclude=query_metrics"} {
		w.post(t, "read", query, listCall)
	}
	if n := len(w.h.servers.entries); n != 3 || w.h.servers.evicted != 2 {
		t.Errorf("%d servers kept, %d evicted", n, w.h.servers.evicted)
	}
}

func TestManyAtOnce(t *testing.T) {
	w := start(t, stub{nodes: stubNodes(5)}, func(c *Config) { c.ServerCache = 2 })
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 5 {
				bearer := []string{"read", "read,diagnose", "admin", "act"}[(i+j)%4]
				r := w.post(t, bearer, "", toolCall("list_nodes", fmt.Sprintf(`{"limit":%d}`, j+1)))
				if r.status != 200 || !strings.Contains(r.body, "node-000") {
					t.Errorf("%d %s", r.status, r.body)
				}
			}
		})
	}
	wg.Wait()
}

// TestListenIsHonest: without events nothing changes that a client could wait for, so the
// acknowledgement offers nothing and the stream ends.
func TestListenIsHonest(t *testing.T) {
	w := start(t, stub{}, nil)
	body, header := modernMeta("subscriptions/listen", `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["telltale://health"]}`)
	r := w.post(t, "read", "", body, header...)
	if r.status != 200 || !strings.Contains(r.body, "notifications/subscriptions/acknowledged") || strings.Contains(r.body, "telltale://health") || !strings.Contains(r.body, `"id":7`) {
		t.Errorf("%d %s", r.status, r.body)
	}
}
